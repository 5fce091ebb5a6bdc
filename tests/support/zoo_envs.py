"""Small parallel environments of PettingZoo's kind."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv


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
