"""A process of ours seen from inside: how it begins, and what it tells the one that has started it (``core.process``).

Apart from there, because workers should start quickly and stay small.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import pickle
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rollmill.core import given
from rollmill.core.errors import RollmillError, error_text, trace_text
from rollmill.core.exits import leave

PARENT_CHECK_SECONDS = 2.0
"""Between two looks of a child at whether its parent is there, where the system does not end it."""

Reply = Callable[..., None]
"""Answers with one line: the keywords it is called with, as JSON."""


def die_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """Ask Linux to signal this process when the thread that started it ends, whatever it ended by."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, number, 0, 0, 0)


@dataclass(frozen=True)
class Parent:
    """The process that has started this one, as this one sees it."""

    pid: int
    events_fd: int

    @property
    def is_gone(self) -> bool:
        return os.getppid() != self.pid

    def tell(self, kind: str, data: Mapping[str, Any]) -> None:
        """Write one line of JSON into the events pipe (rare things only: faults, episode statistics)."""
        line = json.dumps({"kind": kind, **data}, default=str).encode() + b"\n"
        while line:
            line = line[os.write(self.events_fd, line) :]


def begin_child(setup_fd: int) -> tuple[Any, Parent]:
    """Set up a child process, and return what it is to do and who has started it; without a parent it ends here."""
    # Stopping is the parent's business: a Ctrl-C reaches the whole process group, a scheduler's SIGTERM the whole job.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    faulthandler.enable()
    die_with_parent()
    with os.fdopen(setup_fd, "rb") as pipe:
        pid, events_fd, path, own_code, setup = pickle.load(pipe)  # noqa: S301 - from our own parent, never from a file
    parent = Parent(pid, events_fd)
    if parent.is_gone:
        leave(1)
    os.set_inheritable(events_fd, False)
    sys.path[:] = path
    given.receive(own_code)
    return pickle.loads(setup), parent  # noqa: S301


def run_child(work: Callable[[Any, Parent], None]) -> int:
    """Do the work that the parent has sent, as the main function of a child's module; returns the exit code.

    What the work raises goes home as an event of the kind ``failed``, with the fields of ``failure``.
    """
    setup, parent = begin_child(int(sys.argv[1]))
    try:
        work(setup, parent)
    except BaseException as error:  # noqa: BLE001 - it goes home instead of being lost
        parent.tell("failed", failure(error))
        return error.exit_code if isinstance(error, RollmillError) else 1
    return 0


def failure(error: BaseException) -> dict[str, str]:
    """Describe an error: its ``type``, the ``error`` in words, and its ``trace`` unless the words explain it."""
    explained = isinstance(error, RollmillError)
    return {
        "type": type(error).__name__,
        "error": str(error) if explained else error_text(error),
        "trace": "" if explained else trace_text(error),
    }


def begin_errand(answer_fd: int) -> tuple[dict[str, Any], Reply]:
    """Set up the process of an errand, and return the question and the function that answers. A crash prints the stack
    of its threads.
    """
    faulthandler.enable()
    die_with_parent()
    os.set_inheritable(answer_fd, False)
    asked = json.load(sys.stdin)
    if os.getppid() != asked["parent"]:
        leave(1)
    sys.path[:] = asked["path"]
    given.receive(asked["own_code"])
    answers = os.fdopen(answer_fd, "w", encoding="utf-8")

    def reply(**line: Any) -> None:
        print(json.dumps(line), file=answers, flush=True)

    return asked["question"], reply
