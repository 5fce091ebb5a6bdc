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
from rollmill.core.slots import OBS
from rollmill.store.convert import safe_pickle
from rollmill.store.convert.intake import (
    ActionGuess,
    Imported,
    as_numbers,
    check_storable,
    content_uid,
    make_schema,
    new_store,
)
from rollmill.store.convert.target import Progress
from rollmill.store.episode import Episode, EpisodeInfo

_TERMINATED = ("terminated", "terminations", "terminals", "dones")
_TRUNCATED = ("truncated", "truncations", "timeouts")


@dataclass(frozen=True)
class ImportOptions:
    """Knobs of the import of pickled episodes."""

    unsafe_pickle: bool = False
    """Unpickle whatever is in the files: they come from somebody you trust to run code on this machine."""
    env: str = "unknown"
    choices: int | None = None
    """Number of discrete actions; without it, the highest one seen plus 1."""


def import_episodes(
    sources: Sequence[str], target: Path, options: ImportOptions, progress: Progress | None = None
) -> Imported:
    """A new store with the episodes of all files. One file at a time is held in memory."""
    guess, layout = ActionGuess(options.choices), None
    total = 0
    for where, found in _episodes(sources, options.unsafe_pickle):
        guess.where = where
        guess.take(found.actions)
        layout = layout or found.layout(where)
        if found.layout(where) != layout:
            raise StoreError(f"{where}: observations are {found.layout(where)}, before they were {layout}")
        total += len(found.rewards)
    if layout is None:
        raise StoreError(f"no episode in {', '.join(sources)}")
    done = Imported(Path(target))
    repeated = 0
    with new_store(target, make_schema(options.env, layout, guess.spec(), "pickle")) as writer:
        for number, (_, found) in enumerate(_episodes(sources, options.unsafe_pickle)):
            writer.add_episode(_episode(number, found, guess, done.steps))
            repeated += found.repeated
            done.episodes += 1
            done.steps += len(found.rewards)
            if progress is not None:
                progress(done.steps, total)
    if repeated:
        done.notes.append(f"{repeated} episodes came without a final observation: the last one is repeated")
    return done


@dataclass
class _Found:
    observations: dict[str, Array]
    """``[n + 1, ...]`` by name."""
    actions: Array
    rewards: Array
    terminated: bool
    truncated: bool
    repeated: bool

    def layout(self, where: str) -> dict[str, tuple[str, tuple[int, ...]]]:
        return {
            name: (check_storable(rows.dtype, rows.shape[1:], f"{where}, observation {name}"), rows.shape[1:])
            for name, rows in self.observations.items()
        }


def _episode(number: int, found: _Found, guess: ActionGuess, before: int) -> Episode:
    count = len(found.rewards)
    columns = {OBS + name: rows for name, rows in found.observations.items()}
    columns["action"] = guess.stored(found.actions)
    columns["reward"] = found.rewards.astype(np.float32)
    columns["global_step"] = before + np.arange(count, dtype=np.int64)
    columns["version"] = np.zeros(count, np.int64)
    stats = {"final_observation": "repeated"} if found.repeated else {}
    info = EpisodeInfo(uid=content_uid(number, columns))
    return Episode(columns, info, found.terminated, found.truncated, stats)


def _episodes(sources: Sequence[str], unsafe: bool) -> Iterator[tuple[str, _Found]]:
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


def _read(item: Any, where: str) -> _Found:
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
    terminated, truncated = _flag(item, _TERMINATED), _flag(item, _TRUNCATED)
    return _Found(observations, actions, rewards, terminated, truncated, repeated)


def _observations(item: Mapping[str, Any], count: int, where: str) -> tuple[dict[str, Array], bool]:
    """Observations with the final one, and whether that had to be made up."""
    given, after = _by_name(item["observations"]), _by_name(item.get("next_observations", {}))
    found, repeated = {}, False
    for name, rows in given.items():
        if len(rows) == count:
            has_next = name in after and len(after[name]) == count
            repeated |= not has_next
            rows = np.concatenate([rows, after[name][-1:] if has_next else rows[-1:]])
        if len(rows) != count + 1:
            raise StoreError(f"{where}: {len(rows)} observations for {count} steps; {count + 1} or {count} are needed")
        found[name] = rows
    return found, repeated


def _by_name(value: Any) -> dict[str, Array]:
    parts = value if isinstance(value, Mapping) else {"obs": value}
    return {str(name): np.asarray(rows) for name, rows in parts.items()}


def _flag(item: Mapping[str, Any], names: Sequence[str]) -> bool:
    for name in names:
        if name in item:
            return bool(np.ravel(np.asarray(item[name]))[-1])
    return False
