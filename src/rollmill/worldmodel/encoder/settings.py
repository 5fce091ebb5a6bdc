"""What the training of an image encoder can be told."""

from __future__ import annotations

from dataclasses import field
from typing import Any, Literal

from rollmill.core.config.schema import require_least, settings
from rollmill.core.imports import check_custom

EncoderKind = Literal["vae", "autoencoder"]


@settings
class EncoderSettings:
    """The network that turns images into latents."""

    kind: EncoderKind = "vae"
    """vae: a mean and a standard deviation for every latent number. autoencoder: latents of unit variance, with noise
    of one size."""

    size: int = 32
    """Latent numbers of an image."""

    channels: tuple[int, ...] = (16, 32, 64, 128)
    """Filters of each layer; every layer halves the image's sides. (32, 64, 128, 256) costs 3.5 times as much."""

    kl_tolerance: float = 0.5
    """vae: nats per latent number that cost nothing; 0 for none."""

    beta: float = 1.0
    """vae: what nats above the tolerance cost, against squared errors summed over the image."""

    noise: float = 0.2
    """autoencoder: standard deviation of the noise on latents."""

    custom: str | None = None
    """An encoder of your own instead of ``kind``: ``module:Class`` or ``path/to/file.py:Class`` (code that is imported
    and run), a subclass of ``rollmill.worldmodel.encoder.file.ImageEncoder``."""

    custom_args: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments for the constructor of ``custom``, beside the image's shape and ``size``."""

    def __post_init__(self) -> None:
        check_custom(self.custom, self.custom_args)
        if self.size < 1 or not self.channels or min(self.channels) < 1:
            raise ValueError("size and every number of channels must be at least 1")
        if min(self.kl_tolerance, self.beta, self.noise) < 0:
            raise ValueError("kl_tolerance, beta and noise must not be negative")

    @property
    def name(self) -> str:
        """Which encoder it is, as ``build_encoder`` understands it."""
        return self.custom or self.kind

    def arguments(self) -> dict[str, Any]:
        """Return what the class of this encoder is built with."""
        if self.custom is not None:
            return {"size": self.size, **self.custom_args}
        common = {"size": self.size, "channels": self.channels}
        own = {"noise": self.noise} if self.kind == "autoencoder" else {}
        return {**common, **(own or {"kl_tolerance": self.kl_tolerance, "beta": self.beta})}


@settings
class ImageSettings:
    """Which images of the store are learnt from, and how they are read."""

    field: str = ""
    """Observation field with the images; empty: the only one there is."""

    per_rollout: int = 100
    """Images taken from an episode at a read: reading is cheap where neighbours are decoded together."""

    shuffle_buffer: int = 4096
    """Images that are mixed in memory; batches are drawn from them."""

    validation: float = 0.05
    """Share of the episodes that is held out."""

    def __post_init__(self) -> None:
        if self.per_rollout < 1 or self.shuffle_buffer < 1:
            raise ValueError("per_rollout and shuffle_buffer must be at least 1")
        if not 0 <= self.validation < 1:
            raise ValueError(f"validation must be 0 (none) or below 1, not {self.validation}")


@settings
class EncoderFitSettings:
    """How the encoder is fitted: Adam, a short warm-up, a cosine."""

    steps: int = 3000
    """Optimizer steps."""

    batch_size: int = 128
    """Images of an optimizer step."""

    learning_rate: float = 1e-3
    """Highest learning rate, reached after the warm-up."""

    end_rate: float = 0.1
    """Share of the learning rate that is left at the end."""

    warmup_steps: int = 50
    """Steps in which the learning rate grows from 0."""

    max_grad_norm: float = 100.0
    """Gradients are clipped to this norm; 0 is off."""

    save_steps: int = 500
    """Steps between checkpoints; one is always written at the end."""

    report_steps: int = 0
    """Steps between rows of metrics and validations; 0: 50 rows over the run."""

    device: str = "auto"
    """cpu, cuda, cuda:N; auto takes a GPU where there is one."""

    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """auto: bfloat16 where the hardware has it."""

    threads: int = 0
    """CPU threads, each with a part of the batch; 0: all cores."""

    def __post_init__(self) -> None:
        require_least(self, 1, "steps", "batch_size", "save_steps")
        require_least(self, 0, "warmup_steps", "max_grad_norm", "report_steps", "threads")
        if not self.learning_rate > 0 or not 0 <= self.end_rate <= 1:
            raise ValueError("learning_rate must be positive, end_rate between 0 and 1")

    @property
    def every_steps(self) -> int:
        """Steps between two rows of metrics."""
        return self.report_steps or max(1, self.steps // 50)
