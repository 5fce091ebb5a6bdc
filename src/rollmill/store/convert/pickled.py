"""Pickled episodes. Numbers, containers and numpy arrays are read from any file (``safe_pickle``).

Other objects are read only when asked for: unpickling them runs whatever code the file's author put into it.

A file holds a list of episodes, or several pickled one after another. An episode is a mapping with ``observations`` (an
array, or arrays by name; n + 1 rows, or n), ``actions`` and ``rewards`` ``[n]``, and flags: ``terminated``,
``terminations``, ``terminals`` or ``dones``, and ``truncated``, ``truncations`` or ``timeouts``; one per episode or
per step. ``next_observations`` gives the final observation where there are but n.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rollmill.core.errors import StoreError
from rollmill.core.fields import Array
from rollmill.core.opening import plain_file
from rollmill.store.convert import safe_pickle
from rollmill.store.convert.intake import (
    TERMINATED,
    TRUNCATED,
    FoundEpisode,
    Imported,
    as_numbers,
    store_found,
    with_final,
)
from rollmill.store.convert.target import Progress


@dataclass(frozen=True)
class ImportOptions:
    """Knobs of the import of pickled episodes."""

    unsafe_pickle: bool = False
    """Unpickle whatever is in the files: they come from somebody you trust to run code on this machine."""
    env: str = "unknown"
    """Env id to note in the store."""
    choices: int | None = None
    """Number of discrete actions; without it, the highest one seen plus 1."""


def import_episodes(
    sources: Sequence[str], target: Path, options: ImportOptions, progress: Progress | None = None
) -> Imported:
    """Write a new store with the episodes of all files. One file at a time is held in memory."""
    read = lambda: _episodes(sources, options.unsafe_pickle)  # noqa: E731
    return store_found(read, target, options.env, options.choices, "pickle", progress)


def _episodes(sources: Sequence[str], unsafe: bool) -> Iterator[tuple[str, FoundEpisode]]:
    for source in sources:
        for number, item in enumerate(_unpickled(Path(source), unsafe)):
            where = f"{source}, episode {number}"
            yield where, _read(item, where)


def _unpickled(path: Path, unsafe: bool) -> Iterator[Any]:
    load = pickle.load if unsafe else safe_pickle.load
    hint = "" if unsafe else "; --unsafe-pickle reads everything, from people whose code you would run"
    try:
        with open(path, "rb", opener=plain_file) as file:
            while file.peek(1):
                loaded = load(file)
                yield from [loaded] if isinstance(loaded, Mapping) else loaded
    except pickle.UnpicklingError as error:
        raise StoreError(f"{path} cannot be read as pickled episodes: {error}{hint}") from error
    except (OSError, EOFError, TypeError) as error:
        raise StoreError(f"{path} cannot be read as pickled episodes: {error}") from error


def _read(item: Any, where: str) -> FoundEpisode:
    if not isinstance(item, Mapping):
        raise StoreError(f"{where} is a {type(item).__name__}, a mapping with observations, actions, rewards is needed")
    missing = [name for name in ("observations", "actions", "rewards") if name not in item]
    if missing:
        raise StoreError(f"{where} has no {missing[0]!r} (it has: {', '.join(map(str, item))})")
    rewards = np.asarray(item["rewards"])
    count = len(rewards) if rewards.ndim else 0
    if count == 0:
        raise StoreError(f"{where} has no steps")
    rewards = as_numbers(rewards, count, "rewards", where)
    actions = np.asarray(item["actions"])
    if len(actions) != count:
        raise StoreError(f"{where}: {len(actions)} actions, {count} rewards")
    observations, repeated = _observations(item, count, where)
    terminated, truncated = _flag(item, TERMINATED), _flag(item, TRUNCATED)
    return FoundEpisode(observations, actions, rewards, terminated, truncated, repeated)


def _observations(item: Mapping[str, Any], count: int, where: str) -> tuple[dict[str, Array], bool]:
    """Return observations with the final one, and whether that had to be made up."""
    given, after = _by_name(item["observations"]), _by_name(item.get("next_observations", {}))
    found, repeated = {}, False
    for name, rows in given.items():
        found[name], alike = with_final(rows, after.get(name), count, where)
        repeated |= alike
    return found, repeated


def _by_name(value: Any) -> dict[str, Array]:
    parts = value if isinstance(value, Mapping) else {"obs": value}
    return {str(name): np.asarray(rows) for name, rows in parts.items()}


def _flag(item: Mapping[str, Any], names: Sequence[str]) -> bool:
    for name in names:
        if name in item:
            return bool(np.ravel(np.asarray(item[name]))[-1])
    return False
