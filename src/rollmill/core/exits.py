"""How processes end: this one without waiting for anybody, others in words."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator

TYPE_CHECKING = False  # as in ``rollmill/__init__.py``: every command imports this
if TYPE_CHECKING:
    from typing import NoReturn

FAREWELL_SECONDS = 1.0
"""What functions registered with ``atexit`` may take, all together."""


def leave(code: int) -> NoReturn:
    """End this process now, with an exit code; what was printed is written.

    Python's own way out waits without limit: for threads that user code has started, for children it has forked, for
    destructors of simulators. What was registered with ``atexit`` is still called, for a moment.
    """
    last = threading.Thread(target=atexit._run_exitfuncs, daemon=True)
    last.start()
    last.join(FAREWELL_SECONDS)
    for stream in filter(None, (sys.stdout, sys.stderr)):  # None: the process was started without it
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
            stream.flush()
    os._exit(code)


@contextlib.contextmanager
def exits_are_exceptions() -> Iterator[None]:
    """Let ``os._exit``, called by this thread, raise SystemExit: for user code that runs in a run's main process.

    There, a simulator that ends "its" process would end the run, without a word and with an exit code of its choice.
    Other threads, and children that were forked, end as they mean to.
    """
    really, process, thread = os._exit, os.getpid(), threading.get_ident()

    def raise_here(status: int) -> NoReturn:
        if (os.getpid(), threading.get_ident()) != (process, thread):
            really(status)
        raise SystemExit(status)

    os._exit = raise_here
    try:
        yield
    finally:
        os._exit = really


def describe_exit(code: int) -> str:
    """Say ``was killed by signal 11 (SIGSEGV)`` or ``ended with exit code 3``, from a ``Popen.returncode``."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by signal {-code} ({signal.Signals(-code).name})"
    except ValueError:  # a real-time signal has no name
        return f"was killed by signal {-code}"
