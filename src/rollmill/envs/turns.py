"""Players who take turns: PettingZoo's AEC environments with a row for everybody at every step.

Whoever waits has a single allowed action, 0, which is not read, and is rewarded for what the others do meanwhile
(``docs/decisions/0028-players-who-wait.md``). The field ``turn`` says whose move it is, as networks never see masks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from rollmill.core.errors import ConfigError, EnvError
from rollmill.core.fields import MASK_FIELD, Array

TURN_FIELD = "turn"
_SEEN = "observation"


def waiting_mask(choices: int) -> Array:
    """Return ``[choices]`` int8, the mask that allows only action 0."""
    mask = np.zeros(choices, np.int8)
    mask[0] = 1
    return mask


class TakingTurns:
    """An AEC environment that is asked like a parallel one: all at once, of which one answer is used."""

    def __init__(self, env: Any, name: str) -> None:
        self._env = env
        self.possible_agents = list(env.possible_agents)
        self._choices: dict[str, spaces.Discrete] = {}
        self._spaces: dict[str, spaces.Dict] = {}
        for agent in self.possible_agents:
            choice, seen = env.action_space(agent), env.observation_space(agent)
            if not isinstance(choice, spaces.Discrete):
                raise ConfigError(f"{name}: players who take turns need Discrete actions, {agent} has {choice}")
            own = dict(seen.spaces) if isinstance(seen, spaces.Dict) else {_SEEN: seen}
            own[MASK_FIELD] = spaces.Box(0, 1, (int(choice.n),), np.int8)
            own[TURN_FIELD] = spaces.Box(0, 1, (1,), np.uint8)
            self._choices[agent], self._spaces[agent] = choice, spaces.Dict(own)

    @property
    def render_mode(self) -> str | None:
        mode: str | None = getattr(self._env, "render_mode", None)
        return mode

    def observation_space(self, agent: str) -> spaces.Dict:
        return self._spaces[agent]

    def action_space(self, agent: str) -> spaces.Discrete:
        return self._choices[agent]

    def reset(self, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
        self._env.reset(seed=seed)
        return {agent: self._see(agent) for agent in self._env.agents}, {}

    def step(self, actions: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        env, asked = self._env, list(self._env.agents)
        env.step(actions[env.agent_selection])
        rewards = {agent: env.rewards.get(agent, 0.0) for agent in asked}
        over, cut = dict(env.terminations), dict(env.truncations)
        last = {agent: self._see(agent) for agent in asked if over.get(agent) or cut.get(agent)}
        while env.agents and (env.terminations[env.agent_selection] or env.truncations[env.agent_selection]):
            env.step(None)  # takes leave of one who is done
        seen = {agent: last.get(agent) or self._see(agent) for agent in asked}
        return seen, rewards, over, cut, {}

    def render(self) -> Any:
        return self._env.render()

    def close(self) -> None:
        self._env.close()

    def _see(self, agent: str) -> dict[str, Any]:
        """Return what an agent sees, its mask and whether it moves; whoever waits or is done has only action 0."""
        env = self._env
        seen = env.observe(agent)
        own = dict(seen) if isinstance(seen, Mapping) else {_SEEN: seen}
        done = env.terminations.get(agent) or env.truncations.get(agent)
        moves = bool(env.agents) and env.agent_selection == agent and not done
        if not moves:
            own[MASK_FIELD] = waiting_mask(int(self._choices[agent].n))
        elif MASK_FIELD not in own:
            own[MASK_FIELD] = self._mask_of(agent)
        own[TURN_FIELD] = np.array([moves], np.uint8)
        return own

    def _mask_of(self, agent: str) -> Array:
        """Return an agent's mask, which environments may tell in ``infos``; without one everything is allowed."""
        choices = int(self._choices[agent].n)
        found = np.asarray(self._env.infos.get(agent, {}).get(MASK_FIELD, np.ones(choices, np.int8)))
        if found.shape != (choices,):
            raise EnvError(f"infos[{agent!r}][{MASK_FIELD!r}] has shape {found.shape}, expected ({choices},)")
        return found.astype(np.int8)
