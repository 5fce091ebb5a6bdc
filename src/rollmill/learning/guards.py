"""Guards of learning: they stop a run that has gone wrong and name the place.

``explain_non_finite`` is called once something is NaN or infinite and walks back to where it began;
``Alarms`` watches for values that collapse and gradients that stay at their limit.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from rollmill.core.errors import RollmillError
from rollmill.learning.batch import Pieces
from rollmill.models.actor_critic import ActorCritic

log = logging.getLogger("rollmill")


class ValueCollapseError(RollmillError):
    """The value function has been worse than a constant for a long time."""


def explain_non_finite(model: ActorCritic, pieces: Pieces, terms: Mapping[str, float]) -> str:
    """Where the first NaN or infinity is: data, weights, a layer, a loss term, or a gradient."""
    for name, tensor in _inputs(pieces):
        if (place := first_bad(tensor)) is not None:
            return f"the batch itself: {name} at index {place}"
    for name, parameter in model.named_parameters():  # running moments only pass on what others did
        if (place := first_bad(parameter)) is not None:
            return f"the weights: {name} at index {place}"
    if layer := _first_bad_layer(model, pieces):
        return f"the output of layer {layer}"
    for name, value in terms.items():
        if not math.isfinite(value):
            return f"the loss term {name} ({value})"
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and (place := first_bad(parameter.grad)) is not None:
            return f"the gradient of {name} at index {place}"
    return "no single place (it vanished when the step was repeated)"


def _inputs(pieces: Pieces) -> list[tuple[str, Tensor]]:
    named = [(f"observation {name!r}", x) for name, x in pieces.obs.items()]
    named += [(name, getattr(pieces, name)) for name in ("reward", "log_prob", "value", "action", "advantage")]
    return [(name, x) for name, x in named if x.is_floating_point()]


def first_bad(tensor: Tensor) -> list[int] | None:
    """Index of the first NaN or infinity; None where there is none."""
    bad = (~torch.isfinite(tensor)).nonzero()
    return bad[0].tolist() if len(bad) else None


@torch.no_grad()
def _first_bad_layer(model: ActorCritic, pieces: Pieces) -> str:
    """Repeat the forward pass and listen to every module; the first to speak nonsense is named."""
    found: list[str] = []

    def listen(name: str, module: nn.Module) -> torch.utils.hooks.RemovableHandle:
        def hook(_module: nn.Module, _inputs: object, output: object) -> None:
            outputs = output if isinstance(output, tuple) else (output,)
            floats = [x for x in outputs if isinstance(x, Tensor) and x.is_floating_point()]
            if not all(torch.isfinite(x).all() for x in floats):
                found.append(f"{name} ({type(module).__name__})")

        return module.register_forward_hook(hook)

    handles = [listen(name, module) for name, module in model.named_modules() if name]
    try:
        model.unroll(pieces.obs, pieces.first, pieces.state)
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else ""


class Alarms:
    """Counts how long a figure has been bad; warns once per spell, and stops on lasting value collapse."""

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
        """Look at one batch's figures; ``return_std`` is the run's deviation of returns (0 if unknown)."""
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
