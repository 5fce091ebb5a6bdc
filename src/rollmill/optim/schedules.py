"""Numbers that change while a run goes on: by progress, or by how far the policy moves."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from rollmill.core.errors import NonFiniteError


@dataclass(frozen=True)
class Schedule:
    """A value as a function of progress: from ``start`` at 0 to ``end`` at 1.

    ``constant`` stays at ``start``, ``linear`` is a straight line, ``cosine`` half a cosine wave (slow,
    fast, slow).
    """

    start: float
    end: float = 0.0
    kind: Literal["constant", "linear", "cosine"] = "constant"

    def at(self, progress: float) -> float:
        """Return the value when ``progress`` (done / planned) is reached; beyond 1 it stays at ``end``."""
        if not progress >= 0:
            raise ValueError(f"progress must be 0 or more, not {progress}")
        progress = min(progress, 1.0)
        if self.kind == "constant":
            return self.start
        if self.kind == "linear":
            remaining = 1 - progress
        else:
            remaining = 0.5 * (1 + math.cos(math.pi * progress))
        return self.end + (self.start - self.end) * remaining


@dataclass(frozen=True)
class WarmupCosine:
    """A learning rate that grows in a line for ``warmup`` steps and falls to ``end`` of itself along half a cosine."""

    rate: float
    end: float
    """Share of the rate that is left when progress is 1."""
    warmup: int = 0

    def at(self, step: int, progress: float) -> float:
        """Return the rate of optimizer step ``step``, counted from 0, when ``progress`` (done / planned) is reached."""
        share = Schedule(1.0, self.end, "cosine").at(progress)
        return self.rate * share * min(1.0, (step + 1) / max(1, self.warmup))


@dataclass(frozen=True)
class KlAdaptiveRate:
    """A learning rate that keeps the policy's steps near a KL of ``target``.

    It is divided by ``factor`` above twice the target, multiplied below half of it, and kept in bounds.
    """

    target: float
    minimum: float = 1e-6
    maximum: float = 1e-2
    factor: float = 1.5

    def __post_init__(self) -> None:
        if self.target <= 0 or self.factor <= 1:
            raise ValueError("target must be positive and factor above 1")
        if not 0 < self.minimum <= self.maximum:
            raise ValueError(f"need 0 < minimum <= maximum, not {self.minimum:g} and {self.maximum:g}")

    def next(self, rate: float, kl: float) -> float:
        """Return the rate to use after an update that moved the policy by ``kl``, which was made at ``rate``."""
        if not math.isfinite(kl):
            raise NonFiniteError(f"KL divergence is {kl} at learning rate {rate:g}; lower the rate or max_grad_norm")
        if kl > 2 * self.target:
            rate /= self.factor
        elif kl < self.target / 2:
            rate *= self.factor
        return min(max(rate, self.minimum), self.maximum)
