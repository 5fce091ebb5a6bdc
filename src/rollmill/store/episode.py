"""One episode: what is known when it begins, when it ends, and its arrays in memory.

An episode of ``n`` steps always has ``n + 1`` observations: the last one is what the last action led to. That
holds for partial episodes too (where writing was cut short, the last step is given up for it).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rollmill.core.errors import StoreError
from rollmill.core.fields import INFO, Array, Obs
from rollmill.core.slots import OBS
from rollmill.envs.info import TEXT, texts

Stats = Mapping[str, float | int | bool | str]
"""Statistics of an episode beyond the fixed ones: short names, plain values."""


@dataclass(frozen=True)
class EpisodeInfo:
    """What is known when an episode begins.

    ``first_step`` above 0 means that recording started in the middle. ``env_id`` "" is the schema's. ``uid`` is
    the 64-bit name of the episode, random if None; splits by hash follow it. ``probability``: that of having been
    chosen among all episodes that were played, before it was known how this one would end; None where there is no such
    number (chosen by its return, a piece, or made elsewhere).
    """

    first_step: int = 0
    seed: int | None = None
    env_id: str = ""
    policy: str = ""
    policy_id: int = 0
    worker: int = -1
    lane: int = -1
    uid: int | None = None
    probability: float | None = None


@dataclass(frozen=True)
class EpisodeEnd:
    """The end record: what makes an episode part of the store."""

    uid: int
    length: int
    """Steps stored."""
    block: int
    """Steps per block; only the last block may have fewer."""
    blocks: int
    return_: float
    """Sum of the stored rewards."""
    terminated: bool
    truncated: bool
    first_step: int
    seed: int | None
    env_id: str
    policy: str
    policy_id: int
    version_min: int
    version_max: int
    global_step_first: int
    global_step_last: int
    worker: int
    lane: int
    time: float
    """When it was ended, in seconds since 1970."""
    stats: Stats = field(default_factory=dict)
    probability: float | None = None
    """As in ``EpisodeInfo``."""

    @property
    def partial_start(self) -> bool:
        return self.first_step > 0

    @property
    def partial_end(self) -> bool:
        return not (self.terminated or self.truncated)

    @property
    def partial(self) -> bool:
        return self.partial_start or self.partial_end

    @property
    def info(self) -> EpisodeInfo:
        return EpisodeInfo(
            first_step=self.first_step,
            seed=self.seed,
            env_id=self.env_id,
            policy=self.policy,
            policy_id=self.policy_id,
            worker=self.worker,
            lane=self.lane,
            uid=self.uid,
            probability=self.probability,
        )


@dataclass
class Episode:
    """An episode in memory: arrays ``[n, ...]`` by column name, ``[n + 1, ...]`` for observation columns."""

    columns: dict[str, Array]
    info: EpisodeInfo = field(default_factory=EpisodeInfo)
    terminated: bool = False
    truncated: bool = False
    stats: Stats = field(default_factory=dict)
    steps_stored: int = -1
    """Number of steps; found from the columns where not given."""

    def __post_init__(self) -> None:
        if self.steps_stored < 0:
            if "action" not in self.columns:
                raise StoreError("an episode without an action column must say how many steps it has")
            self.steps_stored = len(self.columns["action"])

    def __len__(self) -> int:
        return self.steps_stored

    @property
    def length(self) -> int:
        return self.steps_stored

    def column(self, name: str) -> Array:
        """Return a column by name; ``step``, ``terminated`` and ``truncated`` are columns, too."""
        n = self.steps_stored
        if name == "step":
            return self.info.first_step + np.arange(n, dtype=np.int64)
        if name in ("terminated", "truncated"):
            flags = np.zeros(n, np.bool_)
            flags[n - 1 :] = self.terminated if name == "terminated" else self.truncated
            return flags
        try:
            return self.columns[name]
        except KeyError:
            raise StoreError(
                f"the episode was read without column {name!r} (it has {', '.join(self.columns)})"
            ) from None

    @property
    def obs(self) -> Obs:
        """Observations by field name, ``[n + 1, *shape]`` each."""
        return {name.removeprefix(OBS): array for name, array in self.columns.items() if name.startswith(OBS)}

    @property
    def infos(self) -> Obs:
        """What the environment's ``info`` said, by name, ``[n + 1, *shape]`` each: numbers, or texts as str."""
        kept = {name.removeprefix(INFO): array for name, array in self.columns.items() if name.startswith(INFO)}
        return {n.removesuffix(TEXT): texts(array) if n.endswith(TEXT) else array for n, array in kept.items()}

    @property
    def actions(self) -> Array:
        return self.column("action")

    @property
    def rewards(self) -> Array:
        return self.column("reward")

    @property
    def steps(self) -> Array:
        return self.column("step")

    @property
    def global_steps(self) -> Array:
        return self.column("global_step")

    @property
    def versions(self) -> Array:
        return self.column("version")

    @property
    def terminateds(self) -> Array:
        return self.column("terminated")

    @property
    def truncateds(self) -> Array:
        return self.column("truncated")

    @property
    def return_(self) -> float:
        return float(np.sum(self.rewards, dtype=np.float64))

    def to_dict(self) -> dict[str, Any]:
        """Return every array by name, derived columns included."""
        return {**self.columns, **{name: self.column(name) for name in ("step", "terminated", "truncated")}}
