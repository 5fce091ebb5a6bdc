"""Which episodes to read: conditions on the episode table.

Filter(return_min=10, partial=False).select(store.table)         episode numbers, ascending
Filter.parse(["return_min=10", "partial=no", "top=10%"])         the same from the command line
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollmill.core.errors import ConfigError
from rollmill.core.fields import Array
from rollmill.core.text import nearest
from rollmill.store.table import EpisodeTable


@dataclass(frozen=True)
class Filter:
    """Conditions that all have to hold; None and () let everything pass. Limits are included.

    An episode lasts over several policy versions and global steps: it passes if all of its steps lie within the
    limits. An unfinished episode's return, versions and global steps are unknown: it passes no limit on these.
    """

    return_min: float | None = None
    """Sum of the stored rewards, undiscounted."""
    return_max: float | None = None
    length_min: int | None = None
    """Steps."""
    length_max: int | None = None
    version_min: int | None = None
    """Policy version."""
    version_max: int | None = None
    global_step_min: int | None = None
    """Training progress in simulator frames."""
    global_step_max: int | None = None
    env: tuple[str, ...] = ()
    """Env ids, any of them."""
    policy: tuple[str, ...] = ()
    """Names of policies, any of them."""
    policy_id: tuple[int, ...] = ()
    """Members of a population, any of them."""
    terminated: bool | None = None
    truncated: bool | None = None
    partial: bool | None = None
    """False: only episodes that were recorded from their first step to their end."""
    top: float | None = None
    """The best share by return of the episodes that pass everything else, e.g. 0.1; rounded up to whole episodes,
    the earlier one first where returns are equal."""

    def __post_init__(self) -> None:
        for name in ("return", "length", "version", "global_step"):
            low, high = getattr(self, f"{name}_min"), getattr(self, f"{name}_max")
            if low is not None and high is not None and not low <= high:
                raise ConfigError(f"filter: {name}_min={low} is above {name}_max={high}, nothing can pass")
            if any(bound is not None and math.isnan(bound) for bound in (low, high)):
                raise ConfigError(f"filter: a limit of {name} is NaN, nothing can pass")
        if self.top is not None and not 0 < self.top <= 1:
            raise ConfigError(f"filter: top={self.top} must be above 0 and at most 1 (or 100%)")

    def mask(self, table: EpisodeTable) -> Array:
        """Return ``[episodes]`` bool: whether each one passes, ``top`` not looked at."""
        passes = np.ones(len(table), np.bool_)
        for low, high, first, last in (
            (self.return_min, self.return_max, "return", "return"),
            (self.length_min, self.length_max, "length", "length"),
            (self.version_min, self.version_max, "version_min", "version_max"),
            (self.global_step_min, self.global_step_max, "global_step_first", "global_step_last"),
        ):
            if low is None and high is None:
                continue
            if first != "length":
                passes &= table["finished"]
            if low is not None:
                passes &= table[first] >= low
            if high is not None:
                passes &= table[last] <= high
        for column, wanted in (("env_id", self.env), ("policy", self.policy), ("policy_id", self.policy_id)):
            if wanted:
                passes &= np.isin(table[column], np.asarray(wanted))
        for column, flag in (("terminated", self.terminated), ("truncated", self.truncated)):
            if flag is not None:
                passes &= table[column] == flag
        if self.partial is not None:
            passes &= (table["partial_start"] | table["partial_end"]) == self.partial
        return passes

    def select(self, table: EpisodeTable) -> Array:
        """Return the numbers of the episodes that pass, ascending, int64."""
        passes = self.mask(table)
        if self.top is None:
            return np.flatnonzero(passes)
        found = np.flatnonzero(passes & ~np.isnan(table.return_))
        count = math.ceil(self.top * len(found) - 1e-9)  # 0.1 x 30 is a little more than 3 in floating point
        best = np.argsort(-table.return_[found], kind="stable")[:count]
        return np.sort(found[best])

    @classmethod
    def parse(cls, words: Iterable[str]) -> Filter:
        """Return a filter from ``key=value`` words; several names are separated by commas (``env=a,b``)."""
        values: dict[str, Any] = {}
        for word in words:
            name, equals, text = word.partition("=")
            name = name.strip()
            if name not in _READ:
                known = ", ".join(_READ)
                raise ConfigError(f"filter {word!r}: no key {name!r} {nearest(name, _READ)} (known: {known})")
            if not equals or not text.strip():
                raise ConfigError(f"filter {word!r}: a value is missing, write {name}=VALUE")
            if name in values:
                raise ConfigError(f"filter {word!r}: {name} is given twice")
            try:
                values[name] = _READ[name](text.strip())
            except ValueError as error:
                raise ConfigError(f"filter {word!r}: {error}") from error
        return cls(**values)

    def words(self) -> list[str]:
        """Return the words that ``parse`` turns back into this filter."""
        found = []
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if value is not None and value != ():
                text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
                found.append(f"{item.name}={text}")
        return found


def _yes_or_no(text: str) -> bool:
    flags = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}
    if text.lower() not in flags:
        raise ValueError(f"{text!r} is neither yes nor no")
    return flags[text.lower()]


def _whole(text: str) -> int:
    """Read a whole number: ``5000``, ``5_000`` or ``5e3``."""
    try:
        return int(text)
    except ValueError:
        number = float(text)
    if not number.is_integer():
        raise ValueError(f"{text!r} is not a whole number")
    return int(number)


def _share(text: str) -> float:
    """Read a share: ``0.1`` or ``10%``."""
    return float(text[:-1]) / 100 if text.endswith("%") else float(text)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(_whole(name) for name in _names(text))


_BY_TYPE: dict[str, Callable[[str], Any]] = {
    "float | None": float,
    "int | None": _whole,
    "bool | None": _yes_or_no,
    "tuple[str, ...]": _names,
    "tuple[int, ...]": _numbers,
}
_READ: dict[str, Callable[[str], Any]] = {
    item.name: _share if item.name == "top" else _BY_TYPE[str(item.type)] for item in dataclasses.fields(Filter)
}
