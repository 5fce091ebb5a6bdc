"""Short trainings for tests: in this process, or as the real command in a process of its own."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from rollmill.core.checkpoints import Checkpoints
from rollmill.core.config.load import load_config
from rollmill.core.run_folder import RunFolder
from rollmill.monitor.jsonl import read_jsonl
from rollmill.runs.lifecycle import Request
from rollmill.runs.settings.train import TrainConfig
from rollmill.runs.train.observers import Observer
from rollmill.runs.train.run import Outcome, train

SUPPORT = Path(__file__).resolve().parent
ROOT = SUPPORT.parents[1]
MARK = "ROLLMILL_TEST_MARK"
SMALL = (
    "run.name=run",
    "sampling.workers=2",
    "sampling.envs_per_worker=4",
    "sampling.groups=2",
    "sampling.rollout=8",
    "sampling.affinity=false",
    "learning.batch_size=32",
    "learning.minibatches=1",
    "learning.epochs=1",
    "model.mlp=[16]",
    "model.hidden_size=8",
    "report.every_frames=64",
    "report.tensorboard=false",
    "checkpoints.min_free_mb=1",
)
"""A run of tiny segments: 16 rows each, two of them a batch."""
SERIAL = ("sampling.mode=serial",)

SAC = (
    "env=Pendulum-v1",
    "learning.algorithm=sac",
    "model.action_distribution=tanh_gaussian",
    "model.log_std=state",
    "learning.minibatches=4",
    "learning.epochs=4",
    "sac.warmup=100",
    "sac.minibatch=16",
    "sac.capacity=1000",
    "sac.updates_per_step=0.25",
)
"""A tiny run; minibatches and epochs are put back to their defaults, which SAC wants untouched."""

SYNC_BATCH = "learning.batch_size=64"
"""Sync mode learns from a segment of every group at once: four of them."""


def hostile_folder(folder: Path) -> Path:
    """Make a folder whose modules have the names of Python's; the file that is returned says which of them were run."""
    marker = folder.with_name("marker")
    folder.mkdir()
    for name in (*sys.stdlib_module_names, "numpy", "torch"):
        (folder / f"{name}.py").write_text(f"open({str(marker)!r}, 'a').write(__file__)\nraise ImportError\n")
    return marker


def load_tool(name: str) -> ModuleType:
    """A script of ``tools`` as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def small_words(*overrides: str) -> list[str]:
    others = ("learning.batch_size", "learning.algorithm=sac")
    sync = "sampling.mode=sync" in overrides and not any(word.startswith(others) for word in overrides)
    return [*SMALL, *([SYNC_BATCH] if sync else []), *overrides]


def config_of(folder: Path, *overrides: str) -> TrainConfig:
    return load_config(TrainConfig, [], [f"run.dir={folder}", "run.experiment=x", *small_words(*overrides)])


def train_here(
    folder: Path, *overrides: str, observers: Sequence[Observer] = (), **request: Any
) -> tuple[Outcome, RunFolder]:
    """Train in this process, without a console."""
    config = config_of(folder, *overrides)
    outcome = train(config, Request(command=("test",), console="off", **request), observers)
    return outcome, RunFolder(config.folder)


def rows_of(folder: RunFolder) -> list[dict[str, Any]]:
    """Metrics without what depends on the machine."""
    keep = lambda name: name != "time" and not name.startswith(("time/", "usage/"))  # noqa: E731
    return [{name: value for name, value in row.items() if keep(name)} for row in read_jsonl(folder.metrics)]


def unexplained(metrics: Path) -> set[str]:
    """Names of metrics of a fit or a search that the page about them lacks; one target stands for every other."""
    page = (ROOT / "docs" / "metrics_fits.md").read_text()
    explained = set(re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE))
    logged = {re.sub(r"(?<=^eval/return_target_).*", "4", name) for row in read_jsonl(metrics) for name in row}
    return logged - explained


def saved_state(folder: RunFolder) -> Any:
    return Checkpoints(folder.checkpoints).load_newest().state


def assert_same(one: Any, two: Any, where: str = "") -> None:
    """Equal down to the last bit; NaN equals NaN. Names the first place that differs."""
    assert type(one) is type(two), where
    if isinstance(one, Mapping):
        assert one.keys() == two.keys(), where
        for key in one:
            assert_same(one[key], two[key], f"{where}/{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(two), where
        for index, pair in enumerate(zip(one, two)):
            assert_same(*pair, f"{where}/{index}")
    elif isinstance(one, np.ndarray):
        assert one.dtype == two.dtype, where
        assert one.shape == two.shape, where
        assert one.tobytes() == two.tobytes() or np.array_equal(one, two, equal_nan=one.dtype.kind == "f"), where
    else:
        assert one == two or (one != one and two != two), f"{where}: {one} and {two}"


LIMIT_SECONDS = 300.0
"""Ends a test that is broken; however slow the machine is, what is waited for has happened by then."""


def wait_until(condition: Callable[[], Any], seconds: float = LIMIT_SECONDS, what: str = "") -> Any:
    """Poll until ``condition`` gives something."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"did not happen: {what}"
        time.sleep(0.02)
    return found


class Command:
    """``rollmill <words>`` as a process of its own; every process it starts carries its mark."""

    def __init__(self, *words: str, cwd: Path) -> None:
        self.mark = uuid.uuid4().hex
        self._shared_memory = shared_memory()
        self._text: list[str] = []
        self.output = cwd / f"output-{self.mark}.txt"
        path = os.pathsep.join([str(SUPPORT), *filter(None, [os.environ.get("PYTHONPATH")])])
        with open(self.output, "wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "rollmill.cli.main", *words],
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, MARK: self.mark, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )

    @property
    def text(self) -> str:
        return self.output.read_text(encoding="utf-8", errors="replace")

    def wait(self, seconds: float = LIMIT_SECONDS) -> int:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"did not end by itself:\n{self.text}") from None

    def wait_for_text(self, text: str, times: int = 1) -> None:
        def found() -> bool:
            assert self.process.poll() is None or self.text.count(text) >= times, self.text
            return self.text.count(text) >= times

        wait_until(found, what=f"{text!r} in the output of the command")

    def processes(self) -> list[int]:
        """Living processes of this command, itself and its janitor included."""
        return [pid for pid in _processes() if self.mark in _environment(pid)]

    def workers(self) -> list[int]:
        return self.processes_of("rollmill.sampling.worker")

    def processes_of(self, module: str) -> list[int]:
        """Those that were started as ``python -m <module>``."""
        return [pid for pid in self.processes() if module in _words(pid)]

    def token(self) -> str:
        """The run's token, from the environment of a worker."""
        entries = _environment(self.workers()[0]).split("\0")
        return next(entry for entry in entries if entry.startswith("ROLLMILL_TOKEN="))

    def send(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def press_ctrl_c(self) -> None:
        """What a terminal does: SIGINT for the whole process group, workers included."""
        os.killpg(self.process.pid, signal.SIGINT)

    def kill(self) -> None:
        """End what is left, but for the janitor: it removes the rest."""
        for pid in [self.process.pid, *self.processes()]:
            if any(word.endswith("janitor_main.py") for word in _words(pid)):
                continue
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()

    def assert_nothing_left(self) -> None:
        """No process, and nothing new in shared memory that no living process uses."""
        wait_until(lambda: not self.processes(), what=f"processes {self.processes()} to end")

        # Other tests may run at the same time: their segments are in use, or are there for a moment only. Those of
        # simulators that were killed are told by their names.
        def left() -> set[str]:
            return {name for name in unused(shared_memory() - self._shared_memory) if not name.startswith("ViZDoom")}

        wait_until(lambda: not left(), 30.0, f"{left()} to be gone from shared memory")


Run = Callable[..., Command]
"""Starts ``rollmill <words>``; the fixture ``rollmill`` is one."""


def command_words(folder: Path, *overrides: str) -> list[str]:
    """``train`` with the small settings."""
    return ["train", f"run.dir={folder}", "run.experiment=x", *small_words(*overrides)]


def shared_memory() -> set[str]:
    return set(os.listdir("/dev/shm"))


def unused(names: set[str]) -> set[str]:
    """Those files in shared memory that are this user's, and that no living process has open or maps."""
    found = {}
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            status = os.stat(f"/dev/shm/{name}")
            if status.st_uid == os.getuid():
                found[status.st_dev, status.st_ino] = name
    for pid in _processes() if found else ():
        for used in _used_files(pid):
            found.pop(used, None)
    return set(found.values())


def _used_files(pid: int) -> Iterator[tuple[int, int]]:
    """(device, inode) of files that a process maps or has open; a semaphore's name in its maps is another one."""
    for line in _proc_file(pid, "maps").splitlines():
        device, inode = line.split(maxsplit=5)[3:5]
        major, minor = (int(part, 16) for part in device.split(":"))
        yield os.makedev(major, minor), int(inode)
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                status = os.stat(entry.path)
                yield status.st_dev, status.st_ino


def _processes() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def _environment(pid: int) -> str:
    """Environment a process was started with; empty for a zombie or when it is gone."""
    return _proc_file(pid, "environ")


def _words(pid: int) -> list[str]:
    return _proc_file(pid, "cmdline").split("\0")


def _proc_file(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


@dataclass
class Result:
    """What a command called in this process gave back."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, object]:
        found: dict[str, object] = json.loads(self.out)
        return found


Call = Callable[..., Result]
