"""How experience is gathered."""

from __future__ import annotations

from typing import Literal

from rollmill.core.config.schema import require_least, settings


@settings
class SamplingSettings:
    """Workers, lanes and time-outs of the sampling side."""

    mode: Literal["async", "sync", "serial"] = "async"
    """async: sample while learning; sync: sample, then learn; serial: everything in one process, deterministic."""

    workers: int = 0
    """Worker processes; 0: automatic, about one per core. In serial mode the same workers run inside the process."""

    envs_per_worker: int = 0
    """Environments stepped by each worker; 0: automatic, up to 16, such that a batch is a whole number of segments."""

    groups: int = 0
    """Parts of a worker's envs that take turns: one is stepped while the others wait for actions; 0: automatic, 2,
    or 4 with a GPU and without images."""

    inference_batch_share: float = 0.25
    """Share of all groups that one forward pass is for: fewer, larger passes through the network. Nobody waits longer
    than 20 ms for others; 0 takes whatever is ready at once."""

    rollout: int = 32
    """Steps of one segment (T)."""

    decorrelate_steps: int = 0
    """Each env first walks a random number of random steps, up to this many, so that lanes differ in phase."""

    affinity: bool = True
    """Pin each worker, and the simulator processes it starts, to one core (Linux)."""

    nice: int = 5
    """How far workers and simulators step back where cores are short (``nice`` of the process, 0 to 19): the one
    inference thread must not wait for its turn."""

    step_timeout: float = 60.0
    """Seconds an env may take for one step before its worker is replaced; 0 waits for ever."""

    reset_timeout: float = 120.0
    """Seconds an env may take for one reset, or to close; 0 waits for ever."""

    start_timeout: float = 120.0
    """Seconds an env's constructor may take; 0 waits for ever."""

    worker_restarts: int = 3
    """How often one worker may be replaced within ten minutes before the run stops."""

    spare_batches: int = 1
    """Finished batches that may wait for the learner before sampling pauses (bounds the policy lag)."""

    poison: bool = False
    """Fill fresh slots with NaN and impossible numbers, so that a use before writing shows (debugging)."""

    def __post_init__(self) -> None:
        require_least(self, 0, "workers", "envs_per_worker", "groups", zero="automatic")
        require_least(self, 1, "rollout", "spare_batches")
        if self.envs_per_worker and self.groups and self.envs_per_worker % self.groups:
            raise ValueError(
                f"envs_per_worker={self.envs_per_worker} cannot be split into groups={self.groups} equal parts"
            )
        if not 0 <= self.inference_batch_share <= 1:
            raise ValueError("inference_batch_share is a share of the groups, from 0 to 1")
        if not 0 <= self.nice <= 19:
            raise ValueError("nice goes from 0 (like other processes) to 19 (only where nobody else wants the core)")
        require_least(self, 0, "step_timeout", "reset_timeout", "start_timeout", "decorrelate_steps", "worker_restarts")
