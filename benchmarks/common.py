"""What every comparison needs: a venv for the peer, the memory of a process tree, medians, a record on disk."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from rollmill.reports.html.plots import Plot
from rollmill.runs.bench.run import load_of_others

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "runs" / "benchmarks"
BUSY = 0.2
"""Cores kept busy by others above which a measurement is not quiet."""
Parts = Mapping[str, tuple[Callable[[int], dict[str, Any]], int]]
"""Of a benchmark: what measures each, and how many times if nobody says."""


class PeerMissingError(Exception):
    """A peer cannot be installed here; the message says why."""


class PeerFailedError(Exception):
    """A peer's run ended without a result; the message holds what it said."""


def peer_venv(name: str, *installs: list[str], environment: dict[str, str] | None = None) -> Path:
    """A virtual environment for a peer, made once for the same words; each of ``installs`` is one call of pip."""
    folder = ROOT / f".venv-bench-{name}"
    python = folder / "bin" / "python"
    stamp, wanted = folder / ".installed", json.dumps(installs)
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    for words in installs:
        print(f"installing {' '.join(words)}", file=sys.stderr, flush=True)
        command = [str(python), "-m", "pip", "install", "--quiet", *words]
        done = subprocess.run(command, env=os.environ | (environment or {}), capture_output=True, text=True)
        if done.returncode:
            raise PeerMissingError(f"pip install {' '.join(words)} failed:\n{done.stderr[-2000:]}")
    stamp.write_text(wanted)
    return python


PEER_BASE = ["torch==2.13.0", "gymnasium==1.4.0", "numpy<2.5"]
PEER_ATARI = ["ale-py==0.12.1", "opencv-python-headless"]


def sb3_venv() -> Path:
    """Stable-Baselines3 with the environments of its comparisons."""
    return peer_venv("sb3", [*PEER_BASE, *PEER_ATARI, "gymnasium[mujoco]==1.4.0", "stable-baselines3==2.9.2"])


def puffer_venv() -> Path:
    """PufferLib 3.0.0, which PyPI has as source only: compiled here without its own C environments.

    Its set-up needs three things said to it. ``NO_OCEAN``: those environments want downloads from elsewhere.
    A ``PATH`` without ``nvcc``: finding one, it asks for CUDA. And a name that it forgets to set when
    ``NO_OCEAN`` is on, given as a builtin.
    """
    with tempfile.TemporaryDirectory(prefix="bench-puffer-") as folder:
        Path(folder, "sitecustomize.py").write_text("import builtins\n\nbuiltins.c_extension_paths = []\n")
        return peer_venv(
            "puffer",
            ["torch==2.13.0", "numpy<2", "setuptools<81", "wheel", "ninja", "Cython", "gymnasium==0.29.1", "gym==0.23"],
            ["--no-build-isolation", "--no-deps", "pufferlib==3.0.0"],
            ["psutil", "rich", "rich_argparse", "imageio", "pyro-ppl", "heavyball==2.2.1"],
            ["shimmy<2", "pettingzoo<=1.24.1", "numpy<2"],
            ["ale-py==0.10.2", "opencv-python-headless", "numpy<2", "gymnasium==0.29.1"],
            environment={"NO_OCEAN": "1", "PATH": path_without("nvcc"), "PYTHONPATH": folder},
        )


def end_on_sigterm() -> None:
    """Let SIGTERM end this program as Ctrl-C does: peers run in sessions of their own and must be ended with it."""
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))


def run_timed(main: Callable[[], int]) -> NoReturn:
    """Run a whole benchmark, and say how long it took."""
    end_on_sigterm()
    begun = time.monotonic()
    code = main()
    print(f"took {time.monotonic() - begun:.0f} s")
    sys.exit(code)


def path_without(program: str) -> str:
    """``PATH`` without the folders that hold a program."""
    return os.pathsep.join(p for p in os.environ["PATH"].split(os.pathsep) if not Path(p, program).exists())


def run_peer(python: Path | str, script: str, *words: str, seconds: float = 300) -> dict[str, Any]:
    """Run ``benchmarks/peers/<script>``; its JSON line. Whatever it started ends with it.

    It runs in a folder that is thrown away: importing PufferLib leaves a link in the current one.
    """
    command = [str(python), str(ROOT / "benchmarks" / "peers" / script), *words]
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-peer-"))
        # Files: workers that outlive a peer would keep a pipe open, and its end would never come.
        out, noise = (stack.enter_context(tempfile.TemporaryFile("w+", errors="replace")) for _ in range(2))
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=os.environ | {"PATH": path_without("nvcc"), "PYTHONWARNINGS": "ignore"},
            stdout=out,
            stderr=noise,
            start_new_session=True,
        )
        why = "answered nothing"
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            why = f"was ended after {seconds:.0f} s without an answer"
        finally:
            end_tree(process)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what outlived it belongs to nobody now
        for file in (out, noise):
            file.seek(0)
        lines = [line for line in out.read().splitlines() if line.startswith("{")]
        if not lines:
            raise PeerFailedError(f"{' '.join(command)}\n{why}:\n{noise.read()[-3000:]}")
    result: dict[str, Any] = json.loads(lines[-1])
    return result


@dataclass
class Watched:
    """A process and all it starts: its output lines with their times, and the most memory it used."""

    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    lines: list[tuple[float, str]] = field(default_factory=list)
    peak_mb: float = 0.0

    def run(self, seconds: float, until: str = "") -> None:
        """Run for so many seconds after a line that holds ``until`` (or the start), then end it with SIGINT."""
        begun = time.monotonic()
        process = subprocess.Popen(
            self.command,
            cwd=ROOT,
            env=os.environ | self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        reader = threading.Thread(target=self._read, args=(process, begun), daemon=True)
        reader.start()
        deadline = None if until else begun + seconds
        try:
            while process.poll() is None and (deadline is None or time.monotonic() < deadline):
                self.peak_mb = max(self.peak_mb, tree_mb(process.pid))
                if deadline is None and any(until in line for _, line in list(self.lines)):
                    deadline = time.monotonic() + seconds
                time.sleep(0.5)
        finally:  # it has a session of its own: nothing else would end it
            end_tree(process)
        reader.join(5)

    def _read(self, process: subprocess.Popen[str], begun: float) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.lines.append((time.monotonic() - begun, line.rstrip()))


def end_tree(process: subprocess.Popen[Any]) -> None:
    """End a process and everything below it: politely, then not."""
    pids = tree(process.pid)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for pid in pids:  # some peers leave orphans
        if Path(f"/proc/{pid}").exists():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def tree(pid: int) -> list[int]:
    """A process and its descendants (Linux)."""
    found = [pid]
    for parent in found:
        children = Path(f"/proc/{parent}/task")
        for task in children.glob("*/children"):
            try:
                found += [int(word) for word in task.read_text().split()]
            except OSError:
                continue  # it ended meanwhile
    return found


WHOLE = ("Pss:",)
"""Of ``smaps_rollup``: everything, pages that others have mapped as well by their share."""
OWN = ("Pss_Anon:", "Pss_Shmem:")
"""Without mapped files: libraries that other programs use, too, count for more when those end."""


def tree_mb(pid: int, kinds: tuple[str, ...] = WHOLE) -> float:
    """Memory of a process tree in MB: pages that its processes share are counted once (proportional set size)."""
    total = 0
    for member in tree(pid):
        try:
            text = Path(f"/proc/{member}/smaps_rollup").read_text()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in text.splitlines() if line.startswith(kinds))
    return total / 1000


def ours(*words: str) -> dict[str, Any]:
    """Run a ``rollmill`` verb with --json and read what it says."""
    command = [sys.executable, "-m", "rollmill.cli.main", *words, "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stderr[-4000:]}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def with_load(run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What ``run`` measures, and how many cores others kept busy just before."""
    others = load_of_others()
    return {**run(), "busy_cores_before": others}


def load_text(rows: list[dict[str, Any]]) -> str:
    """A warning when other programs had a part of the machine during the runs; empty when it was quiet."""
    loads = [run["busy_cores_before"] for row in rows for runs in row["runs"].values() for run in runs]
    if not loads or max(loads) < BUSY:
        return ""
    return (
        f"NOT QUIET: others kept up to {max(loads):.1f} cores busy (median {statistics.median(loads):.1f}) before the "
        "runs; neither rates nor ratios are to be relied on\n"
    )


def median_text(values: list[float]) -> str:
    """``median (smallest to largest)``."""
    return f"{statistics.median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})"


def reached(rows: Iterable[Mapping[str, Any]], metric: str, target: float) -> dict[str, Any] | None:
    """Frames and seconds of training at the first row of metrics that is at the target; None where none is."""
    for row in rows:
        if (value := row.get(metric)) is not None and value >= target:
            return {"frames": row["frames"], "seconds": row["time/seconds"]}
    return None


def save_plot(path: Path, plot: Plot, legend: Sequence[str]) -> None:
    """A picture for the docs. Lines of ``legend[k]`` are those of kind ``line c{k}``."""
    path.write_text(plot.file(legend) + "\n")


def machine() -> dict[str, Any]:
    """Where and with what this was measured."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    versions = subprocess.run([sys.executable, "-m", "pip", "freeze"], capture_output=True, text=True).stdout
    wanted = ("torch", "numpy", "gymnasium", "vizdoom", "ale")
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "commit": commit,
        "versions": [line for line in versions.splitlines() if line.lower().startswith(wanted)],
        "time": time.strftime("%Y-%m-%d %H:%M:%S"),
    }


def train_run(folder: Path, *words: str, resume: bool = False) -> Path:
    """Train in a process of its own; returns the folder of the run."""
    if not resume:
        shutil.rmtree(folder, ignore_errors=True)
    done = subprocess.run(train_command(folder, *words, resume=resume), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{folder} failed:\n{done.stdout}{done.stderr}")
    return folder


def train_command(folder: Path, *words: str, resume: bool = False) -> list[str]:
    place = (f"run.dir={folder.parent.parent}", f"run.experiment={folder.parent.name}", f"run.name={folder.name}")
    return [sys.executable, "-m", "rollmill.cli.main", "train", *(["--resume"] if resume else []), *words, *place]


@dataclass
class Marks:
    """What was found beside what it should be."""

    rows: list[dict[str, Any]] = field(default_factory=list)

    def at_most(self, what: str, found: float | None, mark: float) -> None:
        self._add(what, found, f"at most {mark:g}", found is not None and found <= mark)

    def at_least(self, what: str, found: float | None, mark: float) -> None:
        self._add(what, found, f"at least {mark:g}", found is not None and found >= mark)

    def within(self, what: str, found: float | None, wanted: float, share: float) -> None:
        """``share`` of ``wanted``."""
        met = found is not None and abs(found - wanted) <= share * abs(wanted)
        self._add(what, found, f"{wanted:g} within {100 * share:g} %", met)

    def equal(self, what: str, found: object, wanted: object) -> None:
        self._add(what, found, str(wanted), found == wanted)

    def _add(self, what: str, found: object, mark: str, met: bool) -> None:
        self.rows.append({"what": what, "found": found, "mark": mark, "met": met})

    @property
    def all_met(self) -> bool:
        return all(row["met"] for row in self.rows)

    def table(self) -> str:
        lines = ["| what | found | mark | |", "|---|---|---|---|"]
        for row in self.rows:
            found = f"{row['found']:.4g}" if isinstance(row["found"], float) else str(row["found"])
            lines.append(f"| {row['what']} | {found} | {row['mark']} | {'met' if row['met'] else 'MISSED'} |")
        return "\n".join(lines)


def record(name: str, content: dict[str, Any]) -> Path:
    """Keep a result as ``runs/benchmarks/<name>-<time>.json``."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}.json"
    path.write_text(json.dumps({"machine": machine(), **content}, indent=1))
    return path


def main_of_parts(name: str, text: str | None, parts: Parts) -> int:
    """The whole command line of a benchmark in parts, each with a ``mark`` that is met (``passed``) or not."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=parts)
    parser.add_argument("--times", type=int, default=0)
    options = parser.parse_args()
    measure, usual = parts[options.part]
    result = measure(options.times or usual)
    path = record(f"{name}_{options.part}", result)
    print(json.dumps(result, indent=1))
    print(f"{'PASSED' if result['passed'] else 'MISSED'}: {result['mark']}; written to {path}")
    return 0 if result["passed"] else 1
