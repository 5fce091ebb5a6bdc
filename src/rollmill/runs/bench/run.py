"""``rollmill bench``: how fast each layer is, as a share of the one below it.

========  =============================================================================================
sim       bare simulator processes, one per core, random actions: the upper bound
sample    our workers and slots with a random policy, no network
policy    the same with the real network, no learner
learn     the learner by itself, on segments that were sampled beforehand
train     everything
bound     what the cores could do if nothing but env, forward and training cost time (for CPUs)
cluster   what one gateway takes in from nodes, on segments that were sampled beforehand (not part of all)
========  =============================================================================================
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rollmill.core.errors import RollmillError
from rollmill.core.fields import EnvSpec
from rollmill.core.machine import usable_cores
from rollmill.core.process import start_module
from rollmill.core.process_scope import process_scope
from rollmill.core.seeds import Seeds
from rollmill.runs.bench.alone import GatewayAlone, LearnerAlone, NetworkAlone
from rollmill.runs.lifecycle import Request
from rollmill.runs.probing import probe_in_child
from rollmill.runs.settings.sizing import size
from rollmill.runs.settings.train import TrainConfig, segments_per_batch
from rollmill.runs.train.observers import Observer
from rollmill.runs.train.profiler import Profiler
from rollmill.runs.train.run import train
from rollmill.sampling.placement import default_workers
from rollmill.sampling.policies.random import RandomPolicy
from rollmill.sampling.sampler import Sampler, SamplerPlan

KINDS = ("sim", "sample", "policy", "learn", "train", "bound")
"""All that ``bench all`` measures."""
FAKE_NODES = 3
WARM_UP_SECONDS = 2.0
WARM_UP_STEPS = 5


@dataclass(frozen=True)
class Measurement:
    """One measurement: frames per second, and where the time went (seconds per second of the run, by process)."""

    kind: str
    frames_per_s: float
    steps_per_s: float
    phases: dict[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def bench(
    config: TrainConfig,
    kinds: tuple[str, ...],
    seconds: float,
    profiler: Profiler | None = None,
    fake_nodes: int = FAKE_NODES,
) -> dict[str, Measurement]:
    """Measure the asked kinds one after the other; ``profiler`` records the training, which costs speed."""
    asked, config = config, size(config)
    results: dict[str, Measurement] = {}
    with process_scope() as environment:
        spec = probe_in_child(config.env, environment, config.sampling.start_timeout)
        config = size(asked, spec)
        measures: dict[str, Callable[[], Measurement]] = {
            "sim": lambda: bench_sim(config, spec, environment, seconds),
            "sample": lambda: bench_sampling(config, spec, environment, seconds, network=False),
            "policy": lambda: bench_sampling(config, spec, environment, seconds, network=True),
            "learn": lambda: bench_learn(config, spec, environment, seconds),
            "train": lambda: bench_train(config, spec, seconds, profiler),
            "bound": lambda: bench_bound(config, spec, environment, results, seconds),
            "cluster": lambda: bench_cluster(config, spec, environment, seconds, fake_nodes),
        }
        for kind in kinds:
            results[kind] = measures[kind]()
    return results


def load_of_others(seconds: float = 1.0) -> float:
    """Return how many cores other processes keep busy just now (Linux; 0 elsewhere)."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0.0

    def busy() -> tuple[float, float]:
        fields = [int(x) for x in stat.read_text().splitlines()[0].split()[1:]]
        return sum(fields) - fields[3] - fields[4], sum(fields)

    busy_before, all_before = busy()
    time.sleep(seconds)
    busy_after, all_after = busy()
    share = (busy_after - busy_before) / max(1.0, all_after - all_before)
    return min(1.0, max(0.0, share)) * (os.cpu_count() or 1)  # Linux may take back time it had called waiting for I/O


# -- the simulator alone -----------------------------------------------------------------------------


def bench_sim(config: TrainConfig, spec: EnvSpec, environment: Mapping[str, str], seconds: float) -> Measurement:
    """Run as many bare simulators as cores can be kept busy, each pinned to one, all at the same time."""
    with contextlib.closing(Simulators(config, environment)) as simulators:
        frames = simulators.frames_per_s(seconds)
    return Measurement("sim", frames, frames / spec.frames_per_step)


class Simulators:
    """One bare simulator process per core, pinned to it; idle between measurements."""

    def __init__(self, config: TrainConfig, environment: Mapping[str, str]) -> None:
        cores: list[int | None] = [*usable_cores()[: default_workers()]] or [None] * default_workers()
        self._all = [_Simulator(config, i, core, environment) for i, core in enumerate(cores)]
        try:
            for simulator in self._all:
                simulator.line()  # "ready"
        except BaseException:
            self.close()
            raise

    def frames_per_s(self, seconds: float) -> float:
        """Return the frames per second of all together, all at the same time."""
        for simulator in self._all:
            simulator.go(seconds)
        answers = [json.loads(simulator.line()) for simulator in self._all]
        return float(sum(a["frames"] / a["seconds"] for a in answers))

    def close(self) -> None:
        for simulator in self._all:
            simulator.close()


class _Simulator:
    """One bare simulator process."""

    def __init__(self, config: TrainConfig, index: int, core: int | None, environment: Mapping[str, str]) -> None:
        setup = {"env": asdict(config.env), "index": index, "core": core, "path": sys.path}
        # A file: a pipe that nobody reads fills up, and then the simulator waits for ever.
        self._noise = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - closed by close()
        self._process = start_module(
            "rollmill.envs.simulate",
            json.dumps(setup),
            environment=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._noise,
            text=True,
        )

    def go(self, seconds: float) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()

    def line(self) -> str:
        """Return what it says next. Raises RollmillError if it has ended instead."""
        assert self._process.stdout is not None
        line: str = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            self._noise.seek(0)
            raise RollmillError(f"a simulator process ended early (exit code {code}):\n{self._noise.read()[-2000:]}")
        return line

    def close(self) -> None:
        self._process.kill()
        self._process.wait()  # not for the end of its pipes: what it has started may hold them open
        for file in (self._process.stdin, self._process.stdout, self._noise):
            if file is not None:
                with contextlib.suppress(BrokenPipeError):  # what it was to hear is still in there
                    file.close()


# -- our sampling ------------------------------------------------------------------------------------


def bench_sampling(
    config: TrainConfig, spec: EnvSpec, environment: Mapping[str, str], seconds: float, network: bool
) -> Measurement:
    """Measure workers and slots without a learner: finished segments are thrown away.

    Without ``network``, workers act at random by themselves: what sampling costs beyond the simulators.
    """
    with _sampler(config, spec, environment, network) as sampler:
        warm = WARM_UP_STEPS if network else 2  # decisions of the main process: without a network one per segment
        while sampler.box.done.min() < warm:  # some simulators start much later than others
            _run_rounds(sampler, WARM_UP_SECONDS)
        frames, envs, waits = sampler.frames, sampler.box.seconds_env.copy(), sampler.box.seconds_wait.copy()
        busy, rounds = sampler.seconds_inference, sampler.rounds
        took = _run_rounds(sampler, seconds)
        frames = sampler.frames - frames
        phases = {
            "worker env": float((sampler.box.seconds_env - envs).mean() / took),
            "worker wait": float((sampler.box.seconds_wait - waits).mean() / took),
            "main inference": (sampler.seconds_inference - busy) / took,
            "main rounds": (sampler.rounds - rounds) / took,
        }
    kind = "policy" if network else "sample"
    return Measurement(kind, frames / took, frames / took / spec.frames_per_step, phases)


@contextlib.contextmanager
def _sampler(config: TrainConfig, spec: EnvSpec, environment: Mapping[str, str], network: bool) -> Iterator[Sampler]:
    if network:
        from rollmill.runs.train.build import build_parts

        sampler = build_parts(config, spec, environment).sampler
    else:
        plan = SamplerPlan(
            settings=config.sampling,
            env=config.env,
            spec=spec,
            seeds=Seeds(config.run.seed).branch("envs"),
            segments_per_batch=segments_per_batch(config, spec),
            environment=environment,
            pin_inference=True,
            random_actions=True,
        )
        sampler = Sampler(plan, [RandomPolicy(spec, config.run.seed)])
    try:
        sampler.start()
        sampler.pool.pin_inference_thread()
        yield sampler
    finally:
        sampler.stop()


def _run_rounds(sampler: Sampler, seconds: float) -> float:
    """Run rounds for so many seconds; returns the seconds it took."""
    begun = time.perf_counter()
    while (now := time.perf_counter()) < begun + seconds:
        sampler.round()
        while (slots := sampler.take(1, timeout=0)) is not None:
            sampler.release(slots)
        sampler.episodes.clear()
    return now - begun


# -- the learner alone -------------------------------------------------------------------------------


def bench_learn(config: TrainConfig, spec: EnvSpec, environment: Mapping[str, str], seconds: float) -> Measurement:
    """Measure the learner on canned segments, as a training drives it (copy a batch, learn, publish).

    There is nothing beside it.
    """
    with contextlib.closing(LearnerAlone(config, spec, environment)) as learner:
        found = learner.run(seconds)
    steps = found.steps / found.seconds
    phases = {"main gather": found.gather / found.seconds, "main learn": found.learn / found.seconds}
    phases["main batches"] = found.batches / found.seconds
    return Measurement("learn", steps * spec.frames_per_step, steps, phases)


# -- the gateway alone -------------------------------------------------------------------------------


def bench_cluster(
    config: TrainConfig, spec: EnvSpec, environment: Mapping[str, str], seconds: float, nodes: int
) -> Measurement:
    """Measure one gateway with nodes that are never late: what of them it brings into the learner's slots."""
    with contextlib.closing(GatewayAlone(config, spec, environment, nodes)) as gateway:
        found = gateway.run(seconds)
    took = found.seconds
    phases = {"gateway busy": found.busy / took, "gateway segments": found.segments / took}
    phases |= {"received MB/s": found.packed_bytes / took / 1e6, "unpacked MB/s": found.raw_bytes / took / 1e6}
    steps = found.steps / took
    return Measurement("cluster", steps * spec.frames_per_step, steps, phases)


# -- everything --------------------------------------------------------------------------------------


class _Stopwatch(Observer):
    """Notes frames and time once the run is warm, and at its end; ends it after the asked time."""

    def __init__(self, seconds: float, warm_up: float, profiler: Profiler | None) -> None:
        self._seconds, self._warm_up, self._profiler = seconds, warm_up, profiler
        self._started = 0.0
        self._marks: list[tuple[float, int, dict[str, float]]] = []

    def on_training_step(self, run: Any, iteration: int) -> None:
        now = time.perf_counter()
        self._started = self._started or now
        if not self._marks and run.parts.sampler.box.done.min() < WARM_UP_STEPS:
            self._started = now  # some simulators start much later than others
        if now < self._started + self._warm_up:
            return
        if not self._marks:
            self._marks.append((now, run.frames, _phases(run)))
        elif now >= self._marks[0][0] + self._seconds and (self._profiler is None or self._profiler.is_done):
            self._marks.append((now, run.frames, _phases(run)))
            run.stop("measured")

    def result(self) -> tuple[float, dict[str, float]]:
        if len(self._marks) < 2:
            raise RollmillError("the training ended before its speed could be measured")
        (begun, before, phases), (ended, after, later) = self._marks
        took = ended - begun
        return (after - before) / took, {name: (later[name] - phases[name]) / took for name in later}


def _phases(run: Any) -> dict[str, float]:
    """Return seconds by phase, and rounds of inference, since the start."""
    return {**run.phase_seconds(), "main rounds": float(run.parts.sampler.rounds)}


def bench_train(
    config: TrainConfig,
    spec: EnvSpec,
    seconds: float,
    profiler: Profiler | None = None,
    warm_up: float | None = None,
    limit: float | None = None,
) -> Measurement:
    """Measure a real training, with everything but the console, in a folder that is thrown away.

    ``warm_up``: seconds that are not measured; ``limit``: seconds of training after which to give up (RollmillError).
    """
    stopwatch = _Stopwatch(seconds, WARM_UP_SECONDS if warm_up is None else warm_up, profiler)
    with tempfile.TemporaryDirectory(prefix="rollmill-bench-") as folder:
        quiet = replace(config.checkpoints, every_seconds=1e9, min_free_mb=0)
        run = replace(config.run, dir=Path(folder))
        limit = limit or 10 * seconds + 600
        endless = replace(config.stop, frames=0, seconds=limit, mean_return=None, batches=0)
        settings = replace(config, run=run, checkpoints=quiet, stop=endless)
        observers = [stopwatch] if profiler is None else [profiler, stopwatch]
        outcome = train(settings, Request(console="off"), observers)
    if outcome.signal:
        signal.raise_signal(outcome.signal)  # now that everything is tidy, with its usual effect
    frames, phases = stopwatch.result()
    return Measurement("train", frames, frames / spec.frames_per_step, phases)


def bench_bound(
    config: TrainConfig,
    spec: EnvSpec,
    environment: Mapping[str, str],
    results: dict[str, Measurement],
    seconds: float,
) -> Measurement:
    """Compute cores / (env + forward + training) seconds per step, each measured alone on one thread."""
    sim = results.get("sim") or bench_sim(config, spec, environment, seconds)
    cores = default_workers()
    t_env = cores / sim.steps_per_s
    with contextlib.closing(NetworkAlone(config, spec, environment)) as alone:
        t_train, t_forward = alone.train_seconds(seconds), alone.forward_seconds(seconds / 2)
    steps = cores / (t_env + t_forward + t_train)
    phases = {"env ms/step": 1e3 * t_env, "forward ms/step": 1e3 * t_forward, "train ms/step": 1e3 * t_train}
    return Measurement("bound", steps * spec.frames_per_step, steps, phases)
