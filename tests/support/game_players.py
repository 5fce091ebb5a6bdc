"""Players of small games, as a user would write them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rollmill.core.fields import Array, EnvSpec

Act = Callable[[Mapping[str, Array]], int]


def last_allowed(spec: EnvSpec) -> Act:
    """Bets or raises whenever it may."""
    return lambda obs: int(np.flatnonzero(obs["action_mask"])[-1])


def also_last_allowed(spec: EnvSpec) -> Act:
    return last_allowed(spec)


def first_allowed(spec: EnvSpec) -> Act:
    """Passes, or folds."""
    return lambda obs: int(np.flatnonzero(obs["action_mask"])[0])


def rock(spec: EnvSpec) -> Act:
    return lambda obs: 0


def paper(spec: EnvSpec) -> Act:
    return lambda obs: 1


def scissors(spec: EnvSpec) -> Act:
    return lambda obs: 2


class Counting:
    """Remembers how often it was asked since its episode began: hands must change at beginnings only."""

    def __init__(self, spec: EnvSpec) -> None:
        self.asked = 0

    def reset(self, seed: int) -> None:
        self.asked = 0

    def __call__(self, obs: Any) -> int:
        moves = int(np.asarray(obs["obs"])[5:].sum())
        assert self.asked == moves, f"asked for move {moves} after {self.asked} others"
        self.asked += 1
        return int(np.flatnonzero(obs["action_mask"])[-1])
