"""Opening a file to read it, whatever somebody has put in its place.

``open`` waits for ever at a FIFO and never comes to the end of a device. Files whose names we only expect to be files
(in a store, among checkpoints) are opened with ``open(path, ..., opener=plain_file)``: anything else is an ``OSError``
that says what it is.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def plain_file(path: str, flags: int) -> int:
    """An opener for ``open``: a descriptor of a regular file."""
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


def read_text(path: Path) -> str:
    """The text of a regular file in UTF-8."""
    with open(path, encoding="utf-8", opener=plain_file) as file:
        return file.read()


def why_not_readable(path: Path) -> str:
    """Why ``plain_file`` would refuse this path, without opening it; "" if it would not.

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
