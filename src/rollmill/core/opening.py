"""Opening a file to read it, whatever somebody has put in its place.

``open`` waits for ever at a FIFO and never comes to the end of a device. Files whose names we only expect to be files
(in a store, among checkpoints) are opened with ``open(path, ..., opener=plain_file)``: anything else is an ``OSError``
that says what it is. Files that are read whole have a largest size, and JSON a largest depth: what is beyond it was not
written by us, and would take the memory or the stack.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

MOST_BYTES = 200_000_000
"""Of a file that is read whole."""
MOST_LINE_BYTES = 4_000_000
MOST_DEPTH = 64
"""Lists and mappings inside each other."""

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def plain_file(path: str, flags: int) -> int:
    """Open a path, as an opener for ``open``: returns a descriptor of a regular file, and refuses anything else."""
    # O_NONBLOCK: a FIFO opens at once and is then refused; regular files do not care.
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        fault = _fault(os.fstat(descriptor).st_mode)
        if fault:
            raise OSError(errno.EINVAL, fault, str(path))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_bytes(path: Path, most: int = MOST_BYTES, within: Path | None = None) -> bytes:
    """Read all of a regular file of up to ``most`` bytes. ``within``: a link must not lead out of this folder."""
    if within is not None:
        check_within(path, within)
    with open(path, "rb", opener=plain_file) as file:
        if os.fstat(file.fileno()).st_size > most:
            raise OSError(errno.EFBIG, f"it has more than {most:,} bytes", str(path))
        return file.read()


def check_within(path: Path, folder: Path) -> None:
    """Raise ``OSError`` if a link makes the path lead out of the folder: what is shown of a folder must lie in it."""
    try:
        place = path.resolve()
    except RuntimeError as error:  # a link to itself
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path)) from error
    if not place.is_relative_to(folder.resolve()):
        raise OSError(errno.EXDEV, f"it is a link that leads out of {folder}", str(path))


def read_text(path: Path, most: int = MOST_BYTES, within: Path | None = None) -> str:
    """Return the text of a regular file in UTF-8; see ``read_bytes``."""
    return read_bytes(path, most, within).decode("utf-8")


def read_json(path: Path, within: Path | None = None) -> Any:
    """Read a regular file as JSON; raises ``OSError`` or ``ValueError`` where that is not possible."""
    return parse_json(read_text(path, within=within))


def parse_json(text: str | bytes) -> Any:
    """Parse JSON that others may have written, as ``json.loads`` does.

    Raises ``ValueError``, too, where it is nested absurdly deep, or holds an integer that no 64 bits hold.
    """
    too_deep = f"nested more than {MOST_DEPTH} deep"
    try:
        found = json.loads(text, parse_int=_integer)
    except RecursionError:
        raise ValueError(too_deep) from None
    level, depth = ([found] if isinstance(found, dict | list) else []), 0
    while level:
        level = [inner for value in level for inner in _contents(value) if isinstance(inner, dict | list)]
        depth += 1
        if depth > MOST_DEPTH:
            raise ValueError(too_deep)
    return found


def _integer(digits: str) -> int:
    if len(digits) > 20:
        raise ValueError(f"an integer of {len(digits)} digits")
    return int(digits)


def _contents(value: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a regular file with their ends; raises ``OSError`` at one of more than a few megabytes."""
    with open(path, "rb", opener=plain_file) as file:
        while line := file.readline(MOST_LINE_BYTES + 1):
            if len(line) > MOST_LINE_BYTES:
                raise OSError(errno.EFBIG, f"a line has more than {MOST_LINE_BYTES:,} bytes", str(path))
            yield line


def why_not_readable(path: Path) -> str:
    """Return why ``plain_file`` would refuse this path, without opening it; "" if it would not.

    Raises ``FileNotFoundError`` where there is nothing at all.
    """
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        if not os.path.islink(path):
            raise
        return "it is a link to nowhere"
    except OSError as error:
        return error.strerror or str(error)
    fault = _fault(mode)
    effective = os.access in os.supports_effective_ids
    if not fault and not os.access(path, os.R_OK, effective_ids=effective):
        return os.strerror(errno.EACCES)
    return fault


def _fault(mode: int) -> str:
    if stat.S_ISREG(mode):
        return ""
    return f"it is {_KINDS.get(stat.S_IFMT(mode), 'something else')}, not a file"
