"""Metrics of a training step, added up over micro-batches and minibatches."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

_MOMENTS = ("target", "error", "target_square", "error_square")


class Sums:
    """Metrics of minibatches, added up as one vector and turned into numbers when asked (one transfer)."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)
        self._total: Tensor | None = None
        self._count = 0

    def add(self, metrics: Tensor) -> None:
        """Add the metrics ``[len(names)]`` of one minibatch."""
        self._total = metrics if self._total is None else self._total + metrics
        self._count += 1

    def copy(self) -> Sums:
        other = Sums(self._names)
        other._total, other._count = self._total, self._count
        return other

    def since(self, before: Sums) -> dict[str, float]:
        """Return means over the minibatches that came after ``before`` was copied."""
        part = Sums(self._names)
        part._count = self._count - before._count
        part._total = self._total
        if self._total is not None and before._total is not None:
            part._total = self._total - before._total
        return part.means()

    def means(self) -> dict[str, float]:
        """Return means over minibatches; the moments of targets and errors become metrics of the value function."""
        means = dict.fromkeys(self._names, 0.0)  # not a single row counted
        if self._total is not None and self._count:
            means = dict(zip(self._names, (self._total / self._count).tolist(), strict=True))
        if "target" in means:
            means |= _value_metrics({name: means.pop(name) for name in _MOMENTS})
        return means


@torch.no_grad()
def row_sums(columns: Sequence[Tensor], mask: Tensor) -> Tensor:
    """Return sums of ``columns`` where ``mask`` is True, then of the squares of the last two; float64 ``[k + 2]``.

    All at once, because a small network's step costs as many microseconds as it has operations. Moments, unlike
    variances, add up over micro-batches. Masked entries are never read: a NaN there does no harm.
    """
    kept = torch.where(mask, torch.stack(tuple(columns)), 0.0).double().flatten(1)
    return torch.cat([kept.sum(1), kept[-2:].square().sum(1)])


def _value_metrics(m: Mapping[str, float]) -> dict[str, float]:
    """Turn moments of targets and errors into the metrics of the value function.

    ``explained_variance``: 1 is a perfect value function, 0 no better than a constant, negative worse. It is 0 where
    the targets have no variance, because then it is not defined. The deviations of targets and of errors are in units
    of the return.
    """
    spread = max(0.0, m["target_square"] - m["target"] ** 2)
    error = max(0.0, m["error_square"] - m["error"] ** 2)
    defined = spread > 1e-12 * max(1.0, m["target_square"])
    return {
        "explained_variance": 1.0 - error / spread if defined else 0.0,
        "target_deviation": math.sqrt(spread),
        "error_deviation": math.sqrt(error),
    }
