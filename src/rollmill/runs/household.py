"""A scratch folder and a janitor for as long as child processes may run."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

from rollmill.core.janitor import Janitor, child_environment

log = logging.getLogger("rollmill")


@contextlib.contextmanager
def household(inside: bool = False) -> Iterator[dict[str, str]]:
    """Gives the environment variables for child processes; when it ends, none of them is left.

    ``inside``: this process starts simulators itself (serial mode), so the variables are set here, too.
    The janitor goes by the environment a process was born with: it never takes this one for a leftover.
    """
    scratch = Path(tempfile.mkdtemp(prefix="rollmill-"))
    token = uuid.uuid4().hex
    janitor = Janitor.start(token, scratch)
    environment = child_environment(token, scratch)
    before = dict(os.environ)
    try:
        if inside:
            os.environ.update(environment)
        yield environment
    finally:
        if inside:
            os.environ.clear()
            os.environ.update(before)
        report = janitor.finish()
        if report.killed:
            log.warning("ended leftover processes: %s", ", ".join(map(str, report.killed)))
        shutil.rmtree(scratch, ignore_errors=True)
