"""The training loop of every model that is fitted to recorded data; resumable at every step.

``Fitter.train_step`` is the whole step, top to bottom: a batch, its gradients piece by piece, a look at their norm,
and only then the optimizer. What is fitted to what is said by the classes that derive from it: where batches come
from, how they are cut into pieces, what the loss of a piece is, and how held-out data are judged.
"""

from __future__ import annotations

import contextlib
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NoReturn, TypeVar

import torch
from torch import Tensor, nn

from rollmill.models.precision import autocast
from rollmill.models.saving import load_optimizer, load_weights, optimizer_state, weights_of
from rollmill.optim.adam import Optimizer
from rollmill.optim.finite import explain_non_finite, non_finite
from rollmill.optim.replicas import Model, Replicas
from rollmill.optim.schedules import WarmupCosine

Batch = TypeVar("Batch")


@dataclass(frozen=True)
class FitPlan:
    """How long a fit goes on, and how far its steps go."""

    rate: WarmupCosine
    steps: int
    seconds: float = 0.0
    """Of fitting; 0: no limit but the steps."""
    max_grad_norm: float = 0.0
    """Gradients are scaled down to this norm; 0: as they are."""


class Fitter(ABC, Generic[Model, Batch]):
    """Fits a network to batches; ``step`` counts optimizer steps over all sessions of the run."""

    weights_key: ClassVar[str] = "model"
    """Of the weights in ``state``."""
    speed_metric: ClassVar[str] = "time/samples_per_s"

    def __init__(
        self, replicas: Replicas[Model], optimizer: Optimizer, plan: FitPlan, dtype: torch.dtype | None = None
    ) -> None:
        """Set up a fit; ``dtype``: the type that matrices are multiplied in; None: float32."""
        self.replicas, self.optimizer, self.plan, self.dtype = replicas, optimizer, plan, dtype
        self.model = replicas.networks[0]
        self.device = next(self.model.parameters()).device
        self.step = 0
        self.seconds = 0.0
        """Seconds of fitting, over all sessions."""
        self._metrics = StepMetrics()

    # -- what a task says ----------------------------------------------------------------------

    @abstractmethod
    def next_batch(self) -> Batch:
        """Return the batch of this step."""

    @abstractmethod
    def samples(self, batch: Batch) -> int:
        """Return how many samples of the batch count; its loss is their mean."""

    @abstractmethod
    def pieces(self, batch: Batch) -> Sequence[Batch]:
        """Return the parts of the batch that go through a network one at a time."""

    @abstractmethod
    def piece_loss(self, network: Model, piece: Batch, number: int, samples: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Return what a piece adds to the loss of its batch, and to the batch's metrics by name (``loss`` among them).

        ``number``: of the piece; ``samples``: of the whole batch. Pieces are handled by several threads at once.
        """

    @abstractmethod
    def inputs(self, batch: Batch) -> Mapping[str, Tensor]:
        """Return the tensors of a batch by name, where a NaN may be found."""

    @abstractmethod
    def validate(self) -> dict[str, float]:
        """Return metrics of held-out data; none where nothing was held out."""

    # -- learning ------------------------------------------------------------------------------

    @property
    def progress(self) -> float:
        """Share of the fit that is done, by the limit that is nearest."""
        plan = self.plan
        return min(1.0, max(self.step / max(1, plan.steps), self.seconds / plan.seconds if plan.seconds else 0.0))

    def train_step(self) -> None:
        """Take one optimizer step on one batch; a NonFiniteError names the place where a NaN began."""
        begun = time.perf_counter()
        self.replicas.train()
        batch = self.next_batch()
        waited = time.perf_counter() - begun
        rate = self._set_rate()
        metrics = self.gradients(batch)
        norm = float(nn.utils.clip_grad_norm_(self.model.parameters(), self.plan.max_grad_norm or math.inf))
        if not math.isfinite(norm) or not math.isfinite(metrics["loss"]):
            self._stop_at_non_finite(batch)
        self.optimizer.step()
        self.replicas.refresh()
        self.step += 1
        passed = time.perf_counter() - begun
        self.seconds += passed
        metrics |= {"grad_norm": norm, "learning_rate": rate}
        self._metrics.add({**metrics, "samples": self.samples(batch), "wait": waited, "seconds": passed})

    def gradients(self, batch: Batch) -> dict[str, float]:
        """Set the gradients of the batch's loss, added up over its pieces; returns the batch's metrics."""
        samples = self.samples(batch)

        def add(network: Model, share: Sequence[tuple[int, Batch]]) -> list[dict[str, Tensor]]:
            found = []
            for number, piece in share:
                loss, metrics = self.piece_loss(network, piece, number, samples)
                torch.autograd.backward(loss)
                found.append(metrics)
            return found

        pieces, count = list(enumerate(self.pieces(batch))), len(self.replicas.networks)
        shares = [pieces[k::count] for k in range(min(count, len(pieces)))]
        found = [metrics for share in self.replicas.gradients(add, shares) for metrics in share]
        return {name: sum(float(metrics[name]) for metrics in found) for name in found[0]}

    def precision(self) -> contextlib.AbstractContextManager[object]:
        """Return the context in which the network is called: it sets the type that matrices are multiplied in."""
        return autocast(self.device, self.dtype)

    def _set_rate(self) -> float:
        rate = self.plan.rate.at(self.step, self.progress)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        return rate

    def _stop_at_non_finite(self, batch: Batch) -> NoReturn:
        place = explain_non_finite(
            self.model, lambda: self.piece_loss(self.model, batch, 0, self.samples(batch)), self.inputs(batch)
        )
        raise non_finite(f"at optimizer step {self.step + 1:,}", f"first seen in {place}")

    # -- metrics -------------------------------------------------------------------------------

    @property
    def fresh(self) -> bool:
        """Whether steps were taken since ``metrics`` was asked last."""
        return self._metrics.steps > 0

    def metrics(self) -> dict[str, float]:
        """Return means since the last call; empty if no step was taken since."""
        sums, steps = self._metrics.take()
        if not steps:
            return {}
        samples, waited, passed = (sums.pop(name) for name in ("samples", "wait", "seconds"))
        return {
            **{f"learn/{name}": value / steps for name, value in sums.items()},
            "data/wait_share": waited / passed,
            "time/updates_per_s": steps / passed,
            self.speed_metric: samples / passed,
            "time/seconds": self.seconds,
        }

    # -- checkpoints ---------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "seconds": self.seconds,
            self.weights_key: weights_of(self.model),
            "optimizer": optimizer_state(self.optimizer),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        load_weights(self.model, state[self.weights_key])
        self.replicas.refresh()
        load_optimizer(self.optimizer, state["optimizer"])
        self.step, self.seconds = state["step"], state["seconds"]

    def close(self) -> None:
        """Let go of threads."""
        self.replicas.close()


class StepMetrics:
    """Sums of named metrics over the steps since ``take`` was called last."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self.steps = 0

    def add(self, metrics: Mapping[str, float]) -> None:
        """Add the metrics of one step."""
        for name, value in metrics.items():
            self._sums[name] = self._sums.get(name, 0.0) + value
        self.steps += 1

    def take(self) -> tuple[dict[str, float], int]:
        """Return (sums, steps) since the last call, and begin anew."""
        taken = self._sums, self.steps
        self._sums, self.steps = {}, 0
        return taken
