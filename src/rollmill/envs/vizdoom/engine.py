"""Starts the ViZDoom engine process without leftovers, ends it for sure, and never waits for it in vain.

``DoomGame`` starts an engine process and talks to it through two message queues in shared memory.
What is added here:

- The engine runs in a scratch folder of its own and dies with this process (``launcher``).
- Killing the engine inside a queue's critical section leaves the queue locked for ever, and with it the
  call that waits for the engine. Seen in 1 of 20 kills at random moments. A thread per engine waits for
  its death and opens such locks; the waiting call then raises by itself. In 1 of 1500 kills the lock is
  one that cannot be opened, deep in the C library: then this process is ended, with a message.
- ``close`` ends an engine that does not answer, too.
- Within a run, all engines read their data from one unpacked archive.
- An engine that plays with others (``Place``) is put into a network of their own, onto cores of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import logging
import mmap
import os
import shlex
import signal
import struct
import sys
import tempfile
import threading
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rollmill.core import atomic
from rollmill.core.errors import ConfigError, EnvError
from rollmill.core.janitor import SCRATCH_VARIABLE, TOKEN_VARIABLE
from rollmill.envs.vizdoom import launcher as vizdoom_launcher

if TYPE_CHECKING:
    from vizdoom import DoomGame

log = logging.getLogger("rollmill")

SHARED_MEMORY = Path("/dev/shm")
PID_FILE = "engine.pid"
LOG_FILE = "engine.log"
"""What an engine of a network game says; others say nothing."""
SHARED, NEW = "shared", "new"
"""Networks, see ``launcher``."""
QUEUES = ("ViZDoomMQCtr", "ViZDoomMQDoom")
NEEDED_SHARED_MEMORY = 4 << 20
"""Bytes; more than an engine touches at common screen sizes."""
STUCK_TENTHS = 50
"""Tenths of a second a call may go on after the engine's death; it takes milliseconds."""

GLIBC_MUTEX = struct.Struct("@iIiIi")  # lock, count, owner (thread id), nusers, kind
PROCESS_SHARED = 128  # bit of ``kind``


class Call:
    """Whether a call that waits for the engine is under way; set by the caller, read by the watch thread."""

    active = False


@dataclass(frozen=True)
class Place:
    """Where an engine runs."""

    network: str = SHARED
    """``SHARED`` with the machine, ``NEW``, or the process id of an engine whose network it joins."""
    cores: tuple[int, ...] = ()
    """Empty: those of this process."""


class Engine:
    """The engine of one game; ``game`` is configured by the caller and not yet initialised."""

    def __init__(self, game: DoomGame) -> None:
        self._game = game
        self._closed = False
        self._watch: threading.Thread | None = None
        self._scratch = tempfile.TemporaryDirectory(
            prefix="vizdoom-", dir=os.environ.get(SCRATCH_VARIABLE), ignore_cleanup_errors=True
        )
        self.folder = Path(self._scratch.name)
        """Where the engine writes its files; gone after ``close``."""
        self.pid = 0
        """Of the process; 0 before ``start``."""
        self.call = Call()

    def start(self, place: Place = Place(), on_death: Callable[[], None] | None = None) -> Engine:
        """Start the process; returns when the game is ready to be played.

        ``on_death`` is called by a thread of its own when the process has ended, whatever ended it.
        """
        engine = _engine_path()
        try:
            _refuse_what_would_fail(engine)
            # The scratch folder of a run goes with it; one that somebody has set by hand would keep the archive.
            in_run = TOKEN_VARIABLE in os.environ and SCRATCH_VARIABLE in os.environ
            data = unpacked_data(engine, Path(os.environ[SCRATCH_VARIABLE])) if in_run else _data_of(engine)
            self._game.set_vizdoom_path(str(_write_start_script(self.folder, place, engine, data)))
            self._initialise()
        except BaseException:
            self._scratch.cleanup()
            raise
        self._watch = threading.Thread(
            target=_wait_for_death,
            args=(self.pid, self._game.get_instance_id(), self.call, on_death),  # not self: an unused engine must go
            name=f"vizdoom-{self.pid}",
            daemon=True,
        )
        self._watch.start()
        return self

    def _initialise(self) -> None:
        try:
            self._game.init()
            pid = self.process()
            assert pid is not None, "the launcher writes it before it becomes the engine"
            self.pid = pid
        except Exception as error:  # ViZDoom's errors have no common base
            self._game.close()
            raise EnvError(f"the ViZDoom engine did not start: {error}") from error

    def process(self) -> int | None:
        """Return the process id, as soon as the process has entered its network; None before."""
        try:
            return int((self.folder / PID_FILE).read_text())
        except (FileNotFoundError, ValueError):  # not there, or not written yet
            return None

    def last_words(self) -> str:
        """Return the last line of what an engine of a network game has said; empty where there is none."""
        try:
            lines = (self.folder / LOG_FILE).read_text(errors="replace").split("\n")
        except FileNotFoundError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def close(self) -> None:
        """End the engine, free its shared memory and remove its folder. May be called again.

        The engine is killed, not asked: it has nothing to save, and ``DoomGame.close`` would wait for a
        stuck one for ever, and keep Python's global lock meanwhile.
        """
        if self._closed:
            return
        self._closed = True
        self.kill()
        if self._watch is not None:
            self._watch.join()
        self._game.close()
        self._scratch.cleanup()

    def kill(self) -> None:
        """End the process, also a stopped one; a call that waits for it raises."""
        if not self.pid:
            return
        with contextlib.suppress(ChildProcessError, ProcessLookupError):  # ViZDoom has reaped it: not ours any more
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            os.kill(self.pid, signal.SIGKILL)


def _engine_path() -> Path:
    import vizdoom

    return Path(vizdoom.__file__).parent / "vizdoom"


def _data_of(engine: Path) -> Path:
    return engine.with_name("vizdoom.pk3")


def unpacked_data(engine: Path, scratch: Path) -> Path:
    """Return the engine's data as an archive without compression, in a folder that all engines of a run share.

    An engine spends a fifth of its start on unpacking, and a run starts dozens. It takes the folder of its data for its
    own: whatever else lies beside it is linked.
    """
    packed = _data_of(engine)
    unpacked = scratch / "vizdoom-data" / packed.name
    if unpacked.exists():
        return unpacked
    content = io.BytesIO()
    try:
        with zipfile.ZipFile(packed) as source, zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as target:
            for entry in source.infolist():
                target.writestr(zipfile.ZipInfo(entry.filename, entry.date_time), source.read(entry))
        unpacked.parent.mkdir(exist_ok=True)
        for file in packed.parent.iterdir():
            if file != packed:
                with contextlib.suppress(FileExistsError):  # another worker was faster
                    (unpacked.parent / file.name).symlink_to(file)
        atomic.create_bytes(unpacked, [content.getbuffer()])
    except (OSError, zipfile.BadZipFile, zlib.error) as error:
        log.warning("engines start more slowly than they could: %s could not be unpacked: %s", packed, error)
        return packed
    return unpacked


def _refuse_what_would_fail(engine: Path) -> None:
    """Check first: when the engine ends while it starts, ViZDoom 1.3 takes this process down with it."""
    override = Path("_vizdoom.cfg")
    if override.exists():
        raise ConfigError(
            f"ViZDoom would let {override.absolute()} override the scenario (buttons, rewards, screen); "
            "move the file away"
        )
    if not os.access(engine, os.X_OK):
        raise EnvError(f"the ViZDoom engine {engine} is not there or not executable; install vizdoom again")
    if SHARED_MEMORY.is_dir():
        space = os.statvfs(SHARED_MEMORY)
        if space.f_bavail * space.f_frsize < NEEDED_SHARED_MEMORY:
            raise EnvError(
                f"{SHARED_MEMORY} is full: the ViZDoom engine needs {NEEDED_SHARED_MEMORY >> 20} MB of it "
                "(remove what is stale there; for a container, give it more, as with --shm-size)"
            )


def _write_start_script(folder: Path, place: Place, engine: Path, data: Path) -> Path:
    """Write the program ViZDoom starts in place of the engine: it takes a path, so our arguments need a script."""
    launcher = [
        sys.executable,
        "-I",
        "-S",
        vizdoom_launcher.__file__,
        str(folder),
        str(os.getpid()),
        place.network,
        ",".join(map(str, place.cores)) or "all",
        str(engine),
        str(data),
    ]
    script = folder / "start"
    script.write_text(f'#!/bin/sh\nexec {shlex.join(launcher)} "$@"\n')
    script.chmod(0o700)
    if not os.access(script, os.X_OK):
        raise ConfigError(
            f"{folder.parent} does not allow programs to run (mounted noexec); "
            f"set {SCRATCH_VARIABLE} or TMPDIR to a folder that does"
        )
    return script


# -- locks of the dead ------------------------------------------------------------------------------


def _wait_for_death(pid: int, instance_id: str, call: Call, on_death: Callable[[], None] | None) -> None:
    with contextlib.suppress(ChildProcessError):  # ViZDoom's own thread was faster to take note
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    if on_death is not None:
        on_death()
    for queue in QUEUES:
        open_locks(SHARED_MEMORY / f"{queue}{instance_id}", owner=pid)
    for _ in range(STUCK_TENTHS):  # counted, not timed: a paused process must not wake up to its end
        if not call.active:
            return
        time.sleep(0.1)
    message = f"process {os.getpid()}: the ViZDoom engine {pid} died and left a call waiting for ever; ending\n"
    os.write(2, message.encode())
    os._exit(1)


def open_locks(path: Path, owner: int) -> int:
    """Unlock the mutexes in a shared-memory file that a dead process still holds; returns how many.

    ``owner`` must be dead. Only glibc's layout is known; elsewhere nothing is found. The queue's content
    may be half written: good enough to be told of the death, and nobody uses it afterwards.
    """
    try:
        with path.open("r+b") as file:
            memory = mmap.mmap(file.fileno(), 0)
    except FileNotFoundError:  # ViZDoom has cleaned up: nothing was stuck
        return 0
    unlock = ctypes.CDLL(None).pthread_mutex_unlock
    count = 0
    with memory:
        for offset in _mutexes_of(memory, owner):
            mutex = ctypes.c_char.from_buffer(memory, offset)
            unlock(ctypes.byref(mutex))
            del mutex  # a buffer in use cannot be closed
            count += 1
    return count


def _mutexes_of(memory: mmap.mmap, owner: int) -> Iterator[int]:
    for offset in range(0, len(memory) - GLIBC_MUTEX.size + 1, 8):
        lock, _, holder, _, kind = GLIBC_MUTEX.unpack_from(memory, offset)
        if holder == owner and lock in (1, 2) and kind == PROCESS_SHARED:
            yield offset
