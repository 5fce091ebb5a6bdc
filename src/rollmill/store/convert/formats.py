"""The formats there are: an explicit map from a name to the module that knows it.

A module that exports has ``Options`` (a dataclass of its knobs) and ``export_episodes(store, episodes, target, options,
progress)``; one that imports has ``ImportOptions`` and ``import_episodes(sources, target, options, progress)``. Modules
are imported when they are used; what they need beyond the base installation they import themselves.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from rollmill.core.errors import ConfigError
from rollmill.core.fields import Array
from rollmill.core.text import nearest
from rollmill.store.convert.intake import Imported
from rollmill.store.convert.target import Exported, Progress
from rollmill.store.reader import Store


@dataclass(frozen=True)
class Format:
    """One format: its module, and what it is in a few words."""

    module: str
    summary: str


EXPORTS = {
    "minari": Format("rollmill.store.convert.minari_data", "a Minari dataset (HDF5), lossless"),
    "tfrecord": Format("rollmill.store.convert.tfrecord", "TFRecord files of SequenceExample, one per episode"),
    "tfds": Format("rollmill.store.convert.tfds", "a dataset for TensorFlow Datasets, in the layout of RLDS"),
    "npz": Format("rollmill.store.convert.npz", "npz files: observations, actions, rewards, dones, steps, gblsteps"),
    "parquet": Format("rollmill.store.convert.parquet", "a folder of Parquet files that Hugging Face datasets loads"),
    "lerobot": Format("rollmill.store.convert.lerobot", "a LeRobot dataset, version 3: Parquet files and videos"),
    "mp4": Format("rollmill.store.convert.mp4", "one video per episode"),
}
IMPORTS = {
    "minari": Format("rollmill.store.convert.minari_data", "a Minari dataset: its folder or its id"),
    "npz": Format("rollmill.store.convert.npz_import", "npz files, made here or elsewhere"),
    "tfrecord": Format(
        "rollmill.store.convert.tfrecord_import", "TFRecord files of SequenceExample or Example, made here or elsewhere"
    ),
    "pickle": Format("rollmill.store.convert.pickled", "pickled lists of episodes: mappings of numpy arrays"),
}


class Exporter(Protocol):
    """A module that writes a format."""

    Options: type[Any]

    def export_episodes(
        self, store: Store, episodes: Array, target: Path, options: Any, progress: Progress | None
    ) -> Exported: ...


class Importer(Protocol):
    """A module that reads a format."""

    ImportOptions: type[Any]

    def import_episodes(
        self, sources: Sequence[str], target: Path, options: Any, progress: Progress | None
    ) -> Imported: ...


def exporter(name: str) -> Exporter:
    return cast(Exporter, _load(name, EXPORTS))


def importer(name: str) -> Importer:
    return cast(Importer, _load(name, IMPORTS))


def export_options() -> dict[str, type[Any]]:
    """Return the options of every format that can be written."""
    return {name: exporter(name).Options for name in EXPORTS}


def import_options() -> dict[str, type[Any]]:
    """Return the options of every format that can be read."""
    return {name: importer(name).ImportOptions for name in IMPORTS}


def _load(name: str, known: dict[str, Format]) -> Any:
    if name not in known:
        hint = nearest(name, known)
        raise ConfigError(f"no format {name!r}{f'; {hint}' if hint else ''} (known: {', '.join(known)})")
    return importlib.import_module(known[name].module)
