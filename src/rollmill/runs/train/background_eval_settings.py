"""Settings of the evaluation that goes on beside a training."""

from __future__ import annotations

from rollmill.core.config.schema import settings


@settings
class EvaluationSettings:
    """Whole episodes of the current policy, played by a process of its own while the training goes on."""

    every_frames: int = 0
    """Frames between two evaluations; 0 is off. One that is due while another is running is left out and counted."""

    episodes: int = 10
    """Episodes of each evaluation; always the same ones, so that figures compare."""

    envs: int = 4
    """Environments that play side by side, all in the one process."""

    deterministic: bool = False
    """Take the most likely action instead of sampling one."""

    final: bool = False
    """Evaluate the last weights when the training ends, and wait for it."""

    nice: int = 19
    """How far the process steps back behind others: 0 (not at all) to 19 (it gets what they leave over)."""

    def __post_init__(self) -> None:
        if self.every_frames < 0:
            raise ValueError("every_frames must be 0 (off) or positive")
        if self.episodes < 1 or self.envs < 1:
            raise ValueError("episodes and envs must be at least 1")
        if not 0 <= self.nice <= 19:
            raise ValueError("nice goes from 0 to 19")

    @property
    def on(self) -> bool:
        return self.every_frames > 0 or self.final
