"""Recording as the run sees it: offered the segments of every training step, it keeps some for a while.

Words
-----
offer     the run's finished segments, after the learner's copy was made and before their slots are given back.
held      slots that the recorder has not read yet. For each it gives a spare one back
          (``recording.queue_segments``), so sampling never waits for the recorder and never runs further ahead;
          with no spare left, a segment is dropped and counted.

``LocalRecorder`` (serial mode) writes at once, in this process. ``ProcessRecorder`` hands slot numbers to a process of
its own, looks after it, and never waits for it before the end of the run.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from rollmill.core.machine import available_memory
from rollmill.core.process import Child, OutputLog, Recent
from rollmill.core.slots import Arena
from rollmill.core.text import bytes_text
from rollmill.recording.choose import Chooser, Load
from rollmill.recording.process import RecorderSetup
from rollmill.recording.segment_queue import FULL, LEAVE, SegmentQueue
from rollmill.recording.settings import RecordingSettings
from rollmill.recording.sink import COUNTS, STATES, SegmentSink, SinkPlan
from rollmill.sampling.mailbox import Wakeup

log = logging.getLogger("rollmill")

READY_SECONDS = 10.0
"""How long the start of a run waits for the recorder; workers are starting meanwhile, too."""
QUEUE_PIECES = 4
"""Slots that keep=one and rotate need: one per training step."""
QUEUE_WHOLE = 32
"""Slots that bridge a slow moment of the disk, where they take less than ``QUEUE_SHARE`` of the memory."""
QUEUE_SHARE = 0.01


def spare_slots(settings: RecordingSettings, segments_per_batch: int, segment_bytes: int, serial: bool) -> int:
    """Return how many slots to add to the arena, so that held segments do not slow sampling down."""
    if not settings.on or serial:
        return 0
    if settings.queue_segments:
        return settings.queue_segments
    if not settings.whole:
        return QUEUE_PIECES
    affordable = int(QUEUE_SHARE * (available_memory() or 0.0) / max(1, segment_bytes))
    return max(segments_per_batch + max(2, segments_per_batch // 2), min(QUEUE_WHOLE, affordable))


@dataclass
class DropCounts:
    """What was not recorded, over all sessions of the run."""

    dropped_segments: int = 0
    """Wanted, but all spare slots were held."""
    lost_segments: int = 0
    """In the recorder's hands when it died, or not written in time at the end."""
    restarts: int = 0
    cut_episodes: int = 0
    """Chosen, and cut: rows of theirs were dropped or lost, or there was no room for the rest."""
    dropped_episodes: int = 0
    """Dropped to stay within the budget."""
    rejected_episodes: int = 0
    """Whole or partial, not kept because of their return."""
    overflows: int = 0
    """Given up because recording.memory_mb was used up."""

    def plus(self, counts: Mapping[str, int]) -> DropCounts:
        """Return these counts with what the present sink has counted added."""
        own = asdict(self)
        return DropCounts(**{name: value + counts.get(name, 0) for name, value in own.items()})


class Recorder(Protocol):
    """The two kinds offer the same calls; the run does not know which one it has."""

    drops: DropCounts
    """Of earlier sinks and sessions, and what the main process counts."""

    def start(self) -> None: ...

    def wait_ready(self) -> None:
        """Return when it can take segments, or after a few seconds: those that come before are dropped."""

    def offer(self, slots: Sequence[int], groups: Sequence[int], frames: int, learnt: bool = True) -> list[int]:
        """Look at finished segments in the order they ended; returns as many slots to give back in their place."""

    def counts(self) -> dict[str, int]:
        """Return the metrics of ``SegmentSink.counts``."""

    def stop(self) -> None:
        """Write what waits, seal the shards."""


class LocalRecorder:
    """Records in this process, at once: deterministic, and friendly to a debugger."""

    def __init__(self, plan: SinkPlan, chooser: Chooser, arena: Arena) -> None:
        self.drops = DropCounts()
        self._plan, self._chooser, self._arena = plan, chooser, arena
        self._sink: SegmentSink | None = None
        self._kept: set[int] = set()
        self._counts = dict.fromkeys(COUNTS, 0)

    def start(self) -> None:
        self._sink = SegmentSink(self._plan)

    def wait_ready(self) -> None:
        """Return at once: it can always take segments."""

    def offer(self, slots: Sequence[int], groups: Sequence[int], frames: int, learnt: bool = True) -> list[int]:
        sink = self._sink
        assert sink is not None
        self._chooser.offered(groups, learnt, frames, self.counts())
        for position, (slot, group) in enumerate(zip(slots, groups, strict=True)):
            if sink.state != "recording":
                break
            segment = self._arena.segment(slot)
            probability = self._chooser.choose(position, group, segment)
            if probability is not None:
                sink.take(segment, group, probability)
                self._kept.add(group)
            elif group in self._kept:
                sink.leave(group)
                self._kept.discard(group)
        if sink.state == "recording" and self._chooser.full:
            sink.stop_at_budget()
        return list(slots)

    def counts(self) -> dict[str, int]:
        if self._sink is not None:
            self._counts = self._sink.counts()
        return self._counts

    def stop(self) -> None:
        if self._sink is not None:
            self._sink.close()
            self._counts, self._sink = self._sink.counts(), None


class ProcessRecorder:
    """Records in another process: fed through shared memory, watched, restarted within limits, never waited for."""

    def __init__(
        self,
        plan: SinkPlan,
        chooser: Chooser,
        arena: Arena,
        spare: Sequence[int],
        environment: Mapping[str, str],
    ) -> None:
        self.drops = DropCounts()
        self._plan, self._chooser, self._arena = plan, chooser, arena
        self._spare = deque(spare)
        self._environment = dict(environment)
        # An entry for every held slot, and one that ends each: never more.
        self._queue = SegmentQueue(capacity=2 * len(spare) + 2)
        self._wakeup = Wakeup.create()
        self._arena_fd = -1
        self._child: Child | None = None
        self._output = OutputLog("recorder")
        self._held: deque[tuple[int, int]] = deque()
        """(number of the entry, slot)"""
        self._kept: set[int] = set()
        """Groups whose newest segment was kept: their lanes may have open episodes."""
        self._load = Load(plan.lanes.lanes * plan.lanes.groups)
        self._offered = 0
        """Rows that were played."""
        self._deaths = Recent()
        self._given_up = False

    # -- what the run calls --------------------------------------------------------------------

    def start(self) -> None:
        self._arena_fd = os.dup(self._arena.block.fd)  # the sampler closes its own before the recorder has ended
        self._spawn()

    def wait_ready(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while not self._queue.ready[0] and self._child is not None and time.monotonic() < deadline:
            if self._wait(0.01):
                self._look_after()

    def offer(self, slots: Sequence[int], groups: Sequence[int], frames: int, learnt: bool = True) -> list[int]:
        self._look_after()
        counts = self.counts()
        self._take_back()
        if self._given_up or STATES[counts["state"]] != "recording":
            return list(slots)
        layout = self._arena.layout
        self._offered += len(slots) * layout.steps * layout.lanes
        filled = len(self._held) / max(1, len(self._held) + len(self._spare))
        most = self._load.share(time.monotonic(), self._offered, counts, filled)
        self._chooser.offered(groups, learnt, frames, counts, most)
        back = []
        for position, (slot, group) in enumerate(zip(slots, groups, strict=True)):
            probability = self._chooser.choose(position, group, self._arena.segment(slot))
            if probability is not None and self._hand_over(slot, group, probability):
                back.append(self._spare.popleft())
            else:
                self._leave(group)
                back.append(slot)
        if self._chooser.full and not self._held and self._queue.free:
            self._queue.push(FULL)
        self._wakeup.notify()
        return back

    def counts(self) -> dict[str, int]:
        return dict(zip(COUNTS, self._queue.counts.tolist(), strict=True))

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None else None

    def stop(self) -> None:
        """Let the process write what waits, for a bounded time, then end it."""
        if self._arena_fd < 0:
            return
        self._look_after()
        self._queue.stop[0] = 1
        self._wakeup.notify()
        deadline = time.monotonic() + self._plan.settings.drain_seconds
        while self._child is not None and time.monotonic() < deadline:
            if self._wait(0.05):
                self._look_after()
        if self._child is not None:
            log.error(
                "the recorder did not finish within recording.drain_seconds=%g and is ended; episodes that were "
                "acknowledged are safe, `recover` seals the shards when the run is resumed",
                self._plan.settings.drain_seconds,
            )
            self._child.end()
            self._bury()
        self._take_back()
        self.drops.lost_segments += len(self._held)
        self._held.clear()
        self._output.close()
        self._wakeup.close()
        self._queue.block.close_fd()
        os.close(self._arena_fd)
        self._arena_fd = -1

    # -- segments ------------------------------------------------------------------------------

    def _hand_over(self, slot: int, group: int, probability: float) -> bool:
        if not self._spare or not self._queue.free:
            self.drops.dropped_segments += 1
            self.drops.cut_episodes += self._chooser.lost(group)
            return False
        self._held.append((self._queue.push(slot, group, probability), slot))
        self._kept.add(group)
        return True

    def _leave(self, group: int) -> None:
        """Tell the recorder that this group's segments have a hole; where there is no room to say it, it will see."""
        if group in self._kept and self._queue.free:
            self._queue.push(LEAVE, group)
            self._kept.discard(group)

    def _take_back(self) -> None:
        """Make the slots spare again that the recorder is done with."""
        done = int(self._queue.done[0])
        while self._held and (self._held[0][0] < done or self._given_up):
            self._spare.append(self._held.popleft()[1])

    # -- the process ---------------------------------------------------------------------------

    def _spawn(self) -> None:
        setup = RecorderSetup(
            plan=self._plan,
            layout=self._arena.layout,
            slots=self._arena.slots,
            arena=(self._arena_fd, self._arena.block.nbytes),
            queue=(self._queue.block.fd, self._queue.block.nbytes),
            capacity=self._queue.capacity,
            wakeup=(self._wakeup.fd, self._wakeup.notify_fd),
        )
        inherit = {setup.arena[0], setup.queue[0], *setup.wakeup}
        self._child = Child("rollmill.recording.process", setup, self._environment, inherit)

    def _look_after(self) -> None:
        """Hear what the process says; start it anew when it has died."""
        child = self._child
        if child is None:
            return
        self._listen()
        if child.alive:
            return
        self._bury()
        if child.code == 0:
            return  # it was told to stop
        self.drops.lost_segments += self._queue.give_up_begun()
        how, deaths = child.how_it_ended(), self._deaths.add()
        if deaths > self._plan.settings.restarts:
            self._given_up = True
            self._queue.counts[COUNTS.index("state")] = STATES.index("failed")
            log.error(
                "the recorder %s; restarted %d times within ten minutes (recording.restarts=%d): "
                "recording has stopped, training goes on",
                how,
                deaths - 1,
                self._plan.settings.restarts,
            )
            return
        log.warning("the recorder %s; restarting it (unfinished episodes are lost, acknowledged ones are not)", how)
        self.drops = self.drops.plus(self.counts())
        for name in COUNTS[3:]:
            self._queue.counts[COUNTS.index(name)] = 0  # the new process counts from 0
        self.drops.restarts += 1
        self.drops.cut_episodes += self._chooser.lost()
        self._kept.clear()
        self._spawn()

    def _wait(self, timeout: float) -> bool:
        """Wait for the process to end; returns whether it did."""
        assert self._child is not None
        if self._child.ends_within(timeout):
            return True
        self._listen()  # a full pipe would hold it up
        return False

    def _bury(self) -> None:
        """Take the last words of a process that has ended."""
        assert self._child is not None
        self._listen()
        self._child.close()
        self._child = None

    def _listen(self) -> None:
        """Log what the process tells and prints."""
        assert self._child is not None
        for event in self._child.read_events():
            if event["kind"] == "log":
                log.log(event["level"], "%s", event["text"])
            else:
                log.error("the recorder failed:\n%s", event["trace"] or event["error"])
        self._output.write(self._child.read_output())


def recorder_metrics(recorder: Recorder) -> dict[str, float]:
    """Return what a row of metrics says about the recording."""
    counts = recorder.counts()
    drops = recorder.drops.plus(counts)
    return {
        "record/rows": counts["rows"],
        "record/episodes": counts["episodes"],
        "record/bytes": counts["bytes"],
        "record/dropped_segments": drops.dropped_segments,
        "record/lost_segments": drops.lost_segments,
        "record/cut_episodes": drops.cut_episodes,
        "record/dropped_episodes": drops.dropped_episodes,
        "record/rejected_episodes": drops.rejected_episodes + drops.overflows,
        "record/restarts": drops.restarts,
        "record/stopped": float(STATES[counts["state"]] != "recording"),
    }


def closing_words(recorder: Recorder, folder: Path) -> str:
    """Return one line for the end of the run: what was recorded, and what was not."""
    counts = recorder.counts()
    drops = recorder.drops.plus(counts)
    size = bytes_text(counts["bytes"])
    text = f"recorded {counts['rows']:,} rows, {counts['episodes']:,} episodes, {size}: {folder}"
    missed = {
        "segments dropped (recorder too slow)": drops.dropped_segments,
        "segments lost with a recorder that ended": drops.lost_segments,
        "chosen episodes cut": drops.cut_episodes,
        "episodes dropped to stay within the budget": drops.dropped_episodes,
        "episodes given up for lack of memory": drops.overflows,
    }
    text += "".join(f"; {count:,} {what}" for what, count in missed.items() if count)
    state = STATES[counts["state"]]
    if not counts["rows"] and state == "recording":
        text += "; nothing was kept: the run ended before recording.when began, or no episode met recording.min_return"
    return text if state == "recording" else f"{text}; recording stopped before the end: {state}"
