"""``--profile``: traces of every process of a run, taken while it trains.

When the run has trained for ``profile.after`` seconds, torch's profiler records the next ``profile.steps`` training
steps of the main process (learner and acting threads, and the GPU). Then one py-spy per process records Python
stacks for ``profile.seconds``. One after the other: py-spy halts a process for every look, which the trace would show.
"""

from __future__ import annotations

import gzip
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollmill.core.errors import ConfigError, MissingExtraError
from rollmill.runs.settings.train import ProfileSettings
from rollmill.runs.train.observers import Observer
from rollmill.sampling.pool import ProcessPool

if TYPE_CHECKING:
    from torch.profiler import profile

    from rollmill.runs.train.loop import OnlineRun

log = logging.getLogger("rollmill")

STOP_SECONDS = 10.0
"""How long a py-spy that was told to stop may take to write its file."""


class Profiler(Observer):
    """Takes the traces of one session of a run into ``folder``; ConfigError when that is not possible here."""

    def __init__(self, settings: ProfileSettings, folder: Path) -> None:
        self._settings, self._folder = settings, folder
        self._py_spy = find_py_spy() if settings.py_spy else None
        if self._py_spy is not None:
            require_permission(self._py_spy, os.getpid())
        self._trace: TorchTrace | None = None
        self._spies: list[Spy] = []
        self._script: Iterator[None] | None = None
        self._begun = False
        self._files: list[Path] = []

    @property
    def is_done(self) -> bool:
        """Whether everything has been recorded, or the run is over."""
        return self._begun and self._script is None

    def on_init(self, run: OnlineRun) -> None:
        self._begun = True
        self._folder.mkdir(parents=True, exist_ok=True)
        self._script = self._play(run)

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        if self._script is not None and next(self._script, "over") == "over":
            self._script = None
            log.info("profile: %s", ", ".join(str(path) for path in self._files) or "nothing was written")

    def on_stop(self, run: OnlineRun) -> None:
        """Stop whatever still records; it keeps what it has."""
        if self._script is None:
            return
        self._script = None
        if self._trace is None:
            after = self._settings.after
            log.warning("profile: the run ended within profile.after=%g s of training; nothing was recorded", after)
            return
        log.warning("profile: the run ended before all was recorded; the traces are short, or not all there")
        self._end_trace()
        self._end_spies()

    def _play(self, run: OnlineRun) -> Iterator[None]:
        """Record what is wanted, from one training step to the next: torch's trace, then the stacks of Python."""
        begun = time.monotonic()
        while time.monotonic() < begun + self._settings.after:
            yield
        self._trace = TorchTrace(self._folder / "main.torch.json.gz")
        self._trace.start()
        for _ in range(self._settings.steps):
            yield
        self._end_trace()
        self._start_spies(run)
        while any(spy.is_recording() for spy in self._spies):
            yield
        self._end_spies()

    def _end_trace(self) -> None:
        if self._trace is not None and self._trace.is_recording:
            try:
                self._files.append(self._trace.stop())
            except OSError as error:
                log.error("profile: torch's trace could not be written: %s", error)

    def _start_spies(self, run: OnlineRun) -> None:
        if self._py_spy is None:
            return
        plan = run.parts.sampler.plan
        # The run's own environment: should this process be killed, its janitor ends py-spy, too.
        environment = plan.environment or os.environ
        for name, pid in processes_of(run).items():
            output = self._folder / f"{name}.speedscope.json"
            self._spies.append(Spy(self._py_spy, pid, output, self._settings, environment))

    def _end_spies(self) -> None:
        for spy in self._spies:
            spy.interrupt()
        for spy in self._spies:
            problem = spy.finish()
            if problem:
                log.error("profile: no %s: py-spy says: %s", spy.output.name, problem)
            else:
                self._files.append(spy.output)
        self._spies.clear()


def processes_of(run: OnlineRun) -> dict[str, int]:
    """Return the Python processes of a run by name; in serial mode there is only one."""
    pool = run.parts.sampler.pool
    workers = pool.pids() if isinstance(pool, ProcessPool) else []
    return {"main": os.getpid(), **{f"worker-{index}": pid for index, pid in enumerate(workers)}}


# -- torch's profiler --------------------------------------------------------------------------------


class TorchTrace:
    """A recording of what torch does in all threads of this process."""

    def __init__(self, output: Path) -> None:
        self._output = output
        self._profile: profile | None = None

    @property
    def is_recording(self) -> bool:
        return self._profile is not None

    def start(self) -> None:
        import torch
        from torch.profiler import ProfilerActivity, profile

        kinds = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
        activities = kinds if torch.cuda.is_available() else kinds[:1]
        self._profile = profile(activities=activities, experimental_config=_all_threads())
        self._profile.start()

    def stop(self) -> Path:
        """End the recording and write it. Raises OSError if it cannot be written."""
        assert self._profile is not None
        recorded, self._profile = self._profile, None
        names = {thread.native_id: thread.name for thread in threading.enumerate()}
        recorded.stop()
        with tempfile.TemporaryDirectory(dir=self._output.parent, prefix=".") as folder:
            plain = Path(folder) / "trace.json"
            recorded.export_chrome_trace(str(plain))
            trace = name_threads(json.loads(plain.read_bytes()), names)
        with gzip.open(self._output, "wt", encoding="utf-8", compresslevel=3) as file:
            json.dump(trace, file)
        return self._output


def _all_threads() -> Any:
    """Return the option by which torch records threads that were there before: acting and learning have their own."""
    from torch._C._profiler import _ExperimentalConfig

    try:
        return _ExperimentalConfig(profile_all_threads=True)
    except TypeError:
        log.warning("profile: this version of torch traces the learner's own thread only")
        return None


def name_threads(trace: dict[str, Any], names: Mapping[int | None, str]) -> dict[str, Any]:
    """Return a Chrome trace in which threads have the names this program gave them, by their system-wide number."""
    events = [
        {**event, "args": {"name": f"{names[event['tid']]} ({event['tid']})"}}
        if event.get("name") == "thread_name" and event.get("tid") in names
        else event
        for event in trace["traceEvents"]
    ]
    return {**trace, "traceEvents": events}


# -- py-spy ------------------------------------------------------------------------------------------


def find_py_spy() -> Path:
    """Return the program beside this interpreter, or else on the path."""
    beside = Path(sys.executable).with_name("py-spy")
    found = str(beside) if beside.is_file() else shutil.which("py-spy")
    if found is None:
        raise MissingExtraError(
            'py-spy is not installed: pip install "rollmill[profile]", or profile.py_spy=false for torch\'s trace alone'
        )
    return Path(found)


def require_permission(py_spy: Path, pid: int) -> None:
    """Look into a process once. Raises ConfigError if the system does not allow it."""
    done = subprocess.run([py_spy, "dump", "--pid", str(pid)], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise ConfigError(
            f"py-spy cannot look into process {pid}: {first_line(done.stderr)}\n"
            "It needs the right to trace processes: be root, start the container with --cap-add=SYS_PTRACE, or "
            "allow it by `sysctl kernel.yama.ptrace_scope=0`. profile.py_spy=false takes torch's trace alone."
        )


def first_line(text: str) -> str:
    """Return what a program complains about first."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "nothing")


class Spy:
    """One py-spy, recording one process; a process that ends, ends the recording as well."""

    def __init__(
        self, py_spy: Path, pid: int, output: Path, settings: ProfileSettings, environment: Mapping[str, str]
    ) -> None:
        self.output = output
        self._words = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - closed by finish()
        command = [str(py_spy), "record", "--format", "speedscope", "--threads", "--pid", str(pid)]
        command += ["--duration", str(settings.seconds), "--rate", str(settings.rate), "--output", str(output)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._words,
            env=dict(environment),
            start_new_session=True,  # a Ctrl-C in the terminal is for the run, which then ends this
        )

    def is_recording(self) -> bool:
        return self._process.poll() is None

    def interrupt(self) -> None:
        """Let it write what it has."""
        if self.is_recording():
            self._process.send_signal(signal.SIGINT)

    def finish(self) -> str:
        """Wait for its end, or bring it about; returns what went wrong, or nothing."""
        try:
            code = self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return f"it did not end within {STOP_SECONDS:g} s and was killed"
        finally:
            self._words.seek(0)
            words = self._words.read()
            self._words.close()
        return first_line(words) if code else ""
