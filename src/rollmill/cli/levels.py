"""``rollmill levels``: folders of generated levels."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from pathlib import Path

from rollmill.cli.data.progress import progress
from rollmill.cli.envs import named_env
from rollmill.cli.options import Json
from rollmill.core.errors import ConfigError
from rollmill.core.text import bytes_text, columns

SHOWN = 10
"""Of findings that are alike, so many are printed."""


def make(
    overrides: tuple[str, ...],
    env: str,
    folder: Path,
    /,
    count: int,
    first: int = 0,
    workers: int = 0,
    json_: Json = False,
) -> int:
    """Generate levels ahead, on all cores: ``rollmill levels make BabyAI-BossLevel-v0 levels --count 1000``.

    Levels that are there already are left; so the same command goes on where it was interrupted. A run plays them
    with env.levels=FOLDER.

    Args:
        overrides: Settings of the environment.
        env: A name from ``rollmill envs``, a Gymnasium id, a suite, or module:callable.
        folder: Where levels are kept; each environment has a folder of its own in there.
        count: How many levels, of each task of a suite.
        first: The seed of the first one; the others follow.
        workers: Processes; 0 takes one per core.
        json_: Print JSON.
    """
    from rollmill.runs.levels import make_levels

    if workers < 0:
        raise ConfigError(f"--workers {workers}: 0 (one per core) or a positive number is expected")
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    chosen = named_env(env, (f"env.levels.folder={json.dumps(str(folder))}", *overrides))
    with progress("levels", "levels", "the same command goes on") as tell:
        found = make_levels(chosen, range(first, first + count), workers, tell)
    if json_:
        print(json.dumps([asdict(made) for made in found]))
    for made in () if json_ else found:
        before = f", {made.there:,} were there" if made.there else ""
        lost = f", {made.missing:,} WERE NOT KEPT (see env.levels.max_gb)" if made.missing else ""
        print(f"{made.folder}: {made.made:,} levels made{before}{lost}; {bytes_text(made.bytes)} in all")
    return 1 if any(made.missing for made in found) else 0


def info(folder: Path, /, json_: Json = False) -> int:
    """Show what a folder of levels holds, by environment: ``rollmill levels info levels``.

    Args:
        folder: Where levels are kept.
        json_: Print JSON.
    """
    from rollmill.runs.levels import describe_levels

    found = describe_levels(folder)
    if json_:
        print(json.dumps([asdict(source) for source in found]))
        return 0
    rows = [("levels", "seeds", "size", "damaged", "environment", "folder")]
    rows += [
        (
            f"{s.levels:,}",
            f"{s.seeds:,}",
            bytes_text(s.bytes),
            str(s.damaged),
            f"{s.env} {s.args or ''}".strip(),
            s.name,
        )
        for s in found
    ]
    print("\n".join(columns(rows)))
    return 0


def import_(cache: Path, folder: Path, /, json_: Json = False) -> int:
    """Take over a published cache of DeepMind Lab's levels: ``rollmill levels import dmlab_cache levels``.

    The cache is a folder of levels, with lists of their seeds (``_contributed/dmlab30/NAME.dm_lvl_seeds``). A training
    with env=dmlab30 env.levels=FOLDER then plays them, each once.

    Args:
        cache: The folder with the cache.
        folder: Where levels are kept from now on.
        json_: Print JSON.
    """
    from rollmill.runs.levels import import_dmlab

    with progress("import", "levels", "the same command goes on") as tell:
        found = import_dmlab(cache, folder, tell)
    if json_:
        print(json.dumps(asdict(found)))
        return 1 if found.unreadable else 0
    for name, count in found.levels.items():
        print(f"{name}: {count:,} seeds")
    if found.missing:
        print(f"{found.missing:,} entries have no level in {cache}")
    _print_some("not understood", found.unreadable)
    return 1 if found.unreadable else 0


def verify(folder: Path, /, workers: int = 0, json_: Json = False) -> int:
    """Read every level and compare it with its checksum; exit code 1 if one is damaged.

    Damaged files are put aside (NAME.damaged) and named; no run ever plays them. What writers that died have left is
    removed.

    Args:
        folder: Where levels are kept.
        workers: Processes; 0 takes one per core.
        json_: Print JSON.
    """
    from rollmill.runs.levels import verify_levels

    if workers < 0:
        raise ConfigError(f"--workers {workers}: 0 (one per core) or a positive number is expected")
    logging.basicConfig(level=logging.ERROR, format="%(message)s")
    with progress("verify", "bytes") as tell:
        found = verify_levels(folder, workers, tell)
    if json_:
        print(json.dumps({**asdict(found), "good": found.good}))
    else:
        _print_some("DAMAGED", found.damaged)
        _print_some("note", found.doubtful)
        verdict = "all good" if found.good else f"{len(found.damaged)} damaged"
        print(f"{found.levels:,} levels, {bytes_text(found.bytes)}: {verdict}")
    return 0 if found.good else 1


def _print_some(label: str, lines: list[str]) -> None:
    for line in lines[:SHOWN]:
        print(f"{label}: {line}")
    if len(lines) > SHOWN:
        print(f"{label}: ... and {len(lines) - SHOWN:,} more")
