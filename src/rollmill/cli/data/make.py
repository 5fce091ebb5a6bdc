"""``rollmill data merge``, ``split``, ``export`` and ``import``."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from rollmill.cli.arguments import Spelling, Variants
from rollmill.cli.data.progress import progress
from rollmill.cli.options import Json, shard_bytes
from rollmill.core.errors import ConfigError
from rollmill.core.fields import Array
from rollmill.core.text import bytes_text
from rollmill.store.convert.formats import EXPORTS, IMPORTS, export_options, exporter, import_options, importer
from rollmill.store.derive.derivation import open_quietly
from rollmill.store.derive.merge import merge as merge_stores
from rollmill.store.derive.split_store import by_fraction, by_number, split_store
from rollmill.store.filters import Filter
from rollmill.store.reader import Store


def merge(
    stores: tuple[Path, ...],
    /,
    out: Path,
    any_env: bool = False,
    skip_damaged: bool = False,
    resume: bool = False,
    shard_mb: int = 128,
    json_: Json = False,
) -> int:
    """Copy the episodes of many stores into a new one, records as they are: ``rollmill data merge a b c --out all``.

    Args:
        stores: The stores; their columns and environments must agree.
        out: The new store's folder; must not exist.
        any_env: Let environments and their arguments differ, as long as the columns are the same.
        skip_damaged: Leave out damaged episodes and list them, instead of stopping at the first.
        resume: Continue an interrupted merge.
        shard_mb: Size of the new store's shards in MB.
        json_: Print JSON on stdout.
    """
    with progress("merge", hint=f"continue with --resume --out {out}") as tell:
        report = merge_stores(
            stores,
            out,
            any_env=any_env,
            skip_damaged=skip_damaged,
            resume=resume,
            shard_bytes=shard_bytes(shard_mb),
            progress=tell,
        )
    if json_:
        print(json.dumps({"out": str(out), **dataclasses.asdict(report)}))
    else:
        for line in report.damaged:
            print(f"BAD {line}")
        for uid in report.shortened:
            print(f"note: episode {uid:016x} appears with different lengths; the longest was taken")
        already = f", {report.already:,} were there already" if report.already else ""
        print(f"{out}: {report.copied:,} episodes copied{already}; {report.duplicates:,} duplicates left out")
    return 1 if report.damaged else 0


def split(
    filters: tuple[str, ...],
    store: Path,
    /,
    out: Path,
    parts: int | None = None,
    fractions: tuple[str, ...] = (),
    rest: Path | None = None,
    resume: bool = False,
    shard_mb: int = 128,
    json_: Json = False,
) -> int:
    """Divide a store, or take a selection of it.

    ``rollmill data split all --out best return_min=20 partial=no`` copies the episodes that pass all conditions.
    ``--parts 4`` divides them into stores of even size, ``--fractions validation:0.1 train:0.9`` by uid.

    Args:
        filters: Conditions: return_min, return_max, length_min, version_max, partial, top and so on.
        store: The store's folder.
        out: The new store's folder, or the folder of the new stores; must not exist.
        parts: Make this many stores of about the same size.
        fractions: Make stores of these names and shares; an episode stays where it is when the store grows.
        rest: Write the episodes that do not pass the conditions into another store.
        resume: Continue an interrupted split.
        shard_mb: Size of the new stores' shards in MB.
        json_: Print JSON on stdout.
    """
    if parts is not None and fractions:
        raise ConfigError("--parts and --fractions exclude each other: one divides by size, the other by shares")
    if rest is not None and (parts is not None or fractions):
        raise ConfigError("--rest goes with conditions alone, not with --parts or --fractions")
    if rest is not None and not filters:
        raise ConfigError("--rest needs conditions (KEY=VALUE): without them nothing is left over")
    if not filters and parts is None and not fractions:
        raise ConfigError("say how to divide: --parts N, --fractions NAME:SHARE ..., or conditions KEY=VALUE")
    source = _open_whole(store)
    chosen = _select(source, filters)
    targets = _targets(source, chosen, out, parts, fractions, rest)
    how = " ".join([*filters, f"parts={parts}", *fractions])
    with progress("split", hint=f"continue with --resume --out {out}") as tell:
        done = split_store(source, targets, how=how, resume=resume, shard_bytes=shard_bytes(shard_mb), progress=tell)
    if json_:
        print(json.dumps([{**dataclasses.asdict(part), "path": str(part.path)} for part in done]))
    else:
        for part in done:
            print(f"{part.path}: {part.episodes:,} episodes, {part.steps:,} steps")
    return 0


def _targets(
    source: Store, chosen: Array, out: Path, parts: int | None, fractions: tuple[str, ...], rest: Path | None
) -> Mapping[Path, Array]:
    if parts is not None:
        return {out / name: episodes for name, episodes in by_number(source, chosen, parts).items()}
    if fractions:
        divided = by_fraction(source, chosen, dict(map(_fraction, fractions)))
        if len(divided) < len(fractions):
            raise ConfigError(f"--fractions {' '.join(fractions)}: a name is given twice")
        return {out / name: episodes for name, episodes in divided.items()}
    targets = {out: chosen}
    if rest is not None:
        if rest.absolute() == out.absolute():
            raise ConfigError("--rest and --out are the same folder")
        targets[rest] = np.setdiff1d(np.arange(len(source)), chosen)
    return targets


def _fraction(text: str) -> tuple[str, float]:
    name, _, share = text.partition(":")
    try:
        if not name or "/" in name or name.startswith("."):
            raise ValueError
        return name, float(share)
    except ValueError:
        raise ConfigError(f"--fractions {text}: NAME:SHARE is expected, for example validation:0.1") from None


def _open_whole(path: Path) -> Store:
    """Open a store to copy or convert it; one that has lost data is to be repaired first."""
    store = open_quietly(path)
    for problem in store.problems:
        if not problem.harmless:
            raise ConfigError(f"{path}: {problem}; repair it first: rollmill data repair {path} --out NEW")
    return store


def _select(store: Store, filters: tuple[str, ...]) -> Array:
    chosen = Filter.parse(filters).select(store.table)
    if not len(chosen):
        raise ConfigError(f"no episode of {store.path} ({len(store)}) passes {' '.join(filters) or 'at all'}")
    return chosen


def export(
    filters: tuple[str, ...],
    store: Path,
    /,
    out: Path,
    format: Annotated[str, Spelling(choices=tuple(EXPORTS))],
    options: Annotated[dict[str, Any], Variants(export_options)],
    json_: Json = False,
) -> int:
    """Write a store in another format: ``rollmill data export runs/x/data --format npz --out data.npz``.

    Nothing is overwritten, and a target that appears is complete.

    Args:
        filters: Conditions on episodes: return_min, partial, top and so on.
        store: The store's folder.
        out: The file or folder to write; must not exist.
        format: What to write.
        json_: Print JSON on stdout.
    """
    module = exporter(format)
    chosen_options = _options(module.Options, options, format, export_options)
    source = _open_whole(store)
    chosen = _select(source, filters)
    with progress(f"export {format}") as tell:
        done = module.export_episodes(source, chosen, out, chosen_options, tell)
    if json_:
        files = [str(file) for file in done.files]
        print(json.dumps({**dataclasses.asdict(done), "path": str(done.path), "files": files, "bytes": done.bytes}))
    else:
        for note in done.notes:
            print(f"note: {note}")
        size = f"{len(done.files)} files, {bytes_text(done.bytes)}"
        print(f"{done.path}: {done.episodes:,} episodes, {done.steps:,} steps, {size}")
    return 0


def import_(
    sources: tuple[str, ...],
    /,
    out: Path,
    *,
    format: Annotated[str | None, Spelling(choices=tuple(IMPORTS))] = None,
    options: Annotated[dict[str, Any], Variants(import_options)],
    json_: Json = False,
) -> int:
    """Make a store from another format: ``rollmill data import old/*.npz --out store --env doom_basic``.

    Args:
        sources: npz files, TFRecord files or their folder, the folder or id of one Minari dataset, or pickled files.
        out: The new store's folder; must not exist.
        format: What they are; without it, by the names.
        json_: Print JSON on stdout.
    """
    if not sources:
        raise ConfigError("name what to import")
    kind = format or _kind_of(sources)
    module = importer(kind)
    chosen = _options(module.ImportOptions, options, kind, import_options)
    with progress(f"import {kind}") as tell:
        done = module.import_episodes(sources, out, chosen, tell)
    if json_:
        print(json.dumps({**dataclasses.asdict(done), "path": str(done.path)}))
    else:
        for note in done.notes:
            print(f"note: {note}")
        print(f"{done.path}: {done.episodes:,} episodes, {done.steps:,} steps")
    return 0


def _kind_of(sources: tuple[str, ...]) -> str:
    kinds = {_kind_by_name(Path(source)) for source in sources}
    if len(kinds) > 1:
        raise ConfigError(f"sources of several formats ({', '.join(sorted(kinds))}): import them one by one")
    return kinds.pop()


def _kind_by_name(source: Path) -> str:
    if ".tfrecord" in source.name or any(source.glob("*.tfrecord*")):
        return "tfrecord"
    return {".npz": "npz", ".pkl": "pickle", ".pickle": "pickle"}.get(source.suffix, "minari")


def _options(kind: type[Any], given: Mapping[str, Any], name: str, kinds: Callable[[], Mapping[str, type[Any]]]) -> Any:
    """Make the options of a format from those that were typed; one of another format is refused."""
    known = {n: {field.name for field in dataclasses.fields(k)} for n, k in kinds().items()}
    for key in given:
        if key not in known[name]:
            owners = [n for n, keys in known.items() if key in keys]
            raise ConfigError(f"--{key.replace('_', '-')} is for {', '.join(owners)}, not for {name}")
    return kind(**given)
