"""Tidying up after writers that died: their open shards are cut at the last good record and sealed.

Reading needs none of this (readers take the good part of open shards as it is); it makes opening fast again and frees
the shard's name. It is never done behind the user's back: tools call it, and a recorder that resumes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from rollmill.core import atomic
from rollmill.core.errors import StoreError
from rollmill.store import owner
from rollmill.store.index import IndexDamaged, build_index, read_index, write_index
from rollmill.store.schema import load_schema
from rollmill.store.shards import Problem, ShardRef, ShardScan, list_shards, scan_shard, shard_path


@dataclass
class Recovery:
    """What was done: shards sealed, indexes written, shards left alone and why, damage met on the way."""

    sealed: list[str] = field(default_factory=list)
    indexed: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    """Open shards in which no record had been finished."""
    skipped: list[tuple[str, str]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def recover(path: Path | str, *, force: bool = False) -> Recovery:
    """Seal the shards of dead writers and write missing indexes.

    A shard is touched only if its writer is certainly dead: it ran on this machine since the last boot, in this
    container, and its process is gone. ``force`` also takes those nobody can tell about (other machines, shards
    without a header): the caller vouches that no writer is at work. A living writer's shard is never touched.
    """
    store = Path(path).absolute()
    load_schema(store)
    done = Recovery()
    try:
        for ref in list_shards(store):
            if ref.sealed:
                _ensure_index(ref, done)
            else:
                _settle(ref, force, done)
    except OSError as error:
        raise StoreError(f"{store} cannot be recovered: {error.strerror or error}") from error
    return done


def _ensure_index(ref: ShardRef, done: Recovery) -> None:
    try:
        read_index(ref.index_path, ref.name, ref.bytes)
    except IndexDamaged:
        scan = scan_shard(ref)
        done.problems += scan.problems
        if not scan.problems:  # a damaged shard keeps saying so whenever it is opened, until it is repaired
            write_index(ref.index_path, build_index(scan))
            done.indexed.append(ref.name)


def _settle(ref: ShardRef, force: bool, done: Recovery) -> None:
    try:
        scan = scan_shard(ref)
    except FileNotFoundError:
        return  # its writer has just sealed it
    why = _why_not(scan, force)
    if why:
        done.skipped.append((ref.name, why))
        return
    done.problems += scan.problems
    if scan.good_bytes == 0:
        os.unlink(ref.path)
        done.removed.append(ref.name)
        return
    _seal(ref, scan)
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


def _seal(ref: ShardRef, scan: ShardScan) -> None:
    fd = os.open(ref.path, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.ftruncate(fd, scan.good_bytes)
        os.fsync(fd)
    finally:
        os.close(fd)
    write_index(ref.index_path, build_index(scan))
    os.rename(ref.path, shard_path(ref.store, ref.name, sealed=True))
    atomic.sync_folder(ref.path.parent)
