"""What was read of files, kept for the next time: a file that has not changed is not read again.

A file is known by its path, inode, size and time of change. The index lies in the user's cache folder; nothing is ever
written where runs live. Whoever removes it, or finds it damaged, loses the time to read everything once.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

log = logging.getLogger("rollmill")

VERSION = 4
"""Of what is kept; another one begins anew. To be raised with every change of what ``viewer.facts`` makes of a file."""
_LARGEST = 2**63 - 1
"""Integer of SQLite."""
Stamp = tuple[int, int, int]
"""Inode, size and time of change (ns) of a file."""


def stamp_of(path: Path) -> Stamp | None:
    """Return what tells whether a file has changed; None where there is no such file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino & _LARGEST, found.st_size, found.st_mtime_ns


class Index:
    """Remembers plain values that were made of files. Usable by several threads."""

    def __init__(self, file: Path | None) -> None:
        """Open the index; ``file``: where it lies, None keeps it in memory."""
        self._lock = threading.Lock()
        self._base = _opened(file)
        self._known = _loaded(self._base)
        self._news: list[tuple[str, str, int, int, int, str]] = []

    def recall(self, path: Path, what: str, make: Callable[[Path], Any], stamp: Stamp | None = None) -> Any:
        """Return ``make(path)``, or what it gave when the file was as it is now; None where there is no such file."""
        stamp = stamp or stamp_of(path)
        if stamp is None:
            return None
        key = (_text(path), what)
        known = self._known.get(key)
        if known is not None and known[0] == stamp:
            return known[1]
        value = make(path)
        with self._lock:
            self._known[key] = (stamp, value)
            self._news.append((*key, *stamp, json.dumps(value)))
        return value

    def save(self) -> None:
        """Write what is new; a full disk costs the memory of it, nothing else."""
        with self._lock:
            news, self._news = self._news, []
            if not news:
                return
            try:
                with self._base:
                    self._base.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?, ?, ?, ?, ?)", news)
            except sqlite3.Error as error:
                log.warning("the index of runs cannot be written: %s", error)

    def forget(self, folder: Path) -> None:
        """Drop what is known of files in a folder."""
        start = f"{_text(folder)}{os.sep}"
        with self._lock:
            for key in [key for key in self._known if key[0].startswith(start)]:
                del self._known[key]
            self._news = [row for row in self._news if not row[0].startswith(start)]
            with contextlib.suppress(sqlite3.Error), self._base:
                self._base.execute("DELETE FROM facts WHERE substr(path, 1, ?) = ?", (len(start), start))

    def close(self) -> None:
        self.save()
        self._base.close()


def _text(path: Path) -> str:
    """Return a path as a database takes it: names of files need not be text."""
    return str(path).encode("utf-8", "backslashreplace").decode()


def _loaded(base: sqlite3.Connection) -> dict[tuple[str, str], tuple[Stamp, Any]]:
    found = {}
    for path, what, inode, size, changed, value in base.execute("SELECT * FROM facts"):
        with contextlib.suppress(ValueError):  # read anew
            found[path, what] = ((inode, size, changed), json.loads(value))
    return found


def _opened(file: Path | None) -> sqlite3.Connection:
    """Open the database; an empty one where there is none that can be used."""
    if file is None:
        return _prepared(":memory:")
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        return _prepared(str(file))
    except sqlite3.OperationalError as error:  # a disk without locks, one that is full
        log.warning("%s: the index of runs cannot be used (%s); everything is read anew", file, error)
    except sqlite3.DatabaseError as error:
        log.warning("%s: the index of runs is damaged (%s); it is made anew", file, error)
        with contextlib.suppress(OSError, sqlite3.Error):
            file.unlink()
            return _prepared(str(file))
    except OSError as error:
        log.warning("%s: the index of runs cannot be kept (%s)", file, error.strerror or error)
    return _prepared(":memory:")


def _prepared(name: str) -> sqlite3.Connection:
    base = sqlite3.connect(name, timeout=5.0, check_same_thread=False)
    try:
        if base.execute("PRAGMA user_version").fetchone()[0] != VERSION:
            with base:
                base.execute("DROP TABLE IF EXISTS facts")
                base.execute(
                    "CREATE TABLE facts (path TEXT, what TEXT, inode INTEGER, size INTEGER, changed INTEGER, "
                    "value TEXT, PRIMARY KEY (path, what)) WITHOUT ROWID"
                )
                base.execute(f"PRAGMA user_version = {VERSION}")
        base.execute("SELECT count(*) FROM facts").fetchone()
    except sqlite3.Error:
        base.close()
        raise
    return base
