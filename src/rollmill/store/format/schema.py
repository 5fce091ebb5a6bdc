"""What a store holds: its columns, the environment they come from, and the file that says so.

Words
-----
column    one named array of an episode. ``per="step"``: one row per step (action, reward, ...).
          ``per="obs"``: one row more, because the final observation is stored too.
codec     how a column's blocks are compressed, see ``store.format.codec``: ``raw``, ``zstd:1``, ``shuffle:1``,
          ``planes:1``.
layout    names, dtypes and shapes alone. Blocks may be copied between stores of equal layout.

``store.json`` is written once, by whoever comes first; everybody else has to agree with it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

import rollmill
from rollmill.core import atomic
from rollmill.core.errors import StoreError
from rollmill.core.fields import INFO, EnvSpec, Field
from rollmill.core.opening import parse_json, read_text
from rollmill.core.run_folder import RunFolder
from rollmill.core.slots import OBS

STORE_FILE = "store.json"
SHARD_FOLDER = "shards"
INDEX_FOLDER = "index"
VERSION = 1

REQUIRED = (
    Field("reward", "float32"),
    Field("global_step", "int64"),
    Field("version", "int64"),
)
"""Columns every store has beside observations and the action."""

DERIVED = ("step", "terminated", "truncated")
"""Columns that readers compute: a step's number follows from its place, an end can only be in the last row."""

_ABOUT = ("created_by", "env_settings", "made")
"""What a schema says of the first who wrote, which others need not share."""
_NAME = re.compile(r"[A-Za-z_][\w.:/-]*")
_CODEC = re.compile(r"raw|(zstd|shuffle|planes|jpeg):(-?\d{1,3})")
_LEVELS = range(-999, 23)  # zstd knows no higher ones
_QUALITIES = range(1, 101)
_DTYPES = (
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64"),
)


@dataclass(frozen=True)
class Column:
    """One column: ``dtype`` in numpy's spelling, ``shape`` of a single row.

    ``codec`` "auto" becomes ``planes:1`` for images with channels, ``zstd:1`` for other types of one byte and
    ``shuffle:1`` for wider ones.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] = ()
    per: Literal["obs", "step"] = "step"
    codec: str = "auto"

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise StoreError(f"column name {self.name!r}: a letter, then letters, digits and _ . : / - are allowed")
        if self.name in DERIVED:
            raise StoreError(f"column {self.name!r} is computed by readers and cannot be stored")
        if self.dtype not in _DTYPES:
            raise StoreError(f"column {self.name}: dtype {self.dtype!r} cannot be stored (known: {', '.join(_DTYPES)})")
        if self.per not in ("obs", "step"):
            raise StoreError(f"column {self.name}: per={self.per!r} must be 'obs' or 'step'")
        if any(type(n) is not int or n < 0 for n in self.shape):
            raise StoreError(f"column {self.name}: bad shape {self.shape}")
        if self.codec == "auto":
            narrow = "planes:1" if self.has_planes else "zstd:1"
            object.__setattr__(self, "codec", narrow if self.numpy.itemsize == 1 else "shuffle:1")
        self._check_codec()

    def _check_codec(self) -> None:
        found = _CODEC.fullmatch(self.codec)
        if not found:
            raise StoreError(
                f"column {self.name}: unknown codec {self.codec!r} (raw, zstd:LEVEL, planes:LEVEL, "
                "shuffle:LEVEL or jpeg:QUALITY)"
            )
        known = _QUALITIES if self.lossy else _LEVELS
        if found[2] and int(found[2]) not in known:
            raise StoreError(f"column {self.name}: codec {self.codec}: from {known[0]} to {known[-1]} is possible")
        if self.lossy and not (self.dtype == "uint8" and len(self.shape) == 3 and self.shape[-1] in (1, 3)):
            raise StoreError(f"column {self.name}: jpeg is for uint8 images [height, width, 1 or 3]")

    @classmethod
    def of(cls, field: Field, per: Literal["obs", "step"] = "step", codec: str = "auto", prefix: str = "") -> Column:
        """Return the column of a field."""
        return cls(prefix + field.name, np.dtype(field.dtype).name, tuple(field.shape), per, codec)

    @cached_property
    def numpy(self) -> np.dtype[Any]:
        """The dtype on disk and in memory: little-endian."""
        return np.dtype(self.dtype).newbyteorder("<")

    @cached_property
    def row_bytes(self) -> int:
        """Raw bytes of one row."""
        return math.prod(self.shape) * self.numpy.itemsize

    @cached_property
    def has_planes(self) -> bool:
        """Whether rows are images ``[height, width, channels]`` of several channels."""
        return self.dtype == "uint8" and len(self.shape) == 3 and 2 <= self.shape[-1] <= 4 and self.row_bytes > 0

    @property
    def lossy(self) -> bool:
        return self.codec.startswith("jpeg")

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "per": self.per,
            "codec": self.codec,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Column:
        return Column(data["name"], data["dtype"], tuple(data["shape"]), data["per"], data["codec"])


@dataclass(frozen=True)
class StoreSchema:
    """Everything a reader must know before it opens a shard."""

    env: EnvSpec
    env_id: str
    columns: tuple[Column, ...]
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    created_by: str = f"rollmill {rollmill.__version__}"
    version: int = VERSION
    env_settings: Mapping[str, Any] | None = None
    """What else of ``env`` says how the environment is to be built again, as the first writer knew it: where episodes
    are cut, what is added to observations. None: the writer did not know (version 0.1, imports)."""
    made: Mapping[str, Any] = field(default_factory=dict)
    """How the first writer came to write: ``command``, ``policy`` and ``seed``, as far as that is known."""

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        if len(set(names)) < len(names):
            raise StoreError(f"a column name appears twice: {', '.join(names)}")
        missing = [name for name in ("action", *(f.name for f in REQUIRED)) if name not in names]
        if missing:
            raise StoreError(f"a store needs the column {missing[0]!r}")
        if not self.obs_columns:
            raise StoreError(f"a store needs at least one observation column (named {OBS}...)")
        for column in self.columns:
            if column.name.startswith(OBS) and column.per != "obs":
                raise StoreError(f"column {column.name}: observations have one row more (per='obs')")
        for wanted in REQUIRED:
            self._check_required(wanted)
        if self["action"].per != "step":
            raise StoreError("column action has one row per step (per='step')")
        try:
            json.dumps(self.to_json(), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise StoreError(f"the store's schema cannot be written as JSON: {error}") from error

    def _check_required(self, wanted: Field) -> None:
        found = self[wanted.name]
        if (found.dtype, found.shape, found.per) != (wanted.dtype, (), "step"):
            raise StoreError(f"column {wanted.name} must be one {wanted.dtype} per step, not {_describe(found)}")

    @classmethod
    def for_env(
        cls,
        spec: EnvSpec,
        *,
        env_id: str = "",
        env_kwargs: Mapping[str, Any] | None = None,
        env_settings: Mapping[str, Any] | None = None,
        extra: Sequence[Column] = (),
        image_codec: str = "auto",
        created_by: str | None = None,
        made: Mapping[str, Any] | None = None,
    ) -> StoreSchema:
        """Make the schema for an environment's episodes: observations, action, required columns, info, ``extra``."""
        columns = [Column.of(f, "obs", image_codec if f.is_image else "auto", prefix=OBS) for f in spec.observation]
        columns += [Column.of(f) for f in (spec.action.field, *REQUIRED)]
        columns += [Column.of(f, "obs", prefix=INFO) for f in spec.info]
        return cls(
            env=spec,
            env_id=env_id or spec.name,
            columns=(*columns, *extra),
            env_kwargs=dict(env_kwargs or {}),
            env_settings=env_settings,
            made=made or {},
            created_by=created_by or f"rollmill {rollmill.__version__}",
        )

    @cached_property
    def _by_name(self) -> dict[str, Column]:
        return {column.name: column for column in self.columns}

    def __getitem__(self, name: str) -> Column:
        try:
            return self._by_name[name]
        except KeyError:
            raise StoreError(f"the store has no column {name!r} (it has {', '.join(self.names)})") from None

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._by_name)

    @cached_property
    def obs_columns(self) -> tuple[Column, ...]:
        """Columns with one row more than there are steps, observations first among them."""
        return tuple(column for column in self.columns if column.per == "obs")

    @cached_property
    def step_columns(self) -> tuple[Column, ...]:
        return tuple(column for column in self.columns if column.per == "step")

    @property
    def row_bytes(self) -> int:
        """Raw bytes of one step, all columns."""
        return sum(column.row_bytes for column in self.columns)

    @cached_property
    def hash(self) -> str:
        """Names all that rows depend on: equal for stores whose shards may lie in one folder."""
        return _digest({name: value for name, value in self.to_json().items() if name not in _ABOUT})

    @cached_property
    def layout(self) -> str:
        """Names what decoding a block depends on."""
        return _digest([[c.name, c.dtype, list(c.shape), c.per, c.lossy] for c in self.columns])

    def to_json(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "env_id": self.env_id,
            "env_kwargs": dict(self.env_kwargs),
            "env": _with_bounds(self.env.to_dict(), str),
            "columns": [column.to_json() for column in self.columns],
            "created_by": self.created_by,
            **({} if self.env_settings is None else {"env_settings": dict(self.env_settings)}),
            **({"made": dict(self.made)} if self.made else {}),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> StoreSchema:
        """Turn ``to_json`` back; ``StoreError`` says what is wrong."""
        version = data.get("version")
        if type(version) is int and version > VERSION:
            raise StoreError(
                f"written by a newer version of rollmill (store format {version}; this one reads up to {VERSION})"
            )
        try:
            return StoreSchema(
                env=EnvSpec.from_dict(_with_bounds(data["env"], float)),
                env_id=data["env_id"],
                columns=tuple(Column.from_json(column) for column in data["columns"]),
                env_kwargs=dict(data["env_kwargs"]),
                created_by=data["created_by"],
                version=data["version"],
                made=dict(data.get("made", {})),
                env_settings=None if data.get("env_settings") is None else dict(data["env_settings"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StoreError(f"the schema makes no sense ({type(error).__name__}: {error})") from error

    def differences(self, other: StoreSchema) -> list[str]:
        """Return one line per thing in which ``other`` is different; who has written them is left aside."""
        lines = [
            f"{name}: {_short(mine)} here, {_short(theirs)} there"
            for name, mine, theirs in (
                ("version", self.version, other.version),
                ("env_id", self.env_id, other.env_id),
                ("env_kwargs", _plain(self.env_kwargs), _plain(other.env_kwargs)),
                ("env", self.env.to_dict(), other.env.to_dict()),
            )
            if mine != theirs
        ]
        for name in dict.fromkeys((*self.names, *other.names)):
            mine, theirs = self._by_name.get(name), other._by_name.get(name)
            if mine != theirs:
                lines.append(f"column {name}: {_describe(mine)} here, {_describe(theirs)} there")
        if not lines and self.names != other.names:
            lines.append(f"order of columns: {', '.join(self.names)} here, {', '.join(other.names)} there")
        return lines


def create_store(path: Path, schema: StoreSchema, parents: bool = True) -> StoreSchema:
    """Make the store's folder (and those above it), or agree with the one that is there; returns the schema on disk.

    Any number of processes may do this at once: one of them writes ``store.json``, the others compare.
    """
    file = path / STORE_FILE
    try:
        for folder in (path, path / SHARD_FOLDER, path / INDEX_FOLDER):
            folder.mkdir(parents=parents, exist_ok=True)
        if not file.exists():
            atomic.create_bytes(file, [schema_text(schema, indent=2).encode("utf-8")])
    except OSError as error:
        raise StoreError(f"{path}: the store cannot be created: {error.strerror or error}") from error
    return agree(path, schema)


def agree(path: Path, schema: StoreSchema) -> StoreSchema:
    """Return the schema of the store that is at ``path``; raises StoreError where there is none, or another one."""
    found = load_schema(path)
    if found.hash != schema.hash:
        lines = "".join(f"\n  {line}" for line in schema.differences(found))
        raise StoreError(f"{path} already holds other data (here: what is to be written, there: the store):{lines}")
    return found


def schema_text(schema: StoreSchema, indent: int | None = None) -> str:
    """Return the contents of ``store.json``, checksum included; every shard's header holds a copy."""
    data = schema.to_json()
    return json.dumps({"schema": data, "hash": _digest(data)}, indent=indent, allow_nan=False) + "\n"


def is_store(path: Path) -> bool:
    """Return whether a folder holds a store, damaged ones included."""
    return os.path.lexists(path / STORE_FILE) or os.path.isdir(path / SHARD_FOLDER)


def store_at(path: Path | str) -> Path:
    """Return the store that a path means, absolute: the folder itself or, of a run's folder, the recording in it."""
    folder = Path(path).absolute()
    recording = RunFolder(folder).data
    return recording if not is_store(folder) and is_store(recording) else folder


def load_schema(path: Path) -> StoreSchema:
    """Read ``store.json`` of the store at ``path``, checksum included."""
    file = path / STORE_FILE
    try:
        text = read_text(file)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise StoreError(f"{path} is not a store: {_why_not(path)}") from error
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise StoreError(f"{file} cannot be read: {reason}") from error
    return parse_schema(text, str(file))


def _why_not(path: Path) -> str:
    if os.path.isfile(RunFolder(path).config):
        return "it is a run that has recorded nothing (see `rollmill config recording`)"
    return f"{STORE_FILE} is missing" if os.path.lexists(path) else "there is no such folder"


def parse_schema(text: str, where: str) -> StoreSchema:
    """Turn ``schema_text`` back; ``where`` is named in errors."""
    try:
        data = parse_json(text)
        stored, schema = data["hash"], data["schema"]
        matches = _digest(schema) == stored
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{where} is damaged: {error}") from error
    if not matches:
        raise StoreError(f"{where} is damaged: its checksum does not match (every shard's header holds a copy)")
    try:
        return StoreSchema.from_json(schema)
    except StoreError as error:
        raise StoreError(f"{where}: {error}") from error


def _digest(data: Any) -> str:
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def _with_bounds(env: Mapping[str, Any], turn: Callable[[Any], Any]) -> dict[str, Any]:
    """Turn the action's bounds into strings or back: JSON has no infinity, and repr keeps every float exact."""
    action = dict(env["action"])
    for name in ("low", "high"):
        action[name] = [turn(bound) for bound in action[name]]
    return {**env, "action": action}


def _plain(value: Any) -> Any:
    """Return the value as it looks after a trip through JSON (tuples become lists)."""
    return json.loads(json.dumps(value))


def _describe(column: Column | None) -> str:
    if column is None:
        return "missing"
    shape = "x".join(map(str, column.shape)) or "scalar"
    return f"{column.dtype} {shape} per {column.per} ({column.codec})"


def _short(value: Any) -> str:
    text = json.dumps(value) if isinstance(value, dict) else repr(value)
    return text if len(text) <= 200 else text[:197] + "..."
