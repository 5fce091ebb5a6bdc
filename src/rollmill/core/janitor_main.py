"""The janitor process: waits for the end of a run, whatever ended it, and removes what is left.

Run by path and without rollmill, so that it starts in some 15 ms and stays small::

    python -I -S janitor_main.py TOKEN SCRATCH RUN_PID      (stdin: a pipe held open by the run)

It makes the scratch folder, so that there is never one without somebody to remove it, answers ``ready`` on
stdout, and at the end one line of JSON with what it did. It needs Linux's ``/proc``; without it, only the
scratch folder is removed. ``core.janitor`` starts it and is the API.

Left over can be: processes of the run, ViZDoom's segments of shared memory, and the scratch folder.

A process is known as the run's by the token in its environment, or by its *mark*: a number made of the
token, worn as the soft limit of ``RLIMIT_LOCKS``. Linux has not looked at that limit since version 2.4, and
hands it on from every process to all that it starts, whatever else they shed: variables, session, parent.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import select
import signal
import sys
import time

TOKEN_VARIABLE = "ROLLMILL_TOKEN"
MARK_LIMIT = 10
"""Linux's number of ``RLIMIT_LOCKS``, the same on all its architectures; Python has no name for it."""
_MARK_LINE = b"Max file locks"
_MARKS = 2**61 - 1
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
    """Return False on systems without ``/proc``, where nothing is known about other processes."""
    return os.path.isdir(f"{PROC}/self")


def processes() -> list[int]:
    return [int(name) for name in os.listdir(PROC) if name.isdigit()]


def _read(path: str) -> bytes:
    """Read a file of ``/proc``; empty when the process is gone or belongs to somebody else."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def mark_of(token: str) -> int:
    """Return the number that the processes of a run wear: far beyond any limit that somebody would set."""
    return _MARKS + int(token, 36) % _MARKS


def processes_of(token: str, exclude: set[int]) -> list[int]:
    """Return the living processes of the run with this token."""
    entry, mark = f"{TOKEN_VARIABLE}={token}".encode(), str(mark_of(token)).encode()
    return [pid for pid in processes() if pid not in exclude and (_is_born_with(pid, entry) or _wears(pid, mark))]


def _is_born_with(pid: int, entry: bytes) -> bool:
    """Return whether a variable is in the environment a process was started with (that of a zombie is empty)."""
    return entry in _read(f"{PROC}/{pid}/environ").split(b"\0")


def _wears(pid: int, mark: bytes) -> bool:
    for line in _read(f"{PROC}/{pid}/limits").splitlines():
        if line.startswith(_MARK_LINE):
            return line.removeprefix(_MARK_LINE).split()[0] == mark and is_alive(pid)
    return False


def is_alive(pid: int) -> bool:
    """Return False for a process that is gone, or has ended and waits for its parent to take note."""
    status = _read(f"{PROC}/{pid}/stat").rpartition(b")")[2].split()
    return bool(status) and status[0] not in (b"Z", b"X")


def command_of(pid: int) -> str:
    """Return the command line of a process."""
    return _read(f"{PROC}/{pid}/cmdline").replace(b"\0", b" ").decode(errors="replace").strip()


def kill_all(token: str, exclude: set[int]) -> tuple[list[int], list[str], list[int]]:
    """Send SIGKILL to every process of the run, until a look around finds nothing more.

    Returns the killed processes, the ViZDoom instances among them, and those that did not go
    (stuck in the kernel) within ``KILL_SECONDS``.
    """
    killed: list[int] = []
    instances: list[str] = []
    deadline = time.monotonic() + KILL_SECONDS
    # Twice: whoever hands on to a child and ends while one looks can slip through once.
    while found := processes_of(token, exclude) or processes_of(token, exclude):
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
    """Return the instance id if ``pid`` is a ViZDoom engine: what its segments' names end with."""
    arguments = _read(f"{PROC}/{pid}/cmdline").split(b"\0")
    return [after.decode() for flag, after in itertools.pairwise(arguments) if flag == b"+viz_instance_id"]


# -- segments ---------------------------------------------------------------------------------------


def used_segments() -> set[str]:
    """Return names of ViZDoom segments that some process maps, wherever it sees them mounted, or that an engine is
    about to.

    On a busy machine an engine takes seconds to start.
    """
    names = set()
    for pid in processes():
        names |= {f"{SEGMENT_PREFIX}{kind}{i}" for i in vizdoom_instance(pid) for kind in SEGMENT_KINDS}
        for line in _read(f"{PROC}/{pid}/maps").splitlines():
            name = line.rpartition(b"/")[2].decode(errors="replace")
            if name.startswith(SEGMENT_PREFIX):
                names.add(name)
    return names


def stale_segments() -> list[tuple[str, int, float]]:
    """Return (name, bytes, age in seconds) of this user's ViZDoom segments that no living process uses."""
    if not can_look():
        return []
    found = []
    for entry in os.scandir(SHARED_MEMORY):
        if entry.name.startswith(SEGMENT_PREFIX):
            with contextlib.suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                if status.st_uid == os.getuid():
                    found.append((entry.name, status.st_size, max(0.0, time.time() - status.st_mtime)))
    used = used_segments() if found else set()
    return [segment for segment in found if segment[0] not in used]


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
    """Kill processes, sweep segments, remove the folder; returns what was done, as ``janitor.JanitorReport`` has it."""
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
    """Return when the run says that it is over, or is gone: it wrote into the pipe, the pipe is closed, or something
    that it forked keeps the pipe open without it."""
    while not select.select([0], [], [], POLL_SECONDS)[0]:
        if os.getppid() != run:
            return


def main(token: str, scratch: str, run: int) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # Where the run is itself part of another one, that one's janitor must not end this one before its work is done.
    if can_look():
        hard = resource.getrlimit(MARK_LIMIT)[1]
        resource.setrlimit(MARK_LIMIT, (hard, hard))
    os.chdir("/")
    try:
        os.makedirs(scratch, mode=0o700, exist_ok=True)
    except OSError as error:
        _tell(f"the scratch folder cannot be made: {error}")
        return
    _tell("ready")
    wait_for_end(run)
    report = clean(token, scratch, exclude={run})
    import json

    _tell(json.dumps(report))


def _tell(line: str) -> None:
    with contextlib.suppress(BrokenPipeError):  # the run was killed: nobody reads it
        os.write(1, line.encode() + b"\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
