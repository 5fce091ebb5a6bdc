"""Files that are either the old one or the new one, never half of each.

A file is written beside its target as ``.<name>.<pid>.tmp``, synced to disk and renamed over the
target. Whatever goes wrong before the rename (full disk, exception, kill) leaves the target alone.
These functions raise ``OSError``; callers turn it into an error that says what it means for the user.
"""

from __future__ import annotations

import errno
import json
import os
import re
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Chunk = bytes | bytearray | memoryview

_TEMPORARY = re.compile(r"\..+\.(\d+)\.tmp")

_in_flight: set[Path] = set()
"""Temporary files this process is writing now. In a container a restarted run often gets the pid of the
killed one, so "the pid is alive" does not tell a leftover of our own pid from a write under way."""
_in_flight_lock = threading.Lock()


def write_bytes(path: Path, chunks: Iterable[Chunk], durable: bool = True) -> None:
    """Replace ``path`` by the concatenated ``chunks``; each chunk is written before the next is asked for.

    ``durable`` False leaves it to the system when the file gets to the disk: after a power cut it may be the old one,
    or hold nothing.
    """
    path = path.absolute()
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with _in_flight_lock:
        if temporary in _in_flight:
            raise RuntimeError(f"{path} is being written by another thread")
        _in_flight.add(temporary)
    try:
        with open(temporary, "wb") as file:
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        with _in_flight_lock:
            _in_flight.discard(temporary)
    if durable:
        sync_folder(path.parent)


def create_bytes(path: Path, chunks: Iterable[Chunk], durable: bool = True) -> bool:
    """Write ``path`` unless it exists; returns False if somebody else was first. That is safe between machines (no pid
    in a name is compared): of any number of creators exactly one wins, and nobody ever sees half of the file.

    ``durable`` False leaves it to the system when the file gets to the disk: after a power cut it may be there and
    hold nothing, so whoever reads it must be able to tell.
    """
    path = path.absolute()
    temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}.{os.getpid()}.tmp")
    try:
        with open(temporary, "xb") as file:
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
                raise
            # File systems without hard links: creators that are really simultaneous may replace each other's file.
            if path.exists():
                return False
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    if durable:
        sync_folder(path.parent)
    return True


def write_text(path: Path, text: str, durable: bool = True) -> None:
    """Replace ``path`` by ``text`` in UTF-8."""
    write_bytes(path, [text.encode("utf-8")], durable)


def write_json(path: Path, value: Any, durable: bool = True) -> None:
    """Replace ``path`` by ``value`` as indented JSON; NaN and infinity are refused (they are not JSON)."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n", durable)


def sync_folder(folder: Path) -> None:
    """Make the names in ``folder`` (a rename, a removal) survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network and FUSE file systems cannot sync a folder; the rename is then all they offer.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def is_temporary(name: str) -> bool:
    """Return True for the names that ``write_bytes`` gives to unfinished files."""
    return _TEMPORARY.fullmatch(name) is not None


def sweep_temporary(folder: Path) -> list[Path]:
    """Remove temporary files left in ``folder`` by processes that no longer live; returns them.

    Pids are those of this machine: call it only for folders that one machine writes at a time (a run
    folder is, by its lock).
    """
    removed: list[Path] = []
    for path in sorted(folder.absolute().glob(".*.tmp")):
        match = _TEMPORARY.fullmatch(path.name)
        if match is None or not _is_leftover(path, int(match.group(1))):
            continue
        path.unlink(missing_ok=True)
        removed.append(path)
    return removed


def _is_leftover(path: Path, pid: int) -> bool:
    if pid == os.getpid():
        with _in_flight_lock:
            return path not in _in_flight
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        return False  # alive, and somebody else's
    return False
