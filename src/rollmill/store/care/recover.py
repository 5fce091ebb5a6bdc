"""Tidying up after writers that died: their open shards are cut at the last good record and sealed.

Reading needs none of this (readers take the good part of open shards as it is); it makes opening fast again and frees
the shard's name. It is never done behind the user's back: tools call it, and a recorder that resumes.

Nothing is thrown away that may be the last trace of an episode. Only the beginning of a write that a kill cut short is
cut off. A damaged shard gets no index, so that it keeps saying so whenever it is opened, until it is repaired; an index
that lists more than its shard has is left as it is, and one that cannot be read is set aside.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from rollmill.core import atomic
from rollmill.store.care.lost import load_witnesses, lost_episodes, witnesses
from rollmill.store.format import owner
from rollmill.store.format.index import IndexDamaged, ShardIndex, build_index, read_index, write_index
from rollmill.store.format.schema import load_schema, store_at
from rollmill.store.format.shards import Problem, ShardRef, ShardScan, list_files, scan_shard, shard_path

SET_ASIDE = ".set-aside"


@dataclass
class Recovery:
    """What was done: shards sealed, indexes written, shards left alone and why, damage met on the way."""

    sealed: list[str] = field(default_factory=list)
    indexed: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    """Open shards in which no record had been finished."""
    skipped: list[tuple[str, str]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    """Damage, and the episodes that are lost with it."""


def recover(path: Path | str, *, force: bool = False) -> Recovery:
    """Seal the shards of dead writers and write missing indexes.

    A shard is touched only if its writer is certainly dead: it ran on this machine since the last boot, in this
    container, and its process is gone. ``force`` also takes those nobody can tell about (other machines, shards
    without a header): the caller vouches that no writer is at work. A living writer's shard is never touched.
    """
    store = store_at(path)
    load_schema(store)
    done, lost = Recovery(), _Lost(store)
    found = list_files(store)
    found.check()
    for file in found.odd:
        done.problems += [file.problem, *lost(file.shard, None)]
    for ref in found.shards:
        try:
            if ref.sealed:
                _ensure_index(ref, lost, done)
            else:
                _settle(ref, lost, force, done)
        except OSError as error:
            if os.path.lexists(ref.path):  # else its writer has sealed or dropped it this very moment
                done.skipped.append((ref.name, f"it cannot be tidied up: {error.strerror or error}"))
    return done


class _Lost:
    """The episodes that indexes list and their shard no longer has; indexes as they were before any was changed."""

    def __init__(self, store: Path) -> None:
        self._store = store

    @cached_property
    def _known(self) -> dict[str, list[ShardIndex]]:
        return witnesses(self._store)  # most stores never need them

    def __call__(self, shard: str, scan: ShardScan | None) -> list[Problem]:
        return [episode.problem for episode in lost_episodes(self._known.get(shard, ()), scan)]


def _ensure_index(ref: ShardRef, lost: _Lost, done: Recovery) -> None:
    try:
        read_index(ref.index_path, ref.name, ref.bytes)
        return
    except IndexDamaged:
        scan = scan_shard(ref)
    problems = [*scan.problems, *lost(ref.name, scan)]
    done.problems += problems
    if not problems:
        _write_index(ref, scan)
        done.indexed.append(ref.name)


def _settle(ref: ShardRef, lost: _Lost, force: bool, done: Recovery) -> None:
    scan = scan_shard(ref)
    why = _why_not(scan, force)
    if why:
        done.skipped.append((ref.name, why))
        return
    cut = not scan.tail_problems
    scan.close(ref.bytes, torn_is_damage=False)
    problems = [*scan.problems, *lost(ref.name, scan)]
    done.problems += problems
    if scan.good_bytes == 0 and not problems:
        os.unlink(ref.path)
        done.removed.append(ref.name)
    elif scan.good_bytes == 0:
        done.skipped.append((ref.name, "no record in it is good"))
    else:
        if cut:
            _cut(ref.path, scan.good_bytes)
        if not problems:
            _write_index(ref, scan)
        os.rename(ref.path, shard_path(ref.store, ref.name, sealed=True))
        atomic.sync_folder(ref.path.parent)
        done.sealed.append(ref.name)


def _why_not(scan: ShardScan, force: bool) -> str:
    if scan.header is None:
        return "" if force else "it has no header that tells who writes it"
    state = owner.state_of(scan.header.owner)
    who = f"process {scan.header.owner.pid} on {scan.header.owner.host}"
    if state == "alive":
        return f"its writer, {who}, is alive"
    if state == "unknown" and not force:
        return f"nobody here can tell whether its writer, {who}, is alive"
    return ""


def _cut(path: Path, size: int) -> None:
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.ftruncate(fd, size)
        os.fsync(fd)
    finally:
        os.close(fd)


def _write_index(ref: ShardRef, scan: ShardScan) -> None:
    """Write the index of a whole shard. What lies in its place is set aside, unless it says nothing that the shard
    does not say: it may be that of another shard, or of this one when it had more.
    """
    path = ref.index_path
    path.parent.mkdir(exist_ok=True)
    if os.path.lexists(path) and not load_witnesses([path], ref.name):
        aside, number = path.with_name(path.name + SET_ASIDE), 1
        while os.path.lexists(aside):
            number += 1
            aside = path.with_name(f"{path.name}{SET_ASIDE}-{number}")
        os.rename(path, aside)
    write_index(path, build_index(scan))
