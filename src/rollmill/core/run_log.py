"""The log of a run: ``log.txt`` in its folder and, if asked, the console."""

from __future__ import annotations

import errno
import logging
import sys
from collections import deque
from logging.handlers import RotatingFileHandler
from typing import TextIO

from rollmill.core.errors import RunFolderError
from rollmill.core.run_folder import LOG_FILES, RunFolder
from rollmill.core.terminal import printable

LOG_BYTES = 20_000_000
WARNING_BURST = 5
WARNING_SECONDS = 60.0
"""At most so many warnings of one kind within so many seconds are shown on the console."""

_LOG = logging.getLogger("rollmill")


class CleanFormatter(logging.Formatter):
    """For every log: what is written of a message is ``printable``."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


class LogHandle:
    """The "rollmill" logger while it writes to a run folder; ``close`` puts everything back."""

    def __init__(self, handlers: list[logging.Handler]) -> None:
        self._handlers = handlers
        self._before = (_LOG.level, _LOG.propagate)
        _LOG.setLevel(logging.INFO)
        _LOG.propagate = False
        for handler in handlers:
            _LOG.addHandler(handler)

    def show(self) -> None:
        """Tell the console, now that the run has begun, what has happened until now, and what happens from now on.

        Until then it is told nothing: a start that fails says its error there, and nothing else. Only what is
        logged with ``AT_ONCE`` is shown before: what a user has to know who waits for the start.
        """
        for handler in self._handlers:
            if isinstance(handler, _Console):
                handler.show()

    def close(self) -> None:
        for handler in self._handlers:
            _LOG.removeHandler(handler)
            handler.close()
        if self._handlers:
            _LOG.setLevel(self._before[0])
            _LOG.propagate = self._before[1]
        self._handlers = []


class _LogFile(RotatingFileHandler):
    """A log that cannot be written (full disk) says so once on stderr; the run goes on."""

    _complained = False

    def handleError(self, record: logging.LogRecord) -> None:
        self._complain(sys.exc_info()[1])

    def close(self) -> None:
        try:
            super().close()
        except OSError as error:
            self._complain(error)

    def _complain(self, error: BaseException | None) -> None:
        if not self._complained:
            self._complained = True
            print(f"{self.baseFilename}: cannot be written: {error}", file=sys.stderr, flush=True)


def open_log(folder: RunFolder, to_console: bool) -> LogHandle:
    """Send the "rollmill" logger to ``log.txt`` (3 files of 20 MB at most) and, if asked, to stderr."""
    try:
        if folder.log.is_fifo():  # opening it would wait for a reader
            raise OSError(errno.EINVAL, "it is a FIFO, not a file")
        file = _LogFile(folder.log, maxBytes=LOG_BYTES, backupCount=LOG_FILES - 1, encoding="utf-8")
    except OSError as error:
        raise RunFolderError(f"{folder.log}: cannot be written: {error.strerror or error}") from error
    file.setFormatter(CleanFormatter("%(asctime)s %(levelname)-7s %(message)s"))
    handlers: list[logging.Handler] = [file]
    if to_console:
        console = _Console()
        console.setFormatter(_ConsoleFormat("%(asctime)s %(message)s", "%H:%M:%S"))
        handlers.append(console)
    return LogHandle(handlers)


class _Console(logging.StreamHandler[TextIO]):
    """Stderr, from ``show`` on, with few warnings of one kind at a time: all of them are in ``log.txt``."""

    last_error = ""

    def __init__(self) -> None:
        super().__init__()
        self._recent: dict[str, deque[float]] = {}
        self._held: list[logging.LogRecord] | None = []

    def show(self) -> None:
        held, self._held = self._held or [], None
        for record in held:
            self.emit(record)

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno == logging.WARNING:
            recent = self._recent.setdefault(str(record.msg), deque(maxlen=WARNING_BURST))
            if len(recent) == WARNING_BURST and record.created - recent[0] < WARNING_SECONDS:
                return False
            recent.append(record.created)
            record.was_last = len(recent) == WARNING_BURST and record.created - recent[0] < WARNING_SECONDS
        return True

    def emit(self, record: logging.LogRecord) -> None:
        if self._held is not None and not getattr(record, "at_once", False):
            self._held.append(record)
            return
        super().emit(record)
        if record.levelno >= logging.ERROR:
            _Console.last_error = record.getMessage()


def told_on_console(text: str) -> bool:
    """Return whether the last error that the log of a run has shown on stderr holds this text."""
    return bool(text) and text in _Console.last_error


class _ConsoleFormat(CleanFormatter):
    """Plain lines; the level is named where it is more than information."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        line = super().formatMessage(record)
        if getattr(record, "was_last", False):
            line = f"{line}; more warnings like this one are in log.txt"
        return line if record.levelno <= logging.INFO else f"{line} [{record.levelname.lower()}]"
