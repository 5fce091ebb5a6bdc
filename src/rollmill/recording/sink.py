"""Everything a recording does with a segment: the recorder's process and serial mode use the same object."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from rollmill.core.errors import StoreError, StoreFull
from rollmill.core.fields import Array
from rollmill.recording.assemble import LanePlan, SegmentAssembler
from rollmill.recording.budget import BudgetReached
from rollmill.recording.budgeted import BudgetedWriter
from rollmill.recording.by_return import ReturnFilter
from rollmill.recording.settings import RecordingSettings
from rollmill.store.care.recover import recover
from rollmill.store.format.schema import StoreSchema, create_store

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


@dataclass
class SinkCounts:
    """What a store holds, and what a sink has done since it was opened; the numbers the choice depends on."""

    rows: int = 0
    episodes: int = 0
    bytes: int = 0
    reserved: int = 0
    """Kept free to end everything that is open."""
    overhead: int = 0
    """Kept free for one open episode, besides its rows."""
    taken: int = 0
    """Rows of chosen episodes that were looked at."""
    settled: int = 0
    """Rows whose bytes are in ``bytes`` by now, or that were rejected."""
    longest: int = 0
    """Steps of the longest chosen episode."""
    level: int = 0
    """How often a random half was dropped (``at_budget=thin``)."""
    busy_us: int = 0
    """Time that the recorder's process has worked."""
    cut_episodes: int = 0
    """Chosen, and ended as partial ones for lack of room."""
    dropped_episodes: int = 0
    rejected_episodes: int = 0
    overflows: int = 0
    state: int = 0


COUNTS = tuple(f.name for f in fields(SinkCounts))


class SegmentSink:
    """Takes kept segments, one after the other, and writes their episodes.

    A full disk, a full budget or a store that cannot be written ends the recording, never the caller: ``state`` says
    so, one line is logged, and later segments are ignored.
    """

    def __init__(self, plan: SinkPlan) -> None:
        settings = plan.settings
        self.state: State = "recording"
        self._writer: BudgetedWriter | None = None
        self._filter: ReturnFilter | None = None
        self._counts = SinkCounts()
        try:
            writer = self._writer = self._open_store(plan)
        except StoreError as error:
            self._give_up("disk full" if isinstance(error, StoreFull) else "failed", error)
            return
        if settings.by_return:
            best_of = settings.every if settings.keep == "best" else 1
            self._filter = ReturnFilter(writer, settings.min_return, best_of, settings.memory_mb << 20)
        random = not settings.by_return
        self._assembler = SegmentAssembler(plan.schema, plan.lanes, self._filter or writer, settings.whole, random)
        if self._filter is None:
            writer.before_rotation = self._end_all

    def _open_store(self, plan: SinkPlan) -> BudgetedWriter:
        settings = plan.settings
        create_store(plan.store, plan.schema, parents=False)  # a run folder that was lost does not come back like this
        done = recover(plan.store)  # what a recorder that was killed has left
        for name, why in done.skipped:
            log.warning("recording: shard %s is left open: %s", name, why)
        for problem in done.problems:
            log.warning("recording: the store has damage: %s", problem)
        return BudgetedWriter(
            plan.store,
            plan.schema,
            settings.budget_bytes,
            settings.at_budget,
            settings.block,
            plan.expected_steps,
        )

    # -- segments ------------------------------------------------------------------------------

    def take(self, segment: Mapping[str, Array], group: int, probability: float = 1.0) -> None:
        """Take one segment of a group: ``[T + 1, L, ...]`` per field; ``probability``: of episodes that begin in it."""
        self._guarded(lambda: self._assembler.take(segment, group, probability))

    def leave(self, group: int) -> None:
        """Note that the next segment of this group was not kept."""
        self._guarded(lambda: self._assembler.leave(group))

    def stop_at_budget(self) -> None:
        """End the recording: there is no room for another episode, and none is under way."""
        if self._writer is not None:
            limit = self._writer.limit / 1e9
            self._give_up(
                "budget reached",
                BudgetReached(
                    f"{self._writer.store} has no room for another whole episode within its budget of {limit:g} GB"
                ),
            )

    def close(self) -> None:
        """End what is open as partial episodes and seal all shards."""
        self._guarded(self._finish)
        writer = self._writer
        if writer is None:
            return
        try:
            writer.close()
        except StoreError as error:
            log.error("recording: the last shards could not be sealed: %s", error)
        self._note(writer)
        self._writer = None

    def _finish(self) -> None:
        self._assembler.end_all()
        if self._filter is not None:
            self._filter.close()

    def _end_all(self) -> None:
        self._counts.cut_episodes += self._assembler.open
        self._assembler.end_all()

    def _guarded(self, work: Callable[[], None]) -> None:
        if self._writer is None:
            return
        try:
            work()
        except BudgetReached as error:
            self._stop_in_the_middle(error)
        except StoreFull as error:
            self._give_up("disk full", error)
        except StoreError as error:
            self._give_up("failed", error)

    def _stop_in_the_middle(self, error: BudgetReached) -> None:
        """End the recording: episodes were longer than any before; what was begun is kept, as far as room for it was
        set aside."""
        if self._filter is None:
            try:
                self._end_all()
            except StoreFull as second:  # another one fills the disk
                self._give_up("disk full", second)
                return
        self._give_up("budget reached", error)

    def _give_up(self, state: State, error: StoreError) -> None:
        self.state = state
        level = logging.WARNING if state == "budget reached" else logging.ERROR
        log.log(level, "recording has stopped (%s), training goes on: %s", state, error)
        writer, self._writer = self._writer, None
        if writer is None:
            return
        self._note(writer)
        try:
            writer.close()
        except StoreError as second:
            log.error("recording: the last shards could not be sealed: %s", second)

    # -- metrics -------------------------------------------------------------------------------

    def _note(self, writer: BudgetedWriter) -> None:
        counts, found = self._counts, self._filter
        counts.rows, counts.episodes, counts.bytes = writer.steps, writer.episodes, writer.bytes
        counts.overhead = writer.overhead
        counts.level, counts.dropped_episodes = writer.level, writer.dropped_episodes
        counts.taken, counts.longest = self._assembler.taken, self._assembler.longest
        counts.settled = writer.settled if found is None else found.settled
        if found is not None:
            counts.rejected_episodes, counts.overflows = found.rejected, found.overflows

    def counts(self) -> dict[str, int]:
        """Return the metrics of ``SinkCounts``; all but the first three since this sink was opened."""
        writer = self._writer
        if writer is not None:
            self._note(writer)
        self._counts.reserved = writer.reserve_bytes if writer is not None else 0
        self._counts.state = STATES.index(self.state)
        return {name: getattr(self._counts, name) for name in COUNTS}
