"""Small parallel environments of PettingZoo's kind."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv


class Leaving(ParallelEnv):
    """Agent k sees (steps, k) and leaves after k + 2 steps; the last one is stopped by a limit."""

    metadata = {"name": "leaving"}
    render_mode = None

    def __init__(self, agents: int = 3, sizes: bool = False, silent: bool = False, late: bool = False) -> None:
        self.possible_agents = [f"a{k}" for k in range(agents)]
        self.sizes, self.silent, self.late = sizes, silent, late
        self.log: list[dict[str, Any]] = []

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        extra = int(agent[1:]) if self.sizes else 0
        return spaces.Box(-1, 100 + int(agent[1:]), (2 + extra,), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(2 + (int(agent[1:]) if self.sizes else 0), start=10)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.seed, self.t = seed, 0
        self.agents = self.possible_agents[: -1 if self.late else None]
        return self._see(self.agents), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        self.log.append(actions)
        self.t += 1
        asked, last = self.agents, self.possible_agents[-1]
        over = {agent: self.t >= int(agent[1:]) + 2 for agent in asked}
        terminated = {agent: over[agent] and agent != last for agent in asked}
        truncated = {agent: over[agent] and agent == last for agent in asked}
        self.agents = [agent for agent in asked if not over[agent]]
        shown = [agent for agent in asked if not (self.silent and agent == "a1")]
        return self._see(shown), dict.fromkeys(asked, 1.0), terminated, truncated, {}

    def _see(self, agents: list[str]) -> dict[str, Any]:
        sizes = {agent: self.observation_space(agent).shape[0] for agent in agents}
        return {agent: np.float32([self.t, int(agent[1:]), *[9] * (sizes[agent] - 2)]) for agent in agents}


def not_parallel() -> object:
    return object()


class Auction(AECEnv):
    """Three agents bid in turn; who bids less than the one before leaves and pays, the last one to stay is paid.

    No masks in what is seen: ``infos`` tells that bids may not go down after the first round, unless ``free``.
    """

    metadata = {"name": "auction", "is_parallelizable": False}
    render_mode = None

    def __init__(self, free: bool = True, numbers: bool = False) -> None:
        super().__init__()
        self.possible_agents = ["a0", "a1", "a2"]
        self.free, self.numbers = free, numbers

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(0, 9, (2,), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(0, 1, (1,)) if self.numbers else spaces.Discrete(4)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self.seed, self.bid, self.moves = seed, 0, 0
        self.agents = list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, Any] = {agent: {} for agent in self.agents}
        self.agent_selection = self.agents[0]

    def observe(self, agent: str) -> Any:
        return np.float32([self.bid, self.moves])

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        if self.terminations[agent]:
            self._was_dead_step(action)
            return
        self._clear_rewards()
        self.moves += 1
        following = self.agents[(self.agents.index(agent) + 1) % len(self.agents)]
        if action < self.bid:
            self.terminations[agent] = True
            self.rewards[agent] = -1.0
            if len(self.agents) == 2:
                self.terminations[following] = True
                self.rewards[following] = 3.0
        self.bid = max(self.bid, int(action))
        self.agent_selection = following
        if not self.free:
            self.infos[following] = {"action_mask": (np.arange(4) >= self.bid).astype(np.int8)}
        self._accumulate_rewards()
        self._deads_step_first()
