"""Reads npz files with observations, actions, rewards, dones and, where they have them, steps and gblsteps.

Made by ``npz`` or elsewhere. Other recorders write a file for each array, ``observations_0.npz``, ``actions_0.npz`` and
so on: these count as one. Episodes are cut after every row that says done, and where ``steps`` does not rise. The
arrays are read in pieces: no more than an episode is held in memory, and one that does not fit there is refused before
it fills it (a few megabytes of npz can hold any number of zeros). Nothing in the files is unpickled.
"""

from __future__ import annotations

import itertools
import math
import re
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np

from rollmill.core.errors import StoreError
from rollmill.core.fields import Array
from rollmill.core.machine import available_memory
from rollmill.core.opening import why_not_readable
from rollmill.core.slots import OBS
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
from rollmill.store.writer import MAX_BLOCK_BYTES, StoreWriter

REQUIRED = ("observations", "actions", "rewards", "dones")
OPTIONAL = ("steps", "gblsteps")

_PART = re.compile(r"(observations|actions|rewards|dones|steps|gblsteps)([^a-zA-Z].*)?\.npz$")
"""The name of a file that holds one array."""
_CHUNK_BYTES = 16 << 20
_MAX_ROW_BYTES = MAX_BLOCK_BYTES // 16
"""Of one array; no store takes larger ones."""


@dataclass(frozen=True)
class ImportOptions:
    """Knobs of the npz import."""

    env: str = "unknown"
    """Env id to note in the store."""
    choices: int | None = None
    """Number of discrete actions; without it, the highest one seen plus 1."""


def import_episodes(
    sources: Sequence[str], target: Path, options: ImportOptions, progress: Progress | None = None
) -> Imported:
    """Write a new store with the episodes of all files, in the order given."""
    files = [_check(path) for path in _without_parts([Path(source) for source in sources])]
    guess = ActionGuess(options.choices)
    for file in files:
        guess.where = str(file.path)
        with file.open("actions") as actions:
            for rows in actions.chunks():
                guess.take(rows)
    first = files[0].observation
    for file in files[1:]:
        if file.observation != first:
            raise StoreError(f"{file.path}: observations are {file.observation}, in {files[0].path} {first}")
    schema = make_schema(options.env, {"obs": first}, guess.spec(), "npz")
    done, given_up = Imported(Path(target)), 0
    total = sum(file.rows for file in files)
    with new_store(target, schema) as writer:
        for file in files:
            for episode in _episodes(file, guess):
                given_up += not episode.ended
                _add(writer, episode, done)
                if progress is not None:
                    progress(done.steps, total)
    _explain(done, files)
    if given_up:
        done.notes.append(
            f"{given_up} episodes break off without done: kept as partial ones, less the last step, whose observation "
            "is the final one"
        )
    return done


def _add(writer: StoreWriter, found: _Rows, done: Imported) -> None:
    """Write one episode. These files lack the observation after the last step; see ``_explain``."""
    obs, ended = found.columns[f"{OBS}obs"], found.ended
    if not ended and len(obs) < 2:
        return  # one row without an end: nothing remains once its observation is the final one
    # A true end keeps all its steps, the last reward among them: the last observation stands for the missing one.
    steps = len(obs) if ended else len(obs) - 1
    columns = {name: array[:steps] for name, array in found.columns.items()}
    columns[f"{OBS}obs"] = np.concatenate([obs, obs[-1:]]) if ended else obs
    uid = content_uid(done.episodes, found.columns)
    info = EpisodeInfo(first_step=found.first_step, uid=uid)
    stats = {"final_observation": "repeated"} if ended else {}
    writer.add_episode(Episode(columns, info, terminated=ended, stats=stats))
    done.episodes += 1
    done.steps += steps


def _explain(done: Imported, files: list[NpzFile]) -> None:
    done.notes.append(
        "the files have no observation after the last step of an episode: the last one is repeated "
        "(statistic final_observation); every done counts as terminated"
    )
    for file in files:
        missing = [name for name in OPTIONAL if name not in file.names]
        if missing:
            done.notes.append(f"{file.path} has no {' and no '.join(missing)}: rows are counted instead")


# -------------------------------------------------------------------------------------------------- episodes


@dataclass
class _Rows:
    columns: dict[str, Array]
    ended: bool
    first_step: int


def _episodes(file: NpzFile, guess: ActionGuess) -> Iterator[_Rows]:
    """Cut a file into episodes, holding one (and a chunk) at a time."""
    pending = _Pending(file)
    last_step: int | None = None
    for chunk in _aligned(file, guess):
        ends = chunk.pop("done")
        steps = chunk["step"]
        falls = np.diff(steps, prepend=steps[:1] if last_step is None else [last_step]) <= 0
        if last_step is None:
            falls[0] = False
        last_step = int(steps[-1])
        cuts = np.flatnonzero(falls)  # a new episode begins here, whatever the row before says
        borders = np.unique(np.concatenate([[0], cuts, np.flatnonzero(ends) + 1, [len(ends)]]))
        for start, stop in itertools.pairwise(borders.tolist()):
            if start in cuts and pending.pieces:
                yield pending.join(ended=False)
            pending.add({name: array[start:stop] for name, array in chunk.items()})
            if ends[stop - 1]:
                yield pending.join(ended=True)
    if pending.pieces:
        yield pending.join(ended=False)


class _Pending:
    """The rows of an episode that has not ended yet."""

    def __init__(self, file: NpzFile) -> None:
        self.pieces: list[dict[str, Array]] = []
        self._path = file.path
        self._rows = self._bytes = 0
        # Joining the pieces takes them twice, and the writer adds the final observation to a copy.
        self._limit = (available_memory() or 8e9) / 4

    def add(self, piece: dict[str, Array]) -> None:
        self._rows += len(piece["step"])
        self._bytes += sum(array.nbytes for array in piece.values())
        if self._bytes > self._limit:
            raise StoreError(
                f"{self._path}: no row says done for {self._rows} rows, {self._bytes / 1e9:.2f} GB so far: more than "
                "the memory that is free here allows. Is `dones` right? If so, divide the episode"
            )
        self.pieces.append(piece)

    def join(self, ended: bool) -> _Rows:
        pieces, self.pieces = self.pieces, []
        self._rows = self._bytes = 0
        columns = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
        steps = columns.pop("step")
        counted = bool((np.diff(steps) == 1).all())  # frames instead of steps say nothing about the first step
        return _Rows(columns, ended, int(steps[0]) if counted else 0)


def _aligned(file: NpzFile, guess: ActionGuess) -> Iterator[dict[str, Array]]:
    """Yield all arrays side by side, as columns of the store, a chunk of rows at a time."""
    names = [name for name in (*REQUIRED, *OPTIONAL) if name in file.names]
    rows = max(1, _CHUNK_BYTES // max(1, sum(file.row_bytes(name) for name in names)))
    base = file.first_step()
    streams = {name: file.open(name) for name in names}
    try:
        for start in range(0, file.rows, rows):
            count = min(rows, file.rows - start)
            part = {name: stream.read(count) for name, stream in streams.items()}
            yield _columns(part, count, start, base, guess, str(file.path))
    finally:
        for stream in streams.values():
            stream.close()


def _columns(
    part: dict[str, Array], count: int, start: int, base: int, guess: ActionGuess, where: str
) -> dict[str, Array]:
    numbers = {
        name: as_numbers(part[name], count, name, where) for name in ("rewards", "dones", *OPTIONAL) if name in part
    }
    index = np.arange(start, start + count, dtype=np.int64)
    for name in ("dones", *OPTIONAL):
        if name in numbers and not np.array_equal(numbers[name], numbers[name].astype(np.int64)):
            raise StoreError(f"{where}: {name} holds other than whole numbers")
    if not np.isin(numbers["dones"], (0, 1)).all():
        raise StoreError(f"{where}: dones holds other than 0 and 1")
    progress = numbers.get("gblsteps", index).astype(np.int64)
    return {
        f"{OBS}obs": part["observations"],
        "action": guess.stored(part["actions"]),
        "reward": numbers["rewards"].astype(np.float32),
        "global_step": progress,
        "version": np.zeros(count, np.int64),
        "done": numbers["dones"].astype(np.bool_),
        # Without steps every row seems to follow the one before; only dones cut then.
        "step": numbers["steps"].astype(np.int64) - base if "steps" in numbers else index,
    }


# -------------------------------------------------------------------------------------------------- files


def _check(path: Path) -> NpzFile:
    file = NpzFile(path)
    missing = [name for name in REQUIRED if name not in file.names]
    if missing:
        raise StoreError(
            f"{path} has no array {missing[0]!r} (it has: {', '.join(file.names) or 'none'}); "
            f"needed are {', '.join(REQUIRED)}"
        )
    for name in (*REQUIRED, *OPTIONAL):
        if name in file.names:
            shape = file.shape(name)
            if not shape or shape[0] != file.rows:
                raise StoreError(
                    f"{path}: {name} has shape {list(shape)}, observations have {file.rows} rows: "
                    "all arrays need one row per step"
                )
            if file.row_bytes(name) > _MAX_ROW_BYTES:
                raise StoreError(f"{path}: a row of {name} has {file.row_bytes(name):,} bytes, too many for a store")
    if file.rows == 0:
        raise StoreError(f"{path} has no rows")
    return file


def _without_parts(paths: Sequence[Path]) -> list[Path]:
    """Return the files of observations; ``actions_0.npz`` belongs to ``observations_0.npz`` if that is named, too."""
    own = {path for path in paths if (part := _PART.match(path.name)) and part[1] == "observations"}
    parts = {_beside(path, name) for path in own for name in (*REQUIRED[1:], *OPTIONAL)}
    return [path for path in paths if path not in parts]


def _beside(observations: Path, name: str) -> Path:
    """Return the file of array ``name`` that belongs to a file of observations alone."""
    return observations.with_name(observations.name.replace("observations", name, 1))


class NpzFile:
    """The arrays of an npz file, or of several that hold one each: what they are, and their rows in pieces."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._places = {name: (path, name) for name in _members(path)}
        part = _PART.match(path.name)
        if part and part[1] == "observations" and len(self._places) == 1:
            files = {name: _beside(path, name) for name in (*REQUIRED, *OPTIONAL)}
            self._places = {name: (file, _only(file)) for name, file in files.items() if file.exists()}
        self.names = tuple(self._places)
        self._heads: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}

    def _head(self, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        if name not in self._heads:
            with self.open(name) as stream:
                self._heads[name] = (stream.shape, stream.dtype)
        return self._heads[name]

    def shape(self, name: str) -> tuple[int, ...]:
        return self._head(name)[0]

    def row_bytes(self, name: str) -> int:
        shape, dtype = self._head(name)
        return dtype.itemsize * math.prod(shape[1:])

    @property
    def rows(self) -> int:
        shape = self.shape("observations")
        return shape[0] if shape else 0

    @property
    def observation(self) -> tuple[str, tuple[int, ...]]:
        """(dtype, shape of a row)."""
        shape, dtype = self._head("observations")
        return check_storable(dtype, shape[1:], f"{self.path}: observations"), shape[1:]

    def first_step(self) -> int:
        """Return 1 if the file counts steps from 1, else 0."""
        if "steps" not in self.names:
            return 0
        with self.open("steps") as stream:
            lowest = min(rows.min() for rows in stream.chunks())
        return 1 if lowest == 1 else 0

    def open(self, name: str) -> NpyStream:
        return NpyStream(*self._places[name])


def _members(path: Path) -> list[str]:
    """Return the names of the arrays in a file."""
    try:
        if fault := why_not_readable(path):
            raise StoreError(f"{path} cannot be read as npz: {fault}")
        with zipfile.ZipFile(path) as archive:
            return [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
    except FileNotFoundError:
        raise StoreError(f"{path}: there is no such file") from None
    except (OSError, zipfile.BadZipFile) as error:
        raise StoreError(f"{path} cannot be read as npz: {error}") from error


def _only(path: Path) -> str:
    """Return the name of the single array in a file."""
    found = _members(path)
    if len(found) != 1:
        raise StoreError(f"{path}: a file of one array is expected, this one has {len(found)}")
    return found[0]


class NpyStream:
    """One array of an npz file, read from its beginning to its end."""

    def __init__(self, path: Path, name: str) -> None:
        self._where = f"{path}: {name}"
        self._archive = zipfile.ZipFile(path)
        try:
            self._file: IO[bytes] = self._archive.open(f"{name}.npy")
            self.shape, self.dtype = self._read_head()
        except BaseException:
            self._archive.close()
            raise
        self._left = self.shape[0] if self.shape else 0

    def _read_head(self) -> tuple[tuple[int, ...], np.dtype[Any]]:
        try:
            version = np.lib.format.read_magic(self._file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, fortran, dtype = read(self._file)
        except (ValueError, SyntaxError) as error:
            raise StoreError(f"{self._where} is not a readable array: {error}") from error
        except (OSError, zipfile.BadZipFile, EOFError, zlib.error) as error:
            raise StoreError(f"{self._where} is damaged: {error}") from error
        if dtype.hasobject:
            raise StoreError(f"{self._where} holds pickled objects, which are not read; save plain arrays instead")
        if fortran:
            raise StoreError(f"{self._where} is in Fortran order; save it with np.ascontiguousarray")
        return shape, dtype

    def read(self, rows: int) -> Array:
        """Return the next rows ``[rows, ...]``."""
        row = self.shape[1:]
        wanted = rows * self.dtype.itemsize * math.prod(row)
        try:
            data = self._file.read(wanted)
        except (OSError, zipfile.BadZipFile, EOFError, zlib.error) as error:
            raise StoreError(f"{self._where} is damaged: {error}") from error
        if len(data) != wanted:
            raise StoreError(f"{self._where} is cut short: {len(data)} of {wanted} bytes")
        self._left -= rows
        found = np.frombuffer(data, self.dtype).reshape(rows, *row)
        return found.astype(self.dtype.newbyteorder("<"), copy=False)

    def chunks(self) -> Iterator[Array]:
        """Yield all rows that are left."""
        size = max(1, _CHUNK_BYTES // max(1, self.dtype.itemsize * math.prod(self.shape[1:])))
        while self._left > 0:
            yield self.read(min(size, self._left))

    def close(self) -> None:
        self._file.close()
        self._archive.close()

    def __enter__(self) -> NpyStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
