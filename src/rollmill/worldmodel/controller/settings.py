"""Knobs of the controller, of the search for its weights, and of the dream it may be searched in."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Any, Literal

from rollmill.core.config.schema import require_least, settings
from rollmill.core.imports import check_custom

Inputs = Literal["z", "zh"]
Squash = Literal["clip", "sigmoid", "pedal"]


@settings
class RetrievalSettings:
    """Past experience as one more input: what followed the stored steps that are most like the present one."""

    neighbours: int = 0
    """Stored steps that are looked up; 0: none."""

    store: Path | None = None
    """The store of latents whose steps are remembered."""

    size: int = 4_096
    """Steps that are remembered, drawn from the whole store."""

    horizon: int = 10
    """How far ahead "what followed" reaches, in steps."""

    def __post_init__(self) -> None:
        if self.neighbours < 0 or self.size < 1 or self.horizon < 1:
            raise ValueError("neighbours must not be negative, size and horizon at least 1")
        if self.neighbours and self.store is None:
            raise ValueError("retrieval.store: which store of latents shall be remembered?")
        if self.neighbours > self.size:
            raise ValueError(f"neighbours={self.neighbours} of size={self.size} remembered steps")


@settings
class ControllerSettings:
    """A small policy on latents and memory, found by CMA-ES."""

    inputs: Inputs = "zh"
    """zh: latents and memory; z: latents alone (an ablation, and what a model without memory is left with)."""

    components: int = 0
    """With inputs=zh: read the memory along the axes in which it varies most, so many of them, each scaled to variance
    1, instead of all its numbers: fewer weights to search. 0: all numbers, as they are."""

    hidden: int = 0
    """Units of a hidden layer; 0: the controller is linear."""

    custom: str | None = None
    """A network of your own instead: ``module:Class`` or ``path/to/file.py:Class`` (code that is imported and run), a
    ``torch.nn.Module`` whose parameters are what is searched."""

    custom_args: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments for the constructor of ``custom``, beside the numbers of its features and outputs."""

    squash: Squash = "clip"
    """How numbers become continuous actions. clip: tanh, cut off at one-sided bounds (gas at 0); sigmoid: one-sided
    bounds get a sigmoid, so that 0 means the middle; pedal: as clip, and the last two actions share one number, the
    former where it is positive, the latter where it is negative (gas and brake)."""

    population: int = 32
    """Members of a generation."""

    trials: int = 4
    """Episodes for each member; members of a generation play the same ones."""

    generations: int = 100
    """How many there are to be."""

    seconds: float = 0.0
    """Start no new generation after so many seconds; 0: go by generations alone."""

    max_steps: int = 0
    """Steps after which an episode is cut; 0: the environment's own limit."""

    patience: int = 0
    """Cut an episode after so many steps without a positive reward; 0: never. The steps it would have had are credited
    with the mean reward of the last ones, so being cut is neither a gain nor a loss. Needs max_steps."""

    start: Path | None = None
    """A saved controller (file or folder) to begin at, such as one from a dream; unset: at zero."""

    sigma: float = 0.08
    """First step size of CMA-ES."""

    shrink: float = 1.0
    """Factor of the step size after every generation, beside what CMA-ES itself does to it. Below 1 where members
    go on playing much worse than their mean."""

    decay: float = 0.0
    """Cost of large weights: the mean of their squares times this is taken from a member's return."""

    covariance: Literal["auto", "full", "diagonal"] = "auto"
    """diagonal (sep-CMA-ES) learns faster per generation but no correlations; auto: full up to 2,000 weights."""

    envs: int = 64
    """Environments stepped at the same time, at most; as many as divide the episodes of a generation evenly."""

    workers: int = 0
    """Processes that step them; 0: one per core."""

    mode: Literal["processes", "serial"] = "processes"
    """serial: everything in this process, in a fixed order."""

    lockstep: bool = False
    """Always decide for all environments together: slower, but two runs give the same numbers."""

    evaluate_every: int = 10
    """Generations between two evaluations of the best member and of the mean; 0: only at the end."""

    evaluate_episodes: int = 16
    """Episodes of such an evaluation, always the same ones."""

    final_episodes: int = 20
    """Episodes of the last evaluation, of the best controller, which no other evaluation has played; 0: none."""

    resume: Literal["replay", "mean"] = "replay"
    """How a killed search goes on. replay: exactly, by telling CMA-ES all returns again; mean: from the saved mean and
    step sizes, for when another machine rounds otherwise and the replay is refused."""

    device: str = "auto"
    """Where encoder and memory run: cpu, cuda, auto."""

    threads: int = 1
    """Threads of encoder and memory on a CPU; the others are left to the environments."""

    seed: int = 0
    """Of the search and of the episodes."""

    retrieval: RetrievalSettings = field(default_factory=RetrievalSettings)

    def __post_init__(self) -> None:
        check_custom(self.custom, self.custom_args)
        if self.custom is not None and self.hidden:
            raise ValueError("hidden is a layer of the controller that custom takes the place of")
        if self.population < 4:
            raise ValueError("population must be at least 4: CMA-ES ranks members")
        require_least(self, 1, "trials", "generations", "envs", "evaluate_episodes", "threads")
        require_least(
            self,
            0,
            "components",
            "hidden",
            "seconds",
            "max_steps",
            "patience",
            "decay",
            "workers",
            "evaluate_every",
            "seed",
        )
        if self.final_episodes < 0:
            raise ValueError("final_episodes must not be negative")
        if self.sigma <= 0:
            raise ValueError("sigma must be above 0")
        if not 0 < self.shrink <= 1:
            raise ValueError("shrink is a factor above 0, and 1 at most")
        if self.patience and not self.max_steps:
            raise ValueError("patience needs max_steps: what a cut episode would have had left must be known")
        if self.patience and self.patience >= self.max_steps:
            raise ValueError(f"patience={self.patience} is never reached within max_steps={self.max_steps}")


@settings
class DreamSettings:
    """The model as an environment."""

    temperature: float = 1.0
    """How uncertain the dream is: 0 always takes the likeliest, above 1 exaggerates what the model does not know."""

    max_steps: int = 1_000
    """Steps after which a dreamt episode is truncated."""

    done_threshold: float = -1.0
    """An episode ends where the model's probability of an end is above this; negative: it is drawn."""

    survival_reward: float | None = None
    """Reward of every step that is survived, instead of the model's; take_cover pays one for every tic."""

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ValueError("temperature must not be negative")
        if self.max_steps < 1:
            raise ValueError("max_steps must be at least 1")
        if self.done_threshold >= 1:
            raise ValueError("done_threshold is a probability below 1, or negative")
