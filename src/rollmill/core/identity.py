"""Which process is meant: a pid alone may be somebody else's by now.

A process is told by its host, the boot of that host, its pid and the clock tick at which it started.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

PROC = Path("/proc")


@dataclass(frozen=True)
class Identity:
    """Names one process of one boot of one host, so that a later process with the same pid is not taken for it."""

    host: str
    boot: str
    pid: int
    started: int
    """Clock ticks since the boot."""

    @classmethod
    def of(cls, pid: int) -> Identity | None:
        """Return the process with this pid on this host; None if there is none (a zombie is none either)."""
        started = start_ticks(pid)
        return None if started is None else cls(socket.gethostname(), boot_id(), pid, started)

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Identity:
        return cls(str(value["host"]), str(value["boot"]), int(value["pid"]), int(value["started"]))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def is_here(self) -> bool:
        """Whether it runs (or ran) on this host, so that ``alive`` can tell."""
        return self.host == socket.gethostname()

    @property
    def alive(self) -> bool:
        """Whether it runs; only meaningful for processes of this host."""
        return self.boot == boot_id() and start_ticks(self.pid) == self.started

    def signal_group(self, number: signal.Signals) -> bool:
        """Signal the process group it leads, and never a process that took over its pid; False if it is gone."""
        if not self.is_here or not self.alive:
            return False
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return False
        return True


def boot_id() -> str:
    """Return an id that changes with every boot of the machine; empty where there is no ``/proc``."""
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def start_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since the boot; None if there is none, or if it is a zombie."""
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    state, *rest = text.rpartition(")")[2].split()  # the name before it may hold anything
    return None if state in "ZX" else int(rest[18])
