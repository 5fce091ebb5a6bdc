"""Figures of training steps, added up between two rows of metrics."""

from __future__ import annotations

from collections.abc import Mapping


class StepFigures:
    """Sums of named figures over the steps since ``take`` was called last."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._count = 0

    @property
    def fresh(self) -> bool:
        """Whether there was a step since."""
        return self._count > 0

    def note(self, figures: Mapping[str, float]) -> None:
        """The figures of one step."""
        for name, value in figures.items():
            self._sums[name] = self._sums.get(name, 0.0) + value
        self._count += 1

    def take(self) -> tuple[dict[str, float], int]:
        """(sums, steps) since the last call; begins anew."""
        taken = self._sums, self._count
        self._sums, self._count = {}, 0
        return taken
