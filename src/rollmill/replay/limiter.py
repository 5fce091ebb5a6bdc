"""How often what was put into a table may be drawn: one rule with two bounds, and its named settings.

``I``, ``S`` and ``D`` count what was inserted, sampled and deleted. Sampling is allowed once the table holds
``min_size`` items and as long as ``I * samples_per_insert - S`` stays at or above ``min_diff``; inserting, while that
number stays at or below ``max_diff``. Whichever side runs ahead waits for the other, so the ratio holds for any speeds.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

from rollmill.core.shapes import Shape, check_shape

log = logging.getLogger("rollmill")

COUNTERS_SHAPE: Shape = {"inserted": int, "sampled": int, "deleted": int}


class RateLimiter:
    """Counts what happens to a table and says what may happen next; it never waits itself."""

    def __init__(self, samples_per_insert: float, min_size: int, min_diff: float, max_diff: float) -> None:
        if not samples_per_insert > 0:
            raise ValueError(f"samples_per_insert={samples_per_insert:g} must be positive")
        if min_size < 1:
            raise ValueError(f"min_size={min_size} must be at least 1")
        if max_diff - min_diff < 2 * max(1.0, samples_per_insert):
            raise ValueError(
                f"between {min_diff:g} and {max_diff:g} there is no room for an insert and a sample: both could wait "
                f"for ever; leave at least {2 * max(1.0, samples_per_insert):g}"
            )
        if min_diff > samples_per_insert * min_size:
            raise ValueError(
                f"min_diff={min_diff:g} is more than the {samples_per_insert * min_size:g} samples that the first "
                f"{min_size} inserts allow: nothing would ever be sampled"
            )
        if max_diff < samples_per_insert * min_size:
            log.warning(
                "rate limiter: max_diff=%g is less than the %g samples that the first %d inserts allow: inserts wait "
                "for samples at once",
                *(max_diff, samples_per_insert * min_size, min_size),
            )
        self.samples_per_insert = float(samples_per_insert)
        self.min_size = min_size
        self.min_diff, self.max_diff = float(min_diff), float(max_diff)
        self.inserted = self.sampled = self.deleted = 0

    # -- named settings ------------------------------------------------------------------------

    @classmethod
    def by_size(cls, size: int) -> RateLimiter:
        """Let sampling wait only until the table holds so many items."""
        return cls(1.0, size, -math.inf, math.inf)

    @classmethod
    def by_ratio(cls, ratio: float, min_size: int, error: float | tuple[float, float]) -> RateLimiter:
        """Allow ``ratio`` samples for each insert after the first ``min_size``, give or take ``error`` samples.

        Two numbers are the bounds themselves.
        """
        low, high = error if isinstance(error, tuple) else (ratio * min_size - error, ratio * min_size + error)
        return cls(ratio, min_size, low, high)

    @classmethod
    def queue(cls, size: int) -> RateLimiter:
        """Let everything be sampled once, and at most ``size`` items wait for it. A stack is limited alike."""
        return cls(1.0, 1, 0.0, float(size))

    # -- the rule ------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Items in the table."""
        return self.inserted - self.deleted

    @property
    def ratio(self) -> float:
        """Samples for every insert after the first ``min_size``; 0 until there are any."""
        counted = self.inserted - self.min_size
        return self.sampled / counted if counted > 0 else 0.0

    def may_sample(self, count: int = 1) -> bool:
        ahead = self.inserted * self.samples_per_insert - self.sampled
        return self.size >= self.min_size and ahead - count >= self.min_diff

    def may_insert(self, count: int = 1) -> bool:
        if self.size + count <= self.min_size:
            return True
        return (self.inserted + count) * self.samples_per_insert - self.sampled <= self.max_diff

    # -- checkpoints ---------------------------------------------------------------------------

    def state(self) -> dict[str, int]:
        return {"inserted": self.inserted, "sampled": self.sampled, "deleted": self.deleted}

    def load_state(self, state: Mapping[str, int]) -> None:
        check_shape(state, COUNTERS_SHAPE)
        self.inserted, self.sampled, self.deleted = state["inserted"], state["sampled"], state["deleted"]
