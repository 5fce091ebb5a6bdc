"""Says who runs on which core; ``core.machine`` has the cores, and the means to keep somebody to them.

A run has the cores that its process may use. Ranks share them out evenly. Within a rank each worker has one core, and
the thread that does inference has one without a worker, or takes turns with the last of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollmill.core.machine import available_cores, usable_cores
from rollmill.sampling.settings import SamplingSettings

POLL_INTERVAL = 0.00005
"""How long the inference thread leaves its core to the worker there before it looks again, for each group that is
still missing: a fraction of the time between two of them."""
SHARED_FROM = 4
"""Cores from which on one belongs to the inference thread, even where each has a worker."""


def default_workers() -> int:
    """Return one worker for each core that this process can keep busy."""
    return available_cores()


def share_cores(count: int) -> list[frozenset[int]]:
    """Return the cores of each rank: equal shares, none in common; empty sets if there are too few or none known."""
    cores = usable_cores()
    each = len(cores) // count
    return [frozenset(cores[rank * each : (rank + 1) * each]) for rank in range(count)]


@dataclass(frozen=True)
class InferenceCore:
    """Where the inference thread runs."""

    core: int
    pause: float
    """Shortest sleep in seconds between two looks at what it waits for; 0: the core is its own, and it stays awake."""


@dataclass(frozen=True)
class Placement:
    """Where the processes and threads of one pool run, decided before any of them is kept to its core."""

    cores: tuple[int, ...]
    """Those that workers are pinned to, one each; empty: everybody runs anywhere."""
    inference: InferenceCore | None = None
    """None: that thread runs anywhere."""

    @classmethod
    def of(cls, settings: SamplingSettings, workers: int, pin_inference: bool) -> Placement:
        cores = tuple(usable_cores() if settings.affinity else ())
        return cls(cores, _inference_core(cores, workers, settings.mode) if pin_inference else None)

    def worker(self, index: int) -> int | None:
        """Return the core of a worker; those beyond the last core begin again with the first."""
        return self.cores[index % len(self.cores)] if self.cores else None

    def beside_inference(self, index: int) -> bool:
        """Return whether this worker shares its core with the inference thread, and has to step aside."""
        return self.inference is not None and self.worker(index) == self.inference.core


def _inference_core(cores: Sequence[int], workers: int, mode: str) -> InferenceCore | None:
    """Choose a core without a worker if every worker is pinned to one; else the last one, whose worker steps aside.

    None where nobody can step aside: too few cores, or everybody has to wait for the slowest (sync mode).
    """
    if workers < len(cores):
        # A container may see more cores than it may keep busy.
        return InferenceCore(cores[workers], 0.0 if workers < available_cores() else POLL_INTERVAL)
    if mode != "async" or len(cores) < SHARED_FROM:
        return None
    return InferenceCore(cores[-1], POLL_INTERVAL)
