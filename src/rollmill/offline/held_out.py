"""Watches the loss on held-out episodes: where it was lowest, whether it has risen since, and when to stop.

A policy that is fitted for too long learns the recorded episodes by heart: its loss on them goes on falling while the
loss on episodes it has not seen rises. So the weights with the lowest held-out loss are kept beside the last ones, and
it is they that act.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from rollmill.core.fields import Array
from rollmill.core.shapes import ARRAY, Shape

Weights = dict[str, Array]

HELD_OUT_SHAPE: Shape = {
    "step": int,
    "loss": (float, None),
    "last_loss": (float, None),
    "since": int,
    "told": int,
    "weights": ({str: ARRAY}, None),
}
RISING = 3
"""Validations in a row above the lowest before it counts as risen: one or two are noise."""
RISE = 0.01
"""Share of the lowest loss by which it must have risen: a fit that has come to rest wavers by less."""


class HeldOut:
    """What is known about the held-out loss so far. ``patience``: validations without a new lowest; 0: any number."""

    def __init__(self, patience: int = 0) -> None:
        self.patience = patience
        self.best_step = 0
        """Update of the lowest loss; 0 before anything was held out and validated."""
        self.best_loss = math.inf
        self.last_loss = math.inf
        self.since = 0
        """Validations since the lowest."""
        self.weights: Weights | None = None
        """Those of the lowest loss."""
        self._told = 0

    def note(self, step: int, loss: float, weights: Callable[[], Weights]) -> None:
        """Take note of the loss of one validation; ``weights`` are asked for where it is the lowest so far."""
        self.last_loss = loss
        if loss < self.best_loss:
            self.best_step, self.best_loss, self.since = step, loss, 0
            self.weights = weights()
        else:
            self.since += 1

    @property
    def exhausted(self) -> bool:
        """Whether waiting for a lower loss has taken long enough."""
        return 0 < self.patience <= self.since

    @property
    def rising(self) -> bool:
        return self.since >= RISING and self.last_loss - self.best_loss > RISE * abs(self.best_loss)

    def warning(self) -> str:
        """Return a sentence when the loss has begun to rise, once for every lowest loss; else nothing."""
        if not self.rising or self._told == self.best_step:
            return ""
        self._told = self.best_step
        return self.text()

    def text(self) -> str:
        """Say what the loss has done since its lowest."""
        return (
            f"held-out loss has risen since update {self.best_step:,} ({self.best_loss:.4g} there, "
            f"{self.last_loss:.4g} now): the policy is learning the recorded episodes by heart"
        )

    def metrics(self) -> dict[str, float]:
        if not self.best_step:
            return {}
        lowest = {"validation/best_loss": self.best_loss, "validation/best_update": float(self.best_step)}
        return {**lowest, "validation/rising": float(self.rising)}

    def state(self) -> dict[str, Any]:
        return {
            "step": self.best_step,
            "loss": self.best_loss if self.best_step else None,
            "last_loss": self.last_loss if self.best_step else None,
            "since": self.since,
            "told": self._told,
            "weights": self.weights,
        }

    def load_state(self, state: Mapping[str, Any] | None) -> None:
        """Go on from a checkpoint; one of version 0.1 has nothing to say."""
        if not state or state["loss"] is None:
            return
        self.best_step, self.best_loss, self.last_loss = state["step"], state["loss"], state["last_loss"]
        self.since, self._told, self.weights = state["since"], state["told"], state["weights"]
