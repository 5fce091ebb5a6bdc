"""Guards of learning: they stop a run that has gone wrong and name the place.

``explain_non_finite`` is called once something is NaN or infinite and walks back to where it began;
``Alarms`` watches for values that collapse and gradients that stay at their limit.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from rollmill.core.errors import NonFiniteError, RollmillError
from rollmill.core.protocols import Learner
from rollmill.core.shapes import Shape
from rollmill.learning.batch import Pieces
from rollmill.models.actor_critic import ActorCritic
from rollmill.optim import finite

log = logging.getLogger("rollmill")


class ValueCollapseError(RollmillError):
    """The value function has been worse than a constant for a long time."""


def explain_non_finite(model: ActorCritic, pieces: Pieces, terms: Mapping[str, float]) -> str:
    """Say in words where the first NaN or infinity of a minibatch is; ``terms``: parts of its loss."""
    inputs = {f"observation {name!r}": x for name, x in pieces.obs.items()}
    inputs |= {name: getattr(pieces, name) for name in ("reward", "log_prob", "value", "action", "advantage")}
    return finite.explain_non_finite(model, lambda: model.unroll(pieces.obs, pieces.first, pieces.state), inputs, terms)


def stopped_by_nan(
    learner: Learner, what: str, optimizer_step: int | None = None, kept: str = "The weights were"
) -> NonFiniteError:
    """Return the error that ends learning. ``what``: known of the place; ``kept``: what is as before the step."""
    step = "" if optimizer_step is None else f", optimizer step {optimizer_step}"
    return finite.non_finite(
        f"while learning (policy {learner.policy_id}, batch {learner.version + 1}{step})", what, kept
    )


ALARMS_SHAPE: Shape = {"collapsed": int, "steep": int}


class Alarms:
    """Counts how long a metric has been bad; warns once per spell, and stops on lasting value collapse."""

    COLLAPSED = 2.0
    """The errors of the values vary this many times as much as what they should predict."""
    FLOOR = 0.1
    """A batch whose targets hardly vary (a solved task) is judged by this share of the run's variance of returns."""
    WARN_AFTER = 50

    def __init__(self, collapse_patience: int, max_grad_norm: float) -> None:
        self._patience = collapse_patience
        self._max_grad_norm = max_grad_norm
        self._collapsed = 0
        self._steep = 0
        self.active = 0
        """How many alarms are on right now (a metric)."""

    def check(self, metrics: Mapping[str, float], return_std: float, version: int) -> None:
        """Look at one batch's metrics; ``return_std`` is the run's deviation of returns (0 if unknown)."""
        usual = max(metrics["target_deviation"] ** 2, self.FLOOR * return_std**2)
        collapsed = metrics["error_deviation"] ** 2 > self.COLLAPSED * usual
        self._collapsed = self._collapsed + 1 if collapsed else 0
        steep = bool(self._max_grad_norm) and metrics["grad_norm"] > 10 * self._max_grad_norm
        self._steep = self._steep + 1 if steep else 0
        self.active = (self._collapsed >= self.WARN_AFTER) + (self._steep >= self.WARN_AFTER)
        if self._collapsed == self.WARN_AFTER:
            log.warning(
                "the value function is collapsing: for %d batches its errors vary more than the returns do "
                "(%.3g against %.3g); try a lower learning rate or learning.normalize_returns=true",
                self.WARN_AFTER,
                metrics["error_deviation"],
                metrics["target_deviation"],
            )
        if self._steep == self.WARN_AFTER:
            log.warning(
                "gradient norm above ten times max_grad_norm for %d batches (now %.3g against %g)",
                self.WARN_AFTER,
                metrics["grad_norm"],
                self._max_grad_norm,
            )
        if self._patience and self._collapsed >= self._patience:
            raise ValueCollapseError(
                f"value collapse: for {self._collapsed} batches (now batch {version}) the value function's errors have "
                f"varied more than the returns do ({metrics['error_deviation']:.3g} against "
                f"{metrics['target_deviation']:.3g}); learning.collapse_patience={self._patience} stops the run"
            )

    def state(self) -> dict[str, int]:
        """Return how long each alarm has lasted: a run that goes on must stop where it would have stopped."""
        return {"collapsed": self._collapsed, "steep": self._steep}

    def load_state(self, state: Mapping[str, int]) -> None:
        self._collapsed, self._steep = state["collapsed"], state["steep"]
