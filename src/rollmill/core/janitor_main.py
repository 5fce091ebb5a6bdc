"""The janitor process: waits for the end of a run, whatever ended it, and removes what is left.

Run by path and without rollmill, so that it starts in some 15 ms and stays small::

    python -I -S janitor_main.py TOKEN SCRATCH RUN_PID      (stdin: a pipe held open by the run)

It answers ``ready`` on stdout, and at the end one line of JSON with what it did. It needs Linux's
``/proc``; without it, only the scratch folder is removed. ``core.janitor`` starts it and is the API.

Left over can be: processes that carry the run's token in their environment, ViZDoom's segments of
shared memory, and the scratch folder.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import signal
import sys
import time

TOKEN_VARIABLE = "ROLLMILL_TOKEN"
PROC = "/proc"
SHARED_MEMORY = "/dev/shm"
SEGMENT_PREFIX = "ViZDoom"
SEGMENT_KINDS = ("SM", "MQCtr", "MQDoom")
SEGMENT_AGE = 2.0
"""Seconds. A younger segment that nobody maps may just be in the making."""
KILL_SECONDS = 8.0
POLL_SECONDS = 1.0


# -- processes --------------------------------------------------------------------------------------


def can_look() -> bool:
    """False on systems without ``/proc``, where nothing is known about other processes."""
    return os.path.isdir(f"{PROC}/self")


def processes() -> list[int]:
    return [int(name) for name in os.listdir(PROC) if name.isdigit()]


def _read(path: str) -> bytes:
    """A file of ``/proc``; empty when the process is gone or belongs to somebody else."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def processes_with_token(token: str, exclude: set[int]) -> list[int]:
    """Living processes started with the token in their environment (a zombie's environment is empty)."""
    entry = f"{TOKEN_VARIABLE}={token}".encode()
    return [pid for pid in processes() if pid not in exclude and entry in _read(f"{PROC}/{pid}/environ").split(b"\0")]


def kill_all(token: str, exclude: set[int]) -> tuple[list[int], list[str], list[int]]:
    """SIGKILL everything that carries the token, until a look around finds nothing more.

    Returns the killed processes, the ViZDoom instances among them, and those that did not go
    (stuck in the kernel) within ``KILL_SECONDS``.
    """
    killed: list[int] = []
    instances: list[str] = []
    deadline = time.monotonic() + KILL_SECONDS
    while found := processes_with_token(token, exclude):
        if time.monotonic() > deadline:
            break
        for pid in found:
            if pid not in killed:
                killed.append(pid)
                instances += vizdoom_instance(pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    return killed, instances, found


def vizdoom_instance(pid: int) -> list[str]:
    """The instance id if ``pid`` is a ViZDoom engine: what its segments' names end with."""
    arguments = _read(f"{PROC}/{pid}/cmdline").split(b"\0")
    return [after.decode() for flag, after in itertools.pairwise(arguments) if flag == b"+viz_instance_id"]


# -- segments ---------------------------------------------------------------------------------------


def mapped_segments() -> set[str]:
    """Names of ViZDoom segments that some process maps, wherever it sees them mounted."""
    names = set()
    for pid in processes():
        for line in _read(f"{PROC}/{pid}/maps").splitlines():
            name = line.rpartition(b"/")[2].decode(errors="replace")
            if name.startswith(SEGMENT_PREFIX):
                names.add(name)
    return names


def stale_segments() -> list[tuple[str, int, float]]:
    """(name, bytes, age in seconds) of this user's ViZDoom segments that no living process maps."""
    if not can_look():
        return []
    found = []
    for entry in os.scandir(SHARED_MEMORY):
        if entry.name.startswith(SEGMENT_PREFIX):
            with contextlib.suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                if status.st_uid == os.getuid():
                    found.append((entry.name, status.st_size, max(0.0, time.time() - status.st_mtime)))
    mapped = mapped_segments() if found else set()
    return [segment for segment in found if segment[0] not in mapped]


def remove_segments(names: list[str]) -> list[str]:
    """Remove segments by name; returns those that were there."""
    removed = []
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{SHARED_MEMORY}/{name}")
            removed.append(name)
    return removed


def sweep(instances: list[str], wait: float = SEGMENT_AGE + 0.5) -> list[str]:
    """Remove the segments of the given (dead) instances, and every stale one of sufficient age.

    Engines may have died before anybody saw their names, so young stale segments are waited for.
    """
    removed = remove_segments([f"{SEGMENT_PREFIX}{k}{i}" for i in instances for k in SEGMENT_KINDS])
    deadline = time.monotonic() + wait
    while stale := stale_segments():
        removed += remove_segments([name for name, _, age in stale if age >= SEGMENT_AGE])
        if all(age >= SEGMENT_AGE for _, _, age in stale) or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    return removed


# -- the whole --------------------------------------------------------------------------------------


def clean(token: str, scratch: str, exclude: set[int]) -> dict[str, list[int] | list[str] | bool]:
    """Kill, sweep, remove; returns what was done, as ``core.janitor.JanitorReport`` has it."""
    killed: list[int] = []
    survivors: list[int] = []
    removed: list[str] = []
    if can_look():
        killed, instances, survivors = kill_all(token, exclude | {os.getpid()})
        removed = sweep(instances)
    gone = remove_folder(scratch)
    return {"killed": killed, "survivors": survivors, "segments": removed, "scratch_removed": gone}


def remove_folder(path: str) -> bool:
    import shutil  # late: it brings in half of the standard library, and a start should be quick

    shutil.rmtree(path, ignore_errors=True)
    return not os.path.exists(path)


def wait_for_end(run: int) -> None:
    """Return when the pipe is closed, or when the run is gone but something forked keeps the pipe open."""
    while not select.select([0], [], [], POLL_SECONDS)[0]:
        if os.getppid() != run:
            return


def main(token: str, scratch: str, run: int) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")
    os.write(1, b"ready\n")
    wait_for_end(run)
    report = clean(token, scratch, exclude={run})
    import json

    with contextlib.suppress(BrokenPipeError):  # the run was killed: nobody reads it
        os.write(1, json.dumps(report).encode() + b"\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
