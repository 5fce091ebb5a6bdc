"""Where an export goes: a file or folder that appears under its name when it is complete, or not at all."""

from __future__ import annotations

import errno
import math
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from rollmill.core import atomic
from rollmill.core.errors import StoreError, StoreFull
from rollmill.core.fields import Array

Progress = Callable[[int, int], None]
"""Called with (steps done, steps in all) between episodes; may raise to stop the work."""

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

MAX_FILE_BYTES = 195_000_000
"""Files of a set are between half of this and this, if there is enough for more than one: 100 to 200 MB."""


@dataclass
class Exported:
    """What an export wrote."""

    path: Path
    files: list[Path] = field(default_factory=list)
    episodes: int = 0
    steps: int = 0
    notes: list[str] = field(default_factory=list)
    """What the other format cannot say and how it was written instead."""

    @property
    def bytes(self) -> int:
        return sum(file.stat().st_size for file in self.files)


@contextmanager
def new_folder(target: Path | str) -> Iterator[Path]:
    """Yield a folder to write into; it is renamed to ``target`` when the block ends well, else removed.

    Errors of the disk become ``StoreError`` (``StoreFull``), so callers need not think of them.
    """
    path = _free(target)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    with _disk_errors(path):
        draft.mkdir(parents=True)
        try:
            yield draft
            _sync(draft)
            _free(path)  # nobody has put something there meanwhile
            os.rename(draft, path)
            atomic.sync_folder(path.parent)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise


@contextmanager
def new_file(target: Path | str) -> Iterator[Path]:
    """Yield the name of a file to write; it is renamed to ``target`` when the block ends well, else removed."""
    path = _free(target)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    with _disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield draft
            with open(draft, "rb") as file:
                os.fsync(file.fileno())
            _free(path)
            os.rename(draft, path)
            atomic.sync_folder(path.parent)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise


def _free(target: Path | str) -> Path:
    path = Path(target).absolute()
    if os.path.lexists(path):
        raise StoreError(f"{path} exists; nothing is overwritten, choose another target")
    return path


def _sync(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
    atomic.sync_folder(folder)


@contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in _NO_SPACE or "No space left" in str(error):
            raise StoreFull(f"{path} cannot be written: no space left; nothing of it was kept") from error
        raise StoreError(f"{path} cannot be written: {reason}") from error


def numbered(name: str, number: int, total: int, ending: str = "") -> str:
    """Return ``name-00003-of-00074`` and an ending."""
    return f"{name}-{number:05d}-of-{total:05d}{ending}"


def plan_files(sizes: Sequence[int] | Array, limit: int = MAX_FILE_BYTES) -> list[Array]:
    """Divide consecutive items into files of even size, none (well) above ``limit``: positions for each file.

    The number of files follows from the sizes, so names that hold it are known before anything is written.
    """
    sizes = np.asarray(sizes, np.int64)
    total = int(sizes.sum())
    count = max(1, math.ceil(total / limit))
    middle = np.cumsum(sizes) - sizes / 2
    which = np.minimum((middle * count / max(total, 1)).astype(np.int64), count - 1)
    parts = [np.flatnonzero(which == k) for k in range(count)]
    # Items larger than a file leave their neighbours empty.
    return [part for part in parts if len(part)] or [np.zeros(0, np.int64)]
