"""Says what to do when memory is short, instead of how torch ran out of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rollmill.core.errors import MemoryFull

MARKS = ("CUDA out of memory", "can't allocate memory", "CUDA error: out of memory")


@contextlib.contextmanager
def memory_is_named(advice: str) -> Iterator[None]:
    """Turn torch's errors about memory, on a GPU or not, into ``MemoryFull`` with ``advice``."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not isinstance(error, MemoryError) and not any(mark in str(error) for mark in MARKS):
            raise
        said = str(error).splitlines()[0].split(". GPU ")[0] if str(error) else "no memory is left"
        raise MemoryFull(f"out of memory: {said.rstrip('.')}. {advice}") from error
