"""A scratch folder and a janitor for as long as child processes may run."""

from __future__ import annotations

import contextlib
import logging
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

from rollmill.core.janitor import Janitor, child_environment

log = logging.getLogger("rollmill")


@contextlib.contextmanager
def household() -> Iterator[dict[str, str]]:
    """Gives the environment variables for child processes; when it ends, none of them is left."""
    scratch = Path(tempfile.mkdtemp(prefix="rollmill-"))
    token = uuid.uuid4().hex
    janitor = Janitor.start(token, scratch)
    try:
        yield child_environment(token, scratch)
    finally:
        report = janitor.finish()
        if report.killed:
            log.warning("ended leftover processes: %s", ", ".join(map(str, report.killed)))
        shutil.rmtree(scratch, ignore_errors=True)
