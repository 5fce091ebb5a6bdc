"""The one training loop of all offline policies: windows in, gradients, metrics out; resumable at every step."""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn

from rollmill.core.errors import ConfigError, NonFiniteError
from rollmill.core.machine import available_cores, has_fast_bfloat16
from rollmill.core.shapes import BYTES, Shape
from rollmill.core.step_figures import StepFigures
from rollmill.models.saving import (
    OPTIMIZER_SHAPE,
    WEIGHTS_SHAPE,
    load_generator,
    load_optimizer,
    load_weights,
    optimizer_state,
    to_numpy,
    weights_of,
)
from rollmill.offline.data import WindowLoader
from rollmill.offline.model import SequencePolicy
from rollmill.offline.settings import FitSettings
from rollmill.offline.tokens import Inputs

FIT_SHAPE: Shape = {
    "step": int,
    "seconds": float,
    "position": int,
    "model": WEIGHTS_SHAPE,
    "optimizer": OPTIMIZER_SHAPE,
    "rng": BYTES,
    "cuda_rng": (BYTES, None),
}
MICRO_PICTURES = 256
"""Pictures that go through the network at a time on a CPU: what they leave behind for the gradient stays in caches."""
VALIDATION_BATCHES = 8


class Fitter:
    """Fits a policy to windows; ``step`` counts optimizer steps over all sessions of the run."""

    def __init__(self, model: SequencePolicy, loader: WindowLoader, settings: FitSettings, seed: int) -> None:
        self.model, self.settings, self.loader = model, settings, loader
        self.step = 0
        self.seconds = 0.0
        """Seconds of fitting, over all sessions."""
        self.device = next(model.parameters()).device
        self.autocast = precision(settings, self.device)
        model.compact = self.device.type == "cpu"
        self._threads = settings.threads or available_cores()
        self._twins = [_twin(model) for _ in range(self._threads - 1)] if self.device.type == "cpu" else []
        self._pool = ThreadPoolExecutor(max(1, len(self._twins)), thread_name_prefix="fit")
        self._networks: list[Callable[[Inputs], Tensor]] = [model, *self._twins]
        if settings.compile:
            self._networks = [torch.compile(network) for network in self._networks]
        self._optimizer = torch.optim.AdamW(_groups(model, settings), lr=settings.learning_rate, betas=(0.9, 0.95))
        self._batches: Iterator[Inputs] | None = None
        self._figures = StepFigures()
        torch.manual_seed(seed)

    # -- learning ------------------------------------------------------------------------------

    @property
    def progress(self) -> float:
        """Share of the fit that is done, by the limit that is nearest."""
        s = self.settings
        return min(1.0, max(self.step / s.steps, self.seconds / s.seconds if s.seconds else 0.0))

    def train_step(self) -> None:
        """One batch, one optimizer step; NonFiniteError names the place where a NaN began."""
        begun = time.perf_counter()
        for network in (self.model, *self._twins):
            network.train()
        if self._batches is None:
            self._batches = iter(self.loader)
        batch = next(self._batches)
        waited = time.perf_counter() - begun
        rate = self._set_rate()
        figures = self._gradients(batch)
        norm = float(nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.max_grad_norm or math.inf))
        if not math.isfinite(norm):
            self._stop_at_non_finite(batch)
        self._optimizer.step()
        self.step += 1
        passed = time.perf_counter() - begun
        self.seconds += passed
        real = figures["steps"]
        self._figures.note(
            {
                "loss": figures["loss"] / max(real, 1),
                "grad_norm": norm,
                "learning_rate": rate,
                "steps": real,
                "wait": waited,
                "seconds": passed,
            }
        )

    def _gradients(self, batch: Inputs) -> dict[str, float]:
        """Gradients of the mean loss over the real steps of the batch, added up over pieces of it."""
        self._optimizer.zero_grad(set_to_none=True)
        for twin in self._twins:
            twin.zero_grad(set_to_none=True)
        real = int(batch.mask.sum())
        pieces = list(self._pieces(batch))
        if len(pieces) == 1 or not self._twins:
            losses = [self._piece(0, piece, real) for piece in pieces]
        else:
            # Threads take whole pieces: inside an operator they would wait for each other at every layer.
            shares = [pieces[k :: len(self._networks)] for k in range(len(self._networks))]
            others = [self._pool.submit(self._share, k, share, real) for k, share in enumerate(shares) if k]
            losses = [self._share(0, shares[0], real), *(other.result() for other in others)]
            for twin in self._twins:
                _move_gradients(twin, self.model)
        return {"loss": sum(losses), "steps": float(real)}

    def _share(self, network: int, pieces: list[Inputs], real: int) -> float:
        return sum(self._piece(network, piece, real) for piece in pieces)

    def _piece(self, network: int, piece: Inputs, real: int) -> float:
        piece = piece.to(self.device)
        with self.precision():
            params = self._networks[network](piece)
        loss = self.model.loss(piece, params.float()).sum()
        (loss / max(real, 1)).backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    def _pieces(self, batch: Inputs) -> Iterator[Inputs]:
        windows = len(batch.mask)
        size = self.settings.micro_batch or windows
        if not self.settings.micro_batch and self.device.type == "cpu":
            size = max(1, min(-(-windows // self._threads), MICRO_PICTURES // self.loader.length))
        for first in range(0, windows, size):
            yield batch.rows(slice(first, first + size))

    def precision(self) -> contextlib.AbstractContextManager[Any]:
        if self.autocast is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, self.autocast)

    def _set_rate(self) -> float:
        s = self.settings
        share = s.end_rate + (1 - s.end_rate) * 0.5 * (1 + math.cos(math.pi * self.progress))
        rate = s.learning_rate * share * min(1.0, (self.step + 1) / max(1, s.warmup_steps))
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        return rate

    def _stop_at_non_finite(self, batch: Inputs) -> None:
        place = _first_non_finite(self.model, batch)
        raise NonFiniteError(
            f"NaN or infinity at optimizer step {self.step + 1}: first seen in {place}. "
            "The weights were not changed by this step."
        )

    # -- figures -------------------------------------------------------------------------------

    @property
    def fresh(self) -> bool:
        """Whether steps were taken since ``metrics`` was asked last."""
        return self._figures.fresh

    def metrics(self) -> dict[str, float]:
        """Means since the last call; empty if no step was taken since."""
        sums, count = self._figures.take()
        if not count:
            return {}
        return {
            **{f"learn/{name}": sums[name] / count for name in ("loss", "grad_norm", "learning_rate")},
            "data/wait_share": sums["wait"] / sums["seconds"],
            "time/updates_per_s": count / sums["seconds"],
            "time/samples_per_s": sums["steps"] / sums["seconds"],
            "time/seconds": self.seconds,
        }

    @torch.inference_mode()
    def validate(self) -> dict[str, float]:
        """Loss and accuracy (numbers: root of the mean squared error) on held-out windows."""
        self.model.eval()
        loss = hits = real = 0.0
        for batch in self.loader.validation(VALIDATION_BATCHES):
            for piece in self._pieces(batch):
                moved = piece.to(self.device)
                with self.precision():
                    params = self.model(moved).float()
                loss += float(self.model.loss(moved, params).sum())
                hits += float(self.model.hits(moved, params).sum())
                real += float(moved.mask.sum())
        if not real:
            return {}
        mean = hits / real
        figure = {"accuracy": mean} if self.model.spec.action.discrete else {"error": math.sqrt(max(-mean, 0.0))}
        return {"validation/loss": loss / real, **{f"validation/{name}": value for name, value in figure.items()}}

    # -- checkpoints ---------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "seconds": self.seconds,
            "position": self.loader.position,
            "model": weights_of(self.model),
            "optimizer": optimizer_state(self._optimizer),
            "rng": to_numpy(torch.get_rng_state()),
            "cuda_rng": to_numpy(torch.cuda.get_rng_state(self.device)) if self.device.type == "cuda" else None,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint: weights, optimizer, random numbers, and the place in the data."""
        load_weights(self.model, state["model"])
        load_optimizer(self._optimizer, state["optimizer"])
        self.step, self.seconds, self.loader.position = state["step"], state["seconds"], state["position"]
        load_generator(torch.set_rng_state, state["rng"])
        if state["cuda_rng"] is not None and self.device.type == "cuda":
            load_generator(functools.partial(torch.cuda.set_rng_state, device=self.device), state["cuda_rng"])

    def close(self) -> None:
        """Let go of loader processes and threads."""
        self._batches = None
        self._pool.shutdown()


def precision(settings: FitSettings, device: torch.device) -> torch.dtype | None:
    """The type that matrices are multiplied in; None: float32."""
    fast = has_fast_bfloat16() if device.type == "cpu" else torch.cuda.is_bf16_supported()
    if settings.precision == "bfloat16" and not fast:
        raise ConfigError("fit.precision=bfloat16: this machine is slower with it; use auto or float32")
    return torch.bfloat16 if fast and settings.precision != "float32" else None


def _groups(model: nn.Module, settings: FitSettings) -> list[dict[str, Any]]:
    """Matrices decay, everything else does not."""
    decayed = {m.weight for m in model.modules() if isinstance(m, nn.Linear | nn.Conv2d)}
    plain = [p for p in model.parameters() if p not in decayed]
    return [
        {"params": [p for p in model.parameters() if p in decayed], "weight_decay": settings.weight_decay},
        {"params": plain, "weight_decay": 0.0},
    ]


def _twin(model: SequencePolicy) -> SequencePolicy:
    """A network over the same weights and buffers, with gradients of its own."""
    twin = copy.deepcopy(model)
    mine, theirs = (*twin.parameters(), *twin.buffers()), (*model.parameters(), *model.buffers())
    for own, other in zip(mine, theirs, strict=True):
        own.data = other.data
    return twin


@torch.no_grad()
def _move_gradients(source: nn.Module, target: nn.Module) -> None:
    for theirs, own in zip(source.parameters(), target.parameters(), strict=True):
        if theirs.grad is None:
            continue
        if own.grad is None:
            own.grad = theirs.grad
        else:
            own.grad += theirs.grad


@torch.no_grad()
def _first_non_finite(model: SequencePolicy, batch: Inputs) -> str:
    """Where a NaN begins: in the data, the weights, or on the way between them."""
    named = [(f"observation {name!r}", x) for name, x in batch.obs.items()]
    named += [("action", batch.action), ("return-to-go", batch.returns)]
    for name, x in named:
        if x.is_floating_point() and len(bad := (~torch.isfinite(x)).nonzero()):
            window, step = bad[0].tolist()[:2]
            return f"the data: {name} of window {window}, step {step} (number {int(batch.step[window, step])})"
    for name, parameter in model.named_parameters():
        if not torch.isfinite(parameter).all():
            return f"the weights {name}"
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and not torch.isfinite(parameter.grad).all():
            return f"the gradient of {name}; lower fit.learning_rate"
    return "no single place (it vanished when looked at)"
