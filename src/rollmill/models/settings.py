"""What the network looks like."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal

from rollmill.core.config.schema import settings
from rollmill.core.imports import check_custom

LOG_STD_BOUNDS = (-5.0, 2.0)
"""The logarithm of a Gaussian policy's standard deviation stays between these."""


Layers = tuple[tuple[int, int, int], ...]
"""(channels, kernel, stride) of each layer of a convnet."""

ENCODERS: dict[str, Layers | str] = {
    "convnet_small": ((16, 8, 4), (32, 4, 2)),
    "convnet_simple": ((32, 8, 4), (64, 4, 2), (128, 3, 2)),
    "convnet_atari": ((32, 8, 4), (64, 4, 2), (64, 3, 1)),
    "convnet_grid": ((16, 3, 3), (32, 3, 2), (32, 3, 2)),
    "convnet_board": ((64, 5, 1),),
    "impala": "rollmill.models.impala:impala",
}
"""What reads an image: plain convolutions, or a function that builds something else, imported when it is used. It is
called with the image's channels and the name of the activation, and reads images of any size, channels first."""
BOARD_ENCODER = "convnet_board"
"""The one that reads boards, too: each of its features is one of five by five cells, wherever on the board they are."""

Distribution = Literal["gaussian", "bounded_gaussian", "tanh_gaussian"]

if TYPE_CHECKING:
    EncoderName = str
else:
    EncoderName = Literal[("auto", "mlp", *ENCODERS)]
    """How images are read, here and by offline policies."""


@settings
class ModelSettings:
    """Encoder (images through a convnet, the rest through an MLP), then memory, then the two heads."""

    encoder: EncoderName = "auto"
    """How images are read: by one of the convnets of docs/models.md, or by ``mlp`` (flattened). ``auto`` is
    ``convnet_simple`` for images; whatever is not an image always goes through an MLP."""

    mlp: tuple[int, ...] = (128, 128)
    """Layer sizes of the MLP that reads vectors; empty passes them on as they are."""

    fc: tuple[int, ...] = (512,)
    """Layer sizes after the convnet, where image and vector features meet."""

    nonlinearity: Literal["elu", "relu", "tanh"] = "elu"
    """Activation function of every hidden layer."""

    memory: Literal["none", "gru", "lstm"] = "none"
    """Recurrent memory between the encoder and the heads."""

    hidden_size: int = 512
    """Units of each memory layer."""

    memory_layers: int = 1
    """Stacked memory layers."""

    memory_skip: bool = True
    """The heads read the encoder's features beside the memory's output. What is seen now then acts on the policy
    directly, which learns much faster where memory matters little."""

    separate_critic: bool = False
    """Give the value function its own encoder and memory instead of sharing the policy's."""

    normalize_observations: bool = True
    """Scale float fields and, for the built-in encoders, images (one scale per field) by their running mean and
    deviation. Integers stay as they are."""

    returns_by_task: bool = True
    """In a suite (``env.tasks``): scale returns and advantages of each task by its own deviation (needs
    ``learning.normalize_returns``). Else the task with the largest rewards is all that is learnt."""

    policy_gain: float = 0.01
    """Gain of the orthogonal initial weights of the policy head; small means nearly uniform first actions."""

    value_gain: float = 1.0
    """Gain of the orthogonal initial weights of the value head."""

    action_distribution: Distribution = "gaussian"
    """Continuous actions: a Gaussian that the environment clips, one whose mean tanh squashes into the bounds, or one
    whose samples it squashes."""

    initial_log_std: float = 0.0
    """Continuous actions: logarithm of the initial standard deviation."""

    log_std: Literal["free", "state"] = "free"
    """Continuous actions: the deviation is a parameter (``free``) or depends on the state (``state``)."""

    custom: str | None = None
    """Your own network: ``module:Class`` or ``path/to/file.py:Class`` (code that is imported and run). A
    subclass of ``ActorCritic`` is used whole, another ``nn.Module`` with ``output_size`` as the encoder."""

    custom_args: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments for the constructor of ``custom``."""

    def __post_init__(self) -> None:
        for name in ("mlp", "fc"):
            if any(size < 1 for size in getattr(self, name)):
                raise ValueError(f"{name} must hold positive layer sizes, not {getattr(self, name)}")
        if self.hidden_size < 1 or self.memory_layers < 1:
            raise ValueError("hidden_size and memory_layers must be at least 1")
        if self.memory == "none" and self.memory_layers != 1:
            raise ValueError(f"memory_layers={self.memory_layers} needs memory=gru or memory=lstm")
        if self.policy_gain < 0 or self.value_gain < 0:
            raise ValueError("policy_gain and value_gain must not be negative")
        low, high = LOG_STD_BOUNDS
        if not low <= self.initial_log_std <= high:
            raise ValueError(f"initial_log_std must lie between {low:g} and {high:g}, not {self.initial_log_std:g}")
        check_custom(self.custom, self.custom_args)
