"""Settings of levels: which ones are played, in which order, and where generated ones are kept."""

from __future__ import annotations

from typing import Literal

from rollmill.core.config.schema import settings

Part = Literal["all", "train", "test"]
Draw = Literal["auto", "once", "cycle", "sample"]


@settings(shorthand="folder")
class LevelSettings:
    """Levels that a run draws from, and a folder that keeps what was expensive to make. ``env.levels: FOLDER`` is short
    for ``env.levels: {folder: FOLDER}``."""

    folder: str = ""
    """Where generated levels are kept, for this and other runs, on any number of machines that share it; each
    environment has a folder of its own in there. Empty: levels are generated whenever they are played."""

    count: int = 0
    """Play these levels only: the ones of the seeds ``first`` to ``first + count - 1``. 0: those that the folder holds
    when the run begins, and new ones."""

    first: int = 0
    """The first seed of ``count``."""

    draw: Draw = "auto"
    """once: no level twice for one policy; when the known ones are used up, new ones are generated. cycle: all levels
    in turn, in an order of chance that changes from round to round. sample: any level at any time. auto: cycle with
    ``count``, else once."""

    part: Part = "all"
    """train and test divide all levels by their seeds, so that a policy can be tested on levels that it has not seen:
    ``rollmill eval RUN env.levels.part=test``."""

    test_share: float = 0.1
    """Share of the levels that belong to the part ``test``."""

    max_gb: float = 10.0
    """Gigabytes (10^9 bytes) that the levels of one environment may take; what comes later is played and not kept."""

    def __post_init__(self) -> None:
        if self.count < 0 or self.first < 0 or self.first + self.count > 2**31:
            raise ValueError("count and first must not be negative, and seeds end below 2**31")
        if self.first and not self.count:
            raise ValueError("first is the first seed of count: set count, too")
        if self.count and self.draw == "once":
            raise ValueError("count is a fixed set of levels, draw=once goes beyond any: use draw=cycle or sample")
        if not 0 < self.test_share < 1:
            raise ValueError("test_share must be above 0 and below 1")
        if self.max_gb <= 0:
            raise ValueError("max_gb must be positive")
        if not self.on and (self.draw != "auto" or self.part != "all"):
            raise ValueError("draw and part need levels to draw from: set folder or count")

    @property
    def on(self) -> bool:
        """Whether seeds of episodes are drawn from a set of levels."""
        return bool(self.folder) or self.count > 0

    @property
    def order(self) -> Literal["once", "cycle", "sample"]:
        """``draw`` with ``auto`` decided."""
        if self.draw == "auto":
            return "cycle" if self.count else "once"
        return self.draw

    @property
    def max_bytes(self) -> int:
        return int(self.max_gb * 1e9)
