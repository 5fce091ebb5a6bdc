"""Figures of a training step, added up over micro-batches and minibatches."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from rollmill.learning.losses import masked_mean

_MOMENTS = ("target", "target_square", "error", "error_square")


class Sums:
    """Sums of terms as tensors, turned into numbers once at the end (one transfer from the device)."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}

    def add(self, terms: Mapping[str, Tensor]) -> None:
        for name, term in terms.items():
            self._sums[name] = self._sums[name] + term if name in self._sums else term

    def total(self, name: str) -> float:
        return float(self._sums.get(name, 0.0))

    def means(self) -> dict[str, float]:
        """Means over minibatches; the moments of targets and errors become figures of the value function."""
        count = max(1.0, self.total("minibatches"))
        means = {name: float(x) / count for name, x in self._sums.items() if name != "minibatches"}
        if "target" in means:
            means |= _value_figures({name: means.pop(name) for name in _MOMENTS})
        return means


@torch.no_grad()
def value_moments(predicted: Tensor, target: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """First and second moments of targets and errors; unlike variances, these add up over micro-batches."""
    target, error = target.double(), (target - predicted).double()
    columns = (target, target.square(), error, error.square())
    return {name: masked_mean(x, mask) for name, x in zip(_MOMENTS, columns, strict=True)}


def _value_figures(m: Mapping[str, float]) -> dict[str, float]:
    """``explained_variance``: 1 is a perfect value function, 0 no better than a constant, negative worse.

    It is 0 where the targets have no variance, because then it is not defined. The deviations of targets
    and of errors are in units of the return.
    """
    spread = max(0.0, m["target_square"] - m["target"] ** 2)
    error = max(0.0, m["error_square"] - m["error"] ** 2)
    defined = spread > 1e-12 * max(1.0, m["target_square"])
    return {
        "explained_variance": 1.0 - error / spread if defined else 0.0,
        "target_deviation": math.sqrt(spread),
        "error_deviation": math.sqrt(error),
    }
