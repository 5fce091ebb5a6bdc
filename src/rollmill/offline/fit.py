"""The fit of all offline policies: windows or transitions in, gradients, metrics out (``optim.fitter``)."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from rollmill.core.shapes import BYTES, Shape
from rollmill.models.saving import (
    OPTIMIZER_SHAPE,
    WEIGHTS_SHAPE,
    load_generator,
    to_numpy,
)
from rollmill.offline.data import WindowLoader
from rollmill.offline.model import SequencePolicy
from rollmill.offline.settings import FitSettings
from rollmill.offline.tokens import Inputs
from rollmill.optim.device import matmul_dtype
from rollmill.optim.fitter import FitPlan, Fitter
from rollmill.optim.replicas import Model, Replicas, thread_count
from rollmill.optim.schedules import WarmupCosine

FIT_SHAPE: Shape = {
    "step": int,
    "seconds": float,
    "position": int,
    "model": WEIGHTS_SHAPE,
    "optimizer": OPTIMIZER_SHAPE,
    "rng": BYTES,
    "cuda_rng": (BYTES, None),
}
MICRO_IMAGES = 256
"""Images that go through the network at a time on a CPU: what they leave behind for the gradient stays in caches."""
VALIDATION_BATCHES = 8


Rows = TypeVar("Rows")
Given = TypeVar("Given", covariant=True)


class Loader(Protocol[Given]):
    """Training batches without end, from batch ``position`` on."""

    position: int

    def __iter__(self) -> Iterator[Given]: ...


class OfflineFitter(Fitter[Model, Rows]):
    """What the fits of all algorithms share: batches come from a loader, and a fit goes on where it was saved."""

    loader: Loader[Rows]
    _batches: Iterator[Rows] | None = None

    def next_batch(self) -> Rows:
        if self._batches is None:
            self._batches = iter(self.loader)
        return next(self._batches)

    def state(self) -> dict[str, Any]:
        cuda = self.device.type == "cuda"
        return {
            **super().state(),
            "position": self.loader.position,
            "rng": to_numpy(torch.get_rng_state()),
            "cuda_rng": to_numpy(torch.cuda.get_rng_state(self.device)) if cuda else None,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint: weights, optimizer, random numbers, and the place in the data."""
        super().load_state(state)
        self.loader.position = state["position"]
        load_generator(torch.set_rng_state, state["rng"])
        if state["cuda_rng"] is not None and self.device.type == "cuda":
            load_generator(functools.partial(torch.cuda.set_rng_state, device=self.device), state["cuda_rng"])

    def close(self) -> None:
        """Let go of loader processes and threads."""
        self._batches = None
        super().close()


class PolicyFitter(OfflineFitter[SequencePolicy, Inputs]):
    """Fits a policy to windows; the loss is the mean over their real steps."""

    loader: WindowLoader

    def __init__(self, model: SequencePolicy, loader: WindowLoader, settings: FitSettings, seed: int) -> None:
        self.loader, self.settings = loader, settings
        device, s = next(model.parameters()).device, settings
        model.compact = device.type == "cpu"
        super().__init__(
            Replicas.on_threads(model, thread_count(device, s.threads)),
            torch.optim.AdamW(_groups(model, s), lr=s.learning_rate, betas=(0.9, 0.95)),
            plan_of(s),
            matmul_dtype(s.precision, device),
        )
        self._forward: dict[nn.Module, Callable[[Inputs], Tensor]] = {
            network: torch.compile(network) if s.compile else network for network in self.replicas.networks
        }
        torch.manual_seed(seed)

    def samples(self, batch: Inputs) -> int:
        return int(batch.mask.sum())

    def pieces(self, batch: Inputs) -> list[Inputs]:
        windows = len(batch.mask)
        size = self.settings.micro_batch or windows
        if not self.settings.micro_batch and self.device.type == "cpu":
            size = max(1, min(-(-windows // len(self.replicas.networks)), MICRO_IMAGES // self.loader.length))
        return [batch.rows(slice(first, first + size)) for first in range(0, windows, size)]

    def piece_loss(
        self, network: SequencePolicy, piece: Inputs, number: int, samples: int
    ) -> tuple[Tensor, dict[str, Tensor]]:
        piece = piece.to(self.device)
        with self.precision():
            params = self._forward[network](piece)
        loss = self.model.loss(piece, params.float()).sum()
        count = max(samples, 1)
        return loss / count, {"loss": loss.detach().double() / count}

    def inputs(self, batch: Inputs) -> dict[str, Tensor]:
        seen = {f"observation {name!r}": x for name, x in batch.obs.items()}
        return {**seen, "action": batch.action, "return-to-go": batch.returns}

    @torch.inference_mode()
    def validate(self) -> dict[str, float]:
        """Return loss and accuracy (numbers: root of the mean squared error) on held-out windows."""
        self.model.eval()
        loss = hits = real = 0.0
        for batch in self.loader.validation(VALIDATION_BATCHES):
            for piece in self.pieces(batch):
                moved = piece.to(self.device)
                with self.precision():
                    params = self.model(moved).float()
                loss += float(self.model.loss(moved, params).sum())
                hits += float(self.model.hits(moved, params).sum())
                real += float(moved.mask.sum())
        if not real:
            return {}
        mean = hits / real
        metric = {"accuracy": mean} if self.model.spec.action.discrete else {"error": math.sqrt(max(-mean, 0.0))}
        return {"validation/loss": loss / real, **{f"validation/{name}": value for name, value in metric.items()}}


def plan_of(settings: FitSettings) -> FitPlan:
    s = settings
    rate = WarmupCosine(s.learning_rate, s.end_rate, s.warmup_steps)
    return FitPlan(rate, s.steps, s.seconds, s.max_grad_norm)


def _groups(model: nn.Module, settings: FitSettings) -> list[dict[str, Any]]:
    """Sort parameters by whether they decay: matrices do, everything else does not."""
    decayed = {m.weight for m in model.modules() if isinstance(m, nn.Linear | nn.Conv2d)}
    plain = [p for p in model.parameters() if p not in decayed]
    return [
        {"params": [p for p in model.parameters() if p in decayed], "weight_decay": settings.weight_decay},
        {"params": plain, "weight_decay": 0.0},
    ]
