"""When it is time to learn from a table: by the ratio, by what is new, or by the clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from rollmill.replay.limiter import RateLimiter


class Trigger(Protocol):
    """Asked after every insert, or round of inserts, whether a batch is to be drawn."""

    repeats: bool
    """Whether to ask again after a training, before anything new is inserted."""
    timed: bool
    """Whether to ask while nothing is inserted, too."""

    def due(self) -> bool:
        """Return whether to train now; True counts as the training having been done."""

    def state(self) -> dict[str, Any]: ...

    def load_state(self, state: Mapping[str, Any]) -> None: ...


class ByRatio:
    """Is due as often as the limiter allows a batch: the ratio of samples to inserts is exact."""

    repeats, timed = True, False

    def __init__(self, limiter: RateLimiter, batch: int) -> None:
        self._limiter, self._batch = limiter, batch

    def due(self) -> bool:
        return self._limiter.may_sample(self._batch)

    def state(self) -> dict[str, Any]:
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        pass


class ByNew:
    """Is due once ``needed`` items are new since the check before the last training, and the table holds ``min_size``.

    What is new beyond that is forgotten, and inserts never wait: a slow learner samples less than the ratio.
    """

    repeats, timed = False, False

    def __init__(self, limiter: RateLimiter, needed: float, min_size: int) -> None:
        self._limiter, self._needed, self._min_size = limiter, needed, min_size
        self._seen = 0

    def due(self) -> bool:
        inserted = self._limiter.inserted
        if self._limiter.size < self._min_size or inserted - self._seen < self._needed:
            return False
        self._seen = inserted
        return True

    def state(self) -> dict[str, Any]:
        return {"seen": self._seen}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._seen = int(state["seen"])


class ByClock:
    """Is due every so many seconds, however much or little is new, once there is a batch."""

    repeats, timed = False, True

    def __init__(
        self, limiter: RateLimiter, batch: int, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limiter, self._batch, self._seconds, self._clock = limiter, batch, seconds, clock
        self._last = clock()

    def due(self) -> bool:
        now = self._clock()
        if not self._limiter.may_sample(self._batch) or now - self._last < self._seconds:
            return False
        self._last = now
        return True

    def state(self) -> dict[str, Any]:
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        pass
