"""Infers actions for ready groups: gathers their newest rows, asks the policies once, writes the decisions.

This is also where a segment ends: when a group has filled row T, its observation there opens row 0
of a fresh slot, one decision serves both (the value at row T is the bootstrap), and the full slot
becomes a finished segment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import cast

import numpy as np

from rollmill.core.fields import Array
from rollmill.core.protocols import Actor, ActRequest, GroupRows, InPlacePolicy, Policy
from rollmill.core.slots import CARRIED_FIELDS, Arena
from rollmill.sampling.mailbox import Mailbox


class Inference:
    """The acting side of the policies. Not thread-safe: one thread infers."""

    def __init__(self, arena: Arena, box: Mailbox, policies: Sequence[Actor]) -> None:
        """``policies``: one ``InPlacePolicy``, or any number of ``Policy``."""
        layout = arena.layout
        self._arena = arena
        self._box = box
        self._in_place = policies[0] if isinstance(policies[0], InPlacePolicy) else None
        self._policies = cast(Sequence[Policy], policies)
        self._lane_numbers = np.arange(layout.lanes)
        self.policy_of_lane = np.zeros((len(box.command), layout.lanes), np.int16)
        """[groups, L]: which policy acts for a lane."""
        self.free: deque[int] = deque(range(len(box.command), arena.slots))
        self.frames = 0
        """Simulator frames decided so far; stamped on every row."""
        box.slot[:] = np.arange(len(box.command))
        self.group_of_slot = np.arange(arena.slots)
        """[slots]: the group that fills, or filled, a slot."""

    def full(self, groups: Array) -> Array:
        """Which of these ready groups have filled their segments."""
        return np.asarray(self._box.row[groups] + 1 == self._arena.layout.steps)

    def servable(self, groups: Array) -> Array:
        """Those ready groups that can go on: a full segment needs a free slot to continue in."""
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
        for name in ("value", "version", "policy_id", "frames"):
            self._arena[name][finished, -1] = self._arena[name][fresh, 0]
        box.slot[groups] = slots
        box.row[groups] = rows
        return [int(slot) for slot in finished]

    def infer_again(self, groups: Array) -> None:
        """Decide once more for rows that were decided and not sent yet: there are new weights."""
        self.frames -= groups.size * self._arena.layout.lanes * self._arena.layout.spec.frames_per_step
        self.decide(groups, self._box.slot[groups], self._box.row[groups], None)

    def _carry_over(self, old: Array, new: Array) -> None:
        arena = self._arena
        for array in (*arena.obs.values(), *arena.info.values(), *(arena[name] for name in CARRIED_FIELDS)):
            array[new, 0] = array[old, -1]

    def decide(self, groups: Array, slots: Array, rows: Array, closing: Array | None) -> None:
        """Ask the policies about these rows and write what they say; ``closing`` as in ``GroupRows``."""
        layout = self._arena.layout
        self.frames += groups.size * layout.lanes * layout.spec.frames_per_step
        if self._in_place is not None:
            self._in_place.decide_in_place(
                GroupRows(groups, slots, rows, closing), lambda: self._stamp(0, slots, rows, None)
            )
            return
        if closing is None:
            closing = np.full(groups.size, -1)
        request = ActRequest(
            first=self._rows_of(self._arena["first"], slots, rows),
            lanes=(groups[:, None] * layout.lanes + self._lane_numbers).ravel(),
            groups=groups,
            slots=slots,
            rows=rows,
            closing=closing,
            gather=lambda: {name: self._rows_of(x, slots, rows) for name, x in self._arena.obs.items()},
            episodes=lambda: self._rows_of(self._arena["episode"], slots, rows),
            rewards=lambda: self._last_rewards(slots, rows, closing),
        )
        if len(self._policies) == 1:
            self._ask(0, request, slots, rows, None)
            return
        owner = self.policy_of_lane[groups].ravel()
        for k in np.unique(owner):
            mine = np.nonzero(owner == k)[0]
            self._ask(int(k), request.part(mine), slots, rows, mine)

    def _last_rewards(self, slots: Array, rows: Array, closing: Array) -> Array:
        """``[n]``: the reward of row t - 1 lies in the slot that row t lies in, or, where row t opens a slot, in the
        last but one row of the slot that was closed with it (-1 before a run's first decision: all lanes are first).
        """
        opens = rows == 0
        before = np.where(opens, self._arena.layout.steps - 1, rows - 1)
        return self._rows_of(self._arena["reward"], np.where(opens, closing, slots), before)

    def _ask(self, k: int, request: ActRequest, slots: Array, rows: Array, mine: Array | None) -> None:
        """Ask policy ``k`` for ``request`` and write its output; ``mine``: positions among all lanes."""
        policy, layout = self._policies[k], self._arena.layout
        output = policy.act(request)
        columns = {"action": output.action, "log_prob": output.log_prob, "value": output.value}
        for name, values in columns.items():
            self._write(self._arena[name], slots, rows, mine, values)
        self._stamp(k, slots, rows, mine)
        if layout.state_size and output.state is not None:
            self._keep_state(output.state, slots, rows, mine)

    def _stamp(self, k: int, slots: Array, rows: Array, mine: Array | None) -> None:
        """Write down who has decided, and when."""
        stamps = {"version": self._policies[k].version, "policy_id": k, "frames": self.frames}
        for name, value in stamps.items():
            self._write(self._arena[name], slots, rows, mine, value)

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
        """``[n * L, ...]``: a view for one group, one gathered copy for several."""
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
