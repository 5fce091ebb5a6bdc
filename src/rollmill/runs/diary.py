"""The diary of a run, opened before anything starts."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from rollmill.core import atomic
from rollmill.core.checkpoints import Loaded, restoring
from rollmill.core.config import differences, dump_yaml, to_dict
from rollmill.core.diary import Diary
from rollmill.core.run_folder import Mode, RunFolder
from rollmill.core.tree_file import stored_checksum

log = logging.getLogger("rollmill")


def open_diary(folder: RunFolder, config: object, mode: Mode, command: Sequence[str], loaded: Loaded | None) -> Diary:
    """Write down config and origin; ``loaded`` is the checkpoint the run goes on from."""
    changes: dict[str, tuple[Any, Any]] = {}
    if loaded is not None:
        with restoring(loaded.path, "config"):
            changes = differences(loaded.state["config"], to_dict(config))
    if mode == "resume" and folder.diary.exists():
        diary = Diary.open(folder.diary)
    else:
        diary = Diary.create(folder.diary, command)
        if loaded is not None:
            diary.set_parent(loaded.path, loaded.frames, stored_checksum(loaded.path), changes)
    diary.begin_session(command, loaded.frames if loaded else 0, changes)
    if mode != "resume":
        atomic.write_text(folder.config, dump_yaml(config))
    log.info("run folder %s", folder.path)
    for key, (old, new) in changes.items():
        log.info("changed since the checkpoint: %s: %s -> %s", key, old, new)
    return diary
