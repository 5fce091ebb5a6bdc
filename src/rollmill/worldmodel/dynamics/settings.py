"""Knobs of the dynamics model: what it is made of and how it is fitted to a store of latents."""

from __future__ import annotations

from dataclasses import field
from typing import Any, Literal

from rollmill.core.config.schema import require_least, settings
from rollmill.core.imports import check_custom

MemoryKind = Literal["lstm", "transformer", "none"]
Objective = Literal["autoregressive", "infilling", "adversarial"]


@settings
class DynamicsSettings:
    """A model of what happens next: latents, rewards and ends of episodes."""

    memory: MemoryKind = "lstm"
    """lstm; transformer (causal, with a window); none: the prediction sees the present step only (an ablation)."""

    custom: str | None = None
    """A model of your own: ``module:Class`` or ``path/to/file.py:Class`` (code that is imported and run). A subclass of
    ``Dynamics`` is used whole, one of ``Core`` (both in ``rollmill.worldmodel.dynamics.model``) as the memory."""

    custom_args: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments for the constructor of ``custom``."""

    size: int = 256
    """Numbers of the memory's output, which a controller may read."""

    layers: int = 1
    """Blocks of the transformer, or layers of the network without memory; an LSTM has one."""

    heads: int = 4
    """Attention heads of the transformer."""

    context: int = 32
    """Steps that the transformer sees, the present one included."""

    mixtures: int = 5
    """Normal distributions that are mixed for every latent number."""

    differences: bool = False
    """Predict how latents change instead of what they become."""

    objective: Objective = "autoregressive"
    """autoregressive: the likelihood of what follows. infilling: besides, spans of hidden latents are filled in from
    both sides. adversarial: besides, a discriminator must not tell what is drawn from what followed."""

    objective_weight: float = 1.0
    """Of what infilling or adversarial add to the loss."""

    hidden: float = 0.3
    """infilling: share of the steps whose latents are hidden."""

    hidden_span: int = 4
    """infilling: steps that are hidden in a row."""

    recall: int = 0
    """Stored steps of the training data that are looked up at every step: those most like the present latent and
    action. What followed them is one more input. 0: none."""

    recall_size: int = 4_096
    """Steps that are kept for that, in the model."""

    sample_latents: bool = True
    """Draw latents anew from their means and standard deviations whenever they are read; false: the means alone."""

    sequence_length: int = 64
    """Steps that are read in a row."""

    batch_size: int = 32
    """Sequences per optimizer step."""

    steps: int = 2_000
    """Optimizer steps; 0 saves the untrained model (an ablation)."""

    seconds: float = 0.0
    """Stop fitting after so many seconds; 0: go by steps alone."""

    learning_rate: float = 1e-3
    """Of Adam; it falls to a tenth along half a cosine."""

    max_grad_norm: float = 1.0
    """Gradients are scaled down to this norm; 0: as they are."""

    reward_weight: float = 1.0
    """Of the reward's squared error (in units of the rewards' standard deviation) against the latents' nats."""

    done_weight: float = 1.0
    """Of the cross-entropy of ends against the latents' nats."""

    done_factor: float = 1.0
    """How much more a step that ends the episode counts in it; above 1 where ends are rare."""

    validation: float = 0.1
    """Share of the episodes that is held out."""

    starts: int = 1_000
    """First latents of episodes that are saved with the model: where dreams begin."""

    report_steps: int = 100
    """Optimizer steps between two reports, with the loss on held-out episodes."""

    save_seconds: float = 60.0
    """Seconds between two checkpoints."""

    device: str = "auto"
    """cpu, cuda, cuda:1, auto; several, with commas, share every batch: ``cuda:0,cuda:1``."""

    threads: int = 0
    """Threads that share a batch on a CPU; 0: one per core."""

    seed: int = 0
    """Of weights, batches and latents."""

    def __post_init__(self) -> None:
        check_custom(self.custom, self.custom_args)
        counts = ("size", "layers", "heads", "context", "mixtures", "batch_size", "report_steps", "starts")
        require_least(self, 1, *counts, "hidden_span", "recall_size")
        if self.sequence_length < 2:
            raise ValueError("sequence_length must be at least 2: one step teaches no memory")
        require_least(
            self, 0, "steps", "seconds", "max_grad_norm", "reward_weight", "done_weight", "seed", "threads", "recall"
        )
        if not 0 < self.hidden < 1 or self.objective_weight <= 0:
            raise ValueError("hidden is a share of the steps between 0 and 1, objective_weight above 0")
        if self.recall > self.recall_size:
            raise ValueError(f"recall={self.recall} of recall_size={self.recall_size} steps")
        if self.memory == "transformer" and self.size % self.heads:
            raise ValueError(f"size={self.size} cannot be shared out to heads={self.heads}")
        if not 0 <= self.validation < 1:
            raise ValueError("validation is a share of the episodes, from 0 up to below 1")
        if self.learning_rate <= 0 or self.done_factor <= 0:
            raise ValueError("learning_rate and done_factor must be above 0")
