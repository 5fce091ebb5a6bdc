"""What a training keeps of its trajectories, and when."""

from __future__ import annotations

from typing import Literal

from rollmill.core.config.schema import require_least, settings
from rollmill.core.errors import StoreError
from rollmill.recording.window import Window
from rollmill.store.format.schema import Column

Keep = Literal["off", "all", "one", "rotate", "every", "episodes", "best"]
AtBudget = Literal["stop", "thin", "ring"]
Extra = Literal["log_prob", "value"]

MOST_GB, MOST_BLOCK = 1e9, 1_000_000
WHOLE: tuple[Keep, ...] = ("all", "episodes", "best")
"""Ways to keep that choose whole episodes; the others keep segments, which are pieces of episodes."""


@settings(shorthand="keep")
class RecordingSettings:
    """Which trajectories of the training are kept as a store in the run's ``data`` folder."""

    keep: Keep = "off"
    """off; all: every episode, or as large a random part of them as budget and recorder allow; episodes: one of k
    episodes, at random; best: of every k finished episodes the one with the highest return. Pieces of episodes, good
    for single transitions only: one: one segment per training step, of the same worker where possible; rotate: one
    segment per training step, each time of another worker; every: every k-th segment."""

    every: int = 10
    """The k of keep=every, episodes and best."""

    min_return: float | None = None
    """Keep only whole episodes with at least this return (with keep=all or best)."""

    when: str = "run"
    """run: from start to end; last:N: the last N frames before stop.frames; last:P%: the last P percent of them;
    after:N: from frame N on; spread: spread over the run, so that the budget lasts until stop.frames."""

    budget_gb: float = 10.0
    """The data folder never grows beyond this many gigabytes (10^9 bytes); 0 is no limit."""

    at_budget: AtBudget = "stop"
    """When the budget is reached. stop: record no more; thin: drop a random half of all episodes, and keep half as
    many from then on; ring: drop the oldest."""

    columns: tuple[Extra, ...] = ()
    """What to store besides observation, action, reward, global step and version: log_prob, value."""

    image_codec: str = "auto"
    """Compression of images: auto (planes:1 with several channels, else zstd:1), planes:LEVEL, zstd:LEVEL, raw, or
    jpeg:QUALITY (lossy)."""

    block: int = 0
    """Steps compressed together; 0: automatic."""

    queue_segments: int = 0
    """Segments that may wait for the recorder. With keep=all, episodes and best, fewer episodes are chosen when more
    than half of these places are taken; with the others, segments that find no place are dropped. 0: automatic, at
    least one and a half batches (keep=one and rotate: 4), up to 32 within 1 % of the memory."""

    memory_mb: int = 1024
    """Memory for unfinished episodes whose return decides (keep=best, min_return); beyond it the longest is dropped."""

    nice: int = 5
    """How far the recorder's process steps back where cores are short (0 to 19), as sampling.nice for workers."""

    restarts: int = 3
    """How often the recorder's process may be restarted within ten minutes before recording is given up."""

    drain_seconds: float = 30.0
    """At the end of the run, how long the recorder may take to write what waits and to seal its shards."""

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError("every must be at least 1")
        if self.min_return is not None and self.keep not in ("off", "all", "best"):
            raise ValueError(f"min_return needs whole episodes: keep=all or keep=best, not keep={self.keep}")
        Window.parse(self.when)
        require_least(self, 0, "budget_gb", "block", "queue_segments", "restarts", "drain_seconds")
        if self.budget_gb > MOST_GB or self.block > MOST_BLOCK:
            raise ValueError(f"budget_gb goes up to {MOST_GB:g}, block up to {MOST_BLOCK:,} steps")
        if self.memory_mb < 1:
            raise ValueError("memory_mb must be at least 1")
        if not 0 <= self.nice <= 19:
            raise ValueError("nice goes from 0 (like other processes) to 19 (only where nobody else wants the core)")
        if self.when == "spread" and not self.budget_gb:
            raise ValueError("when=spread shares a budget out over the run: set budget_gb")
        try:
            Column("x", "uint8", (1, 1, 3), "obs", self.image_codec)
        except StoreError as error:
            raise ValueError(str(error).replace("column x", "image_codec")) from error

    @property
    def on(self) -> bool:
        return self.keep != "off"

    @property
    def whole(self) -> bool:
        """Whether episodes are kept whole, chosen when they begin; otherwise segments are kept, as they come."""
        return self.keep in WHOLE

    @property
    def budget_bytes(self) -> int:
        """The budget in bytes; 0 is no limit."""
        return int(self.budget_gb * 1e9)

    @property
    def by_return(self) -> bool:
        """Whether the return of a finished episode decides over it."""
        return self.keep == "best" or self.min_return is not None
