"""Several policies as one: each has agents of its own, always the same (``env.policies``) or others each episode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rollmill.core.fields import Array
from rollmill.core.protocols import ActRequest, Policy, PolicyOutput
from rollmill.core.shapes import MAPPING, check_shape
from rollmill.core.slots import Arena
from rollmill.sampling.schedule import EpisodeSchedule


class PolicyPerAgent(Policy):
    """Asks policy ``owners[a]`` about the lanes of agent ``a``; lanes count the agents of one environment first."""

    version = 0

    def __init__(self, members: Sequence[Policy], owners: Sequence[int]) -> None:
        if sorted(set(owners)) != list(range(len(members))):
            raise ValueError(f"{len(members)} policies, and agents that are played by {sorted(set(owners))}")
        self._members = members
        self._owners = np.asarray(owners)
        self.version = max(member.version for member in members)
        self.state_size = members[0].state_size

    def attach(self, arena: Arena) -> None:
        for member in self._members:
            member.attach(arena)

    def detach(self) -> None:
        for member in self._members:
            member.detach()

    def refresh(self) -> int:
        self.version = max(member.refresh() for member in self._members)
        return self.version

    def state(self) -> dict[str, Any]:
        return {"members": [member.state() for member in self._members]}

    def load_state(self, state: Mapping[str, Any]) -> None:
        check_shape(state, {"members": [MAPPING]})
        for member, own in zip(self._members, state["members"], strict=True):
            member.load_state(own)

    def act(self, request: ActRequest) -> PolicyOutput:
        owner = self._owner(request)
        parts = [np.nonzero(owner == k)[0] for k in range(len(self._members))]
        asked = [(mine, member) for mine, member in zip(parts, self._members, strict=True) if mine.size]
        answers = [(mine, member.act(request.part(mine))) for mine, member in asked]
        return PolicyOutput(
            action=_joined(owner.size, [(mine, answer.action) for mine, answer in answers]),
            log_prob=_joined(owner.size, [(mine, answer.log_prob) for mine, answer in answers]),
            value=_joined(owner.size, [(mine, answer.value) for mine, answer in answers]),
            state=_states(owner.size, answers) if self.state_size else None,
        )

    def _owner(self, request: ActRequest) -> Array:
        """Return ``[n]``, which policy acts for each lane of the request."""
        owner: Array = self._owners[request.lanes % len(self._owners)]
        return owner


class PolicyPerEpisode(PolicyPerAgent):
    """Who plays whom goes by the number of the episode; hands change at the first row of an episode and never within.

    ``seats[n % len(seats)]`` names a policy for every agent of episode ``n``. Policies may be of different kinds, so
    recurrent states stay with them and are not stored with the rows.
    """

    def __init__(self, members: Sequence[Policy], seats: Array, schedule: EpisodeSchedule) -> None:
        super().__init__(members, seats.ravel().tolist())
        self._seats, self._schedule = seats, schedule
        self._owner_of_lane = np.zeros(schedule.envs * seats.shape[1], np.int64)
        self.state_size = 0

    def _owner(self, request: ActRequest) -> Array:
        agents = self._seats.shape[1]
        for k in np.flatnonzero(request.first).tolist():
            env, agent = divmod(int(request.lanes[k]), agents)
            number = self._schedule.number(env, int(request.episode[k]))
            self._owner_of_lane[request.lanes[k]] = self._seats[number % len(self._seats), agent]
        owner: Array = self._owner_of_lane[request.lanes]
        return owner


def lane_owners(owners: Sequence[int], groups: int, lanes: int) -> Array:
    """Return ``[groups, lanes]`` int16, which policy acts for every lane, where groups are whole environments."""
    owner: Array = np.tile(np.asarray(owners, np.int16), groups * lanes // len(owners)).reshape(groups, lanes)
    return owner


def _states(count: int, answers: Sequence[tuple[Array, PolicyOutput]]) -> Array | None:
    known = [(mine, answer.state) for mine, answer in answers if answer.state is not None]
    return _joined(count, known) if len(known) == len(answers) else None


def _joined(count: int, parts: Sequence[tuple[Array, Array]]) -> Array:
    """Put together ``[count, ...]`` from (positions, rows) that cover it."""
    first = parts[0][1]
    whole = np.empty((count, *first.shape[1:]), first.dtype)
    for mine, rows in parts:
        whole[mine] = rows
    return whole
