"""The training loop of image encoders: batches of pictures in, gradients, metrics out; resumable at every step."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rollmill.core.errors import ConfigError, NonFiniteError
from rollmill.core.fields import Array
from rollmill.core.machine import available_cores, has_fast_bfloat16
from rollmill.core.shapes import Shape
from rollmill.core.step_figures import StepFigures
from rollmill.models.saving import (
    OPTIMIZER_SHAPE,
    WEIGHTS_SHAPE,
    load_optimizer,
    load_weights,
    optimizer_state,
    weights_of,
)
from rollmill.optim.finite import explain_non_finite
from rollmill.worldmodel.encoder.file import Figures, ImageEncoder
from rollmill.worldmodel.encoder.images import PictureBatches
from rollmill.worldmodel.encoder.settings import EncoderFitSettings

FIT_SHAPE: Shape = {
    "step": int,
    "seconds": float,
    "position": int,
    "encoder": WEIGHTS_SHAPE,
    "optimizer": OPTIMIZER_SHAPE,
}
SMALLEST_PIECE = 16
"""Pictures that are worth a thread."""
VALIDATION_BATCH = 256


class EncoderFitter:
    """Fits an encoder to pictures; ``step`` counts optimizer steps over all sessions of the run."""

    def __init__(
        self, encoder: ImageEncoder, batches: PictureBatches, held_out: Array, settings: EncoderFitSettings, seed: int
    ) -> None:
        self.encoder, self.batches, self.settings = encoder, batches, settings
        self.step = 0
        self.seconds = 0.0
        """Seconds of fitting, over all sessions."""
        self.device = encoder.device
        self.autocast = precision(settings, self.device)
        self._held_out = torch.from_numpy(held_out)
        self._seed = seed
        self._threads = self._count_threads()
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="fit")
        self._optimizer = torch.optim.Adam(encoder.parameters(), lr=settings.learning_rate)
        self._stream: Iterator[Array] | None = None
        self._figures = StepFigures()

    def _count_threads(self) -> int:
        if self.device.type != "cpu" or not self.encoder.divisible:
            return 1
        wanted = self.settings.threads or available_cores()
        return max(1, min(wanted, self.settings.batch_size // SMALLEST_PIECE))

    # -- learning ------------------------------------------------------------------------------

    def train_step(self) -> None:
        """One batch, one optimizer step; NonFiniteError names the place where a NaN began."""
        begun = time.perf_counter()
        self.encoder.train()
        if self._stream is None:
            self._stream = iter(self.batches)
        images = torch.from_numpy(next(self._stream))
        waited = time.perf_counter() - begun
        rate = self._set_rate()
        loss, figures = self._gradients(images)
        limit = self.settings.max_grad_norm or math.inf
        norm = float(nn.utils.clip_grad_norm_(self.encoder.parameters(), limit))
        if not math.isfinite(norm) or not math.isfinite(loss):
            self._stop_at_non_finite(images)
        self._optimizer.step()
        self.step += 1
        passed = time.perf_counter() - begun
        self.seconds += passed
        self._figures.note(
            {"loss": loss, **figures, "grad_norm": norm, "learning_rate": rate, "wait": waited, "time": passed}
        )

    def _set_rate(self) -> float:
        s = self.settings
        rate = s.learning_rate * rate_share(self.step, s.steps, s.warmup_steps, s.end_rate)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        return rate

    def _gradients(self, images: Tensor) -> tuple[float, dict[str, float]]:
        """Set the gradient of the batch's mean loss; on CPUs each thread takes a piece of the batch.

        Whole pieces in threads of ours beat many threads within each operation, and do not collapse when other
        processes want the cores.
        """
        pieces = images.tensor_split(self._threads)
        results = list(self._pool.map(self._piece, range(len(pieces)), pieces))
        parameters = list(self.encoder.parameters())
        for number, parameter in enumerate(parameters):
            shares = [len(p) / len(images) * gradients[number] for p, (_, _, gradients) in zip(pieces, results)]
            parameter.grad = torch.stack(shares).sum(dim=0) if len(shares) > 1 else shares[0]
        weights = [len(piece) / len(images) for piece in pieces]
        loss = sum(w * float(value) for w, (value, _, _) in zip(weights, results))
        names = results[0][1]
        return loss, {n: sum(w * float(f[n]) for w, (_, f, _) in zip(weights, results)) for n in names}

    def _piece(self, number: int, images: Tensor) -> tuple[Tensor, Figures, tuple[Tensor, ...]]:
        """Loss, figures and gradients of one piece; shared weights are only read."""
        with self._cast():
            loss, figures = self.encoder.loss(images.to(self.device), self._noise(number))
        return loss.detach(), figures, torch.autograd.grad(loss, list(self.encoder.parameters()))

    def _noise(self, piece: int) -> torch.Generator:
        """Noise that depends on seed, step and piece alone."""
        generator = torch.Generator(self.device)
        mixed = np.random.SeedSequence([self._seed, self.step, piece]).generate_state(1, np.uint64)[0]
        return generator.manual_seed(int(mixed) & (2**63 - 1))

    def _cast(self) -> contextlib.AbstractContextManager[object]:
        if self.autocast is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, self.autocast)

    def _stop_at_non_finite(self, images: Tensor) -> None:
        moved = images.to(self.device)
        place = explain_non_finite(self.encoder, lambda: self.encoder.loss(moved, self._noise(0)), {"pictures": moved})
        raise NonFiniteError(
            f"optimizer step {self.step + 1:,} (batch {self.batches.position:,} of the data): NaN or infinity in "
            f"{place}. Nothing was saved since; the newest checkpoint is good"
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
        waited, passed = sums.pop("wait"), sums.pop("time")
        return {
            **{f"learn/{name}": value / count for name, value in sums.items()},
            "data/wait_share": waited / passed,
            "time/updates_per_s": count / passed,
            "time/pictures_per_s": count * self.settings.batch_size / passed,
            "time/seconds": self.seconds,
        }

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """Loss on held-out pictures, and the root of the mean squared error of a pixel (0..1) without noise."""
        if not len(self._held_out):
            return {}
        self.encoder.eval()
        loss = error = 0.0
        for images in torch.split(self._held_out, VALIDATION_BATCH):
            moved = images.to(self.device)
            with self._cast():
                loss += float(self.encoder.loss(moved, self._noise(0))[0]) * len(images)
            difference = self._painted(moved).float() - moved.float()
            error += float((difference / 255.0).square().mean()) * len(images)
        count = len(self._held_out)
        return {"validation/loss": loss / count, "validation/pixel_error": math.sqrt(error / count)}

    @torch.no_grad()
    def reconstructions(self, images: Array) -> Array:
        """Pictures ``[n, H, W, C]`` through the latents' means and back."""
        self.encoder.eval()
        painted: Array = self._painted(torch.from_numpy(images).to(self.device)).cpu().numpy()
        return painted

    def _painted(self, images: Tensor) -> Tensor:
        return self.encoder.decode(self.encoder.encode(images)[0])

    # -- checkpoints ---------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "seconds": self.seconds,
            "position": self.batches.position,
            "encoder": weights_of(self.encoder),
            "optimizer": optimizer_state(self._optimizer),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint: weights, optimizer, and the place in the data. Noise follows from the step."""
        load_weights(self.encoder, state["encoder"])
        load_optimizer(self._optimizer, state["optimizer"])
        self.step, self.seconds, self.batches.position = state["step"], state["seconds"], state["position"]

    def close(self) -> None:
        """Let go of threads."""
        if self._stream is not None:
            self._stream.close()  # type: ignore[attr-defined]  # a generator: ends its reading thread
            self._stream = None
        self._pool.shutdown()


def precision(settings: EncoderFitSettings, device: torch.device) -> torch.dtype | None:
    """The type that matrices are multiplied in; None: float32."""
    fast = has_fast_bfloat16() if device.type == "cpu" else torch.cuda.is_bf16_supported()
    if settings.precision == "bfloat16" and not fast:
        raise ConfigError("fit.precision=bfloat16: this machine is slower with it; use auto or float32")
    return torch.bfloat16 if fast and settings.precision != "float32" else None


def rate_share(step: int, steps: int, warmup: int, end: float) -> float:
    """Share of the highest learning rate at ``step``: up in a line, then down to ``end`` along a cosine."""
    if step < warmup:
        return (step + 1) / (warmup + 1)
    done = min(1.0, (step - warmup) / max(1, steps - warmup))
    return end + (1.0 - end) * 0.5 * (1.0 + math.cos(math.pi * done))
