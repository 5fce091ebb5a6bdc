"""When to record: which part of the run, in frames."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

SLICES = 50
"""Parts of the run that get the same share of the budget each (``spread``)."""

_SYNTAX = re.compile(r"(last|after):(\d+(?:_\d+)*(?:\.\d+)?(?:[eE]\d+)?)(%?)")


@dataclass(frozen=True)
class Window:
    """Part of a run. ``amount``: frames, or a share of the run where ``relative``."""

    kind: Literal["run", "last", "after", "spread"]
    amount: float = 0.0
    relative: bool = False

    @staticmethod
    def parse(text: str) -> Window:
        """Read ``run``, ``spread``, ``last:N``, ``last:P%`` or ``after:N``; raises ValueError on anything else."""
        if text == "run":
            return Window("run")
        if text == "spread":
            return Window("spread")
        match = _SYNTAX.fullmatch(text)
        if match is None or (match[3] and match[1] == "after"):
            raise ValueError(f"when={text!r}: run, last:N, last:P%, after:N or spread is expected (N: frames)")
        amount = float(match[2])
        if match[3]:
            if not 0 < amount <= 100:
                raise ValueError(f"when={text!r}: a percentage is above 0 and at most 100")
            return Window("last", amount / 100, relative=True)
        return Window("last" if match[1] == "last" else "after", amount)

    @property
    def needs_limit(self) -> bool:
        """Whether it can only be placed in a run whose number of frames is known."""
        return self.kind in ("last", "spread")

    def start(self, limit: int) -> int:
        """Return the first frame to record in a run of ``limit`` frames (0: no limit)."""
        if self.kind == "after":
            return int(self.amount)
        if self.kind == "last":
            return max(0, math.ceil(limit - (self.amount * limit if self.relative else self.amount)))
        return 0

    def share(self, limit: int) -> float:
        """Return the part of the run that lies within the window."""
        return max(0.0, 1 - self.start(limit) / limit) if limit else 1.0

    def is_open(self, frames: int, limit: int, used: int = 0, usable: int = 0) -> bool:
        """Return whether to record now; ``used`` of ``usable`` bytes are taken (for ``spread``).

        The run is cut into slices. Each may fill the budget up to its share, so what one slice did not use is left to
        the next ones, and recording pauses once a slice has used its part up.
        """
        if self.kind != "spread":
            return frames >= self.start(limit)
        slice_number = min(SLICES - 1, int(frames / limit * SLICES))
        return used < usable * (slice_number + 1) / SLICES
