"""Asks a process of its own: what it answers counts from the moment it is written, whatever happens to it afterwards.

For code that may hang, crash the interpreter, start threads and processes, and leave them. Question, answers and what
it prints are files: a pipe would hold it up when full, and would be held open by whatever simulator it leaves behind.

``python -m MODULE FD`` is such a process; it begins with ``begin_errand`` and ends with ``exits.leave``.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from rollmill.core.exits import describe_exit
from rollmill.core.imports import module_command

POLL_SECONDS = 0.01
NOISE_CHARACTERS = 2000

Reply = Callable[..., None]
"""Answers with one line: the keywords it is called with, as JSON."""


class Errand:
    """A running process that was asked something; ``close`` ends it, and all that is still in its process group."""

    def __init__(
        self, module: str, question: Mapping[str, Any], environment: Mapping[str, str], files: Sequence[int] = ()
    ) -> None:
        """``files``: descriptors that it inherits besides."""
        self._files = contextlib.ExitStack()
        asked, self._answer, self._noise = (self._open() for _ in range(3))
        asked.write(json.dumps({"question": question, "path": sys.path}).encode())
        asked.seek(0)
        self._process = subprocess.Popen(
            module_command(module, str(self._answer.fileno())),
            stdin=asked,
            stdout=self._noise,
            stderr=self._noise,
            pass_fds=(self._answer.fileno(), *files),
            env={**environment, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            process_group=0,
        )

    def _open(self) -> IO[bytes]:
        return self._files.enter_context(tempfile.TemporaryFile())

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """It is not taken note of before ``close``: until then nobody else gets its number, nor that of its group."""
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # user code in this process has taken note, or has Linux do it (SIGCHLD is ignored)
            return True

    @property
    def lines(self) -> list[dict[str, Any]]:
        """What it has answered so far; the last line may be half written."""
        return [json.loads(line) for line in _content(self._answer).splitlines(keepends=True) if line.endswith("\n")]

    @property
    def noise(self) -> str:
        """What it has printed so far."""
        return _content(self._noise)

    @property
    def last_noise(self) -> str:
        return self.noise[-NOISE_CHARACTERS:].strip()

    def first_line(self, timeout: float | None) -> dict[str, Any] | None:
        """Its first answer; None where it ended without one. TimeoutError after so many seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not (ended := self.has_ended) and not self.lines:
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"no answer within {timeout:g} s")
            time.sleep(POLL_SECONDS)
        lines = self.lines
        assert lines or ended
        return lines[0] if lines else None

    def ends_within(self, seconds: float) -> bool:
        """Whether it ends by itself; waits for that."""
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
        """End it, and forget its answers. May be called again."""
        self.end()
        self._files.close()

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)


def begin_errand(answer_fd: int) -> tuple[dict[str, Any], Reply]:
    """In the process: the question, and the function that answers. A crash prints the stack of its threads."""
    faulthandler.enable()
    os.set_inheritable(answer_fd, False)
    asked = json.load(sys.stdin)
    sys.path[:] = asked["path"]
    answers = os.fdopen(answer_fd, "w", encoding="utf-8")

    def reply(**line: Any) -> None:
        print(json.dumps(line), file=answers, flush=True)

    return asked["question"], reply


def _content(file: IO[bytes]) -> str:
    """All of it, without moving the place where the process writes."""
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode(errors="replace")
