"""Looking for damage: every frame of every shard is walked, every block decoded, on all cores (see ``examine``).

One ``Problem`` per bad place. Also for files outside a store: copies of shards (they explain themselves), and any
other TFRecord file, of which the frames are checked.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rollmill.core.errors import StoreError
from rollmill.store.examine import Place, ShardReport, examine
from rollmill.store.parallel import map_unordered
from rollmill.store.schema import SHARD_FOLDER, STORE_FILE, load_schema
from rollmill.store.shards import SEALED, Problem, index_path, list_shards, missing_shards

Progress = Callable[[int, int], None]
"""Called with (done, total); may raise to stop the work, it is only called where that is safe."""

_NUMBERED = re.compile(r"(.+)-(\d{5})-of-(\d{5})(\.\w+)?")


@dataclass
class VerifyReport:
    """The findings for a store, or for a set of files."""

    shards: list[ShardReport] = field(default_factory=list)
    problems: list[tuple[Path, Problem]] = field(default_factory=list)
    """(the file it is in, the problem)."""

    @property
    def good(self) -> bool:
        return not self.problems

    @property
    def notes(self) -> list[str]:
        return [note for shard in self.shards for note in shard.notes]

    def total(self, name: str) -> int:
        """A figure of all shards together: records, blocks, episodes, steps, bytes or unfinished."""
        return sum(getattr(shard, name) for shard in self.shards)

    @property
    def bad_episodes(self) -> int:
        return sum(len(shard.bad_episodes) for shard in self.shards)

    def lines(self) -> list[str]:
        """One line per bad place."""
        return [_line(path, problem) for path, problem in self.problems]


def _line(path: Path, problem: Problem) -> str:
    place = f", record {problem.record} at byte {problem.offset}" if problem.record >= 0 else ""
    whose = "" if problem.episode is None else f", episode {problem.episode:016x}"
    return f"{path}{place}{whose}: {problem.reason}"


# -------------------------------------------------------------------------------------------------- what to look at


def verify_store(path: Path | str, *, workers: int = 0, progress: Progress | None = None) -> VerifyReport:
    """Look at every shard of a store. ``progress`` counts bytes; ``workers`` 0 takes one process per core."""
    return verify([path], workers=workers, progress=progress)


def verify(patterns: Sequence[Path | str], *, workers: int = 0, progress: Progress | None = None) -> VerifyReport:
    """Look at stores and files, given by name or by pattern (``runs/*/data``, ``data/**/*.tfrecord*``)."""
    report = VerifyReport()
    places: dict[Path, Place] = {}
    for path in expand(patterns):
        if path.is_dir():
            places.update({place.path: place for place in _store_places(path, report)})
        else:
            places.setdefault(path, Place(path, _store_of(path)))
    report.problems += _missing_numbers([place.path for place in places.values() if place.store is None])
    _examine(list(places.values()), report, workers, progress)
    return report


def expand(patterns: Sequence[Path | str]) -> list[Path]:
    """The stores and files that the patterns name; a pattern that names nothing is an error."""
    found: dict[Path, None] = {}
    for pattern in patterns:
        text = str(pattern)
        names = [text] if os.path.lexists(text) else sorted(glob.glob(text, recursive=True))
        if not names:
            raise StoreError(f"{text}: there is no such store or file")
        for path in (Path(name).absolute() for name in names):
            if path.is_dir() and not _is_store(path):
                if len(names) == 1:
                    raise StoreError(f"{path} is not a store: it has neither {STORE_FILE} nor {SHARD_FOLDER}/")
                continue  # a pattern may match folders beside the stores
            found[path] = None
    if not found:
        raise StoreError(f"no store or file among {', '.join(map(str, patterns))}")
    return list(found)


def _is_store(path: Path) -> bool:
    return (path / STORE_FILE).exists() or (path / SHARD_FOLDER).is_dir()


def _store_of(path: Path) -> Path | None:
    store = path.parent.parent
    inside = path.parent.name == SHARD_FOLDER and path.name.endswith(SEALED) and _is_store(store)
    return store if inside else None


def _store_places(store: Path, report: VerifyReport) -> list[Place]:
    try:
        load_schema(store)
    except StoreError as error:
        reason = f"{error}; `rollmill data repair` takes the schema from the shards"
        report.problems.append((store / STORE_FILE, Problem(STORE_FILE, -1, -1, reason)))
    refs = list_shards(store)
    for name in missing_shards(store, refs):
        reason = "the shard's file is missing, only its index is there"
        report.problems.append((index_path(store, name), Problem(name, -1, -1, reason)))
    return [Place(ref.path, store) for ref in refs]


def _missing_numbers(paths: Iterable[Path]) -> list[tuple[Path, Problem]]:
    """Files of a numbered set (``name-00003-of-00074``) that are not there."""
    sets: set[tuple[Path, str, int, str]] = set()
    for path in paths:
        match = _NUMBERED.fullmatch(path.name)
        if match:
            name, _, total, ending = match.groups()
            sets.add((path.parent, name, int(total), ending or ""))
    problems = []
    for folder, name, count, ending in sorted(sets):
        for number in range(count):
            path = folder / f"{name}-{number:05d}-of-{count:05d}{ending}"
            if not path.exists():
                problems.append((path, Problem(path.name, -1, -1, f"the file is missing: {count} belong together")))
    return problems


def _examine(places: list[Place], report: VerifyReport, workers: int, progress: Progress | None) -> None:
    sizes = {place: place.path.stat().st_size if place.path.exists() else 0 for place in places}
    # Large ones first: no process is left alone with the longest file at the end.
    order = sorted(places, key=lambda place: -sizes[place])
    done, total = 0, sum(sizes.values())
    if progress is not None:
        progress(0, total)
    for place, shard in map_unordered(examine, order, workers):
        report.shards.append(shard)
        done += sizes[place]
        if progress is not None:
            progress(done, total)
    report.shards.sort(key=lambda shard: shard.path)
    report.problems += [(shard.path, problem) for shard in report.shards for problem in shard.problems]
