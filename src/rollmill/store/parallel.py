"""A function over many items in several processes; results come as they are ready.

Each process has a pipe of its own to this one. When a process dies, the item it was at is named.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, Generic, TypeVar

from rollmill.core.child import Parent, run_child
from rollmill.core.errors import RollmillError, StoreError, trace_text
from rollmill.core.machine import available_cores
from rollmill.core.process import Child, OutputLog

Item = TypeVar("Item")
Result = TypeVar("Result")


class ProcessDiedError(StoreError):
    """A child process was killed from outside."""


def map_unordered(
    function: Callable[[Item], Result], items: Sequence[Item], workers: int = 0
) -> Iterator[tuple[Item, Result]]:
    """Yield (item, function(item)) for every item, as they are done.

    ``workers`` 0 takes one process for each core that this one may keep busy; 1 works in this process. ``function``
    must be importable by name. Errors it raises are raised here. Whoever stops listening ends the processes.
    """
    count = min(workers or available_cores(), len(items))
    if count <= 1:
        for item in items:
            yield item, function(item)
        return
    children = [_Worker(function, number) for number in range(count)]
    try:
        waiting = list(reversed(items))
        for child in children:
            child.give(waiting.pop())
        busy = list(children)
        while busy:
            ready = wait([child.pipe for child in busy] + [c.output.fd for c in busy if not c.output.ended])
            for child in list(busy):
                if child.output.fd in ready:
                    child.log_output()
                if child.pipe not in ready:
                    continue
                yield child.take()
                if waiting:
                    child.give(waiting.pop())
                else:
                    busy.remove(child)
    finally:
        for child in children:
            child.stop()


class _Worker(Child, Generic[Item, Result]):
    """One process and the item it is at."""

    def __init__(self, function: Callable[[Item], Result], number: int) -> None:
        self.pipe, theirs = Pipe()
        super().__init__(__name__, (function, theirs.fileno()), os.environ, {theirs.fileno()})
        theirs.close()
        self._log = OutputLog(f"process {number}")
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

    def log_output(self) -> None:
        """Take what it has printed: a full pipe would hold it up."""
        self._log.write(self.read_output())

    def _died(self) -> StoreError:
        return ProcessDiedError(
            f"a process {self.how_it_ended()} while it was at {self._item}; "
            "if the machine is short of memory, use fewer workers"
        )

    def stop(self) -> None:
        self.pipe.close()
        self.end()
        self.log_output()
        self._log.close()
        self.close()


def _serve(setup: tuple[Callable[[Any], Any], int], _parent: Parent) -> None:
    """Answer every item from the pipe with the function's result, until the parent closes the pipe."""
    function, fd = setup
    os.set_inheritable(fd, False)  # a simulator that it leaves behind must not hold the pipe open
    pipe = Connection(fd)
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
        except Exception as error:  # noqa: BLE001 - goes home with its traceback and is raised there
            answer = (True, RuntimeError(f"in a process of its own:\n{trace_text(error)}"))
        pipe.send(answer)


if __name__ == "__main__":
    sys.exit(run_child(_serve))
