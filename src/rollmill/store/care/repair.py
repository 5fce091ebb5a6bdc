"""A new store with everything that is still good in a damaged one, and a list of what is lost.

The damaged store is only read. Good episodes are copied record by record. What the shard alone cannot give back is
tried again through its index, which repeats lengths and end records. With ``salvage`` an episode that stays damaged is
kept as a partial one up to its first bad block, and so are episodes whose writer died before their end.

Listed as lost is everything that an index, an end record or a block in a damaged shard tells of and that is not in the
new store as it was: an episode, steps of it, or how it ended and its statistics.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rollmill.core import atomic
from rollmill.core.errors import BadBlock, StoreError
from rollmill.store.care.lost import rescue_index, witnesses
from rollmill.store.care.verify import Progress, VerifyReport, verify_store
from rollmill.store.derive.derivation import SHARD_BYTES, NewStore, check_free, open_quietly
from rollmill.store.format.index import write_index
from rollmill.store.format.schema import (
    INDEX_FOLDER,
    SHARD_FOLDER,
    STORE_FILE,
    StoreSchema,
    load_schema,
    parse_schema,
    schema_text,
    store_at,
)
from rollmill.store.format.shards import ShardRef, ShardScan, index_path, list_shards, scan_shard
from rollmill.store.reader import Store

LOST_FILE = "lost.json"


@dataclass(frozen=True)
class Lost:
    """An episode (or the rest of one) that is not in the repaired store."""

    episode: str
    """Its uid, in hexadecimal digits."""
    shard: str
    steps: int
    """Steps lost."""
    kept: int
    """Steps kept as a partial episode."""
    reason: str

    def __str__(self) -> str:
        first = f"{self.steps} steps lost, the first {self.kept}" if self.steps else f"its {self.kept} steps"
        what = f"{first} are kept as a partial episode" if self.kept else f"{self.steps} steps lost"
        return f"episode {self.episode} in shard {self.shard}: {what} ({self.reason})"


@dataclass
class RepairReport:
    """What a repair did."""

    kept: int = 0
    """Whole episodes in the new store (those of an earlier, interrupted go included)."""
    rescued: int = 0
    """Of these: damaged in the shard, yet every row could be read, mostly through the index."""
    salvaged: int = 0
    """Partial episodes in the new store."""
    duplicates: int = 0
    lost: list[Lost] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    """The bad places, one line each."""


def repair(
    source: Path | str,
    target: Path | str,
    *,
    salvage: bool = False,
    resume: bool = False,
    workers: int = 0,
    shard_bytes: int = SHARD_BYTES,
    progress: Progress | None = None,
    progress_verify: Progress | None = None,
) -> RepairReport:
    """Write a new store at ``target``; ``lost.json`` in it lists what is lost. ``progress`` counts steps.

    ``progress_verify`` counts bytes while the damage is looked for. A ``store.json`` that is damaged or missing is
    taken from the shards.
    """
    path = store_at(source)
    if not resume:
        check_free(Path(target))
    found = verify_store(path, workers=workers, progress=progress_verify)
    schema = _schema(path, found)
    report = RepairReport(places=found.lines())
    recipe = {"tool": "repair", "source": str(path), "salvage": salvage}
    with (
        _shadow(path, schema, found) as store,
        NewStore(target, schema, recipe, resume=resume, shard_bytes=shard_bytes) as new,
    ):
        _Rescue(store, new, found, report, salvage).run(progress)
        _note_lost(new, report)
    return report


def _schema(path: Path, found: VerifyReport) -> StoreSchema:
    try:
        return load_schema(path)
    except StoreError as error:
        texts = [shard.schema_text for shard in found.shards if shard.schema_text]
        if not texts:
            raise StoreError(f"{error}; no shard has a header to take the schema from") from error
        # Shards of one store have one schema; the most frequent one, should a foreign shard have been put there.
        return parse_schema(max(texts, key=texts.count), "the schema in the shards")


@contextmanager
def _shadow(path: Path, schema: StoreSchema, found: VerifyReport) -> Iterator[Store]:
    """Yield the damaged store as readers can open it: a good ``store.json`` and indexes of all that may be there."""
    with tempfile.TemporaryDirectory(prefix="rollmill-repair-") as name:
        folder = Path(name)
        (folder / STORE_FILE).write_text(schema_text(schema), encoding="utf-8")
        if os.access(path / SHARD_FOLDER, os.R_OK | os.X_OK) and (path / SHARD_FOLDER).is_dir():
            (folder / SHARD_FOLDER).symlink_to(path / SHARD_FOLDER)
        else:
            (folder / SHARD_FOLDER).mkdir()  # nothing can be read; what was there is named all the same
        (folder / INDEX_FOLDER).mkdir()
        known = witnesses(path)
        damaged = {shard.shard for shard in found.shards if not shard.index_good}
        for ref in list_shards(folder):
            if ref.sealed and ref.name in damaged:
                index = rescue_index(_scan(ref), known.get(ref.name, ()), ref.bytes)
                write_index(ref.index_path, index)
            elif ref.sealed:
                ref.index_path.symlink_to(index_path(path, ref.name))
        with open_quietly(folder, unfinished=True) as store:
            yield store


def _scan(ref: ShardRef) -> ShardScan:
    try:
        return scan_shard(ref)
    except OSError:  # a bad sector, say, in the length of a record: an index may still lead to the others
        return ShardScan(ref.name)


class _Rescue:
    """Goes through the episodes: the good ones first, so that a good copy of an episode wins over a damaged one."""

    def __init__(self, store: Store, new: NewStore, found: VerifyReport, report: RepairReport, salvage: bool) -> None:
        self._store = store
        self._new = new
        self._report = report
        self._salvage = salvage
        self._suspect = {(shard.shard, uid) for shard in found.shards for uid in shard.bad_episodes}
        self._reasons = {
            problem.episode: problem.reason for _, problem in reversed(found.problems) if problem.episode is not None
        }
        self._writers = {shard.shard: shard.writer for shard in found.shards}
        self._steps = {(shard.shard, uid): steps for shard in found.shards for uid, steps in shard.lost.items()}
        self._seen: set[int] = set()

    def run(self, progress: Progress | None) -> None:
        lengths, finished = self._store.table.length, self._store.table["finished"]
        order = sorted(range(len(self._store)), key=lambda i: (not finished[i], self._is_suspect(i), i))
        done, total = 0, int(lengths.sum())
        for i in order:
            if progress is not None:
                progress(done, total)
            self._take(i)
            done += int(lengths[i])
        if progress is not None:
            progress(done, total)
        # Verify found them by single blocks, or in the index of a shard that cannot be read; nothing else lists them.
        for shard, uid in sorted(self._suspect):
            if uid not in self._seen:
                self._seen.add(uid)
                steps = self._steps.get((shard, uid), 0)
                self._lose(uid, shard, steps, 0, self._reasons.get(uid, "its records are lost"))

    def _is_suspect(self, i: int) -> bool:
        return (self._shard(i), self._uid(i)) in self._suspect

    def _uid(self, i: int) -> int:
        return int(self._store.table.uid[i])

    def _shard(self, i: int) -> str:
        return self._store.shards[int(self._store.table.shard[i])].name

    def _take(self, i: int) -> None:
        uid, finished = self._uid(i), self._store.table["finished"]
        if uid in self._seen:
            # What is lost is listed without being there; an unfinished one may be the strayed blocks of its shard.
            self._report.duplicates += bool(finished[i]) and (self._shard(i), uid) not in self._steps
            return
        self._seen.add(uid)
        if not finished[i]:
            self._take_unfinished(i)
        elif self._new.done.get(uid, 0) == self._store.table.length[i]:
            self._report.kept += 1
        elif uid in self._new.done:
            self._keep_start(i, self._reasons.get(uid, "damaged"))
        elif not self._is_suspect(i):
            self._copy(i)
        else:
            self._try_again(i)

    def _take_unfinished(self, i: int) -> None:
        """Keep or give up an episode without an end record: its writer died, dropped it, or the record is damaged."""
        shard, length = self._shard(i), int(self._store.table.length[i])
        if self._salvage and self._writers.get(shard) == "dead":
            reason = "its end record is lost, and with it how it ended and its statistics"
            self._keep_start(i, reason if self._is_suspect(i) else "it has no end record", self._is_suspect(i))
        elif self._is_suspect(i):
            self._lose(self._uid(i), shard, length, 0, self._reasons.get(self._uid(i), "it has no end record"))

    def _copy(self, i: int) -> None:
        try:
            self._new.writer.copy_episode(self._store, i)
        except BadBlock as error:  # has become bad since it was verified
            self._give_up(i, error.reason)
            return
        self._report.kept += 1

    def _try_again(self, i: int) -> None:
        """Read an episode with a bad place: the index may know what the shard lost, or only its end record is wrong."""
        try:
            episode = self._store.episode(i)
        except BadBlock as error:
            self._give_up(i, error.reason)
            return
        self._new.writer.add_episode(episode)  # not copied: its end record is made anew from the rows
        self._report.kept += 1
        self._report.rescued += 1

    def _give_up(self, i: int, reason: str) -> None:
        reason = self._reasons.get(self._uid(i), reason)
        if self._salvage:
            self._keep_start(i, reason)
        else:
            self._lose(self._uid(i), self._shard(i), int(self._store.table.length[i]), 0, reason)

    def _keep_start(self, i: int, reason: str, always_lost: bool = False) -> None:
        """Keep the steps before the first bad block as a partial episode.

        ``always_lost``: it is a loss even if all its steps are kept.
        """
        length = int(self._store.table.length[i])
        kept = self._new.done.get(self._uid(i)) or self._write_start(i, length)
        self._report.salvaged += kept > 0
        if kept < length or not kept or always_lost:
            self._lose(self._uid(i), self._shard(i), length - kept, kept, reason)

    def _write_start(self, i: int, length: int) -> int:
        store, writer = self._store, self._new.writer
        end = store.end_record(i)
        key = ("salvage", end.uid)
        writer.begin(key, end.info)
        final: dict[str, Any] | None = None
        try:
            for first in range(0, length, end.block):
                stop = min(first + end.block, length)
                rows = store.read(i, first, stop, next_obs=stop == length)
                if stop == length:
                    final = {c.name: rows[c.name][-1] for c in store.schema.obs_columns}
                    rows = {name: array[: stop - first] for name, array in rows.items()}
                writer.append(key, rows)
        except BadBlock:
            final = None  # the step before the bad block gives its observation as the final one
        stats = {**end.stats, "salvaged_from": length}
        written = writer.end(key, final=final, stats=stats)
        return written.length if written else 0

    def _lose(self, uid: int, shard: str, steps: int, kept: int, reason: str) -> None:
        self._report.lost.append(Lost(f"{uid:016x}", shard, steps, kept, reason))


def _note_lost(new: NewStore, report: RepairReport) -> None:
    new.finish(kept=report.kept, salvaged=report.salvaged, lost=len(report.lost))
    try:
        atomic.write_json(
            new.path / LOST_FILE, {"lost": [asdict(lost) for lost in report.lost], "bad_places": report.places}
        )
    except OSError as error:
        raise StoreError(f"{new.path / LOST_FILE} cannot be written: {error.strerror or error}") from error
