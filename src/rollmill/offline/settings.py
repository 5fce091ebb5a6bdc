"""What an offline training can be told: which data, which network, how it is fitted and how it is judged."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

from rollmill.core.config.schema import require_least, settings
from rollmill.core.errors import ConfigError
from rollmill.models.settings import EncoderName, ModelSettings
from rollmill.store.filters import Filter

Algorithm = Literal["dt", "bc", "iql", "td3bc"]
VALUE_BASED: tuple[Algorithm, ...] = ("iql", "td3bc")
"""Algorithms that learn from single transitions what actions are worth."""


@settings
class SequenceSettings:
    """The network: observations through an encoder, then a causal trunk over the tokens of the last steps."""

    context: int = 20
    """Steps a decision sees, its own included (the K of Decision Transformers). 1: the present alone."""

    mixer: Literal["attention", "convolution"] = "attention"
    """How tokens see each other: ``attention`` (Decision Transformer) or ``convolution`` (Decision ConvFormer: a filter
    over the last ``filter_tokens`` tokens, one per kind of token; fewer weights, no softmax)."""

    filter_tokens: int = 6
    """mixer=convolution: tokens a filter covers. Layers add up: three of them reach back 16 tokens."""

    size: int = 128
    """Numbers in a token."""

    layers: int = 3
    """Blocks of the trunk."""

    heads: int = 1
    """mixer=attention: attention heads; must divide ``size``."""

    dropout: float = 0.1
    """Share of a block's outputs that is left out while learning."""

    action_tokens: bool = True
    """Let decisions see earlier actions. Without it a policy cannot learn to repeat what it did before."""

    encoder: EncoderName = "auto"
    """How images are read, as ``model.encoder`` of a training."""

    mlp: tuple[int, ...] = (128,)
    """Layer sizes of the MLP that reads vectors."""

    fc: tuple[int, ...] = (256,)
    """Layer sizes after the convnet, where image and vector features meet."""

    nonlinearity: Literal["elu", "relu", "tanh"] = "relu"
    """Activation function of the encoder's layers."""

    def __post_init__(self) -> None:
        require_least(self, 1, "context", "filter_tokens", "size", "layers", "heads")
        if self.size % self.heads:
            raise ValueError(f"size={self.size} cannot be shared out to heads={self.heads}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must lie between 0 and 1, not {self.dropout}")
        self.model_settings()

    def model_settings(self) -> ModelSettings:
        """Return the same choices in the words of encoders and heads."""
        return ModelSettings(
            encoder=self.encoder,
            mlp=self.mlp,
            fc=self.fc,
            nonlinearity=self.nonlinearity,
            log_std="state",
            policy_gain=0.1,  # there is no exploring to protect: the first guess may be a guess
        )


@settings
class ValueSettings:
    """algorithm=iql and algorithm=td3bc: what actions are worth, and how the policy follows that.

    Of ``model`` they read the encoder (``encoder``, ``mlp``, ``fc``, ``nonlinearity``).
    """

    gamma: float = 0.99
    """Discount of rewards, per step."""

    target_rate: float = 0.005
    """How far the slow copies of critics and policy move towards the learnt ones in a step."""

    expectile: float = 0.7
    """iql: of an action's value that counts as the value of its state; 0.5 is the mean, 1 would be the best."""

    temperature: float = 3.0
    """iql: how much more the policy imitates better actions; 0 is behaviour cloning."""

    weight_limit: float = 100.0
    """iql: highest weight of an action."""

    alpha: float = 2.5
    """td3bc: how much the critics count against staying near what was done; 0 is behaviour cloning."""

    noise: float = 0.2
    """td3bc: deviation of the noise on the next action, in units of half the action's range."""

    noise_limit: float = 0.5
    """td3bc: largest noise."""

    policy_every: int = 2
    """td3bc: steps of the critics for one of the policy."""

    def __post_init__(self) -> None:
        if not 0 <= self.gamma < 1 or not 0 < self.target_rate <= 1 or not 0 < self.expectile < 1:
            raise ValueError("gamma lies from 0 to below 1, target_rate above 0 up to 1, expectile between 0 and 1")
        if self.policy_every < 1 or self.weight_limit <= 0:
            raise ValueError("policy_every must be at least 1, weight_limit above 0")
        require_least(self, 0, "temperature", "alpha", "noise", "noise_limit")


@settings
class DataSettings:
    """Which episodes of the store are learnt from, and how they are read."""

    filter: tuple[str, ...] = ()
    """Conditions on episodes, as of ``rollmill data``: ["return_min=10", "top=10%", "global_step_max=1e6"]."""

    validation: float = 0.05
    """Share of the episodes that is held out."""

    unknown_returns: Literal["drop", "keep"] = "drop"
    """Episodes whose end was not recorded: what they still brought is not known, so a Decision Transformer does
    without them, and so does whatever ranks by return. Cloning takes them either way."""

    open_shards: Literal["refuse", "read"] = "refuse"
    """Shards that are not sealed (their writer is at work, or died): an error, or read as far as they are good."""

    window: int = 0
    """Steps of a training window; 0: the context, and 8 at least."""

    order: Literal["random", "stream"] = "random"
    """random: windows drawn anywhere, an order that a resumed run continues exactly. stream: neighbours are decoded
    together, which is faster from compressed images; a resumed run begins a new pass."""

    cache: Path | None = None
    """Folder for a decoded copy of what is read, memory-mapped: images need no decoding at every read."""

    cache_gb: float = 20.0
    """Size of the decoded copy at most (10^9 bytes); the rest is decoded at every read."""

    workers: int = -1
    """Threads (order=random) or processes (order=stream) that read windows ahead; -1: none on CPUs, up to 12 for a
    GPU."""

    def __post_init__(self) -> None:
        if not 0 <= self.validation < 1:
            raise ValueError(f"validation must be 0 (none) or below 1, not {self.validation}")
        if self.window < 0 or self.workers < -1 or self.cache_gb <= 0:
            raise ValueError("window must not be negative, workers not below -1, cache_gb above 0")
        try:
            Filter.parse(self.filter)
        except ConfigError as error:
            raise ValueError(str(error)) from error


@settings
class FitSettings:
    """One training loop for all algorithms: AdamW, warm-up, cosine, gradient clipping."""

    steps: int = 10_000
    """Optimizer steps."""

    seconds: float = 0.0
    """Seconds of fitting after which the run ends, evaluations not counted; 0 is no limit."""

    patience: int = 20
    """Validations in a row without a lower held-out loss after which the run ends; 0: never. With ``every_steps=0``
    twenty are two fifths of the run. Whatever ends it, the weights with the lowest held-out loss are evaluated."""

    batch_size: int = 64
    """Windows (iql, td3bc: transitions) of an optimizer step."""

    micro_batch: int = 0
    """Windows that go through the network at a time; 0: some 256 images on a CPU, all on a GPU."""

    learning_rate: float = 6e-4
    """Highest learning rate, reached after the warm-up."""

    end_rate: float = 0.05
    """Share of the learning rate that is left at the end of the cosine."""

    warmup_steps: int = 200
    """Steps in which the learning rate grows from 0."""

    weight_decay: float = 1e-3
    """Of matrices; biases, norms and embeddings have none."""

    max_grad_norm: float = 1.0
    """Gradients are clipped to this norm; 0 is off."""

    every_steps: int = 0
    """Steps between rows of metrics, validations and looks at the clock; 0: 50 rows over the run."""

    device: str = "auto"
    """cpu, cuda, cuda:N; auto takes a GPU where there is one."""

    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """auto: bfloat16 where the hardware has it (iql and td3bc: float32, as values need more digits)."""

    compile: bool = False
    """Compile the network with torch.compile; the first steps take a minute, later ones are faster on GPUs."""

    threads: int = 0
    """CPU threads of the network; 0: all cores."""

    def __post_init__(self) -> None:
        require_least(self, 1, "steps", "batch_size")
        counts = ("patience", "micro_batch", "warmup_steps", "every_steps", "threads")
        require_least(self, 0, "seconds", "weight_decay", "max_grad_norm", *counts)
        if not self.learning_rate > 0 or not 0 <= self.end_rate <= 1:
            raise ValueError("learning_rate must be positive, end_rate between 0 and 1")

    @property
    def report_steps(self) -> int:
        """Steps between two rows of metrics."""
        return self.every_steps or max(1, self.steps // 50)


@settings
class EvaluationSettings:
    """How the policy is judged: whole episodes in the environment, for every target return."""

    targets: tuple[float, ...] = ()
    """Returns to ask for (dt). None given: five from the middle of the data's returns up to the best one."""

    episodes: int = 32
    """Episodes per target while fitting; 0 leaves the environment out (then none is needed)."""

    final_episodes: int = 100
    """Episodes per target of the table at the end."""

    every_steps: int = 0
    """Optimizer steps between evaluations; 0: only at the end."""

    deterministic: bool = False
    """Take the most likely action instead of sampling."""

    seed: int = 1
    """Of environments and actions: every evaluation plays the same episodes."""

    workers: int = 0
    """Worker processes; 0 takes one per core."""

    envs: int = 16
    """Environments that play at the same time."""

    behaviour: Path | None = None
    """The run (or checkpoint) that made the data: it plays the same episodes, for the table at the end."""

    random: bool = True
    """Play the same episodes at random, too, for the table at the end."""

    def __post_init__(self) -> None:
        if any(not math.isfinite(target) for target in self.targets):
            raise ValueError(f"targets must be finite numbers, not {list(self.targets)}")
        if len(set(self.targets)) < len(self.targets):
            raise ValueError(f"a target is given twice: {list(self.targets)}")
        require_least(self, 0, "episodes", "every_steps", "workers", "seed")
        if self.envs < 1 or self.final_episodes < 1:
            raise ValueError("envs and final_episodes must be at least 1")
