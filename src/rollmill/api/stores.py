"""Opening a trajectory store."""

from __future__ import annotations

import os
from pathlib import Path

from rollmill.core.run_folder import RunFolder, is_run
from rollmill.store.reader import Store


def open_store(path: str | os.PathLike[str], *, verify: bool = True, unfinished: bool = False) -> Store:
    """Open the episodes that were recorded or collected in a folder; a run folder stands for its ``data``.

    ``verify``: check the checksum of everything that is read. ``unfinished``: list episodes that have no end yet, too.
    """
    folder = Path(path)
    own = RunFolder(folder).data
    return Store(own if is_run(folder) and own.is_dir() else folder, verify=verify, unfinished=unfinished)
