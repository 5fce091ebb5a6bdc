"""What a tuned setting may be, and how it moves: factors or steps, reflected at the bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Scale = Literal["log", "linear", "horizon"]
SCALES: tuple[Scale, ...] = ("log", "linear", "horizon")
HORIZONS = ("gamma", "gae_lambda")
"""Settings whose distance from 1 is what matters."""
DECADE = 10.0
"""Bounds so far apart, both above 0, mean factors."""
INTEGER, CHOICE = "integer", "choice"
LEAST_STEP = 0.075
"""Share of a linear range that a step is measured by at least: a factor alone would leave a zero where it is."""


@dataclass(frozen=True)
class Range:
    """The bounds of one setting. ``unit`` and ``value`` turn it into 0..1, in which every scale is even, and back."""

    low: float
    high: float
    scale: Scale = "linear"
    whole: bool = False
    """Only whole numbers; a step is at least 1."""
    values: tuple[float, ...] = ()
    """Only these, in this order; a step leads to a neighbour."""

    @classmethod
    def parse(cls, key: str, described: Any) -> Range:
        """Read ``[low, high]``, ``[low, high, scale]``, ``[low, high, integer]`` or ``[1, 4, 16, choice]``; raises
        ValueError if that is no range."""
        parts = list(described) if isinstance(described, list | tuple) else []
        if parts and parts[-1] == CHOICE:
            return cls._choice(key, parts[:-1])
        if whole := len(parts) == 3 and parts[2] == INTEGER:
            parts.pop()
        numbers = [x for x in parts[:2] if isinstance(x, int | float) and not isinstance(x, bool) and math.isfinite(x)]
        if len(numbers) < 2 or len(parts) > 3 or (len(parts) == 3 and parts[2] not in SCALES):
            raise ValueError(
                f"{key}: expected bounds such as [0.001, 0.1], [0, 1, linear] or [1, 8, integer], or values such as "
                f"[0, 1, 5, choice], not {described!r}"
            )
        low, high = float(numbers[0]), float(numbers[1])
        if low >= high:
            raise ValueError(f"{key}: the lower bound {low:g} must be below the upper one, {high:g}")
        if whole and not (low.is_integer() and high.is_integer()):
            raise ValueError(f"{key}: the bounds of whole numbers must be whole numbers, not {low:g} and {high:g}")
        usual: Scale = "log" if low > 0 and high / low >= DECADE else "linear"
        if key.rpartition(".")[2] in HORIZONS:
            usual = "horizon"
        scale: Scale = parts[2] if len(parts) == 3 else usual
        if scale == "log" and low <= 0:
            raise ValueError(f"{key}: factors never reach {low:g}; give a lower bound above 0, or the scale linear")
        if scale == "horizon" and not 0 <= low < high < 1:
            raise ValueError(f"{key}: the scale horizon (factors of 1 - x) needs bounds from 0 to below 1")
        return cls(low, high, scale, whole)

    @classmethod
    def _choice(cls, key: str, values: list[Any]) -> Range:
        numbers = [float(x) for x in values if isinstance(x, int | float) and math.isfinite(x)]
        if len(numbers) < max(2, len(values)) or len(set(numbers)) < len(numbers):
            raise ValueError(f"{key}: expected at least two different numbers to choose from, not {values!r}")
        return cls(min(numbers), max(numbers), values=tuple(numbers))

    def unit(self, value: float) -> float:
        if self.values:
            return self.values.index(value) / (len(self.values) - 1)
        low, high = self._inner(self.low), self._inner(self.high)
        return (self._inner(value) - low) / (high - low)

    def value(self, unit: float) -> float:
        """Return the setting at ``unit``, 0 to 1."""
        if self.values:
            return self.values[round(min(max(unit, 0.0), 1.0) * (len(self.values) - 1))]
        low, high = self._inner(self.low), self._inner(self.high)
        inner = low + min(max(unit, 0.0), 1.0) * (high - low)
        outer = math.exp(inner) if self.scale == "log" else 1 - math.exp(-inner) if self.scale == "horizon" else inner
        return min(max(float(round(outer)) if self.whole else outer, self.low), self.high)

    def _inner(self, value: float) -> float:
        return math.log(value) if self.scale == "log" else -math.log(1 - value) if self.scale == "horizon" else value

    def __contains__(self, value: float) -> bool:
        if self.values:
            return value in self.values
        return self.low <= value <= self.high and (not self.whole or value.is_integer())

    def perturb(self, value: float, factor: float, up: bool) -> float:
        """Return ``value`` times ``factor``, or divided by it; what would leave the bounds is reflected."""
        if self.values:
            place, last = self.values.index(value) + (1 if up else -1), len(self.values) - 1
            return self.values[int(reflect(place, 0, last))]
        low, high = self._inner(self.low), self._inner(self.high)
        if self.scale == "linear":
            step = (factor - 1) * max(abs(value), LEAST_STEP * (high - low))
        else:
            step = math.log(factor)
        moved = reflect(self._inner(value) + (step if up else -step), low, high)
        found = self.value((moved - low) / (high - low))
        if self.whole and found == value:
            return reflect(value + (1 if up else -1), self.low, self.high)
        return found


def reflect(x: float, low: float, high: float) -> float:
    """Return ``x`` within the bounds, as a ray between two mirrors."""
    width = high - low
    phase = (x - low) % (2 * width)
    return low + (phase if phase <= width else 2 * width - phase)


Space = Mapping[str, Range]
"""The range of every tuned setting, by its dotted name."""


def perturbed(
    space: Space,
    settings: Mapping[str, float],
    rng: np.random.Generator,
    factors: tuple[float, float],
    rate: float = 1.0,
    resample: float = 0.0,
) -> dict[str, float]:
    """Move each setting by a random factor with chance ``rate``, or draw it anew with chance ``resample`` of that."""
    found = {}
    for key, bounds in space.items():
        # All four are drawn whatever comes of them: what one setting does moves no other.
        chance, again, factor, side = rng.random(), rng.random(), rng.uniform(*factors), rng.random()
        value = settings[key]
        if chance < rate:
            value = bounds.value(side) if again < resample else bounds.perturb(value, factor, side < 0.5)
        found[key] = value
    return found


def spread(space: Space, members: int, rng: np.random.Generator) -> list[dict[str, float]]:
    """Return every setting at even distances over the members: the first in order, others shuffled (Latin square)."""
    columns = {}
    for number, (key, bounds) in enumerate(space.items()):
        values = [bounds.value(u) for u in np.linspace(0, 1, members).tolist()]
        columns[key] = values if number == 0 else [values[k] for k in rng.permutation(members).tolist()]
    return [{key: column[k] for key, column in columns.items()} for k in range(members)]


def sampled(space: Space, members: int, rng: np.random.Generator) -> list[dict[str, float]]:
    """Draw every setting of every member by itself."""
    return [{key: bounds.value(float(rng.random())) for key, bounds in space.items()} for _ in range(members)]


def parse_space(described: Mapping[str, Any]) -> dict[str, Range]:
    return {key: Range.parse(key, bounds) for key, bounds in described.items()}


def units(space: Space, settings: Mapping[str, float]) -> list[float]:
    """Return all settings as 0..1, in the order of the space."""
    return [bounds.unit(settings[key]) for key, bounds in space.items()]


def from_units(space: Space, numbers: Sequence[float]) -> dict[str, float]:
    """Return the settings that ``numbers`` stand for (see ``units``); beyond the bounds they are reflected."""
    return {key: bounds.value(reflect(u, 0.0, 1.0)) for (key, bounds), u in zip(space.items(), numbers, strict=True)}
