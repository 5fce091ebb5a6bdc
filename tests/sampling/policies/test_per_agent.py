"""Several policies as one: who is asked about which lanes, and that answers come back in their places."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rollmill.core.protocols import ActRequest, Policy, PolicyOutput
from rollmill.sampling.policies.per_agent import PolicyPerAgent, lane_owners


class Member(Policy):
    """Answers with its own number and what it was shown."""

    version = 0

    def __init__(self, number: int, state_size: int = 2) -> None:
        self.number, self.state_size, self.version = number, state_size, number
        self.log: list[Any] = []

    def attach(self, arena: Any) -> None:
        self.log.append("attach")

    def detach(self) -> None:
        self.log.append("detach")

    def refresh(self) -> int:
        self.version += 10
        return self.version

    def act(self, request: Any) -> PolicyOutput:
        self.log.append(request.lanes.tolist())
        seen = request.obs["obs"]
        number = np.full(len(seen), self.number, np.float32)
        state = np.stack([number, number], 1) if self.state_size else None
        return PolicyOutput(np.stack([number, seen], 1), number, seen + request.first, state)


def request(lanes: list[int]) -> ActRequest:
    none = np.zeros(0, np.int64)
    obs = {"obs": np.float32(lanes) * 10}
    first = np.array([lane % 2 == 0 for lane in lanes])
    return ActRequest(first, np.array(lanes), none, none, none, none, lambda: obs)


def test_every_lane_is_answered_by_its_owner() -> None:
    members = [Member(0), Member(1)]
    team = PolicyPerAgent(members, (0, 1, 1))
    answer = team.act(request([3, 4, 5, 0, 8]))
    assert members[0].log == [[3, 0]]
    assert members[1].log == [[4, 5, 8]]
    assert answer.action.tolist() == [[0, 30], [1, 40], [1, 50], [0, 0], [1, 80]]
    assert answer.log_prob.tolist() == [0, 1, 1, 0, 1]
    assert answer.value.tolist() == [30, 41, 50, 1, 81]
    assert answer.state is not None
    assert answer.state[:, 0].tolist() == [0, 1, 1, 0, 1]


def test_who_has_nothing_to_do_is_not_asked() -> None:
    members = [Member(0, 0), Member(1, 0)]
    answer = PolicyPerAgent(members, (0, 1)).act(request([0, 2]))
    assert members[1].log == []
    assert answer.state is None


def test_the_rest_is_passed_on() -> None:
    members = [Member(0), Member(1)]
    team = PolicyPerAgent(members, (1, 0))
    assert (team.version, team.state_size) == (1, 2)
    team.attach(None)  # type: ignore[arg-type]
    assert team.refresh() == team.version == 11
    team.detach()
    assert [member.log for member in members] == [["attach", "detach"]] * 2


def test_owners_must_fit() -> None:
    with pytest.raises(ValueError, match="2 policies, and agents that are played by"):
        PolicyPerAgent([Member(0), Member(1)], (0, 0))


def test_lanes_of_groups() -> None:
    assert lane_owners((0, 1, 1), 2, 6).tolist() == [[0, 1, 1, 0, 1, 1]] * 2
