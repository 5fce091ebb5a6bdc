"""What every comparison needs: a venv for the peer, the memory of a process tree, medians, a record on disk."""

from __future__ import annotations

import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "runs" / "benchmarks"


def peer_venv(name: str, *installs: list[str]) -> Path:
    """A virtual environment for a peer, made once; each of ``installs`` is one call of pip."""
    folder = ROOT / f".venv-bench-{name}"
    python = folder / "bin" / "python"
    stamp = folder / ".installed"
    if stamp.exists():
        return python
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    for words in installs:
        print(f"installing {' '.join(words)}", file=sys.stderr, flush=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *words], check=True)
    stamp.touch()
    return python


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
        while process.poll() is None and (deadline is None or time.monotonic() < deadline):
            self.peak_mb = max(self.peak_mb, tree_mb(process.pid))
            if deadline is None and any(until in line for _, line in list(self.lines)):
                deadline = time.monotonic() + seconds
            time.sleep(0.5)
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


def tree_mb(pid: int) -> float:
    """Memory of a process tree in MB: shared pages are counted once (proportional set size)."""
    total = 0
    for member in tree(pid):
        try:
            text = Path(f"/proc/{member}/smaps_rollup").read_text()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
    return total / 1000


def ours(*words: str) -> dict[str, Any]:
    """Run a ``rollmill`` verb with --json and read what it says."""
    command = [sys.executable, "-m", "rollmill.cli.main", *words, "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stderr[-4000:]}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def median_text(values: list[float]) -> str:
    """``median (smallest to largest)``."""
    return f"{statistics.median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})"


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


def record(name: str, content: dict[str, Any]) -> Path:
    """Keep a result as ``runs/benchmarks/<name>-<time>.json``."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}.json"
    path.write_text(json.dumps({"machine": machine(), **content}, indent=1))
    return path
