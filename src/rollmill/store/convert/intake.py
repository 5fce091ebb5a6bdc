"""What importers share: the report, uids that follow from the contents, guessing an action space from data, and a store
of episodes as other programs have them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rollmill.core.errors import StoreError
from rollmill.core.fields import ActionSpec, Array, EnvSpec, Field
from rollmill.core.slots import OBS
from rollmill.store.convert.target import Progress, new_folder
from rollmill.store.episode import Episode, EpisodeInfo
from rollmill.store.format.schema import Column, StoreSchema
from rollmill.store.writer import StoreWriter

TERMINATED = ("terminated", "terminations", "terminals", "dones", "done")
TRUNCATED = ("truncated", "truncations", "timeouts")
"""What other programs call these flags, the first one that is there counts."""


@dataclass
class Imported:
    """What an import wrote."""

    path: Path
    episodes: int = 0
    steps: int = 0
    notes: list[str] = field(default_factory=list)
    """What the other format did not say and what was assumed."""


@contextmanager
def new_store(target: Path | str, schema: StoreSchema) -> Iterator[StoreWriter]:
    """Yield a writer for a store that appears at ``target`` when the block ends well, else not at all."""
    with new_folder(target) as folder, StoreWriter(folder, schema, sync="seal") as writer:
        yield writer


def content_uid(number: int, arrays: Mapping[str, Array]) -> int:
    """Return a uid made of an episode's contents and number: importing the same data again gives the same uids."""
    digest = hashlib.blake2b(str(number).encode(), digest_size=8)
    for name in sorted(arrays):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8).data)
    return int.from_bytes(digest.digest(), "little")


def make_schema(
    env_id: str, observation: Mapping[str, tuple[str, tuple[int, ...]]], action: ActionSpec, source: str
) -> StoreSchema:
    """Make a schema for imported episodes; ``observation`` gives (dtype, shape) by field name."""
    fields = tuple(Field(name, dtype, shape) for name, (dtype, shape) in observation.items())
    import rollmill

    made_by = f"rollmill {rollmill.__version__}, imported from {source}"
    return StoreSchema.for_env(EnvSpec(env_id, fields, action), env_id=env_id, created_by=made_by)


@dataclass
class ActionGuess:
    """The action space that some actions could come from, taken in piece by piece."""

    choices: int | None = None
    """The true number of choices, if the user says it."""
    where: str = ""
    _kind: str = ""
    _shape: tuple[int, ...] = ()
    _highest: Array | None = None

    def take(self, actions: Array) -> None:
        """Take in actions ``[n, ...]``; a last axis of 1 counts as none for choices."""
        kind = "choice" if actions.dtype.kind in "iub" else "vector" if actions.dtype.kind == "f" else ""
        shape = tuple(actions.shape[1:])
        if kind == "choice" and shape == (1,):
            shape = ()
        if not kind or len(shape) > 1:
            raise StoreError(
                f"{self.where}: actions are {actions.dtype} {list(actions.shape)}; integers [N], [N, 1] or [N, k] "
                "(choices) or floats [N], [N, k] (vectors) are expected"
            )
        if self._kind and (kind, shape) != (self._kind, self._shape):
            raise StoreError(f"{self.where}: actions are of another kind or shape than before: {actions.dtype} {shape}")
        self._kind, self._shape = kind, shape
        if kind == "choice" and len(actions):
            rows = actions.reshape(len(actions), -1).astype(np.int64)
            if rows.min() < 0:
                raise StoreError(f"{self.where}: an action is {rows.min()}; choices are counted from 0")
            highest = rows.max(axis=0)
            self._highest = highest if self._highest is None else np.maximum(self._highest, highest)

    def spec(self) -> ActionSpec:
        if self._kind == "vector":
            if self.choices is not None:
                raise StoreError(f"{self.where}: actions are vectors, they have no number of choices")
            size = self._shape[0] if self._shape else 1
            bounds = ((-float("inf"),) * size, (float("inf"),) * size)
            return ActionSpec("continuous", shape=(size,), low=bounds[0], high=bounds[1])
        highest = np.zeros(1, np.int64) if self._highest is None else self._highest
        if self.choices is not None and highest.max() >= self.choices:
            raise StoreError(f"{self.where}: an action is {highest.max()}, there are said to be {self.choices} choices")
        nvec = tuple(int(n) + 1 if self.choices is None else self.choices for n in highest)
        kind: Any = "multi_discrete" if self._shape else "discrete"
        return ActionSpec(kind, nvec=nvec, start=(0,) * len(nvec))

    def stored(self, actions: Array) -> Array:
        """Return actions as the store has them."""
        if self._kind == "vector":
            return actions.reshape(len(actions), -1).astype(np.float32)
        return actions.reshape(len(actions), *self._shape).astype(np.int64)


def check_storable(dtype: np.dtype[Any], shape: tuple[int, ...], where: str) -> str:
    """Return the dtype's name for a column, or raise an error that names the array."""
    try:
        return Column(f"{OBS}x", dtype.name, shape, "obs").dtype
    except StoreError as error:
        raise StoreError(f"{where}: {dtype} cannot be stored ({error})") from error


def as_numbers(array: Array, count: int, name: str, where: str) -> Array:
    """Return ``[N]`` from ``[N]`` or ``[N, 1]``."""
    if array.shape not in ((count,), (count, 1)):
        raise StoreError(f"{where}: {name} has shape {list(array.shape)}, expected [{count}] or [{count}, 1]")
    return array.reshape(count)


# -------------------------------------------------------------------------------- episodes of other programs


@dataclass
class FoundEpisode:
    """An episode as another program has written it, its final observation included."""

    observations: dict[str, Array]
    """``[n + 1, ...]`` by name."""
    actions: Array
    rewards: Array
    terminated: bool
    truncated: bool
    repeated: bool
    """Whether the file lacks the final observation, and the last one stands for it."""

    def layout(self, where: str) -> dict[str, tuple[str, tuple[int, ...]]]:
        return {
            name: (check_storable(rows.dtype, rows.shape[1:], f"{where}, observation {name}"), rows.shape[1:])
            for name, rows in self.observations.items()
        }


def with_final(rows: Array, after: Array | None, count: int, where: str) -> tuple[Array, bool]:
    """Return observations ``[count + 1, ...]`` of an episode, and whether the last of them had to be made up.

    ``after`` holds what came of each action, in files that have it in place of a final observation.
    """
    if len(rows) == count:
        known = after is not None and len(after) == count
        return np.concatenate([rows, after[-1:] if after is not None and known else rows[-1:]]), not known
    if len(rows) != count + 1:
        raise StoreError(f"{where}: {len(rows)} observations for {count} steps; {count + 1} or {count} are needed")
    return rows, False


def store_found(
    read: Callable[[], Iterator[tuple[str, FoundEpisode]]],
    target: Path,
    env_id: str,
    choices: int | None,
    source: str,
    progress: Progress | None,
) -> Imported:
    """Make a store of the episodes that ``read`` finds, each with its place. It reads twice: to look, then to copy."""
    guess, layout = ActionGuess(choices), None
    total = 0
    for where, found in read():
        guess.where = where
        guess.take(found.actions)
        layout = layout or found.layout(where)
        if found.layout(where) != layout:
            raise StoreError(f"{where}: observations are {found.layout(where)}, before they were {layout}")
        total += len(found.rewards)
    if layout is None:
        raise StoreError(f"no episode in the files ({source})")
    done, repeated = Imported(Path(target)), 0
    with new_store(target, make_schema(env_id, layout, guess.spec(), source)) as writer:
        for number, (_, found) in enumerate(read()):
            writer.add_episode(_episode(number, found, guess, done.steps))
            repeated += found.repeated
            done.episodes += 1
            done.steps += len(found.rewards)
            if progress is not None:
                progress(done.steps, total)
    if repeated:
        done.notes.append(f"{repeated} episodes came without a final observation: the last one is repeated")
    return done


def _episode(number: int, found: FoundEpisode, guess: ActionGuess, before: int) -> Episode:
    count = len(found.rewards)
    columns = {OBS + name: rows for name, rows in found.observations.items()}
    columns["action"] = guess.stored(found.actions)
    columns["reward"] = found.rewards.astype(np.float32)
    columns["global_step"] = before + np.arange(count, dtype=np.int64)
    columns["version"] = np.zeros(count, np.int64)
    stats = {"final_observation": "repeated"} if found.repeated else {}
    info = EpisodeInfo(uid=content_uid(number, columns))
    return Episode(columns, info, found.terminated, found.truncated, stats)
