"""Starts, watches and ends processes of our own beside this one.

Each runs a module of ours, ``python -m MODULE FD``, which begins with a call of ``core.child``. There are two kinds:

``Child``   serves this process for as long as it is wanted. What it is to do comes through a pipe, and so does what it
            tells and prints.
``Errand``  is asked one thing, about code that may hang, crash the interpreter, start threads and processes, and leave
            them. What it answers counts from the moment it is written, whatever happens to it afterwards. Question,
            answers and what it prints are files: a pipe would hold it up when full, and would be held open by whatever
            simulator it leaves behind.

Both die with this process, whatever ends it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, Any

from rollmill.core import given
from rollmill.core.exits import describe_exit
from rollmill.core.text import cut

log = logging.getLogger("rollmill")

POLL_SECONDS = 0.01
NOISE_CHARACTERS = 2000
RECENT_SECONDS = 600.0
RECENT_LINES = 200
"""Lines of output logged per ten minutes; more are counted, not logged."""
READ_BYTES = 1 << 16
MOST_READS = 16
"""A pipe holds less than so many reads, unless an administrator has changed that."""
PENDING_BYTES = 1 << 20
"""Of a line of output that does not end; then it is taken for one that does."""
LINE_CHARACTERS = 500
LAST_LINES = 60
CRASHED = "Fatal Python error"
"""How ``faulthandler`` begins."""


# -- starting ---------------------------------------------------------------------------------------


def module_command(module: str, *words: str) -> list[str]:
    """Return the command line that runs a module, one of ours mostly, in a process of its own.

    ``-P``: Python would look into the current folder first, for every module, and that may be somebody else's folder.
    """
    return [sys.executable, "-P", "-m", module, *words]


def start_module(
    module: str, *words: str, environment: Mapping[str, str], inherit: Iterable[int] = (), **streams: Any
) -> subprocess.Popen[Any]:
    """Run a module of ours, which finds modules where this process does; ``inherit``: descriptors that it gets.

    It has a process group of its own: a Ctrl-C in the terminal is for this process, which ends the others in order.
    """
    return subprocess.Popen(
        module_command(module, *words),
        env={**environment, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        pass_fds=tuple(inherit),
        process_group=0,
        **streams,
    )


# -- children ---------------------------------------------------------------------------------------


class Lines:
    """Takes lines out of a pipe as they come; reading never waits.

    ``longest``: bytes after which a line that does not end is taken for one, as is the last of all; None: never.
    """

    def __init__(self, fd: int, longest: int | None = None) -> None:
        os.set_blocking(fd, False)
        self.fd, self._longest, self._rest = fd, longest, b""
        self.ended = False
        """Nobody has the other end any more."""

    def read(self, most: int = 1) -> list[bytes]:
        """Return lines that have come, after at most ``most`` reads: who has the other end may never stop writing."""
        found: list[bytes] = []
        with contextlib.suppress(BlockingIOError):
            for _ in range(most):
                data = os.read(self.fd, READ_BYTES)
                *lines, self._rest = (self._rest + data).split(b"\n")
                found += lines
                self.ended = not data
                if self._longest is not None and len(self._rest) > (0 if self.ended else self._longest):
                    found.append(self._rest)
                    self._rest = b""
                if self.ended:
                    break
        return found

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until something has come, or nothing will any more; returns False after ``timeout`` seconds."""
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        return bool(poll.poll(None if timeout is None else int(timeout * 1000)))

    def close(self) -> None:
        os.close(self.fd)


class Child:
    """A process that serves this one; see the module's text.

    ``setup``: what it is to do, pickled. ``inherit``: descriptors that it gets besides. What it tells and prints has to
    be read now and then: a full pipe would hold it up.
    """

    def __init__(self, module: str, setup: object, environment: Mapping[str, str], inherit: Iterable[int] = ()) -> None:
        setup_read, setup_write, events_read, events_write, output_read, output_write = _pipes(3)
        try:
            self._process = start_module(
                module,
                str(setup_read),
                environment=environment,
                inherit={setup_read, events_write, *inherit},
                stdin=subprocess.DEVNULL,
                stdout=output_write,
                stderr=output_write,
            )
        except BaseException:
            _close(setup_write, events_read, output_read)
            raise
        finally:
            _close(setup_read, events_write, output_write)
        self.events = Lines(events_read)
        self.output = Lines(output_read, PENDING_BYTES)
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)
        """Of its output."""
        start = (os.getpid(), events_write, sys.path, given.packed(), pickle.dumps(setup))
        with contextlib.suppress(BrokenPipeError), os.fdopen(setup_write, "wb") as pipe:
            pickle.dump(start, pipe)  # one that died at once is seen by whoever looks next

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def code(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        return self._process.poll()

    @property
    def alive(self) -> bool:
        return self.code is None

    def ends_within(self, seconds: float | None) -> bool:
        """Wait for it to end by itself, for so many seconds at most; returns whether it has."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def how_it_ended(self) -> str:
        return describe_exit(self._process.wait())

    def read_events(self, most: int = MOST_READS) -> list[dict[str, Any]]:
        """Return what it has told since the last time, with its ``kind``."""
        return [json.loads(line) for line in self.events.read(most)]

    def read_output(self, most: int = MOST_READS) -> list[str]:
        """Return the lines that it has printed since the last time; of long ones the beginning."""
        lines = [cut(line.decode(errors="replace"), LINE_CHARACTERS) for line in self.output.read(most)]
        self.last_lines += lines
        return lines

    def crash_stack(self) -> str:
        """Return what Python wrote when it crashed, and nothing otherwise."""
        lines = list(self.last_lines)
        begin = next((n for n, line in enumerate(lines) if line.startswith(CRASHED)), len(lines))
        return "\n".join(lines[begin:])

    def end(self, patience: float = 0.0) -> None:
        """See that it has ended: by itself within so many seconds, or else by force."""
        if not self.ends_within(patience):
            self._process.kill()
            self._process.wait()

    def close(self) -> None:
        """Forget what it has said; it has ended."""
        _close(self.events.fd, self.output.fd)


class Recent:
    """Counts what has happened within the last ten minutes."""

    def __init__(self) -> None:
        self._times: deque[float] = deque()

    @property
    def count(self) -> int:
        while self._times and self._times[0] < time.monotonic() - RECENT_SECONDS:
            self._times.popleft()
        return len(self._times)

    def add(self) -> int:
        """Note that it has happened now; returns the count with it."""
        self._times.append(time.monotonic())
        return self.count


class OutputLog:
    """Logs what processes print, within bounds: a chatty simulator must not fill the disk."""

    def __init__(self, name: str) -> None:
        self._name, self._recent, self._dropped = name, Recent(), 0

    def write(self, lines: Iterable[str]) -> None:
        for line in lines:
            if self._recent.count < RECENT_LINES:
                self._recent.add()
                log.info("%s: %s", self._name, line)
            else:
                self._dropped += 1

    def close(self) -> None:
        if self._dropped:
            log.warning("%s: %d lines of output were not logged (too many)", self._name, self._dropped)


def _pipes(count: int) -> list[int]:
    """Open so many pipes, and return both ends of each; none stays open where there are too few descriptors."""
    found: list[int] = []
    try:
        for _ in range(count):
            found += os.pipe()
    except OSError:
        _close(*found)
        raise
    return found


def _close(*fds: int) -> None:
    for fd in fds:
        os.close(fd)


# -- errands ----------------------------------------------------------------------------------------


class Errand:
    """A running process that was asked something; ``close`` ends it, and all that is still in its process group."""

    def __init__(
        self, module: str, question: Mapping[str, Any], environment: Mapping[str, str], files: Sequence[int] = ()
    ) -> None:
        """Start the process; ``files`` are descriptors that it inherits besides."""
        self._files = contextlib.ExitStack()
        asked, self._answer, self._noise = (self._open() for _ in range(3))
        start = {"question": question, "path": sys.path, "own_code": given.packed(), "parent": os.getpid()}
        asked.write(json.dumps(start).encode())
        asked.seek(0)
        answer = self._answer.fileno()
        self._process = start_module(
            module,
            str(answer),
            environment=environment,
            inherit=(answer, *files),
            stdin=asked,
            stdout=self._noise,
            stderr=self._noise,
        )

    def _open(self) -> IO[bytes]:
        return self._files.enter_context(tempfile.TemporaryFile())

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether it has ended. Only ``close`` takes its exit code from the system: until then nobody else gets its
        pid, nor that of its group.
        """
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # user code in this process has taken note, or has Linux do it (SIGCHLD is ignored)
            return True

    @property
    def lines(self) -> list[dict[str, Any]]:
        """What it has answered so far, but for a last line that is half written."""
        return [json.loads(line) for line in _content(self._answer).splitlines(keepends=True) if line.endswith("\n")]

    @property
    def noise(self) -> str:
        """What it has printed so far."""
        return _content(self._noise)

    @property
    def last_noise(self) -> str:
        return self.noise[-NOISE_CHARACTERS:].strip()

    def first_line(self, timeout: float | None) -> dict[str, Any] | None:
        """Wait for its first answer; None where it ended without one. Raises TimeoutError after so many seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not (ended := self.has_ended) and not self.lines:
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"no answer within {timeout:g} s")
            time.sleep(POLL_SECONDS)
        lines = self.lines
        assert lines or ended
        return lines[0] if lines else None

    def ends_within(self, seconds: float) -> bool:
        """Wait for it to end by itself, for so many seconds at most; returns whether it has."""
        deadline = time.monotonic() + seconds
        while not (ended := self.has_ended) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        return ended

    def end(self) -> str:
        """End it, with whatever is left in its group; says how it ended, of its own will or not."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        return describe_exit(self._process.wait())

    def close(self) -> None:
        """End it, and forget its answers. It may be called again."""
        self.end()
        self._files.close()

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)


def _content(file: IO[bytes]) -> str:
    """Return all of a file's text, without moving the place where the process writes."""
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode(errors="replace")
