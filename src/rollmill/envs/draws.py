"""Numbers that an environment draws for every episode, as a configuration can describe them: a curriculum's values.

==========================  ===================================================================================
``7``                       always 7
``[1, 3, 5, 13]``           by the progress of the run: the first quarter 1, the second 3, ...
``[0, [0, 1], [0, 1, 5]]``  likewise; of numbers that stand together any, all alike likely
``uniform``                 any whole number of the range, all alike likely
``normal``                  whole numbers of the range around its middle
==========================  ===================================================================================

Progress (0 to 1) is the run's: the trainer computes it once for all environments (``env.variables.progress``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Described = int | Sequence[int | Sequence[int]] | str
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
        described = self.described
        if isinstance(described, str) and described in ("uniform", "normal"):
            return
        for value in [value for stage in self._listed(described) for value in self._listed(stage)]:
            if isinstance(value, bool) or not isinstance(value, int) or not self.low <= value <= self.high:
                raise ValueError(f"{self.name}: {value!r} is not a whole number from {self.low} to {self.high}")

    def _listed(self, described: object) -> Sequence[object]:
        if isinstance(described, int | float):
            return [described]
        if isinstance(described, str) or not isinstance(described, Sequence) or not described:
            raise ValueError(
                f"{self.name}={self.described!r}: a number, a list of numbers or of lists, 'uniform' or 'normal'"
            )
        return described

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
        stage = described[min(len(described) - 1, int(progress * len(described)))]
        return stage if isinstance(stage, int) else stage[int(rng.integers(len(stage)))]
