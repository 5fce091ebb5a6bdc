"""A scratch folder and a janitor for as long as child processes may run."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

from rollmill.core.errors import ConfigError
from rollmill.core.exits import exits_are_exceptions
from rollmill.core.janitor import Janitor, child_environment, marked

log = logging.getLogger("rollmill")

SHOWN = 10
"""Leftover processes that are named."""


@contextlib.contextmanager
def process_scope(inside: bool = False) -> Iterator[dict[str, str]]:
    """Yield the environment variables for child processes, none of which is left when the block ends.

    That goes for all that this process starts meanwhile, in whatever way: see ``core.janitor``. ``inside``: simulators
    run in this process itself (serial mode), so the variables are set here, too, and they cannot end it.
    """
    token = uuid.uuid4().hex
    with _scratch_folder(token) as scratch, _janitor(token, scratch), marked(token):
        environment = child_environment(token, scratch)
        with _simulators_here(environment) if inside else contextlib.nullcontext():
            yield environment


@contextlib.contextmanager
def temporary_files_in(folder: Path | None) -> Iterator[None]:
    """Put temporary files of this process, and of all that it starts meanwhile, into ``folder``; None: where they
    usually lie. Raises ConfigError where nothing can be written there.
    """
    if folder is None:
        yield
        return
    folder = folder.absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(bytes(4096))
    except OSError as error:
        raise ConfigError(f"run.temp_dir={folder}: nothing can be written there: {error.strerror or error}") from error
    before, usual = os.environ.get("TMPDIR"), tempfile.tempdir
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = usual
        if before is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = before


@contextlib.contextmanager
def _simulators_here(environment: Mapping[str, str]) -> Iterator[None]:
    """Set the variables here, and take back what simulators have set besides; none that others need is ever missing."""
    before = dict(os.environ)
    try:
        os.environ.update(environment)
        with exits_are_exceptions():
            yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


@contextlib.contextmanager
def _scratch_folder(token: str) -> Iterator[Path]:
    """Yield where it is. The janitor makes and removes it; it is removed here, too, for when there is none."""
    scratch = Path(tempfile.gettempdir()) / f"rollmill-{token[:16]}"
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextlib.contextmanager
def _janitor(token: str, scratch: Path) -> Iterator[None]:
    janitor = Janitor.start(token, scratch)
    try:
        yield
    finally:
        report = janitor.finish()
        if report.killed:
            shown = ", ".join(map(str, report.killed[:SHOWN]))
            more = f" and {len(report.killed) - SHOWN:,} more" if len(report.killed) > SHOWN else ""
            log.warning("ended leftover processes: %s%s", shown, more)
