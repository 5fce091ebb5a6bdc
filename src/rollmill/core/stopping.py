"""What a signal does to a run."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence

from rollmill.core.errors import Interrupted

TYPE_CHECKING = False  # as in ``rollmill/__init__.py``: every command imports this
if TYPE_CHECKING:
    from types import FrameType, TracebackType
    from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
SAME_SECONDS = 1.0
"""Signals so close to each other are one wish: schedulers send theirs to a process, and to its group."""


AGAIN_SECONDS = 0.05


class Interrupt:
    """Turns the first SIGINT or SIGTERM into a flag, so that the run can end cleanly.

    A second signal raises Interrupted at once: whoever asks twice does not want to wait. ``at_once``: the first one
    does, where there is nothing to be saved.
    """

    def __init__(self, signals: Sequence[signal.Signals] = SIGNALS, at_once: bool = False) -> None:
        self._signals, self._at_once = signals, at_once
        self.signal: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            for number in self._signals:
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, _type: type[BaseException] | None, _e: BaseException | None, _t: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self.signal is not None:
            raise Interrupted(number)
        self.signal = signal.Signals(number)
        if self._at_once:
            raise Interrupted(number)


class CommandSignals:
    """SIGINT and SIGTERM for a whole command, wherever nobody has a better plan (``Interrupt``): for the main thread.

    Until it is ``loaded`` they end the process on the spot: nothing has begun. Then they raise Interrupted, so that
    everything is put away and written down; but not among modules that are being imported, where exceptions get lost,
    are taken for something else, or crash the interpreter (torch): there, they wait.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._loaded = False
        self._raised = -SAME_SECONDS
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup and shells set it for what is to go on
                signal.signal(number, self._on_signal)

    def loaded(self) -> None:
        self._loaded = True

    def ignore(self) -> None:
        """Ignore the signals from now on: it is over, and there is nothing left to be ended."""
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self._loaded:
            os.write(2, f"{self._name}: interrupted\n".encode())
            os._exit(128 + number)
        if _imports(frame):
            again = threading.Timer(AGAIN_SECONDS, os.kill, (os.getpid(), number))
            again.daemon = True
            again.start()
        elif time.monotonic() - self._raised > SAME_SECONDS:
            self._raised = time.monotonic()
            raise Interrupted(number)


def _imports(frame: FrameType | None) -> bool:
    """Return whether a module is being imported where a signal came in."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


# A forked child ends by a signal as any other process: the run's plans are not its own. Signals wait meanwhile, as one
# that comes before the child has forgotten those plans would be lost.
_mask = threading.local()


def _before_fork() -> None:
    _mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def _after_fork() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _mask.before)


def _after_fork_in_child() -> None:
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
        owner = getattr(signal.getsignal(number), "__self__", None)
        if isinstance(owner, Interrupt | CommandSignals):
            signal.signal(number, usual)
    _after_fork()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
