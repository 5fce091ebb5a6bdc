"""How often trajectories are learnt from again."""

from __future__ import annotations

from typing import Literal

from rollmill.core.config.schema import require_least, require_positive, settings

Selection = Literal["uniform", "fifo", "lifo", "prioritized", "max_heap", "min_heap"]
BY_PRIORITY = ("prioritized", "max_heap", "min_heap")
RANDOM = ("uniform", "prioritized")


@settings
class ReplaySettings:
    """Trajectory replay for APPO: segments are kept, packed, and learnt from several times (off-policy, by V-trace)."""

    capacity: int = 0
    """Segments to keep, each of one lane's ``sampling.rollout`` steps; 0: none, every segment is learnt from once."""

    samples_per_insert: float = 1.0
    """How often a segment is learnt from, in the mean (production/consume ratio)."""

    preload: float = 0.0
    """How full the buffer must be before learning begins: a part of the capacity (0.25), or what to divide it by (4).
    0: one batch."""

    trigger: Literal["ratio", "new", "clock"] = "ratio"
    """When a batch is learnt from. ratio: whenever ``samples_per_insert`` allows it, exactly; the sampler waits for a
    slow learner. new: when a batch over ``samples_per_insert`` segments are new; what a slow learner misses is
    forgotten. clock: every ``clock_seconds``, whatever is new, also while nothing is."""

    clock_seconds: float = 1.0
    """trigger=clock: seconds from one batch to the next, at least."""

    error_buffer: float = 0.0
    """trigger=ratio: samples by which the ratio may be off before a side waits; 0: a batch and a segment's share."""

    sampler: Selection = "uniform"
    """Which segments are drawn. prioritized: by the mean size of their temporal-difference errors, as seen when acting.
    All but uniform and prioritized need ``max_times_sampled``: they give the same segment until it is gone."""

    remover: Selection = "fifo"
    """Which segment gives way when the buffer is full."""

    priority_exponent: float = 0.5
    """prioritized: priorities count to this power; 0 is uniform."""

    max_times_sampled: int = 0
    """A segment leaves after so many draws; 0: when it must give way, or is older than ``learning.max_policy_lag``."""

    save: bool = False
    """Keep the contents in checkpoints. Without it a resumed run fills the buffer again; counters are always kept, so
    that the ratio holds over the whole run."""

    def __post_init__(self) -> None:
        require_least(self, 0, "capacity", "preload", "error_buffer", "priority_exponent", "max_times_sampled")
        require_positive(self, "samples_per_insert", "clock_seconds")
        if self.sampler not in RANDOM and not self.max_times_sampled:
            raise ValueError(
                f"sampler={self.sampler} without max_times_sampled gives the same segment for ever; set "
                "max_times_sampled=1, or sampler=uniform"
            )

    @property
    def on(self) -> bool:
        return self.capacity > 0

    def min_size(self, batch: int) -> int:
        """Return how many segments must be there before a batch of ``batch`` is drawn."""
        part = self.capacity // self.preload if self.preload > 1 else self.capacity * self.preload
        return max(batch, int(part))

    def error(self, batch: int) -> float:
        """Return by how many samples the ratio may be off: ``error_buffer``, or what 0 of it stands for."""
        return self.error_buffer or batch + self.samples_per_insert
