"""Whether this machine has room for what the settings ask for, judged before anything is started.

Only what would certainly fail is refused: memory that the shared rows and the worker processes take at the very least,
and descriptors of open files. What the network takes is not known here.
"""

from __future__ import annotations

import resource

from rollmill.core.errors import ConfigError
from rollmill.core.machine import available_memory
from rollmill.core.slots import OUTPUT_FIELDS, RECORD_BYTES

WORKER_BYTES = 20_000_000
"""What a Python process with numpy takes for itself."""
WORKER_FILES = 4
OTHER_FILES = 64
LEAST_ROW_BYTES = RECORD_BYTES + sum(field.nbytes for field in OUTPUT_FIELDS)
"""Of one row of experience, whatever the environment shows."""


def check_room(workers: int, nbytes: float, asked: str) -> None:
    """Raise ConfigError unless so many worker processes, and bytes beside them, fit here; ``asked``: the settings."""
    free = available_memory()
    need = workers * WORKER_BYTES + nbytes
    if free is not None and need > free:
        raise ConfigError(
            f"{asked}: that takes {need / 1e9:,.1f} GB of memory at least, and {free / 1e9:,.1f} GB are free here"
        )
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = workers * WORKER_FILES + OTHER_FILES
    if most != resource.RLIM_INFINITY and files > most:
        raise ConfigError(
            f"{asked}: that takes about {files:,} open files, and {most:,} are allowed (`ulimit -n` shows and sets it)"
        )
