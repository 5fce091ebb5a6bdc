"""Two-player games for self-play: rock, paper, scissors over several rounds."""

from __future__ import annotations

import numpy as np

from rollmill.core.fields import ActionSpec, Array, EnvSpec, Field, Obs
from rollmill.core.protocols import StepReturn

PAYS = np.array([[0, -1, 1], [1, 0, -1], [-1, 1, 0]], np.float32)
"""What the first hand gets against the second: rock, paper, scissors."""


class Duel:
    """Every agent sees the other one's last hand; ``length`` rounds, or up to as many more by chance.

    ``agents``: 2, or 4 in two teams of neighbours, where team mates share their hands' mean. ``crash``: chance of an
    exception in a step.
    """

    def __init__(self, length: int = 4, more: int = 0, agents: int = 2, crash: float = 0.0) -> None:
        self.length, self.more, self.crash, self.agents = length, more, crash, agents
        self._crashes = np.random.default_rng(0)
        self.spec = EnvSpec(
            name="duel",
            observation=(Field("obs", "float32", (4,)),),
            action=ActionSpec("discrete", nvec=(3,), start=(0,)),
            agents=agents,
        )

    def reset(self, seed: int, obs: Obs) -> None:
        self._rng = np.random.default_rng(seed)
        self._end = self.length + int(self._rng.integers(self.more + 1))
        self._t = 0
        self._hands = np.full(self.agents, 3)
        self._see(obs)

    def _see(self, obs: Obs) -> None:
        half = self.agents // 2
        obs["obs"][:] = np.eye(4, dtype=np.float32)[np.roll(self._hands, half)]

    def step(self, action: Array, obs: Obs) -> StepReturn:
        if self._crashes.random() < self.crash:
            raise RuntimeError("crashed")
        self._t += 1
        self._hands = np.asarray(action).reshape(self.agents).copy()
        half = self.agents // 2
        gain = float(np.mean(PAYS[self._hands[:half], self._hands[half:]]))
        reward = np.array([gain] * half + [-gain] * half, np.float32)
        self._see(obs)
        over = self._t >= self._end
        return reward, over, False, {}

    def render(self) -> Array | None:
        return None

    def close(self) -> None:
        return None


class Shaped(Duel):
    """The reward is the opposite of what is won: only the statistics of the episode tell who is ahead at its end."""

    def reset(self, seed: int, obs: Obs) -> None:
        super().reset(seed, obs)
        self._points = np.zeros(self.agents)

    def step(self, action: Array, obs: Obs) -> StepReturn:
        gain, over, truncated, info = super().step(action, obs)
        self._points += gain
        if over:
            info = {"episode_stats": {"points": self._points.tolist(), "rounds": self._t}}
        return -np.asarray(gain), over, truncated, info


def always_rock(_spec: EnvSpec):
    return lambda _seen: 0


def by_memory(_spec: EnvSpec):
    """Plays one hand after the other, beginning anew with every episode."""

    class Counting:
        def reset(self, seed: int) -> None:
            self.count = 0

        def __call__(self, _seen: Array) -> int:
            self.count += 1
            return (self.count - 1) % 3

    return Counting()


def prefers_old(candidates):
    """A rule: the oldest model only."""
    return [1.0] + [0.0] * (len(candidates) - 1)
