"""Cleans text on its way to a terminal or a log.

Names and messages of environments, policies and files of others may hold escape sequences, which would move the cursor,
hide lines or change the title of the window. Commands print through ``clean_output``, logs are written with
``run_log.CleanFormatter``; whoever draws (a bar, a panel) asks for the stream below with ``drawing`` and cleans what it
shows.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterable, Iterator

TYPE_CHECKING = False  # as in ``rollmill/__init__.py``: every command imports this
if TYPE_CHECKING:
    from typing import Any, TextIO

AT_ONCE = {"at_once": True}
"""The ``extra`` of a log message that the console shows before the run has begun, too (``run_log.LogHandle.show``)."""

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but tab and line feed, marks that turn the direction of text, and halves of characters."""


def printable(text: str) -> str:
    r"""Return the text with control characters as one reads them: ``\x1b``."""
    return _CONTROL.sub(_escape, text.replace("\r\n", "\n"))


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


class CleanStream:
    """A stream of text that writes what is ``printable``; everything else is that of the stream below.

    It says that it is no terminal, so that libraries leave their colours out.
    """

    def __init__(self, below: TextIO) -> None:
        self.below = below

    def write(self, text: str) -> int:
        self.below.write(printable(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def isatty(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.below, name)


def drawing(stream: TextIO) -> TextIO:
    """Return the stream itself, for those who move the cursor and colour text."""
    return stream.below if isinstance(stream, CleanStream) else stream


@contextlib.contextmanager
def clean_output() -> Iterator[None]:
    """Make what is printed inside ``printable``, whoever prints it."""
    with contextlib.ExitStack() as stack:
        for stream, redirect in (
            (sys.stdout, contextlib.redirect_stdout),
            (sys.stderr, contextlib.redirect_stderr),
        ):
            if stream is not None and not isinstance(stream, CleanStream):  # None: the process was started without it
                stack.enter_context(redirect(CleanStream(stream)))
        yield
