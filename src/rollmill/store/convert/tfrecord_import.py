"""Reads TFRecord files of ``tf.train.SequenceExample`` or ``Example``: those of our export, and those made elsewhere.

Beside files of our export lies ``schema.json``, which says what every column is: episodes come back as they were. Of
other files ``fields`` says what is what: ``obs=frame:uint8:64x64x3``, ``action=act``. A record is an episode, or with
``per_step`` a step; an episode then ends with the record that says so.

In a ``SequenceExample`` a feature list has a feature for each step; in an ``Example`` a feature has the numbers of all
steps, one after another. Bytes are numbers of the dtype given, or PNG or JPEG files. One record at a time is held in
memory (with ``per_step`` one episode).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rollmill.core.errors import ConfigError, StoreError
from rollmill.core.fields import Array
from rollmill.core.opening import parse_json, read_text
from rollmill.core.slots import OBS
from rollmill.store.convert.intake import (
    TERMINATED,
    TRUNCATED,
    FoundEpisode,
    Imported,
    as_numbers,
    new_store,
    store_found,
    with_final,
)
from rollmill.store.convert.target import Progress
from rollmill.store.convert.tfrecord import SCHEMA_FILE
from rollmill.store.convert.tfrecord_records import Record, Wanted, free_memory, read_records
from rollmill.store.episode import Episode, EpisodeInfo
from rollmill.store.format.schema import StoreSchema, parse_schema

ROLES = {
    "obs": ("observations", "observation", "obs"),
    "action": ("actions", "action"),
    "reward": ("rewards", "reward"),
    "terminated": TERMINATED,
    "truncated": TRUNCATED,
}
"""What a feature can be, and what it is called where nobody says."""
_FIELD = re.compile(
    r"(?P<role>obs(:[^=:]+)?|action|reward|terminated|truncated)=(?P<feature>.+?)"
    r"(:(?P<dtype>bool|u?int(8|16|32|64)|float(16|32|64))(:(?P<shape>\d{1,9}(x\d{1,9})*))?)?"
)


@dataclass(frozen=True)
class ImportOptions:
    """Knobs of the TFRecord import."""

    env: str = "unknown"
    """Env id to note in the store."""
    choices: int | None = None
    """Number of discrete actions; without it, the highest one seen plus 1."""
    fields: tuple[str, ...] = ()
    """Which feature is what: ``obs=frame:uint8:64x64x3 action=act reward=r terminated=done``."""
    per_step: bool = False
    """Every record is a step, not an episode."""


def import_episodes(
    sources: Sequence[str], target: Path, options: ImportOptions, progress: Progress | None = None
) -> Imported:
    """Write a new store with the episodes of all files, in the order given; a folder stands for the files in it."""
    files = _files(sources)
    schema = None if options.fields or options.per_step else _schema(files)
    if schema is not None:
        return _import_ours(files, target, _lossless(schema), progress)
    layout = _Layout.parse(options.fields)
    found = _from_steps if options.per_step else _from_episodes
    return store_found(lambda: found(files, layout), target, options.env, options.choices, "TFRecord", progress)


def _files(sources: Sequence[str]) -> list[Path]:
    found: list[Path] = []
    for source in map(Path, sources):
        inside = sorted(source.glob("*.tfrecord*")) if source.is_dir() else [source]
        if not inside:
            raise StoreError(f"{source}: there is no TFRecord file in this folder")
        found += inside
    return found


# ------------------------------------------------------------------------------------------------ our own files


def _schema(files: Sequence[Path]) -> StoreSchema | None:
    """Read the ``schema.json`` beside the files; returns None where there is none."""
    found: dict[Path, StoreSchema | None] = {}
    for folder in dict.fromkeys(path.parent for path in files):
        path = folder / SCHEMA_FILE
        try:
            found[folder] = parse_schema(read_text(path), str(path)) if path.exists() else None
        except (OSError, UnicodeDecodeError) as error:
            raise StoreError(f"{path} cannot be read: {error}") from error
    if len({schema and schema.hash for schema in found.values()}) > 1:
        raise StoreError(f"{', '.join(map(str, found))} hold files of different stores: import them one by one")
    return next(iter(found.values()), None)


def _lossless(schema: StoreSchema) -> StoreSchema:
    """Return the schema, but images are not compressed once more by a codec that changes them."""
    return replace(schema, columns=tuple(replace(c, codec="auto") if c.lossy else c for c in schema.columns))


def _import_ours(files: Sequence[Path], target: Path, schema: StoreSchema, progress: Progress | None) -> Imported:
    total = sum(_integer(record, "length") for record in read_records(files))
    done = Imported(Path(target))
    with new_store(target, schema) as writer:
        for record in read_records(files):
            episode = _our_episode(record, schema)
            try:
                writer.add_episode(episode)
            except StoreError as error:
                raise StoreError(f"{record.where}: {error}") from error
            done.episodes += 1
            done.steps += episode.length
            if progress is not None:
                progress(done.steps, total)
    return done


def _our_episode(record: Record, schema: StoreSchema) -> Episode:
    length = _integer(record, "length")
    columns = {}
    for column in schema.columns:
        rows = record.rows(Wanted(column.name, column.dtype, column.shape))
        if len(rows) != length + (column.per == "obs"):
            raise StoreError(f"{record.where}: {column.name} has {len(rows)} rows in an episode of {length} steps")
        columns[column.name] = rows
    seed, chance = _numbers(record, "seed"), _numbers(record, "probability", "float64")
    env_id = _text(record, "env_id")
    try:
        uid, stats = int(_text(record, "uid"), 16), parse_json(_text(record, "stats"))
    except ValueError as error:
        raise StoreError(f"{record.where}: {error}") from error
    if not isinstance(stats, Mapping):
        raise StoreError(f"{record.where}: stats are no mapping")
    info = EpisodeInfo(
        first_step=_integer(record, "first_step"),
        seed=seed[0] if seed else None,
        env_id="" if env_id == schema.env_id else env_id,
        policy=_text(record, "policy"),
        policy_id=_integer(record, "policy_id"),
        worker=_integer(record, "worker"),
        lane=_integer(record, "lane"),
        uid=uid,
        probability=chance[0] if chance else None,
    )
    return Episode(columns, info, bool(_integer(record, "terminated")), bool(_integer(record, "truncated")), stats)


def _numbers(record: Record, name: str, dtype: str = "int64") -> list[Any]:
    found: list[Any] = record.rows(Wanted(name, dtype, ())).tolist()
    return found


def _integer(record: Record, name: str) -> int:
    found = _numbers(record, name)
    if len(found) != 1:
        raise StoreError(f"{record.where}: {name} has {len(found)} numbers, one is needed")
    return int(found[0])


def _text(record: Record, name: str) -> str:
    try:
        return record.rows(Wanted(name, "uint8", ())).tobytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise StoreError(f"{record.where}: {name} is no text: {error}") from error


# ------------------------------------------------------------------------------------------ files of other programs


@dataclass(frozen=True)
class _Layout:
    """Which features are what: those that the user has named, others by the names that are usual."""

    named: Mapping[str, Wanted]
    """By role; several observations are ``obs:NAME``."""

    @classmethod
    def parse(cls, fields: Sequence[str]) -> _Layout:
        named = {}
        for text in fields:
            found = _FIELD.fullmatch(text)
            if not found:
                raise ConfigError(
                    f"--fields {text}: ROLE=FEATURE:DTYPE:SHAPE is expected, as in obs=frame:uint8:64x64x3 "
                    f"(roles: {', '.join(ROLES)}, obs:NAME; dtype and shape may be left out)"
                )
            shape = tuple(map(int, found["shape"].split("x"))) if found["shape"] else None
            named[found["role"]] = Wanted(found["feature"], found["dtype"], shape)
        return cls(named)

    def find(self, record: Record, role: str) -> Wanted | None:
        """Return the feature of a role in a record; None if nobody has named one and the usual ones are missing."""
        usual = (Wanted(name) for name in ROLES[role] if name in record)
        return self.named.get(role) or next(usual, None)

    def need(self, record: Record, role: str) -> Wanted:
        found = self.find(record, role)
        if found is None:
            raise StoreError(f"{record.where} has no {role} ({record.there}): say what it is, --fields {role}=NAME")
        return found

    def observations(self, record: Record) -> dict[str, Wanted]:
        several = {role.removeprefix(OBS): wanted for role, wanted in self.named.items() if role.startswith(OBS)}
        return several or {"obs": self.need(record, "obs")}

    def flag(self, record: Record, role: str) -> bool:
        """Return what the last number of a flag says."""
        wanted = self.find(record, role)
        return wanted is not None and bool(record.rows(wanted, 1).reshape(-1)[-1:].any())


def _from_episodes(files: Sequence[Path], layout: _Layout) -> Iterator[tuple[str, FoundEpisode]]:
    """Yield the episodes of files in which a record is an episode."""
    for record in read_records(files):
        where = record.where
        rewards = record.rows(replace(layout.need(record, "reward"), shape=()))
        count = len(rewards)
        if not count:
            raise StoreError(f"{where} has no steps")
        actions = record.rows(layout.need(record, "action"), count)
        if len(actions) != count:
            raise StoreError(f"{where}: {len(actions)} actions, {count} rewards")
        observations, repeated = {}, False
        for name, wanted in layout.observations(record).items():
            observations[name], alike = with_final(record.rows(wanted), None, count, where)
            repeated |= alike
        ends = layout.flag(record, "terminated"), layout.flag(record, "truncated")
        yield where, FoundEpisode(observations, actions, rewards, *ends, repeated)


def _from_steps(files: Sequence[Path], layout: _Layout) -> Iterator[tuple[str, FoundEpisode]]:
    """Yield the episodes of files with a record per step; one ends with the step that says so, and with its file."""
    for file in files:
        steps: list[dict[str, Array]] = []
        size, most = 0, free_memory() / 8  # joining them takes them twice
        for record in read_records([file]):
            wanted = {OBS + name: field for name, field in layout.observations(record).items()}
            wanted |= {role: layout.need(record, role) for role in ("action", "reward")}
            step = {name: record.rows(field, 1) for name, field in wanted.items()}
            for name, rows in step.items():
                if len(rows) != 1:
                    raise StoreError(f"{record.where}: {name} has {len(rows)} rows, a step has one")
            size += sum(rows.nbytes for rows in step.values())
            if size > most:
                raise StoreError(f"{record.where}: no record says that the episode of {len(steps):,} steps has ended")
            steps.append(step)
            ends = layout.flag(record, "terminated"), layout.flag(record, "truncated")
            if any(ends):
                yield record.where, _joined(steps, *ends, record.where)
                steps, size = [], 0
        if len(steps) > 1:
            yield f"{file}, its last episode", _joined(steps, False, False, str(file))


def _joined(steps: list[dict[str, Array]], terminated: bool, truncated: bool, where: str) -> FoundEpisode:
    """Join steps into an episode. Where nothing says that it ended, the last observation is the final one."""
    try:
        columns = {name: np.concatenate([step[name] for step in steps]) for name in steps[0]}
    except ValueError as error:
        raise StoreError(f"{where}: the steps of an episode do not fit together: {error}") from error
    ended = terminated or truncated
    count = len(steps) if ended else len(steps) - 1
    rewards = as_numbers(columns["reward"], len(steps), "reward", where)[:count]
    rows = {name.removeprefix(OBS): part for name, part in columns.items() if name.startswith(OBS)}
    observations = {name: with_final(part, None, count, where)[0] for name, part in rows.items()}
    return FoundEpisode(observations, columns["action"][:count], rewards, terminated, truncated, ended)
