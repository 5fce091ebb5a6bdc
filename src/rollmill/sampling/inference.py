"""Infers actions for ready groups: gathers their newest rows, asks the policies once, writes the decisions.

This is also where a segment ends: when a group has filled row T, its observation there opens row 0
of a fresh slot, one decision serves both (the value at row T is the bootstrap), and the full slot
becomes a finished segment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import numpy as np

from rollmill.core.fields import Array
from rollmill.core.protocols import (
    Actor,
    ActRequest,
    Ensemble,
    GroupRows,
    InPlacePolicy,
    Matchmaker,
    Policy,
    PolicyOutput,
)
from rollmill.core.shapes import INTS, Shape, check_shape
from rollmill.core.slots import CARRIED_FIELDS, Arena
from rollmill.sampling.mailbox import Mailbox

SEATS_SHAPE: Shape = {"policy_id": INTS, "version": INTS, "opponent": INTS, "episode": INTS}


class Inference:
    """The acting side of the policies. Not thread-safe: one thread infers."""

    def __init__(
        self,
        arena: Arena,
        box: Mailbox,
        policies: Sequence[Actor],
        matchmaker: Matchmaker | None = None,
        policy_of_group: Sequence[int] = (),
        ensemble: Ensemble | None = None,
    ) -> None:
        """Ask one ``InPlacePolicy``, or any number of ``Policy``; only these can have a ``matchmaker``.

        ``policy_of_group``: where whole groups belong to one policy each; ``ensemble``: who asks all of these at once.
        """
        layout = arena.layout
        self._arena = arena
        self._box = box
        self._in_place = policies[0] if isinstance(policies[0], InPlacePolicy) else None
        self._policies = cast(Sequence[Policy], policies)
        self._lane_numbers = np.arange(layout.lanes)
        self.policy_of_lane = np.zeros((len(box.command), layout.lanes), np.int16)
        """[groups, L]: which policy acts for a lane."""
        self._owner_of_group = np.array(policy_of_group, np.int64)
        if policy_of_group:
            self.policy_of_lane[:] = self._owner_of_group[:, None]
        self._ensemble = ensemble
        self._matchmaker = matchmaker
        self._seats: dict[str, Array] = {
            "policy_id": self.policy_of_lane,
            "version": np.zeros(self.policy_of_lane.shape, np.int64),
            "opponent": np.zeros(self.policy_of_lane.shape, np.int16),
            "episode": np.full(self.policy_of_lane.shape, -1, np.int64),
        }
        """[groups, L] each, with self-play: who plays a lane against whom, and in which episode."""
        self.free: deque[int] = deque(range(len(box.command), arena.slots))
        self.frames = 0
        """Simulator frames decided so far; stamped on every row."""
        box.slot[:] = np.arange(len(box.command))
        self.group_of_slot = np.arange(arena.slots)
        """[slots]: the group that fills, or filled, a slot."""

    def full(self, groups: Array) -> Array:
        """Return, for each of these ready groups, whether it has filled its segment."""
        return np.asarray(self._box.row[groups] + 1 == self._arena.layout.steps)

    def servable(self, groups: Array) -> Array:
        """Return those ready groups that can go on: a full segment needs a free slot to continue in."""
        full = self.full(groups)
        if not full.any():
            return groups
        enough = np.cumsum(full) <= len(self.free)
        chosen: Array = groups[~full | enough]
        return chosen

    def infer(self, groups: Array) -> list[int]:
        """Decide for the newest row of each group; returns the slots that became finished segments."""
        box = self._box
        slots, rows = box.slot[groups], box.row[groups] + 1
        full = (rows == self._arena.layout.steps).nonzero()[0]
        if not full.size:
            self.decide(groups, slots, rows, None)
            box.row[groups] = rows
            return []
        finished = slots[full]
        closing = np.full(groups.size, -1)
        fresh = np.array([self.free.popleft() for _ in full])
        self._carry_over(finished, fresh)
        closing[full] = finished
        self.group_of_slot[fresh] = groups[full]
        slots[full], rows[full] = fresh, 0
        self.decide(groups, slots, rows, closing)
        for name in ("value", "version", "policy_id", "frames", *([] if self._matchmaker is None else ["opponent"])):
            self._arena[name][finished, -1] = self._arena[name][fresh, 0]
        box.slot[groups] = slots
        box.row[groups] = rows
        return [int(slot) for slot in finished]

    def infer_again(self, groups: Array) -> None:
        """Decide once more for rows that were decided and not sent yet: there are new weights.

        Opponents have none: what they have decided stands.
        """
        self.frames -= groups.size * self._arena.layout.lanes * self._arena.layout.spec.frames_per_step
        self.decide(groups, self._box.slot[groups], self._box.row[groups], None, again=True)

    def _carry_over(self, old: Array, new: Array) -> None:
        arena = self._arena
        for array in (*arena.obs.values(), *arena.info.values(), *(arena[name] for name in CARRIED_FIELDS)):
            array[new, 0] = array[old, -1]

    def decide(self, groups: Array, slots: Array, rows: Array, closing: Array | None, again: bool = False) -> None:
        """Ask the policies about these rows and write what they say; ``closing`` as in ``GroupRows``.

        ``again``: it was done before, and weights of the run's own policies have changed since.
        """
        layout = self._arena.layout
        self.frames += groups.size * layout.lanes * layout.spec.frames_per_step
        if self._in_place is not None:
            self._in_place.decide_in_place(
                GroupRows(groups, slots, rows, closing), lambda: self._stamp(self._stamps_of(0), slots, rows)
            )
            return
        if closing is None:
            closing = np.full(groups.size, -1)
        if self._owner_of_group.size:
            self._ask_by_group(groups, slots, rows, closing)
            return
        request = self._request(groups, slots, rows, closing)
        if self._matchmaker is not None:
            self._seat(request)
        elif len(self._policies) == 1:
            self._ask(0, request)
            return
        self._ask_by_lane(request, again)

    def _request(self, groups: Array, slots: Array, rows: Array, closing: Array) -> ActRequest:
        lanes = self._arena.layout.lanes
        return ActRequest(
            first=self._rows_of(self._arena["first"], slots, rows),
            lanes=(groups[:, None] * lanes + self._lane_numbers).ravel(),
            groups=groups,
            slots=slots,
            rows=rows,
            closing=closing,
            gather=lambda: {name: self._rows_of(x, slots, rows) for name, x in self._arena.obs.items()},
            episodes=lambda: self._rows_of(self._arena["episode"], slots, rows),
            rewards=lambda: self._last_rewards(slots, rows, closing),
        )

    def _ask_by_group(self, groups: Array, slots: Array, rows: Array, closing: Array) -> None:
        """Ask the policies where whole groups belong to one each: no lanes have to be looked for."""
        order = np.argsort(self._owner_of_group[groups], kind="stable")
        groups, slots, rows, closing = groups[order], slots[order], rows[order], closing[order]
        owners = self._owner_of_group[groups]
        if self._ensemble is not None:
            answer = self._ensemble.act_for(owners, self._request(groups, slots, rows, closing))
            self._write_output(answer, slots, rows, None)
            versions = np.array([policy.version for policy in self._policies])
            self._stamp({"policy_id": owners, "version": versions[owners]}, slots, rows)
            return
        for k in np.unique(owners).tolist():
            own = owners == k
            self._ask(k, self._request(groups[own], slots[own], rows[own], closing[own]))

    def _ask_by_lane(self, request: ActRequest, again: bool) -> None:
        """Ask the policies where lanes of a group belong to several, or to opponents."""
        slots, rows, lanes = request.slots, request.rows, request.lanes
        owner = self.policy_of_lane[request.groups].ravel()
        for mine, answer in self._answers(owner, request, again):
            self._write_output(answer, slots, rows, mine)
        own = np.array([policy.version for policy in self._policies])
        version = own[np.minimum(owner, len(own) - 1)]
        if self._matchmaker is not None:
            version = np.where(owner < len(own), version, self._seat_of("version", lanes))
            self._write(self._arena["opponent"], slots, rows, None, self._seat_of("opponent", lanes))
        self._stamp({"policy_id": owner, "version": version}, slots, rows)

    def _answers(self, owner: Array, request: ActRequest, again: bool) -> Iterator[tuple[Array | None, PolicyOutput]]:
        """Ask everybody: positions of lanes (None: all of them), and what was decided for these."""
        others = len(self._policies)
        if self._matchmaker is not None and self._matchmaker.plays_all and not again:
            yield None, self._matchmaker.act_for(owner, request)
            return
        for k in np.unique(np.minimum(owner, others)).tolist():
            mine = np.nonzero(owner == k if k < others else owner >= k)[0]
            if k < others:
                yield mine, self._policies[k].act(request.part(mine))
            elif not again:
                assert self._matchmaker is not None, "nobody else seats opponents"
                yield mine, self._matchmaker.act_for(owner[mine], request.part(mine))

    def _seat(self, request: ActRequest) -> None:
        """Ask who plays where an episode begins. A row may be decided twice (``infer_again``): it is asked once."""
        assert self._matchmaker is not None
        begins = request.first & (request.episode != self._seat_of("episode", request.lanes))
        if not begins.any():
            return
        lanes, episodes = request.lanes[begins], request.episode[begins]
        seats = self._matchmaker.seat(lanes, episodes)
        new = {"policy_id": seats.policy_id, "version": seats.version, "opponent": seats.opponent, "episode": episodes}
        for name, values in new.items():
            self._seats[name].reshape(-1)[lanes] = values

    def _seat_of(self, name: str, lanes: Array) -> Array:
        found: Array = self._seats[name].reshape(-1)[lanes]
        return found

    def seats(self) -> dict[str, Array]:
        """Return who plays every lane, for a checkpoint of serial mode; empty without self-play."""
        return {} if self._matchmaker is None else {name: array.copy() for name, array in self._seats.items()}

    def load_seats(self, saved: Mapping[str, Array]) -> None:
        check_shape(saved, SEATS_SHAPE)
        for name, array in self._seats.items():
            array[:] = saved[name]

    def _last_rewards(self, slots: Array, rows: Array, closing: Array) -> Array:
        """Return ``[n * L]``, the rewards of row t - 1. They lie in the slot that row t lies in, or, where row t opens
        a slot, in the last but one row of the slot that was closed with it (-1 before a run's first decision: all of
        those lanes are at a first step)."""
        opens = rows == 0
        before = np.where(opens, self._arena.layout.steps - 1, rows - 1)
        return self._rows_of(self._arena["reward"], np.where(opens, closing, slots), before)

    def _ask(self, k: int, request: ActRequest) -> None:
        """Ask policy ``k`` about whole groups and write its output."""
        self._write_output(self._policies[k].act(request), request.slots, request.rows, None)
        self._stamp(self._stamps_of(k), request.slots, request.rows)

    def _write_output(self, output: PolicyOutput, slots: Array, rows: Array, mine: Array | None) -> None:
        columns = {"action": output.action, "log_prob": output.log_prob, "value": output.value}
        for name, values in columns.items():
            self._write(self._arena[name], slots, rows, mine, values)
        if self._arena.layout.state_size and output.state is not None:
            self._keep_state(output.state, slots, rows, mine)

    def _stamps_of(self, k: int) -> dict[str, int]:
        return {"policy_id": k, "version": self._policies[k].version}

    def _stamp(self, who: Mapping[str, Array | int], slots: Array, rows: Array) -> None:
        """Write down who has decided, and when: one for all, of every group ``[g]`` or of every lane ``[g * L]``."""
        for name, value in {**who, "frames": self.frames}.items():
            self._write(self._arena[name], slots, rows, None, value)

    def _keep_state(self, state: Array, slots: Array, rows: Array, mine: Array | None) -> None:
        """Store the recurrent state where a piece of back-propagation through time begins."""
        layout = self._arena.layout
        every = layout.state_every or layout.steps
        starts = rows % every == 0
        if not starts.any():
            return
        lanes = np.arange(slots.size * layout.lanes) if mine is None else mine
        group, lane = np.divmod(lanes, layout.lanes)
        keep = starts[group]
        self._arena["state"][slots[group[keep]], rows[group[keep]] // every, lane[keep]] = state[keep]

    def _rows_of(self, array: Array, slots: Array, rows: Array) -> Array:
        """Return ``[n * L, ...]``: a view for one group, one gathered copy for several."""
        if slots.size == 1:
            view: Array = array[slots[0], rows[0]]
            return view
        gathered: Array = array[slots, rows]
        return gathered.reshape(-1, *gathered.shape[2:])

    def _write(self, array: Array, slots: Array, rows: Array, mine: Array | None, values: Array | int) -> None:
        if mine is not None:
            group, lane = np.divmod(mine, array.shape[2])
            array[slots[group], rows[group], lane] = values
        elif isinstance(values, np.ndarray):
            array[slots, rows] = values.reshape(slots.size, -1, *array.shape[3:])
        else:
            array[slots, rows] = values
