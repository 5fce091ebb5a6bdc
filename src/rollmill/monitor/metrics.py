"""Meters of a run: episodes, averages, frames per second, time left.

Clocks are given in (seconds, monotonic), so that tests do not wait.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from rollmill.core.shapes import Shape

WINDOW_SHAPE: Shape = {str: [float]}
"""The shape of ``MetricWindow.state``."""
EPISODES_SHAPE: Shape = {"returns": [float], "lengths": [float], "count": int}
"""The shape of ``EpisodeStats.state``."""

Clock = Callable[[], float]
Limit = Literal["frames", "seconds", "batches"]


class MetricWindow:
    """Means by name over the last ``size`` values of each; a NaN stays visible in the mean."""

    def __init__(self, size: int = 100) -> None:
        self._size = _positive(size)
        self._values: dict[str, deque[float]] = {}

    def add(self, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._values.setdefault(name, deque(maxlen=self._size)).append(float(value))

    def means(self) -> dict[str, float]:
        return {name: _mean(values) for name, values in self._values.items()}

    def clear(self) -> None:
        self._values.clear()

    def state(self) -> dict[str, Any]:
        return {name: list(values) for name, values in self._values.items()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.clear()
        for name, values in state.items():
            for value in values:
                self.add({name: value})


class EpisodeStats:
    """Return and length (in steps) of the last ``size`` finished episodes, and how many there were in all."""

    def __init__(self, size: int = 100) -> None:
        self._returns: deque[float] = deque(maxlen=_positive(size))
        self._lengths: deque[float] = deque(maxlen=size)
        self.count = 0

    def add(self, returns: Iterable[float], lengths: Iterable[float]) -> None:
        """Add finished episodes, oldest first: one return and one length for each."""
        for episode_return, length in zip(returns, lengths, strict=True):
            self._returns.append(float(episode_return))
            self._lengths.append(float(length))
            self.count += 1

    @property
    def known(self) -> int:
        """How many episodes the means are over, or, once the window was full, how many there were in all."""
        return self.count if len(self._returns) == self._returns.maxlen else len(self._returns)

    def restart(self) -> None:
        """Forget the episodes so far, but not how many there were."""
        self._returns.clear()
        self._lengths.clear()

    @property
    def mean_return(self) -> float | None:
        """The mean return; None before the first episode has ended."""
        return _mean(self._returns) if self._returns else None

    @property
    def mean_length(self) -> float | None:
        return _mean(self._lengths) if self._lengths else None

    def metrics(self) -> dict[str, float]:
        """Return ``episode/count``, and once an episode has ended its return (mean, min, max) and length."""
        metrics = {"episode/count": float(self.count)}
        if self._returns:
            metrics |= {
                "episode/return": _mean(self._returns),
                "episode/return_min": min(self._returns),
                "episode/return_max": max(self._returns),
                "episode/length": _mean(self._lengths),
            }
        return metrics

    def state(self) -> dict[str, Any]:
        return {"returns": list(self._returns), "lengths": list(self._lengths), "count": self.count}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._returns.clear()
        self._lengths.clear()
        self.add(state["returns"], state["lengths"])
        self.count = state["count"]


class Rate:
    """Frames per second over the last ``window_s`` seconds."""

    _SAMPLES = 64  # kept at most per window, however often ``update`` is called

    def __init__(self, window_s: float = 30.0, clock: Clock = time.monotonic) -> None:
        self._window_s = window_s
        self._clock = clock
        self._samples: deque[tuple[float, int]] = deque()  # (time, total frames)

    def update(self, total_frames: int) -> None:
        """Tell the meter how many frames there have been in all; the first call starts it."""
        now = self._clock()
        samples = self._samples
        if len(samples) > 1 and now - samples[-2][0] < self._window_s / self._SAMPLES:
            samples[-1] = (now, total_frames)
        else:
            samples.append((now, total_frames))
        self._forget(now)

    def per_second(self) -> float:
        """Return the rate of late; 0 while nothing is known, and when nothing has happened for a whole window."""
        now = self._clock()
        self._forget(now)
        if not self._samples:
            return 0.0
        start, frames = self._samples[0]
        passed = now - start
        return (self._samples[-1][1] - frames) / passed if passed > 0 else 0.0

    def _forget(self, now: float) -> None:
        """Drop samples until only the first one is older than the window."""
        while len(self._samples) > 1 and self._samples[1][0] <= now - self._window_s:
            self._samples.popleft()


class Progress:
    """How far a run has come, given its limits (0: no such limit).

    ``seconds_before``: what earlier sessions of a resumed run have used of ``max_seconds``. ``batches`` of a method:
    training steps so far.
    """

    def __init__(
        self,
        max_frames: int = 0,
        max_seconds: float = 0.0,
        seconds_before: float = 0.0,
        clock: Clock = time.monotonic,
        max_batches: int = 0,
    ) -> None:
        self.max_frames, self.max_batches = max_frames, max_batches
        self.max_seconds = max_seconds if math.isfinite(max_seconds) else 0.0
        self._clock = clock
        self._start = clock() - seconds_before

    def elapsed(self) -> float:
        """Return the seconds of all sessions."""
        return self._clock() - self._start

    def reached(self, frames: int, batches: float = 0) -> bool:
        """Return whether a limit is reached."""
        nearest = self.nearest(frames, batches)
        return nearest is not None and nearest[1] >= 1.0

    def nearest(self, frames: int, batches: float = 0) -> tuple[Limit, float] | None:
        """Return the limit that will end the run, and the part of it that is done, 0 to 1; None without a limit."""
        shares: dict[Limit, float] = {}
        if self.max_frames > 0:
            shares["frames"] = frames / self.max_frames
        if self.max_seconds > 0:
            shares["seconds"] = self.elapsed() / self.max_seconds
        if self.max_batches > 0:
            shares["batches"] = batches / self.max_batches
        if not shares:
            return None
        limit = max(shares, key=lambda name: shares[name])
        return limit, min(1.0, shares[limit])

    def seconds_left(self, frames: int, frames_per_s: float, batches: float = 0) -> float | None:
        """Return the seconds until the first limit at this rate; None where that cannot be told."""
        left = []
        if self.max_frames > 0 and (frames >= self.max_frames or frames_per_s > 0):
            left.append(max(0, self.max_frames - frames) / max(frames_per_s, 1e-9))
        if self.max_seconds > 0:
            left.append(max(0.0, self.max_seconds - self.elapsed()))
        if self.max_batches > 0 and batches > 0:
            left.append(max(0.0, self.max_batches - batches) / batches * self.elapsed())
        return min(left) if left else None


def _mean(values: deque[float]) -> float:
    return sum(values) / len(values)


def _positive(size: int) -> int:
    if size < 1:
        raise ValueError(f"the size of a window must be at least 1, not {size}")
    return size
