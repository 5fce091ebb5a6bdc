"""Which parameters a set of runs takes: grids, lists and random draws, multiplied and added.

A *setting* is one mapping from dotted key to value, what one run differs in. A *set* (``Params``) is a list of them.
``a * b`` combines every setting of a with every one of b; ``a + b`` is those of a, then those of b. Order is kept, and
the same description gives the same settings every time, random search included.

The key ``config`` is a file for ``--config``; every other key is one that ``rollmill config`` explains.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollmill.core.errors import ConfigError
from rollmill.core.text import show

Setting = dict[str, Any]

RESERVED = ("run.dir", "run.experiment", "run.name")
"""Keys that follow from the experiment's name and the run's; a description cannot set them."""


class Params:
    """A set of settings. Iterate over it to get them."""

    def __iter__(self) -> Iterator[Setting]:
        raise NotImplementedError

    def __mul__(self, other: Params) -> Params:
        return _Product((self, other))

    def __add__(self, other: Params) -> Params:
        return _Sum((self, other))


@dataclass(frozen=True)
class ParamGrid(Params):
    """Every combination: ``ParamGrid({"env": ["a", "b"], "learning.gamma": [0.98, 0.99]})`` is 4 settings.

    The last key varies fastest.
    """

    values: Mapping[str, Sequence[Any]]

    def __post_init__(self) -> None:
        if not self.values:
            raise ConfigError("a grid needs at least one key with a list of values")
        for key, choices in self.values.items():
            check_key(key)
            if isinstance(choices, str | bytes) or not isinstance(choices, Sequence):
                raise ConfigError(
                    f"grid: {key}: expected a list of values, got {show(choices)}; write [{show(choices)}]"
                )
            if not choices:
                raise ConfigError(f"grid: {key}: the list of values is empty, so there would be no run at all")

    def __iter__(self) -> Iterator[Setting]:
        for choice in _combined(tuple(self.values.values())):
            yield dict(zip(self.values, choice))


@dataclass(frozen=True)
class ParamList(Params):
    """Settings one by one: ``ParamList([{"env": "a", "stop.frames": 1e6}, {"env": "b"}])``."""

    settings: Sequence[Mapping[str, Any]]

    def __post_init__(self) -> None:
        if not self.settings:
            raise ConfigError("a list of settings must not be empty: there would be no run at all")
        for setting in self.settings:
            if not isinstance(setting, Mapping):
                raise ConfigError(f"list: expected a mapping of keys to values, got {show(setting)}")
            for key in setting:
                check_key(key)

    def __iter__(self) -> Iterator[Setting]:
        return (dict(setting) for setting in self.settings)


# --------------------------------------------------------------------------------------------- random search


@dataclass(frozen=True)
class Uniform:
    """A float from ``low`` to ``high``."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ConfigError(f"uniform [{self.low}, {self.high}]: the first number must be the smaller one")

    def draw(self, rng: random.Random) -> float:
        return rounded(rng.uniform(self.low, self.high))


@dataclass(frozen=True)
class LogUniform:
    """A float from ``low`` to ``high`` whose logarithm is uniform: for learning rates and the like."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 < self.low < self.high:
            raise ConfigError(
                f"log_uniform [{self.low}, {self.high}]: two positive numbers are needed, smaller one first"
            )

    def draw(self, rng: random.Random) -> float:
        return rounded(math.exp(rng.uniform(math.log(self.low), math.log(self.high))))


@dataclass(frozen=True)
class Integers:
    """An integer from ``low`` to ``high``, both included."""

    low: int
    high: int

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ConfigError(f"integers [{self.low}, {self.high}]: the first number must be the smaller one")

    def draw(self, rng: random.Random) -> int:
        return rng.randint(self.low, self.high)


@dataclass(frozen=True)
class Choice:
    """One of ``values``."""

    values: Sequence[Any]

    def __post_init__(self) -> None:
        if not self.values:
            raise ConfigError("choice: there is nothing to choose from")

    def draw(self, rng: random.Random) -> Any:
        return rng.choice(self.values)


Draw = Uniform | LogUniform | Integers | Choice
DRAWS: dict[str, type[Uniform | LogUniform | Integers]] = {
    "uniform": Uniform,
    "log_uniform": LogUniform,
    "integers": Integers,
}
"""By their names in YAML; ``choice`` is the fourth, and takes a list of any length."""


@dataclass(frozen=True)
class RandomSearch(Params):
    """``samples`` settings, each key drawn by itself. The same ``seed`` draws the same, and more samples only add."""

    draws: Mapping[str, Draw]
    samples: int
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.draws:
            raise ConfigError("random: at least one key to draw is needed")
        if self.samples < 1:
            raise ConfigError(f"random: samples={self.samples}: there would be no run at all")
        for key, draw in self.draws.items():
            check_key(key)
            if not isinstance(draw, Draw):
                kinds = ", ".join([*DRAWS, "choice"])
                raise ConfigError(f"random: {key}: expected one of {kinds}, got {show(draw)}")

    def __iter__(self) -> Iterator[Setting]:
        # A generator for each key: another key in the description does not change what this one draws.
        rngs = {key: random.Random(f"{self.seed}/{key}") for key in self.draws}
        for _ in range(self.samples):
            yield {key: draw.draw(rngs[key]) for key, draw in self.draws.items()}


def rounded(value: float) -> float:
    """Round to four digits: enough for a search, and they fit into the name of a folder."""
    return float(f"{value:.4g}")


# ------------------------------------------------------------------------------------------------- combining


@dataclass(frozen=True)
class _Product(Params):
    parts: tuple[Params, ...]

    def __iter__(self) -> Iterator[Setting]:
        for parts in _combined(self.parts):
            made: Setting = {}
            for part in parts:
                twice = sorted(made.keys() & part.keys())
                if twice:
                    raise ConfigError(f"{', '.join(twice)}: set by two factors of a product; which one is meant?")
                made |= part
            yield made


@dataclass(frozen=True)
class _Sum(Params):
    parts: tuple[Params, ...]

    def __iter__(self) -> Iterator[Setting]:
        return itertools.chain.from_iterable(self.parts)


def _combined(factors: Sequence[Iterable[Any]]) -> Iterator[tuple[Any, ...]]:
    """Yield the same as ``itertools.product``, which would first make lists of all its factors, however long."""
    if not factors:
        yield ()
        return
    for first in factors[0]:
        for rest in _combined(factors[1:]):
            yield (first, *rest)


def product(parts: Sequence[Params]) -> Params:
    """Return the product of any number of sets; of none: one setting that changes nothing."""
    return _Product(tuple(parts)) if parts else ParamList([{}])


def total(parts: Sequence[Params]) -> Params:
    """Return one set after the other, as one set."""
    return _Sum(tuple(parts))


def check_key(key: Any) -> None:
    if not isinstance(key, str) or not key or any(c.isspace() or c == "=" for c in key):
        raise ConfigError(f"{key!r} is not the key of a setting; keys look like learning.gamma")
    if key in RESERVED:
        raise ConfigError(f"{key} cannot be a parameter: it follows from the name of the experiment and of the run")
