"""Numbers that an environment draws for every episode, as a configuration can describe them: a curriculum's values.

========================  =====================================================================================
``7``                     always 7
``[1, 3, 5, 13]``         by the progress of the run: the first quarter 1, the second 3, ...
``uniform``               any whole number of the range, all alike likely
``normal``                whole numbers of the range around its middle
========================  =====================================================================================

Progress (0 to 1) is the run's: the trainer computes it once for all environments (``env.variables.progress``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Described = int | Sequence[int] | str
SIGMA = 2.5
"""Deviation of ``normal``."""


@dataclass(frozen=True)
class WholeNumber:
    """A whole number between ``low`` and ``high``; ValueError where the description makes no sense."""

    name: str
    described: Described
    low: int
    high: int

    def __post_init__(self) -> None:
        values = [self.described] if isinstance(self.described, int) else self.described
        if isinstance(values, str):
            if values not in ("uniform", "normal"):
                raise ValueError(f"{self.name}={values!r}: a number, a list of numbers, 'uniform' or 'normal'")
            return
        if not isinstance(values, Sequence) or not values:
            raise ValueError(f"{self.name}={self.described!r}: a number, a list of numbers, 'uniform' or 'normal'")
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int) or not self.low <= value <= self.high:
                raise ValueError(f"{self.name}: {value!r} is not a whole number from {self.low} to {self.high}")

    def draw(self, rng: np.random.Generator, progress: float) -> int:
        described = self.described
        if isinstance(described, int):
            return described
        if described == "uniform":
            return int(rng.integers(self.low, self.high + 1))
        if described == "normal":
            drawn = rng.normal((self.low + self.high) / 2, SIGMA)
            return int(np.clip(np.rint(drawn), self.low, self.high))
        assert not isinstance(described, str)
        return described[min(len(described) - 1, int(progress * len(described)))]
