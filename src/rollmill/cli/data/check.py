"""``rollmill data info``, ``verify`` and ``repair``."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rollmill.cli.data.progress import progress
from rollmill.cli.options import Json, shard_bytes
from rollmill.core.errors import ConfigError
from rollmill.core.text import bytes_text, columns, cut, show
from rollmill.monitor.console import number_text
from rollmill.runs.catalogue import list_stores
from rollmill.store.care.recover import recover
from rollmill.store.care.repair import LOST_FILE, RepairReport
from rollmill.store.care.repair import repair as repair_store
from rollmill.store.care.verify import VerifyReport
from rollmill.store.care.verify import verify as verify_places
from rollmill.store.info import Spread, StoreInfo, describe_store

MADE_BY = 100
"""Characters of a command that a table shows."""


def info(store: Path, /, json_: Json = False) -> int:
    """Show what a store holds: rows, episodes, sizes, shards, columns, returns and lengths, policy versions, problems.

    Reads the indexes only; ``verify`` looks at the data themselves.

    Args:
        store: The store's folder.
        json_: Print JSON on stdout.
    """
    found = describe_store(store)
    print(json.dumps(found.to_dict(), allow_nan=False, default=str) if json_ else "\n".join(_info_lines(found)))
    return 1 if found.problems else 0


def list_all(words: tuple[str, ...] = (), /, root: Path = Path(), json_: Json = False) -> int:
    """List the stores below a folder: ``rollmill data list``, ``rollmill data list doom 'runs/*'``.

    A word fits a store if it is a part of its path or environment; a pattern is compared with paths.

    Args:
        words: What to look for; none: all stores.
        root: Folder to look in, with all that lies below it.
        json_: Print JSON.
    """
    found = list_stores(root, words)
    if json_:
        print(json.dumps([data.to_dict() for data in found], allow_nan=False))
        return 0
    if not found:
        print(f"no store below {root}{f' fits {show(list(words))}' if words else ''}")
        return 0
    cells = [("store", "env", "episodes", "steps", "size", "return", "made by")]
    for data in found:
        mean = "-" if data.mean_return is None else number_text(data.mean_return)
        damaged = f" ({data.problems} problems: `rollmill data verify`)" if data.problems else ""
        numbers = (f"{data.episodes:,}", f"{data.steps:,}", bytes_text(data.bytes), mean)
        if data.problem:
            numbers, damaged = ("?", "?", "?", "-"), data.problem
        cells.append((data.path, data.env, *numbers, cut(data.made_by, MADE_BY) + damaged))
    print("\n".join(columns(cells)))
    return 0


def _how(found: StoreInfo) -> str:
    parts = [f"{name} {found.made[name]}" for name in ("policy", "seed") if name in found.made]
    return "".join(f"; {part}" for part in (*parts, found.made.get("command", "")) if part)


def _info_lines(found: StoreInfo) -> list[str]:
    per_step = f", {bytes_text(found.bytes / found.rows)} per step" if found.rows else ""
    lines = [
        f"{found.path}",
        f"env         {found.env_id} {json.dumps(found.env_kwargs) if found.env_kwargs else ''}".rstrip(),
        f"made by     {found.created_by}{_how(found)}",
        f"rows        {found.rows:,} steps in {found.episodes:,} episodes",
        f"size        {bytes_text(found.bytes)}{per_step}; {bytes_text(found.raw_bytes)} of rows, {found.ratio:.2f} x",
        f"shards      {found.shards_sealed} sealed, {found.shards_open} open",
        f"return      {_spread(found.returns)}",
        f"length      {_spread(found.lengths)}",
        f"ends        {found.terminated:,} terminated, {found.truncated:,} truncated, {found.partial_end:,} without an "
        f"end; {found.partial_start:,} without a beginning; {found.unfinished:,} more were never finished",
        f"versions    {_range(found.version_min, found.version_max)}",
        f"progress    {_range(found.global_step_first, found.global_step_last)} frames",
    ]
    if found.policies:
        lines.append(f"policies    {', '.join(found.policies)}")
    if found.duplicates:
        lines.append(f"duplicates  {found.duplicates:,} episodes have the uid of another one")
    lines.append("columns")
    for column in found.columns:
        shape = "x".join(map(str, column["shape"])) or "scalar"
        lines.append(f"  {column['name']:24} {column['dtype']:8} {shape:14} per {column['per']:4} {column['codec']}")
    lines += [f"PROBLEM     {problem}" for problem in found.problems]
    return lines


def _spread(spread: Spread) -> str:
    if spread.mean is None:
        return "-"
    names = ("mean", "std", "min", "median", "max")
    return ", ".join(f"{name} {number_text(getattr(spread, name))}" for name in names)


def _range(low: int | None, high: int | None) -> str:
    return "-" if low is None else f"{low:,} .. {high:,}"


def verify(stores: tuple[str, ...], /, workers: int = 0, json_: Json = False) -> int:
    """Look at every frame and decode every block of stores or files; a line per bad place, exit code 1 if there is one.

    Takes stores, shards, TFRecord files and patterns: ``rollmill data verify 'runs/*/*/data'``.

    Args:
        stores: Stores, files, or patterns of them.
        workers: Processes; 0 takes one per core.
        json_: Print JSON on stdout.
    """
    if not stores:
        raise ConfigError("name at least one store or file")
    _check_workers(workers)
    with progress("verify", "bytes") as tell:
        report = verify_places(stores, workers=workers, progress=tell)
    print(json.dumps(_verify_dict(report)) if json_ else "\n".join(_verify_lines(report)))
    return 0 if report.good else 1


def _check_workers(workers: int) -> None:
    if workers < 0:
        raise ConfigError(f"--workers {workers}: 0 (one per core) or a positive number is expected")


def _verify_lines(report: VerifyReport) -> list[str]:
    counts = (
        f"{len(report.shards)} files, {bytes_text(report.total('bytes'))}, {report.total('records'):,} records, "
        f"{report.total('blocks'):,} blocks decoded, {report.total('episodes'):,} good episodes of "
        f"{report.total('steps'):,} steps"
    )
    lost = f", {report.lost_episodes} of them lost" if report.lost_episodes else ""
    damage = f"{len(report.problems)} bad places, {report.bad_episodes} damaged episodes{lost}"
    bad = damage if report.problems else "all good"
    return [
        *(f"BAD {line}" for line in report.lines()),
        *(f"note: {note}" for note in report.notes),
        f"{counts}: {bad}",
    ]


def _verify_dict(report: VerifyReport) -> dict[str, Any]:
    names = ("bytes", "records", "blocks", "episodes", "steps", "unfinished")
    problems = [
        {
            "file": str(path),
            "record": problem.record,
            "offset": problem.offset,
            "episode": None if problem.episode is None else f"{problem.episode:016x}",
            "reason": problem.reason,
        }
        for path, problem in report.problems
    ]
    metrics = {name: report.total(name) for name in names}
    return {
        "good": report.good,
        "files": len(report.shards),
        **metrics,
        "bad_episodes": report.bad_episodes,
        "lost_episodes": report.lost_episodes,
        "problems": problems,
        "notes": report.notes,
    }


def repair(
    store: Path,
    /,
    out: Path | None = None,
    in_place: bool = False,
    salvage: bool = False,
    resume: bool = False,
    force: bool = False,
    workers: int = 0,
    shard_mb: int = 128,
    json_: Json = False,
) -> int:
    """Write a new store with every good episode, and ``lost.json`` in it: what is lost. Exit code 1 if something is.

    With ``--in-place`` no data are changed: shards that dead writers left open are sealed, without a record that a kill
    cut short, and missing indexes are written. Damage stays as it is and is named, with what is known to be lost.

    Args:
        store: The damaged store; it is only read (but for --in-place).
        out: The new store's folder; must not exist.
        in_place: Seal what dead writers left and write missing indexes, in the store itself.
        salvage: Keep damaged and unfinished episodes up to their first bad block, as partial ones.
        resume: Continue an interrupted repair.
        force: With --in-place: also seal shards whose writer may be alive for all one can tell; be sure it is not.
        workers: Processes that look for damage; 0 takes one per core.
        shard_mb: Size of the new store's shards in MB.
        json_: Print JSON on stdout.
    """
    if in_place:
        for name, given in (("--out", out is not None), ("--salvage", salvage), ("--resume", resume)):
            if given:
                raise ConfigError(f"--in-place and {name} exclude each other: it writes no new store")
        return _repair_in_place(store, force, json_)
    if out is None:
        raise ConfigError("say where the repaired store goes with --out, or use --in-place")
    if force:
        raise ConfigError("--force is for --in-place")
    _check_workers(workers)
    hint = f"continue with --resume --out {out}"
    with progress("looking for damage", "bytes", hint) as looking, progress("copying", "steps", hint) as copying:
        report = repair_store(
            store,
            out,
            salvage=salvage,
            resume=resume,
            workers=workers,
            shard_bytes=shard_bytes(shard_mb),
            progress=copying,
            progress_verify=looking,
        )
    print(json.dumps({"out": str(out), **asdict(report)}) if json_ else "\n".join(_repair_lines(report, out)))
    return 1 if report.lost else 0


def _repair_lines(report: RepairReport, out: Path) -> list[str]:
    lines = [f"BAD {place}" for place in report.places] + [f"LOST {lost}" for lost in report.lost]
    rescued = f" ({report.rescued} of them with the help of the index)" if report.rescued else ""
    duplicates = f", {report.duplicates} duplicates left out" if report.duplicates else ""
    lines.append(
        f"{out}: {report.kept:,} whole episodes{rescued}, {report.salvaged:,} partial ones{duplicates}; "
        f"{len(report.lost)} losses, listed in {out / LOST_FILE}"
    )
    return lines


def _repair_in_place(store: Path, force: bool, as_json: bool) -> int:
    done = recover(store, force=force)
    if as_json:
        problems = [str(problem) for problem in done.problems]
        print(json.dumps({**asdict(done), "problems": problems}))
    else:
        for name, shards in (
            ("sealed", done.sealed),
            ("index written", done.indexed),
            ("empty, removed", done.removed),
        ):
            for shard in shards:
                print(f"{name}: {shard}")
        for shard, why in done.skipped:
            print(f"left alone: {shard}: {why}")
        for problem in done.problems:
            print(f"BAD {problem}")
        rest = f"; {len(done.problems)} problems stay: repair it with --out NEW" if done.problems else ""
        print(f"{store}: {len(done.sealed)} shards sealed, {len(done.indexed)} indexes written{rest}")
    return 1 if done.problems or done.skipped else 0
