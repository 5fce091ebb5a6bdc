"""Says in one line what the system has refused (memory, descriptors, space, files), instead of where it did so."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from rollmill.core.errors import MemoryFull

MARKS = (
    *("CUDA out of memory", "can't allocate memory", "CUDA error: out of memory"),
    *("Storage size calculation overflowed", "Invalid buffer size", "array is too big", "Maximum allowed dimension"),
)
"""In what torch and numpy say when memory is short, or no memory could be so large."""
SCARCE = (errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.EAGAIN)


@contextlib.contextmanager
def memory_is_named(advice: str) -> Iterator[None]:
    """Turn errors about memory, of torch, numpy or the system, into ``MemoryFull`` with ``advice``."""
    try:
        yield
    except (RuntimeError, ValueError, MemoryError, OSError) as error:
        if not is_about_memory(error):
            raise
        said = str(error).splitlines()[0].split(". GPU ")[0] if str(error) else "no memory is left"
        raise MemoryFull(f"out of memory: {said.rstrip('.')}. {advice}") from error


def is_about_memory(error: BaseException) -> bool:
    """Return whether an error says that there is no memory, on this machine or its GPU."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, MemoryError) or any(mark in str(error) for mark in MARKS)


def refused_by_system(error: BaseException) -> str:
    """Return what the system refused, in a line; empty for any other error, which may be a bug."""
    if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
        place = f"{error.filename}: " if error.filename else ""
        return f"{place}{error.strerror or error}" if place or error.errno in SCARCE else ""
    if is_about_memory(error):
        return f"out of memory: {(str(error) or 'no memory is left').splitlines()[0]}"
    return ""
