"""Looking for damage: every frame of every shard is walked, every block decoded, on all cores (see ``check_shard``).

One ``Problem`` per bad place. Also for files outside a store: copies of shards (they explain themselves), and any
other TFRecord file, of which the frames are checked.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rollmill.core.errors import StoreError
from rollmill.store.care.check_shard import Place, ShardReport, check_shard
from rollmill.store.care.lost import witness_files
from rollmill.store.format.schema import SHARD_FOLDER, STORE_FILE, is_store, load_schema, store_at
from rollmill.store.format.shards import SEALED, Problem, list_files, shard_path
from rollmill.store.parallel import map_unordered

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
        """Return a count of all shards together: records, blocks, episodes, steps, bytes or unfinished."""
        return sum(getattr(shard, name) for shard in self.shards)

    @property
    def bad_episodes(self) -> int:
        return sum(len(shard.bad_episodes) for shard in self.shards)

    @property
    def lost_episodes(self) -> int:
        """How many bad episodes only an index still knows."""
        return sum(len(shard.lost) for shard in self.shards)

    def lines(self) -> list[str]:
        """Return one line per bad place."""
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
        if os.path.isdir(path):
            places.update({place.path: place for place in _store_places(path, report)})
        else:
            places.setdefault(path, _place_of(path))
    report.problems += _missing_numbers([place.path for place in places.values() if place.store is None])
    _check_shards(list(places.values()), report, workers, progress)
    return report


def expand(patterns: Sequence[Path | str]) -> list[Path]:
    """Return the stores and files that the patterns name; a pattern that names nothing is an error."""
    found: dict[Path, None] = {}
    for pattern in patterns:
        text = str(pattern)
        names = [text] if os.path.lexists(text) else sorted(glob.glob(text, recursive=True))
        if not names:
            raise StoreError(f"{text}: there is no such store or file")
        for path in map(store_at, names):
            # One that nobody may look into is named as a bad place.
            if os.path.isdir(path) and not is_store(path) and os.access(path, os.X_OK):
                if len(names) == 1:
                    raise StoreError(f"{path} is not a store: it has neither {STORE_FILE} nor {SHARD_FOLDER}/")
                continue  # a pattern may match folders beside the stores
            found[path] = None
    if not found:
        raise StoreError(f"no store or file among {', '.join(map(str, patterns))}")
    return list(found)


def _place_of(path: Path) -> Place:
    """Return the place of a file that was named itself; it may be a shard of a store."""
    store = path.parent.parent
    if path.parent.name != SHARD_FOLDER or not path.name.endswith(SEALED) or not is_store(store):
        return Place(path)
    place = Place(path, store)
    return replace(place, witnesses=witness_files(store).get(place.name, ()))


def _store_places(store: Path, report: VerifyReport) -> list[Place]:
    try:
        load_schema(store)
    except StoreError as error:
        reason = f"{error}; `rollmill data repair` takes the schema from the shards"
        report.problems.append((store / STORE_FILE, Problem(STORE_FILE, -1, -1, reason)))
    known = witness_files(store)
    found = list_files(store)
    # Of those that cannot be read, their places say why; so do those that nothing but an index of another name knows.
    paths = [ref.path for ref in found.shards] + [file.path for file in found.odd if file.shard]
    names = {ref.name for ref in found.shards} | {file.shard for file in found.odd}
    paths += [shard_path(store, name, True) for name in sorted(known.keys() - names)]
    for file in found.odd:
        if not file.shard:
            report.problems.append((file.path, Problem(file.path.name, -1, -1, file.reason)))
    places = [Place(path, store) for path in paths]
    return [replace(place, witnesses=known.get(place.name, ())) for place in places]


def _missing_numbers(paths: Iterable[Path]) -> list[tuple[Path, Problem]]:
    """Report files of a numbered set (``name-00003-of-00074``) that are not there."""
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


def _size(path: Path) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _check_shards(places: list[Place], report: VerifyReport, workers: int, progress: Progress | None) -> None:
    sizes = {place: _size(place.path) for place in places}
    # Large ones first: no process is left alone with the longest file at the end.
    order = sorted(places, key=lambda place: -sizes[place])
    done, total = 0, sum(sizes.values())
    if progress is not None:
        progress(0, total)
    for place, shard in map_unordered(check_shard, order, workers):
        report.shards.append(shard)
        done += sizes[place]
        if progress is not None:
            progress(done, total)
    report.shards.sort(key=lambda shard: shard.path)
    report.problems += [(shard.path, problem) for shard in report.shards for problem in shard.problems]
