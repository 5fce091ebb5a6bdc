"""Generated levels in a folder, shared by any number of processes and machines.

::

    FOLDER/SOURCE/source.json       which environment's levels these are
    FOLDER/SOURCE/5e/<name>.level   a level

A file's name says all there is to know about it: the seed it was made for, a hash of the key it is asked for by, its
size, and the SHA-256 of its contents. So there is no index that could be damaged or would have to be locked: the list
of files is the index, a level appears in it by one rename and is whole from then on, and two processes that make the
same level write the same file. Nobody waits for anybody, whoever dies leaves at most a temporary file.

What is read is compared with the name. A file that is not what it says is renamed to ``.damaged`` and never served.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rollmill.core import atomic
from rollmill.core.fields import Array

log = logging.getLogger("rollmill")

SOURCE_FILE = "source.json"
SUFFIX, DAMAGED = ".level", ".damaged"
KEY_DIGITS, DIGEST_DIGITS = 16, 32
TICK_SECONDS = 0.1
"""A folder that was changed less than this before it was listed may have changed again without a sign of it."""
STALE_SECONDS = 3600.0
"""Nobody takes longer to write a level: older temporary files are leftovers."""
_NAME = re.compile(r"(\d+|any)-([0-9a-f]{16})-(\d+)-([0-9a-f]{32})\.level")


@dataclass(frozen=True, order=True)
class Level:
    """One kept level, as its file's name describes it."""

    key: str
    """Hash of what it is asked for by."""
    digest: str
    """Of its contents."""
    size: int
    """Bytes."""
    seed: int
    """The seed of the episode that it was made for; -1: not known."""

    @property
    def name(self) -> str:
        seed = "any" if self.seed < 0 else str(self.seed)
        return f"{seed}-{self.key}-{self.size}-{self.digest}{SUFFIX}"

    @property
    def place(self) -> str:
        """The file, relative to the store."""
        return f"{self.key[:2]}/{self.name}"

    @staticmethod
    def of(key: str, seed: int, content: bytes) -> Level:
        return Level(hash_of(key), digest_of(content), len(content), seed)

    @staticmethod
    def parse(name: str) -> Level | None:
        """Return the level that a file name describes; None for other files."""
        found = _NAME.fullmatch(name)
        if found is None:
            return None
        seed, key, size, digest = found.groups()
        return Level(key, digest, int(size), -1 if seed == "any" else int(seed))


@dataclass
class _Listing:
    """A subfolder as it was when it was listed."""

    changed: int  # ns: its time of change before that
    listed: float
    by_key: dict[str, list[Level]]
    size: int = 0


class LevelStore:
    """The levels of one environment."""

    def __init__(self, folder: Path, max_bytes: int = 0, about: Mapping[str, Any] | None = None) -> None:
        """Open the store; more than ``max_bytes`` are not kept (0: no limit). ``about``: which environment's levels
        these are, written down with the first one."""
        self.folder = folder
        self._about = about
        self._max_bytes = max_bytes
        self._listings: dict[str, _Listing] = {}
        """By subfolder."""
        self._told: set[str] = set()

    # -- reading -------------------------------------------------------------------------------

    def get(self, key: str) -> bytes | None:
        """Return the level that was kept under this key; None where there is none."""
        hashed = hash_of(key)
        for fresh in (False, True):  # somebody may have made it since the folder was listed
            for level in self._list(hashed[:2], anew=fresh).by_key.get(hashed, ()):
                content = self.read(level)
                if content is not None:
                    return content
        return None

    def read(self, level: Level) -> bytes | None:
        """Return a level's contents, if they are what they should be; a damaged file is put aside and logged."""
        path = self.folder / level.place
        try:
            content = path.read_bytes()
        except FileNotFoundError:  # it gave way to the limit, or was put aside by somebody else
            return None
        if len(content) == level.size and digest_of(content) == level.digest:
            return content
        with contextlib.suppress(FileNotFoundError):
            path.rename(path.with_suffix(DAMAGED))
        log.warning("damaged level %s: put aside as %s, and made anew when it is needed", path, DAMAGED)
        return None

    def levels(self) -> list[Level]:
        """List all that are here now, in an order that does not depend on who has made them when."""
        found = [
            level
            for part in self._parts()
            for same in self._list(part, anew=self._changed(part)).by_key.values()
            for level in same
        ]
        return sorted(found)

    def seeds(self) -> Array:
        """Return ``[n]`` int64, rising: the seeds whose levels are here."""
        return np.unique(np.array([level.seed for level in self.levels() if level.seed >= 0], np.int64))

    @property
    def total_bytes(self) -> int:
        """Bytes of all levels that are here now."""
        return sum(self._list(part, anew=self._changed(part)).size for part in self._parts())

    # -- writing -------------------------------------------------------------------------------

    def put(self, key: str, seed: int, content: bytes) -> bool:
        """Keep a level; False where it was here already, or there is no room for it (said once)."""
        level = Level.of(key, seed, content)
        path = self.folder / level.place
        if path.exists():
            return False
        try:
            if self._no_room(len(content)):
                self._say("levels in %s have reached env.levels.max_gb: new ones are played and not kept", self.folder)
                return False
            path.parent.mkdir(parents=True, exist_ok=True)
            self._describe()
            made = atomic.create_bytes(path, [content], durable=False)  # a power cut is seen by the checksum
            if made and self._over():  # others wrote at the same time
                path.unlink(missing_ok=True)
                return False
        except OSError as error:
            self._say("levels cannot be kept in %s: %s", self.folder, error.strerror or error)
            return False
        return made

    def _describe(self) -> None:
        if self._about is not None and not (self.folder / SOURCE_FILE).exists():
            text = json.dumps(self._about, indent=2, sort_keys=True) + "\n"
            atomic.create_bytes(self.folder / SOURCE_FILE, [text.encode()])

    def _no_room(self, size: int) -> bool:
        return bool(self._max_bytes) and self._trim() + size > self._max_bytes

    def _over(self) -> bool:
        return bool(self._max_bytes) and self.total_bytes > self._max_bytes

    def _trim(self) -> int:
        """Remove the newest levels that are too many (the limit was lowered, or a writer died before it looked)."""
        total = self.total_bytes
        if total <= self._max_bytes:
            return total
        aged = sorted(((_age(self.folder / level.place), level) for level in self.levels()), reverse=True)
        for _, level in aged:
            if total <= self._max_bytes:
                break
            (self.folder / level.place).unlink(missing_ok=True)
            total -= level.size
        return total

    def _say(self, text: str, *words: object) -> None:
        if text not in self._told:
            self._told.add(text)
            log.warning(text, *words)

    # -- looking after it ----------------------------------------------------------------------

    def leftovers(self) -> Iterator[Path]:
        """Yield temporary files whose writers have died."""
        for path in self.folder.glob("??/.*.tmp"):
            if atomic.is_temporary(path.name) and time.time() - _age(path) > STALE_SECONDS:
                yield path

    def damaged(self) -> list[Path]:
        """List the files that were put aside."""
        return sorted(self.folder.glob(f"??/*{DAMAGED}"))

    # -- the list of files ---------------------------------------------------------------------

    def _parts(self) -> list[str]:
        try:
            return sorted(entry.name for entry in os.scandir(self.folder) if len(entry.name) == 2)
        except FileNotFoundError:
            return []

    def _changed(self, part: str) -> bool:
        known = self._listings.get(part)
        if known is None:
            return True
        return _changed_ns(self.folder / part) != known.changed or known.listed - known.changed / 1e9 < TICK_SECONDS

    def _list(self, part: str, anew: bool) -> _Listing:
        known = self._listings.get(part)
        if known is not None and not anew:
            return known
        made = self._listings[part] = _Listing(_changed_ns(self.folder / part), time.time(), {})
        with contextlib.suppress(FileNotFoundError):
            for name in sorted(os.listdir(self.folder / part)):
                level = Level.parse(name)
                if level is not None:
                    made.by_key.setdefault(level.key, []).append(level)
                    made.size += level.size
        return made


def hash_of(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:KEY_DIGITS]


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:DIGEST_DIGITS]


def _changed_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _age(path: Path) -> float:
    """Return when a file was written, in seconds since 1970."""
    return _changed_ns(path) / 1e9
