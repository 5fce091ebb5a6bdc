"""A function over many items in several processes; results come as they are ready.

Each process has a pipe of its own to this one. When this process dies, however it dies, its children read the end of
the pipe and leave. When a child dies, the item it was at is named.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, TypeVar

from rollmill.core.errors import RollmillError, StoreError
from rollmill.core.machine import available_cores

SAFE_PATH = "PYTHONSAFEPATH"

Item = TypeVar("Item")
Result = TypeVar("Result")


class ProcessDiedError(StoreError):
    """A child process was killed from outside."""


def map_unordered(
    function: Callable[[Item], Result], items: Sequence[Item], workers: int = 0
) -> Iterator[tuple[Item, Result]]:
    """(item, function(item)) for every item, as they are done.

    ``workers`` 0 takes one process for each core that this one may keep busy; 1 works in this process. ``function``
    must be importable by name. Errors it raises are raised here. Whoever stops listening ends the processes.
    """
    count = min(workers or available_cores(), len(items))
    if count <= 1:
        for item in items:
            yield item, function(item)
        return
    children = [_Child(function) for _ in range(count)]
    try:
        waiting = list(reversed(items))
        for child in children:
            child.give(waiting.pop())
        busy = {child.pipe: child for child in children}
        while busy:
            for ready in wait(list(busy)):
                child = busy[ready]  # type: ignore[index]
                item, result = child.take()
                if waiting:
                    child.give(waiting.pop())
                else:
                    del busy[child.pipe]
                yield item, result
    finally:
        for child in children:
            child.end()


@contextlib.contextmanager
def _safe_path() -> Iterator[None]:
    """Have a spawned Python not look for modules in the current folder, as ``process.module_command`` does."""
    before = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[SAFE_PATH]
        else:
            os.environ[SAFE_PATH] = before


class _Child(Generic[Item, Result]):
    """One process and the item it is at."""

    def __init__(self, function: Callable[[Item], Result]) -> None:
        # spawn: a fork would copy the locks of threads that do not exist in the child, and the other pipes' ends.
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, function), daemon=True)
        with _safe_path():
            self._process.start()
        theirs.close()
        self._item: Item

    def give(self, item: Item) -> None:
        self._item = item
        try:
            self.pipe.send(item)
        except OSError:
            raise self._died() from None

    def take(self) -> tuple[Item, Result]:
        try:
            failed, answer = self.pipe.recv()
        except (EOFError, OSError):
            raise self._died() from None
        if failed:
            raise answer
        return self._item, answer

    def _died(self) -> StoreError:
        self._process.join()
        return ProcessDiedError(
            f"a process ended (exit code {self._process.exitcode}) while it was at {self._item}; "
            "if the machine is short of memory, use fewer workers"
        )

    def end(self) -> None:
        self.pipe.close()
        self._process.terminate()
        self._process.join()


def _serve(pipe: Connection, function: Callable[[Any], Any]) -> None:
    """What a child does until its parent closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it too, and ends us
    while True:
        try:
            item = pipe.recv()
        except EOFError:
            return
        answer: tuple[bool, Any]
        try:
            answer = (False, function(item))
        except RollmillError as error:
            answer = (True, StoreError(str(error)))
        except Exception:  # noqa: BLE001 - goes home with its traceback and is raised there
            answer = (True, RuntimeError(f"in a process of its own:\n{traceback.format_exc()}"))
        pipe.send(answer)
