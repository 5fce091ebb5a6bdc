"""Why a run ends: its limits, or a signal."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """Turns the first SIGINT or SIGTERM into a flag, so that the run can end cleanly.

    A second signal raises KeyboardInterrupt at once: whoever asks twice does not want to wait. ``at_once``: the first
    one does, where there is nothing to be saved.
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
            raise KeyboardInterrupt
        self.signal = signal.Signals(number)
        if self._at_once:
            raise KeyboardInterrupt


class StopRules:
    """Reasons to end, each a function that gives a sentence once its limit is reached."""

    def __init__(self, rules: list[Callable[[], str]]) -> None:
        self._rules = rules

    def reason(self) -> str:
        """The first reason that holds, or an empty string."""
        return next((reason for rule in self._rules if (reason := rule())), "")
