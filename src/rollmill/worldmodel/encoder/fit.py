"""The fit of image encoders: batches of images in, gradients, metrics out (``optim.fitter``)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rollmill.core.fields import Array
from rollmill.core.shapes import Shape
from rollmill.models.saving import OPTIMIZER_SHAPE, WEIGHTS_SHAPE
from rollmill.optim.device import matmul_dtype
from rollmill.optim.fitter import FitPlan, Fitter
from rollmill.optim.replicas import Replicas, thread_count
from rollmill.optim.schedules import WarmupCosine
from rollmill.worldmodel.encoder.file import ImageEncoder
from rollmill.worldmodel.encoder.images import ImageBatches
from rollmill.worldmodel.encoder.settings import EncoderFitSettings

FIT_SHAPE: Shape = {
    "step": int,
    "seconds": float,
    "position": int,
    "encoder": WEIGHTS_SHAPE,
    "optimizer": OPTIMIZER_SHAPE,
}
SMALLEST_PIECE = 16
"""Images that are worth a thread."""
VALIDATION_BATCH = 256


class EncoderFitter(Fitter[ImageEncoder, Tensor]):
    """Fits an encoder to images, uint8 ``[n, H, W, C]``."""

    weights_key = "encoder"
    speed_metric = "time/images_per_s"

    def __init__(
        self, encoder: ImageEncoder, batches: ImageBatches, held_out: Array, settings: EncoderFitSettings, seed: int
    ) -> None:
        self.batches, self.settings = batches, settings
        self._held_out = torch.from_numpy(held_out)
        self._seed = seed
        self._stream: Iterator[Array] | None = None
        s = settings
        most = s.batch_size // SMALLEST_PIECE if encoder.divisible else 1
        super().__init__(
            Replicas.on_threads(encoder, thread_count(encoder.device, s.threads, most), caller_works=False),
            torch.optim.Adam(encoder.parameters(), lr=s.learning_rate),
            # The highest rate is that of the step after the warm-up.
            FitPlan(
                WarmupCosine(s.learning_rate, s.end_rate, s.warmup_steps + 1), s.steps, max_grad_norm=s.max_grad_norm
            ),
            matmul_dtype(s.precision, encoder.device),
        )

    @property
    def progress(self) -> float:
        """Share of the steps after the warm-up that is done: the cosine begins there."""
        warmup, steps = self.settings.warmup_steps, self.settings.steps
        return min(1.0, max(0, self.step - warmup) / max(1, steps - warmup))

    def next_batch(self) -> Tensor:
        if self._stream is None:
            self._stream = iter(self.batches)
        return torch.from_numpy(next(self._stream))

    def samples(self, batch: Tensor) -> int:
        return len(batch)

    def pieces(self, batch: Tensor) -> tuple[Tensor, ...]:
        return batch.tensor_split(len(self.replicas.networks))

    def piece_loss(
        self, network: ImageEncoder, piece: Tensor, number: int, samples: int
    ) -> tuple[Tensor, dict[str, Tensor]]:
        with self.precision():
            loss, metrics = network.loss(piece.to(self.device), self._noise(number))
        share = len(piece) / samples
        shares = {name: share * x.double() for name, x in {"loss": loss.detach(), **metrics}.items()}
        return share * loss, shares

    def inputs(self, batch: Tensor) -> dict[str, Tensor]:
        return {"images": batch}

    def _noise(self, piece: int) -> torch.Generator:
        """Return a source of noise that depends on seed, step and piece alone."""
        generator = torch.Generator(self.device)
        mixed = np.random.SeedSequence([self._seed, self.step, piece]).generate_state(1, np.uint64)[0]
        return generator.manual_seed(int(mixed) & (2**63 - 1))

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """Return the loss on held-out images, and the root mean squared error of a pixel (0..1) without noise."""
        if not len(self._held_out):
            return {}
        self.model.eval()
        loss = error = 0.0
        for images in torch.split(self._held_out, VALIDATION_BATCH):
            moved = images.to(self.device)
            with self.precision():
                loss += float(self.model.loss(moved, self._noise(0))[0]) * len(images)
            difference = self._painted(moved).float() - moved.float()
            error += float((difference / 255.0).square().mean()) * len(images)
        count = len(self._held_out)
        return {"validation/loss": loss / count, "validation/pixel_error": math.sqrt(error / count)}

    @torch.no_grad()
    def reconstructions(self, images: Array) -> Array:
        """Send images ``[n, H, W, C]`` through the latents' means and back."""
        self.model.eval()
        painted: Array = self._painted(torch.from_numpy(images).to(self.device)).cpu().numpy()
        return painted

    def _painted(self, images: Tensor) -> Tensor:
        return self.model.decode(self.model.encode(images)[0])

    def state(self) -> dict[str, Any]:
        return {**super().state(), "position": self.batches.position}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint: weights, optimizer, and the place in the data. Noise follows from the step."""
        super().load_state(state)
        self.batches.position = state["position"]

    def close(self) -> None:
        """Let go of threads."""
        if self._stream is not None:
            self._stream.close()  # type: ignore[attr-defined]  # a generator: ends its reading thread
            self._stream = None
        super().close()
