"""Proof that no row is lost, doubled or mixed up: a policy that marks its answers, and a plain-loop oracle.

Used with ``faulty_envs:Marker``, whose observations say which env, agent, episode and step they belong to.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from faulty_envs import Marker

from rollmill.core.fields import Array, EnvSpec
from rollmill.core.protocols import ActRequest
from rollmill.core.seeds import Seeds
from rollmill.core.slots import OBS, Arena

Segment = dict[str, Array]


@dataclass
class MarkedOutput:
    action: Array
    log_prob: Array
    value: Array
    state: Array | None


class MarkPolicy:
    """Random actions; value, log-probability and state are functions of the observation answered."""

    state_size = 2

    def __init__(self, spec: EnvSpec, seed: int = 0, offset: float = 0.0) -> None:
        self.version = 0
        self.lanes: list[int] = []
        self._spec, self._offset = spec, offset
        self._rng = np.random.default_rng(seed)

    def act(self, request: ActRequest) -> MarkedOutput:
        where = request.obs["where"].copy()
        np.testing.assert_array_equal(request.lanes, where[:, 0] * self._spec.agents + where[:, 1])
        np.testing.assert_array_equal(request.first, where[:, 3] == 0)
        self.lanes += request.lanes.tolist()
        action = self._rng.integers(5, size=len(where))
        value = value_of(where) + self._offset
        return MarkedOutput(action, -value, value, state_of(where))

    def refresh(self) -> int:
        return self.version

    def attach(self, arena: Arena) -> None: ...

    def detach(self) -> None: ...


def value_of(where: Array) -> Array:
    return (where @ np.array([100, 10, 3, 0.5, 0.125])).astype(np.float32)


def state_of(where: Array) -> Array:
    return np.stack([where[..., 0], 100 * where[..., 2] + where[..., 3]], axis=-1).astype(np.float32)


class LaneOracle:
    """What one env's lanes must look like, step by step, in the plainest possible way."""

    def __init__(self, env: int, agents: int, seeds: Seeds, longest: int) -> None:
        self.env, self.agents, self.seeds, self.longest = env, agents, seeds, longest
        self.episode, self.t = 0, 0
        self.last = [-1.0] * agents
        self.over = [False] * agents
        self.steps = [0] * agents
        self.returns = [0.0] * agents

    def observation(self, agent: int) -> list[float]:
        return [self.env, agent, self.episode, self.t, self.last[agent]]

    def seed(self) -> int:
        return self.seeds.branch(self.env).branch("episode", self.episode).integer()

    def step(self, actions: Array) -> list[dict[str, float]]:
        """The outcome of each agent's row; moves on to the next observation."""
        blank = {"reward": 0.0, "terminated": False, "truncated": False, "valid": False, "episode_return": np.nan}
        outcomes = [dict(blank) for _ in range(self.agents)]
        if all(self.over):
            self.episode, self.t = self.episode + 1, 0
            self.last = [-1.0] * self.agents
            self.over = [False] * self.agents
            self.steps = [0] * self.agents
            self.returns = [0.0] * self.agents
            return outcomes
        for agent in range(self.agents):
            if self.over[agent]:
                continue
            reward = float(Marker.reward_of(np.array(self.observation(agent), np.float32), actions[agent]))
            ended = self.t + 1 >= Marker.length(self.env, self.episode, agent, self.longest)
            self.steps[agent] += 1
            self.returns[agent] += reward
            outcomes[agent] = {
                "reward": reward,
                "terminated": ended and self.episode % 2 == 0,
                "truncated": ended and self.episode % 2 == 1,
                "valid": True,
                "episode_return": self.returns[agent] if ended else np.nan,
            }
            self.over[agent] = ended
        self.t += 1
        self.last = [float(action) for action in actions]
        return outcomes


def check_stream(
    segments: list[Segment],
    envs: range,
    agents: int,
    seeds: Seeds,
    longest: int = 9,
    every: int = 0,
    offset: float | None = 0,
) -> int:
    """Check consecutive segments of one group against the oracle, row by row; returns the rows checked.

    ``offset`` None: the answers are not those of a ``MarkPolicy``.
    """
    oracles = [LaneOracle(env, agents, seeds, longest) for env in envs]
    rows = 0
    for before, segment in zip([None, *segments], segments):
        steps = segment["reward"].shape[0] - 1
        if before is not None:
            check_turn_over(before, segment)
        for row in range(steps):
            for i, oracle in enumerate(oracles):
                _check_row(segment, row, i * agents, oracle)
                rows += agents
        if offset is not None:
            check_outputs(segment, every, offset)
    return rows


def check_turn_over(before: Segment, after: Segment) -> None:
    """The bootstrap row of a segment is row 0 of the next: same observation, same value."""
    for name in before:
        if name.startswith(OBS) or name in ("first", "step", "episode", "value", "version", "policy_id", "frames"):
            np.testing.assert_array_equal(before[name][-1], after[name][0], name)


def check_outputs(segment: Segment, every: int, offset: float = 0.0) -> None:
    """What the policy said stands beside the observation it was asked about."""
    where = segment[OBS + "where"]
    np.testing.assert_array_equal(segment["value"], value_of(where) + np.float32(offset))
    np.testing.assert_array_equal(segment["log_prob"][:-1], -(value_of(where[:-1]) + np.float32(offset)))
    steps = where.shape[0] - 1
    np.testing.assert_array_equal(segment["state"], state_of(where[:-1][:: every or steps]))
    assert (np.diff(segment["frames"][:, 0]) > 0).all()


def _check_row(segment: Segment, row: int, lane: int, oracle: LaneOracle) -> None:
    lanes = slice(lane, lane + oracle.agents)
    for agent in range(oracle.agents):
        at = (row, lane + agent)
        assert segment[OBS + "where"][at].tolist() == oracle.observation(agent)
        assert segment[OBS + "seed"][at] == oracle.seed()
        assert segment["first"][at] == (oracle.t == 0)
        assert segment["step"][at] == oracle.steps[agent]
        assert segment["episode"][at] == oracle.episode
    for agent, outcome in enumerate(oracle.step(segment["action"][row, lanes])):
        for name, value in outcome.items():
            np.testing.assert_allclose(segment[name][row, lane + agent], value, rtol=1e-6, err_msg=f"{name} {row}")
