"""How near is training to what the machine could do? Training and its bound in slices of seconds, by turns.

    python benchmarks/share.py -f doom_basic
    python benchmarks/share.py -f FILE learning.batch_size=4096 --variant "" --variant sampling.groups=4

A shared machine changes by a fifth within minutes, so measurements one after the other say little. Here everything is
started once; then all but one are stopped (SIGSTOP) in turns: one training per ``--variant``, bare simulators (one per
core), and, without a GPU, the forward pass and the training step alone. The bound without a GPU is
cores / (env + forward + training seconds of a step); with a GPU it is the bare simulators. Prints rates and shares,
writes ``runs/benchmarks/share-*.json`` (with the processor seconds of each thread of the trainings' main processes).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from common import end_on_sigterm, record, tree

from rollmill.core.config.load import load_config
from rollmill.core.errors import RollmillError
from rollmill.core.machine import may_have_gpu, usable_cores
from rollmill.core.process_scope import process_scope
from rollmill.runs.bench.alone import Alone
from rollmill.runs.bench.run import WARM_UP_STEPS, Simulators
from rollmill.runs.lifecycle import Request
from rollmill.runs.probing import probe_in_child
from rollmill.runs.settings.sizing import size
from rollmill.runs.settings.train import TrainConfig
from rollmill.runs.train.observers import Observer
from rollmill.runs.train.run import train

SETTLE_SECONDS = 0.5
WARM_UP_SECONDS = 3.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-f", "--config", action="append", default=[], type=Path)
    parser.add_argument("words", nargs="*", help="KEY=VALUE, for all")
    parser.add_argument("--variant", action="append", help="more KEY=VALUE words, for one of several trainings")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=3.0, help="of a slice")
    parser.add_argument("--role", choices=["train", "alone"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    config = load_config(TrainConfig, tuple(options.config), tuple(options.words))
    if options.role:
        {"train": serve_training, "alone": serve_alone}[options.role](config)
        return 0
    end_on_sigterm()
    for variant in options.variant or []:
        load_config(TrainConfig, tuple(options.config), (*options.words, *variant.split()))
    files = [word for path in options.config for word in ("-f", str(path))]
    results = measure(config, [*files, *options.words], options.variant or [""], options.rounds, options.seconds)
    print(table(results))
    print(record("share", results))
    return 0


def measure(config: TrainConfig, words: list[str], variants: list[str], rounds: int, seconds: float) -> dict[str, Any]:
    gpu = may_have_gpu() and config.learning.device != "cpu"
    slices: dict[str, list[Any]] = {}
    with process_scope() as environment, contextlib.ExitStack() as stack:
        contenders: dict[str, Callable[[], Any]] = {}
        for variant in variants:
            child = stack.enter_context(contextlib.closing(Child("train", [*words, *variant.split()])))
            contenders[f"train {variant}".strip()] = lambda child=child: child.slice(seconds)
        if not gpu:
            alone = stack.enter_context(contextlib.closing(Child("alone", words)))
            contenders["alone"] = lambda: alone.ask(seconds)
        simulators = stack.enter_context(contextlib.closing(Simulators(size(config), environment)))
        contenders["sim"] = lambda: simulators.frames_per_s(seconds)
        slices = {name: [] for name in contenders}
        for k in range(rounds):
            for name in list(contenders)[:: 1 if k % 2 else -1]:
                slices[name].append(contenders[name]())
            print(f"{k + 1}/{rounds}", {name: _short(found[-1]) for name, found in slices.items()}, file=sys.stderr)
        frames_per_step = probe_in_child(config.env, environment, config.sampling.start_timeout).frames_per_step
    return {"words": words, "slices": slices, "frames_per_step": frames_per_step, "cores": len(usable_cores())}


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return round(value)
    return {name: round(x) if x > 1 else round(x, 6) for name, x in value.items()}


def table(results: dict[str, Any]) -> str:
    """Rates over all slices, and the share of the bound: of all slices together, and the range of single rounds."""
    slices, skip, cores = results["slices"], results["frames_per_step"], results["cores"]
    bounds = list(slices["sim"])
    lines = [f"bare simulators        {_range(bounds)} frames/s"]
    if "alone" in slices:
        parts = [
            {"env": cores * skip / sim, **{name: alone[name] for name in ("forward", "train")}}
            for sim, alone in zip(slices["sim"], slices["alone"])
        ]
        bounds = [cores * skip / sum(part.values()) for part in parts]
        medians = {name: 1e3 * statistics.median(part[name] for part in parts) for name in parts[0]}
        words = ", ".join(f"{name} {value:.3f}" for name, value in medians.items())
        lines.append(f"bound                  {_range(bounds)} frames/s (ms a step: {words})")
    results["shares"] = {}
    for name, found in slices.items():
        if not name.startswith("train"):
            continue
        rates = [slice_["frames_per_s"] for slice_ in found]
        # The whole of it first: a slice of a few seconds has more or less of a learner's work in it.
        share = results["shares"][name] = statistics.mean(rates) / statistics.mean(bounds)
        single = [rate / bound for rate, bound in zip(rates, bounds)]
        lines.append(
            f"{name:22} {_range(rates)} frames/s: {share:.1%} of the bound ({min(single):.0%} to {max(single):.0%})"
        )
        means = {key: statistics.mean(slice_[key] for slice_ in found) for key in ("wait", "rounds_per_s", "answer")}
        lines.append(
            f"{'':22} workers wait {means['wait']:.1%} of the time, {means['rounds_per_s']:,.0f} rounds of answers/s, "
            f"{1e3 * means['answer']:.2f} ms each; mean return {found[0]['return']:.1f} to {found[-1]['return']:.1f}"
        )
    return "\n".join(lines)


def _range(values: list[float]) -> str:
    return f"{statistics.mean(values):9,.0f} ({min(values):,.0f} to {max(values):,.0f})"


# -- processes that work only when asked -----------------------------------------------------------------------


class Child:
    """This script in another role; stopped with all it has started, except while it is asked something."""

    def __init__(self, role: str, words: list[str]) -> None:
        self._noise = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - closed by close()
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--role", role, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._noise,
            text=True,
            start_new_session=True,
        )
        try:
            self._read()
        except BaseException:
            self.close()
            raise
        self._signal(signal.SIGSTOP)

    def _signal(self, number: signal.Signals) -> None:
        for pid in tree(self._process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._noise.seek(0)
            raise SystemExit(f"{' '.join(self._process.args)} has ended:\n{self._noise.read()[-3000:]}")  # type: ignore[arg-type]
        return json.loads(line)

    def _say(self, word: str) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        return self._read()

    @contextlib.contextmanager
    def _awake(self) -> Any:
        self._signal(signal.SIGCONT)
        try:
            yield
        finally:
            self._signal(signal.SIGSTOP)

    def ask(self, seconds: float) -> Any:
        with self._awake():
            return self._say(str(seconds))

    def slice(self, seconds: float) -> dict[str, float]:
        """Of a training: what it has counted over so many seconds."""
        with self._awake():
            time.sleep(SETTLE_SECONDS)
            before = self._say("count")
            time.sleep(seconds)
            after = self._say("count")
        more = {name: after[name] - before.get(name, 0.0) for name in after}
        return {
            "frames_per_s": more["frames"] / more["time"],
            "wait": more["wait"] / (more["wait"] + more["env"]),
            "rounds_per_s": more["rounds"] / more["time"],
            "answer": more["answer"] / more["rounds"],
            "return": after["return"],
            **{name: used / more["time"] for name, used in more.items() if name.startswith("cpu") and used > 0.01},
        }

    def close(self) -> None:
        for pid in reversed(tree(self._process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.communicate()
        self._noise.close()


class _Counter(Observer):
    """Says how many frames were simulated so far, whenever it is asked on stdin."""

    def __init__(self, answers: Any) -> None:
        self._answers = answers
        self._warm_since = 0.0

    def on_training_step(self, run: Any, iteration: int) -> None:
        if self._warm_since < 0:
            return
        if not self._warm_since and run.parts.sampler.box.done.min() >= WARM_UP_STEPS:
            self._warm_since = time.monotonic()
        if self._warm_since and time.monotonic() > self._warm_since + WARM_UP_SECONDS:
            self._warm_since = -1
            threading.Thread(target=self._serve, args=(run,), daemon=True).start()

    def _serve(self, run: Any) -> None:
        sampler = run.parts.sampler
        # Commands done, not finished segments: those come in bursts.
        per_command = sampler.plan.lanes_per_group * sampler.plan.spec.frames_per_step
        self._say("ready")
        for _ in sys.stdin:
            self._say(
                {
                    "frames": int(sampler.box.done.sum()) * per_command,
                    "time": time.perf_counter(),
                    "wait": float(sampler.box.seconds_wait.sum()),
                    "env": float(sampler.box.seconds_env.sum()),
                    "rounds": sampler.rounds,
                    "answer": sampler.seconds_inference,
                    "return": run.mean_return or 0.0,
                    **_thread_seconds(),
                }
            )

    def _say(self, what: Any) -> None:
        print(json.dumps(what), file=self._answers, flush=True)


def _thread_seconds() -> dict[str, float]:
    """Processor seconds of each thread of this process."""
    threads = {}
    for task in Path("/proc/self/task").iterdir():
        name, spent = (task / "comm").read_text().strip(), (task / "schedstat").read_text().split()[0]
        threads[f"cpu {name} {task.name}"] = int(spent) / 1e9
    return threads


def _answers() -> Any:
    """Stdout for answers alone: whatever else is printed goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def serve_training(config: TrainConfig) -> None:
    counter = _Counter(_answers())
    with tempfile.TemporaryDirectory(prefix="bench-share-") as folder:
        quiet = replace(config.checkpoints, every_seconds=1e9, min_free_mb=0)
        endless = replace(config.stop, frames=0, seconds=1e9, mean_return=None, batches=0)
        run = replace(config.run, dir=Path(folder))
        train(replace(config, run=run, checkpoints=quiet, stop=endless), Request(console="off"), [counter])


def serve_alone(config: TrainConfig) -> None:
    answers = _answers()
    with process_scope() as environment:
        spec = probe_in_child(config.env, environment, config.sampling.start_timeout)
        with contextlib.closing(Alone(size(config, spec), spec, environment)) as alone:
            print('"ready"', file=answers, flush=True)
            for line in sys.stdin:
                seconds = float(line) / 2
                found = {"forward": alone.forward_seconds(seconds), "train": alone.train_seconds(seconds)}
                print(json.dumps(found), file=answers, flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RollmillError as error:
        sys.exit(f"error: {error}")
