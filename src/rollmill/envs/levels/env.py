"""How an environment has its levels kept, and the coat that does it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np

from rollmill.core.fields import Array, Obs
from rollmill.core.protocols import Env, StepReturn
from rollmill.envs.around import Around
from rollmill.envs.levels.store import LevelStore

LEVEL_KEPT = "level_kept"


@runtime_checkable
class KeepsLevels(Protocol):
    """What an ``Env`` has besides, if its levels can be kept.

    A level is all that ``reset`` has made of a seed, the state of the environment's random numbers included: an episode
    that begins with ``load_level`` goes on as one that begins with ``reset``, to the bit. The bytes are read by whoever
    shares the folder, so they must be read without running anything (no pickle).

    A class may say which of its arguments leave levels as they are (``level_free``, a set of names) and which packages'
    versions change them (``level_packages``, names of distributions): levels of others are kept apart.
    """

    def save_level(self) -> bytes:
        """Return the level of the episode that ``reset`` has just begun."""

    def load_level(self, level: bytes, seed: int, obs: Obs) -> None:
        """Begin the episode of this seed on a level that ``save_level`` gave; write the first observation."""


class LevelEnv(Around):
    """An ``Env`` that takes its levels from a store, and puts there what it has to generate.

    The statistics of every episode say whether its level was there (``level_kept``, 0 or 1).
    """

    def __init__(self, env: Env, store: LevelStore) -> None:
        assert isinstance(env, KeepsLevels), "checked by who builds it"
        super().__init__(env)
        self._keeper: KeepsLevels = env
        self._store = store
        self.spec = env.spec
        self._kept = False

    def reset(self, seed: int, obs: Obs) -> None:
        level = self._store.get(str(seed))
        if level is not None:
            self._keeper.load_level(level, seed, obs)
        else:
            self.env.reset(seed, obs)
            self._store.put(str(seed), seed, self._keeper.save_level())
        self._kept = level is not None

    def step(self, action: Array, obs: Obs) -> StepReturn:
        reward, terminated, truncated, info = self.env.step(action, obs)
        return reward, terminated, truncated, with_kept(info, self._kept) if ends(terminated, truncated) else info


def ends(terminated: Any, truncated: Any) -> bool:
    """Return whether a step was the last of its episode."""
    if type(terminated) is bool and type(truncated) is bool:
        return terminated or truncated
    return bool(np.all(np.logical_or(terminated, truncated)))


def with_kept(info: Mapping[str, Any], kept: bool) -> Mapping[str, Any]:
    """Return an ``info`` whose statistics of the episode say whether its level was kept before."""
    return {**info, "episode_stats": {**(info.get("episode_stats") or {}), LEVEL_KEPT: float(kept)}}
