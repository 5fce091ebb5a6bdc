"""Lets the main process and the workers talk: by numbers in shared memory, and wakeups.

A command to a group is "step from row ``row`` of slot ``slot``" (row -1: reset into row 0). The main
process writes slot and row, then raises ``command``; the worker does the work, then sets ``done`` to
it. So a group is *ready* for inference exactly when ``command == done``; there is no other state, and
a dead worker leaves nothing locked. Wakeups only wake sleepers; the numbers are the truth.

Only somebody who says that it may sleep (``main_sleeping``, ``sleeping``) is notified: that is a system call, and in
the main process each one lets another thread take the interpreter. So a sleeper first says so, then looks at the
numbers once more, and then sleeps.
"""

from __future__ import annotations

import os
import select
import time

import numpy as np

from rollmill.core.fields import Array, Field
from rollmill.core.slots import SharedBlock, layout_arrays

GROUP_FIELDS = ("command", "done", "slot", "row")
WORKER_FIELDS = ("since", "env", "episode", "step", "phase", "seconds_env", "seconds_wait", "sleeping")
SINCE, ENV, EPISODE, STEP, PHASE, SECONDS_ENV, SECONDS_WAIT, SLEEPING = range(8)
"""Their places in a worker's line."""
AWAKE_SECONDS = 0.001
"""How long somebody with a core of its own looks out for news before it sleeps."""
LINE_BYTES = 64
"""Each worker writes its numbers into a cache line of its own: no two cores fight for one."""
LINE = np.dtype(
    {
        "names": WORKER_FIELDS,
        "formats": ["f8", "i8", "i8", "i8", "i8", "f8", "f8", "i8"],
        "itemsize": LINE_BYTES,
    }
)


class Mailbox:
    """The shared numbers: per group, per worker, per env."""

    command: Array  # [G] int64, written by main
    done: Array  # [G] int64, written by the worker
    slot: Array  # [G] int64, written by main
    row: Array  # [G] int64, written by main
    phase: Array  # [W] int64, what the worker's env code is doing (envs.batch phases), 0 = not in it
    env: Array  # [W] int64, which env that is
    episode: Array  # [W] int64
    step: Array  # [W] int64
    since: Array  # [W] float64, monotonic seconds when the phase began
    seconds_env: Array  # [W] float64, time spent stepping since the start
    seconds_wait: Array  # [W] float64, time spent waiting for actions
    sleeping: Array  # [W] int64, written by the worker: it must be notified to see a command
    next_episode: Array  # [E] int64, first unused episode number of every env
    variables: Array  # [P, D] float64, written by main: ``env.variables`` in the order of the config, for each policy
    stop: Array  # [1] int64, written by main
    wanted: Array  # [1] int64, written by main: ready groups it waits for; workers notify it from then on
    main_sleeping: Array  # [1] int64, written by main: 0 while it looks at the numbers by itself before it sleeps

    def __init__(
        self,
        groups: int,
        workers: int,
        envs: int,
        block: SharedBlock | None = None,
        *,
        variables: int = 0,
        policies: int = 1,
    ) -> None:
        fields: list[tuple[Field, tuple[int, ...]]] = [(Field(name, "int64"), (groups,)) for name in GROUP_FIELDS]
        fields += [(Field("next_episode", "int64"), (envs,))]
        fields += [(Field(name, "int64"), (1,)) for name in ("stop", "wanted", "main_sleeping")]
        fields += [(Field("variables", "float64"), (policies, variables))]
        offsets, nbytes = layout_arrays([(Field("lines", f"V{LINE_BYTES}"), (workers,)), *fields])
        self.block = block or SharedBlock.create(nbytes)
        for field, shape in fields:
            setattr(self, field.name, self.block.array(field.dtype, shape, offsets[field.name]))
        self._offsets = offsets
        self._lines_at = offsets["lines"]
        lines = self.block.array(LINE, (workers,), self._lines_at)
        for name in WORKER_FIELDS:
            setattr(self, name, lines[name])
        if block is None:
            self.main_sleeping[0] = 1

    def numbers(self, name: str) -> memoryview:
        """Return the array of int64 of that name as a memoryview, for who reads and writes few at a time."""
        return self.block.raw(self._offsets[name], getattr(self, name).nbytes).cast("q")

    def line(self, worker: int) -> memoryview:
        """Return the bytes of one worker's numbers, in the order of ``WORKER_FIELDS``."""
        return self.block.raw(self._lines_at + worker * LINE_BYTES, LINE_BYTES)

    def ready(self) -> Array:
        """Return the groups whose last command is done: their newest row waits for an action."""
        found: Array = (self.command == self.done).nonzero()[0]
        return found

    def missing(self) -> int:
        """Return how many groups more must become ready before the main process infers; 0 when enough are."""
        return max(0, int(self.wanted[0]) - int(np.count_nonzero(self.command == self.done)))

    def enough_ready(self) -> bool:
        """Return whether as many groups are ready as the main process waits for."""
        return not self.missing()

    def restart(self, groups: Array) -> None:
        """Tell groups (of a new worker) to begin again at row 0 of the slot they hold."""
        self.row[groups] = -1
        self.command[groups] = self.done[groups] + 1


class Wakeup:
    """Wakes a sleeping process. Ringing twice before anybody wakes counts once."""

    def __init__(self, fd: int, notify_fd: int | None = None) -> None:
        self.fd = fd
        self.notify_fd = fd if notify_fd is None else notify_fd
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)

    @classmethod
    def create(cls) -> Wakeup:
        if hasattr(os, "eventfd"):
            return cls(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
        read, write = os.pipe()  # pragma: no cover - macOS
        os.set_blocking(read, False)
        os.set_blocking(write, False)
        return cls(read, write)

    @property
    def fds(self) -> tuple[int, ...]:
        return (self.fd,) if self.fd == self.notify_fd else (self.fd, self.notify_fd)

    def notify(self) -> None:
        try:
            os.write(self.notify_fd, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        except BlockingIOError:
            return  # it is notified already

    def clear(self) -> None:
        """Forget past notifications; called before looking at the numbers, so that no later one is lost."""
        try:
            os.read(self.fd, 8)
        except BlockingIOError:
            return  # nobody had notified it

    def wait(self, timeout: float | None) -> bool:
        """Sleep until it is notified; False when the time-out (seconds) passed first."""
        return bool(self._poll.poll(None if timeout is None else max(0, int(timeout * 1000))))

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)


class SharedWatch:
    """Writes into the mailbox what a worker's env code is doing, so that main can see a hang."""

    def __init__(self, mailbox: Mailbox, worker: int) -> None:
        line = mailbox.line(worker)
        self._seconds, self._numbers = line.cast("d"), line.cast("q")

    def enter(self, env: int, phase: int, episode: int, step: int) -> None:
        # One number after the other, the phase last: main looks at any time, and must not see a phase without its time.
        self._seconds[SINCE] = time.monotonic()
        numbers = self._numbers
        numbers[ENV] = env
        numbers[EPISODE] = episode
        numbers[STEP] = step
        numbers[PHASE] = phase

    def leave(self) -> None:
        self._numbers[PHASE] = 0
