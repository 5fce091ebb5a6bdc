"""Several policies as one: who is asked about which lanes, and that answers come back in their places."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rollmill.core.protocols import ActRequest, Policy, PolicyOutput
from rollmill.core.seeds import Seeds
from rollmill.sampling.policies.per_agent import PolicyPerAgent, PolicyPerEpisode, lane_owners
from rollmill.sampling.schedule import EpisodeSchedule


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


def test_hands_change_with_the_number_of_the_episode_and_at_its_first_row_only() -> None:
    """Two envs of two agents; episode n of env e has number e + 2 n."""
    members = [Member(k, state_size=k) for k in range(3)]  # of different kinds: states stay with them
    seats = np.array([[0, 1], [1, 0], [2, 0]])
    policy = PolicyPerEpisode(members, seats, EpisodeSchedule(Seeds(1), envs=2))

    def asked(first: list[bool], episode: list[int]) -> list[float]:
        none = np.zeros(0, np.int64)
        obs = {"obs": np.zeros(4, np.float32)}
        lanes = np.arange(4)
        found = ActRequest(np.array(first), lanes, none, none, none, none, lambda: obs, lambda: np.array(episode))
        answer = policy.act(found)
        assert answer.state is None
        owners: list[float] = answer.action[:, 0].tolist()
        return owners

    assert asked([True] * 4, [0] * 4) == [0, 1, 1, 0]
    assert asked([False] * 4, [0] * 4) == [0, 1, 1, 0]
    assert asked([True, True, False, False], [1, 1, 0, 0]) == [2, 0, 1, 0], "number 2"
    assert asked([False, False, True, True], [1, 1, 1, 1]) == [2, 0, 0, 1], "number 3: the first seating again"
