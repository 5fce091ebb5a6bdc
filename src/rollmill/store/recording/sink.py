"""Everything a recording does with a segment: the recorder's process and serial mode use the same object."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rollmill.core.errors import StoreError, StoreFull
from rollmill.core.fields import Array
from rollmill.store.recording.assemble import Assembler, LanePlan
from rollmill.store.recording.budget import BudgetReached
from rollmill.store.recording.judge import Judge
from rollmill.store.recording.keeper import Keeper
from rollmill.store.recording.settings import RecordingSettings
from rollmill.store.recover import recover
from rollmill.store.schema import StoreSchema, create_store

log = logging.getLogger("rollmill")

State = Literal["recording", "budget reached", "disk full", "failed"]
STATES: tuple[State, ...] = ("recording", "budget reached", "disk full", "failed")


@dataclass(frozen=True)
class SinkPlan:
    """What a sink is built from; travels to the recorder's process."""

    store: Path
    schema: StoreSchema
    settings: RecordingSettings
    lanes: LanePlan
    expected_steps: int
    """Length of an episode, or of a piece, to plan shards with."""


class SegmentSink:
    """Takes kept segments, one after the other, and writes their episodes.

    A full disk, a full budget or a store that cannot be written ends the recording, never the caller: ``state`` says
    so, one line is logged, and later segments are ignored.
    """

    def __init__(self, plan: SinkPlan) -> None:
        settings = plan.settings
        self.state: State = "recording"
        self._keeper: Keeper | None = None
        self._judge: Judge | None = None
        self._figures = (0, 0, 0)
        self._dropped_episodes = 0
        try:
            keeper = self._keeper = self._open_store(plan)
        except StoreError as error:
            self._give_up("disk full" if isinstance(error, StoreFull) else "failed", error)
            return
        if settings.by_return:
            best_of = settings.every if settings.keep == "best" else 1
            self._judge = Judge(keeper, settings.min_return, best_of, settings.memory_mb << 20)
        self._assembler = Assembler(plan.schema, plan.lanes, self._judge or keeper, _wanted(settings))
        if self._judge is None:
            keeper.before_rotation = self._assembler.end_all

    def _open_store(self, plan: SinkPlan) -> Keeper:
        settings = plan.settings
        create_store(plan.store, plan.schema)
        done = recover(plan.store)  # what a recorder that was killed has left
        for name, why in done.skipped:
            log.warning("recording: shard %s is left open: %s", name, why)
        for problem in done.problems:
            log.warning("recording: the store has damage: %s", problem)
        return Keeper(
            plan.store,
            plan.schema,
            settings.budget_bytes,
            settings.at_budget,
            settings.block,
            plan.expected_steps,
        )

    # -- segments ------------------------------------------------------------------------------

    def take(self, segment: Mapping[str, Array], group: int) -> None:
        """One kept segment of a group: ``[T + 1, L, ...]`` per field."""
        self._guarded(lambda: self._assembler.take(segment, group))

    def leave(self, group: int) -> None:
        """The next segment of this group was not kept."""
        self._guarded(lambda: self._assembler.leave(group))

    def close(self) -> None:
        """End what is open as partial episodes and seal all shards."""
        keeper = self._keeper
        if keeper is None:
            return
        self._guarded(self._finish)
        if self._keeper is None:
            return
        try:
            keeper.close()
        except StoreError as error:
            log.error("recording: the last shards could not be sealed: %s", error)
        self._note(keeper)
        self._keeper = None

    def _finish(self) -> None:
        self._assembler.end_all()
        if self._judge is not None:
            self._judge.close()

    def _guarded(self, work: Callable[[], None]) -> None:
        if self._keeper is None:
            return
        try:
            work()
        except BudgetReached as error:
            self._stop_at_budget(error)
        except StoreFull as error:
            self._give_up("disk full", error)
        except StoreError as error:
            self._give_up("failed", error)

    def _stop_at_budget(self, error: BudgetReached) -> None:
        if self._judge is None:
            try:
                self._assembler.end_all()  # what was begun is kept: room for it was set aside
            except StoreFull as second:  # another one fills the disk
                self._give_up("disk full", second)
                return
        self._give_up("budget reached", error)

    def _give_up(self, state: State, error: StoreError) -> None:
        self.state = state
        level = logging.WARNING if state == "budget reached" else logging.ERROR
        log.log(level, "recording has stopped (%s), training goes on: %s", state, error)
        keeper, self._keeper = self._keeper, None
        if keeper is None:
            return
        self._note(keeper)
        try:
            keeper.close()
        except StoreError as second:
            log.error("recording: the last shards could not be sealed: %s", second)

    # -- figures -------------------------------------------------------------------------------

    def _note(self, keeper: Keeper) -> None:
        self._figures = (keeper.steps, keeper.episodes, keeper.bytes)
        self._dropped_episodes = keeper.dropped_episodes

    def counts(self) -> dict[str, int]:
        """What the store holds, and what was not kept; all but the first three since this sink was opened."""
        keeper = self._keeper
        if keeper is not None:
            self._note(keeper)
        rows, episodes, size = self._figures
        judge = self._judge
        return {
            "rows": rows,
            "episodes": episodes,
            "bytes": size,
            "reserved": keeper.reserve_bytes if keeper is not None else 0,
            "dropped_episodes": self._dropped_episodes,
            "rejected_episodes": judge.rejected if judge else 0,
            "overflows": judge.overflows if judge else 0,
            "state": STATES.index(self.state),
        }


COUNTS = (
    *("rows", "episodes", "bytes", "reserved"),
    *("dropped_episodes", "rejected_episodes", "overflows", "state"),
)
"""The names of ``SegmentSink.counts``, in order."""


def _wanted(settings: RecordingSettings) -> Callable[[int, int], bool] | None:
    if settings.keep != "episodes":
        return None
    every = settings.every
    return lambda lane, episode: (episode - lane) % every == 0  # lanes take turns
