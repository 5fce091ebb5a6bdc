"""What the tools of ``rollmill data`` share: a line of progress, and ending cleanly at a signal."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rollmill.core.errors import Interrupted
from rollmill.core.stopping import Interrupt
from rollmill.core.terminal import drawing, printable
from rollmill.core.text import bytes_text
from rollmill.monitor.console import count_text, duration_text

Tell = Callable[[int, int], None]

_EVERY_S = 0.1


@contextmanager
def progress(label: str, unit: str = "steps", hint: str = "") -> Iterator[Tell]:
    """Yield a function of (done, total) that shows them on a terminal, and raises ``Interrupted`` after a signal.

    ``hint`` tells how an interrupted job is continued. A second signal ends the work at once.
    """
    line = _Line(label, unit)
    with Interrupt() as interrupt:

        def tell(done: int, total: int) -> None:
            line.show(done, total)
            if interrupt.signal is not None and done < total:
                raise Interrupted(interrupt.signal, hint)

        try:
            yield tell
        finally:
            line.close()


class _Line:
    """One line on stderr, drawn again and again; nothing where stderr is no terminal."""

    def __init__(self, label: str, unit: str) -> None:
        self._label = label
        self._text = bytes_text if unit == "bytes" else lambda value: f"{count_text(value)} {unit}"
        self._stream = drawing(sys.stderr)
        self._on = self._stream.isatty()
        self._started = self._drawn = time.monotonic()
        self._shown = False

    def show(self, done: int, total: int) -> None:
        now = time.monotonic()
        if not self._on or (now - self._drawn < _EVERY_S and done < total):
            return
        self._drawn, self._shown = now, True
        share = done / total if total else 1.0
        left = (now - self._started) * (1 - share) / share if share > 0 else 0.0
        rest = f", {duration_text(left)} left" if 0 < share < 1 else ""
        text = f"{printable(self._label)}: {share:4.0%} of {self._text(total)}{rest}"
        width = shutil.get_terminal_size().columns - 1
        print(f"\r{text[:width]:{width}}", end="", file=self._stream, flush=True)

    def close(self) -> None:
        if self._shown:
            print(file=sys.stderr, flush=True)
