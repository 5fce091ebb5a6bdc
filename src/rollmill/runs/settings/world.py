"""The configuration of world models: of the stages that deal with images, and of all of them together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from rollmill.core.config.schema import settings
from rollmill.envs.settings import EnvSettings
from rollmill.worldmodel.controller.settings import ControllerSettings, DreamSettings
from rollmill.worldmodel.dynamics.settings import DynamicsSettings
from rollmill.worldmodel.encoder.settings import EncoderFitSettings, EncoderSettings, ImageSettings
from rollmill.worldmodel.own import OwnClass

SplitName = Literal["all", "train", "validation"]


@settings
class VaeConfig:
    """Everything ``rollmill world vae`` can be told."""

    seed: int = 0
    """Of weights, data order and noise."""

    encoder: EncoderSettings = field(default_factory=EncoderSettings)
    images: ImageSettings = field(default_factory=ImageSettings)
    fit: EncoderFitSettings = field(default_factory=EncoderFitSettings)

    tensorboard: bool = True
    """Write TensorBoard files beside metrics.jsonl."""

    console_seconds: float = 5.0
    """Seconds between console lines when there is no live panel."""

    def __post_init__(self) -> None:
        if self.seed < 0 or self.console_seconds < 0:
            raise ValueError("seed and console_seconds must not be negative")


@settings
class CollectStage:
    """Stage 1: which episodes are played."""

    episodes: dict[str, int] = field(default_factory=lambda: {"smoothed-random": 100, "random-controller": 50})
    """Episodes by policy, as ``rollmill collect --policy`` names it. A raised number adds what is missing."""

    hold: int = 8
    """smoothed-random: mean steps that an action lasts."""

    workers: int = 0
    """Processes that play; 0: one per core."""

    def __post_init__(self) -> None:
        if not self.episodes or min(self.episodes.values()) < 1:
            raise ValueError("episodes: at least one policy with at least one episode is needed")
        if self.hold < 1 or self.workers < 0:
            raise ValueError("hold must be at least 1, workers not negative")


@settings
class EncodeStage:
    """Stage 3: how images become latents."""

    processes: int = 0
    """Processes that share the work; 0: one per core on CPUs, one on a GPU."""

    gpu: int | None = None
    """Number of the GPU; unset: the CPU, or the only GPU there is."""

    batch_size: int = 256
    """Images encoded at a time."""

    def __post_init__(self) -> None:
        if self.processes < 0 or self.batch_size < 1:
            raise ValueError("processes must not be negative, batch_size at least 1")


@settings
class WorldConfig:
    """Everything ``rollmill world run`` can be told: a block for each stage."""

    seed: int = 0
    """Of the collected episodes; the other stages have seeds of their own."""

    env: EnvSettings = field(default_factory=lambda: EnvSettings(id="car_racing", args={"size": 64}))

    collect: CollectStage = field(default_factory=CollectStage)
    vae: VaeConfig = field(default_factory=VaeConfig)
    encode: EncodeStage = field(default_factory=EncodeStage)
    dynamics: DynamicsSettings = field(default_factory=DynamicsSettings)
    controller: ControllerSettings = field(default_factory=ControllerSettings)

    search_in: Literal["env", "dream"] = "env"
    """Where controllers play while they are searched: the environment, or the model's dream of it. They are always
    judged in the environment."""

    dream: DreamSettings = field(default_factory=DreamSettings)

    video: bool = True
    """Make a video of dreams beside what really happened, for the page (needs PyAV)."""

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise ValueError("seed must not be negative")


@settings
class ControllerConfig:
    """Everything ``rollmill world controller`` and ``rollmill world dream`` can be told."""

    env: EnvSettings | None = None
    """Where controllers play; unset: the environment that the dynamics model was fitted to."""

    controller: ControllerSettings = field(default_factory=ControllerSettings)

    dream: DreamSettings = field(default_factory=DreamSettings)
    """Of ``rollmill world dream`` alone."""

    encoder: OwnClass = field(default_factory=OwnClass)
    """The encoder's class, where that is one of your own."""

    dynamics: OwnClass = field(default_factory=OwnClass)
    """The dynamics model's class, likewise."""


@dataclass(frozen=True, kw_only=True)
class EncodeShare:
    """Flags of ``rollmill world encode``: what one instance does of the work."""

    field: tuple[str, ...] = ()
    """Observation fields with the images, where there are several; each gets latents under its own name."""
    split: SplitName = "all"
    """Only the episodes that the encoder has learnt from (train), or those that were held out (validation)."""
    shards: int = 1
    """Number of shares that the work is divided into; every instance says the same."""
    shard: int = 0
    """Number of this instance's share, from 0."""
    sub_shards: int = 1
    """Processes that divide this instance's share among themselves."""
    gpu: int | None = None
    """Number of the GPU to use; unset: the CPU, or the only GPU there is."""
    batch_size: int = 256
    """Images encoded at a time."""


@settings
class EncodeWords:
    """What the words of ``rollmill world encode`` can say."""

    encoder: OwnClass = field(default_factory=OwnClass)
    """The encoder's class, where that is one of your own."""


@settings
class DreamVideo:
    """Which dreams are shown, and how."""

    episodes: int = 4
    """Episodes, one below the other."""

    steps: int = 200
    """Steps of the video."""

    shown: int = 20
    """Real steps that the model is shown first; half of an episode at most."""

    temperature: float = 1.0
    """Of the dreams; see DreamSettings."""

    fps: float = 20.0
    """Steps per second of the video."""

    scale: int = 3
    """Each pixel becomes a square of this many."""

    seed: int = 0
    """Which episodes, and which dreams."""

    encoder: OwnClass = field(default_factory=OwnClass)
    """The encoder's class, where that is one of your own."""

    dynamics: OwnClass = field(default_factory=OwnClass)
    """The dynamics model's class, likewise."""

    def __post_init__(self) -> None:
        if min(self.episodes, self.steps, self.shown, self.scale) < 1 or self.shown >= self.steps:
            raise ValueError("episodes, steps, shown and scale must be at least 1, and shown below steps")
        if self.temperature < 0 or self.seed < 0:
            raise ValueError("temperature and seed must not be negative")
