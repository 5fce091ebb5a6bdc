"""A table of packed segments: what a learner that learns from them several times needs of it.

A segment is one lane's: ``[T + 1, ...]`` of every field. It is packed when it comes and unpacked for every batch it is
drawn for. ``due`` says when to draw; which segments are too old is for the learner to say (``expire``).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from rollmill.core.errors import ConfigError
from rollmill.core.fields import Array
from rollmill.core.machine import available_memory
from rollmill.core.shapes import BYTES, MAPPING, Shape, check_shape
from rollmill.core.slots import OBS
from rollmill.core.text import bytes_text
from rollmill.replay.limiter import RateLimiter
from rollmill.replay.packing import SegmentCodec
from rollmill.replay.selectors import Key
from rollmill.replay.settings import ReplaySettings
from rollmill.replay.table import TABLE_SHAPE, Table
from rollmill.replay.triggers import ByClock, ByNew, ByRatio, Trigger
from rollmill.store.format.codec import CodecError

log = logging.getLogger("rollmill")

KEPT = (
    *("first", "value", "action", "log_prob", "reward", "terminated", "valid"),
    *("policy_id", "version", "state"),
)
"""Fields of a segment that learning reads, beside the observations: the others are not kept."""
COUNTS = ("expired", "unused", "misses")
BUFFER_SHAPE: Shape = {
    "table": TABLE_SHAPE,
    "trigger": MAPPING,
    "counts": dict.fromkeys(COUNTS, int),
}
ITEM_SHAPE: Shape = {"packed": BYTES, "version": int}


def is_kept(field: str) -> bool:
    return field in KEPT or field.startswith(OBS)


class Packed(NamedTuple):
    """A segment in the table."""

    data: bytes
    version: int
    """The oldest policy version that acted in it."""


class SegmentBuffer:
    """Segments for batches of ``batch``, by the settings."""

    def __init__(
        self, settings: ReplaySettings, batch: int, seed: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        minimum = settings.min_size(batch)
        if settings.trigger == "ratio":
            limiter = RateLimiter.by_ratio(settings.samples_per_insert, minimum, settings.error(batch))
        else:
            limiter = RateLimiter.by_size(batch)
        self.batch = batch
        self.table: Table[Packed] = Table(
            settings.capacity,
            limiter,
            settings.sampler,
            settings.remover,
            max_times_sampled=settings.max_times_sampled,
            priority_exponent=settings.priority_exponent,
            seed=seed,
            clock=clock,
        )
        self._settings = settings
        self._trigger = _trigger(settings, limiter, batch, minimum, clock)
        self._codec: SegmentCodec | None = None
        self._out: dict[str, Array] = {}
        self._expired = self._misses = 0
        self._age = 0.0

    # -- in ------------------------------------------------------------------------------------

    def may_add(self) -> bool:
        """Return whether the ratio allows another segment; if not, a batch may be drawn."""
        return self.table.limiter.may_insert()

    def add(self, segment: Mapping[str, Array], priority: float = 1.0) -> None:
        """Keep a segment ``[T + 1, ...]``; its ``version`` is the field of that name, without the bootstrap row."""
        packed = self.open(segment).pack(segment)
        self.table.insert(Packed(packed, int(segment["version"][:-1].min())), priority)

    def open(self, segment: Mapping[str, Array]) -> SegmentCodec:
        """Return the codec of segments like this one; the first shows which contents of a checkpoint can be used."""
        if self._codec is None:
            kept = {name: array[:, None] for name, array in segment.items() if is_kept(name)}
            self._codec = SegmentCodec.like(kept)
            self._check_contents(self._codec)
            self._require_room(len(self._codec.pack(segment)))
        return self._codec

    def _check_contents(self, codec: SegmentCodec) -> None:
        """Remove segments of a checkpoint that are damaged, or of another shape than the run's now."""
        found: dict[Key, CodecError] = {}
        for item in self.table:
            try:
                codec.check(memoryview(item.data.data))
            except CodecError as error:
                found[item.key] = error
        if found:
            log.warning(
                "%s of %s replayed segments of the checkpoint cannot be used, and are left out: %s",
                *(f"{len(found):,}", f"{len(self.table):,}", next(iter(found.values()))),
            )
            self.table.delete(found)

    def _require_room(self, packed: int) -> None:
        """Log what the buffer takes if all segments are like the first; raises ConfigError if that does not fit into
        memory."""
        capacity = self._settings.capacity
        need, free = capacity * packed, available_memory()
        log.info(
            "replay: the first segment takes %s; %s like it take %s of memory",
            *(bytes_text(packed), f"{capacity:,}", bytes_text(need)),
        )
        if free is not None and need > free:
            raise ConfigError(
                f"replay.capacity={capacity}: the segments take about {bytes_text(need)}, and {bytes_text(free)} of "
                "memory are free; set a smaller replay.capacity"
            )

    def expire(self, oldest: int) -> None:
        """Remove segments in which a version before ``oldest`` acted."""
        stale = [item.key for item in self.table if item.data.version < oldest]
        self._expired += len(stale)
        self.table.delete(stale)

    # -- out -----------------------------------------------------------------------------------

    @property
    def repeats(self) -> bool:
        """Whether to ask ``due`` again after a batch."""
        return self._trigger.repeats

    @property
    def timed(self) -> bool:
        """Whether to ask ``due`` also while no segments come."""
        return self._trigger.timed

    def due(self) -> bool:
        """Return whether to learn from a batch now; contents of a checkpoint wait for the first segment (``open``)."""
        return self._codec is not None and self._trigger.due()

    def missed(self) -> None:
        """Count that new segments have come, and no batch could be learnt from."""
        self._misses += 1

    def draw(self) -> dict[str, Array]:
        """Draw a batch ``[T + 1, batch, ...]``; the arrays are filled again by the next call."""
        draws = self.table.sample(self.batch, together=True)
        assert self._codec is not None, "a batch is due when segments have come"
        if len(draws) < self.batch:
            raise RuntimeError(f"{len(draws)} segments where {self.batch} are needed: ask `due` first")
        columns: dict[int, list[int]] = {}
        for column, draw in enumerate(draws):
            columns.setdefault(draw.item.key, []).append(column)
        for places in columns.values():  # each segment is unpacked once, and one at a time
            for name, array in self._codec.unpack(draws[places[0]].item.data.data).items():
                if name not in self._out:
                    self._out[name] = np.empty((len(array), self.batch, *array.shape[1:]), array.dtype)
                for column in places:
                    self._out[name][:, column] = array
        self._age = float(np.mean([self.table.limiter.inserted - draw.item.number for draw in draws]))
        return self._out

    def counts(self) -> dict[str, float]:
        """Return the metrics for the log (``docs/metrics.md``)."""
        limiter = self.table.limiter
        return {
            "size": float(len(self.table)),
            "bytes": float(sum(len(item.data.data) for item in self.table)),
            "inserted": float(limiter.inserted),
            "sampled": float(limiter.sampled),
            "ratio": limiter.ratio,
            "age": self._age,
            "expired": float(self._expired),
            "unused": float(self.table.unused),
            "misses": float(self._misses),
        }

    # -- checkpoints ---------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        table = self.table.state(contents=self._settings.save)
        for entry in table["items"] or ():
            packed: Packed = entry["data"]
            entry["data"] = {"packed": np.frombuffer(packed.data, np.uint8), "version": packed.version}
        counts = {"expired": self._expired, "unused": self.table.unused, "misses": self._misses}
        return {"table": table, "trigger": self._trigger.state(), "counts": counts}

    def load_state(self, state: Mapping[str, Any]) -> None:
        check_shape(state, BUFFER_SHAPE)
        table = dict(state["table"])
        if table["items"] is not None:
            table["items"] = [{**entry, "data": _packed(entry["data"])} for entry in table["items"]]
        self.table.load_state(table)
        self._trigger.load_state(state["trigger"])
        counts = state["counts"]
        self._expired, self.table.unused, self._misses = (counts[name] for name in COUNTS)


def _packed(data: Mapping[str, Any]) -> Packed:
    check_shape(data, ITEM_SHAPE)
    return Packed(data["packed"].tobytes(), data["version"])


def _trigger(
    settings: ReplaySettings, limiter: RateLimiter, batch: int, minimum: int, clock: Callable[[], float]
) -> Trigger:
    if settings.trigger == "ratio":
        return ByRatio(limiter, batch)
    if settings.trigger == "new":
        return ByNew(limiter, batch / settings.samples_per_insert, minimum)
    return ByClock(limiter, batch, settings.clock_seconds, clock)
