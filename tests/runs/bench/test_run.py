"""The benchmark: every kind gives metrics that can be true, and a failing simulator is named."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from running import SERIAL, Run, command_words, config_of, wait_until

from rollmill.core.errors import ConfigError, EnvError, RollmillError
from rollmill.envs.make import make_env
from rollmill.runs.bench import run as bench
from rollmill.runs.bench.alone import GatewayAlone, LearnerAlone
from rollmill.runs.bench.run import KINDS, Measurement, bench_bound, bench_sim, load_of_others
from rollmill.runs.settings.train import TrainConfig
from rollmill.runs.train import build as build_module
from rollmill.runs.train.build import Parts, build_parts

TARGET = ("env=toy_target",)
SECONDS = 0.5
"""Long enough that some worker has its turn, however many others want the cores."""


@pytest.fixture(autouse=True)
def short_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "WARM_UP_SECONDS", 0.02)


@pytest.fixture
def no_child_left() -> Iterator[None]:
    before = set(psutil.Process().children(recursive=True))
    yield
    assert set(psutil.Process().children(recursive=True)) <= before


PHASES = {
    "sim": set(),
    "sample": {"worker env", "worker wait", "main inference", "main rounds"},
    "policy": {"worker env", "worker wait", "main inference", "main rounds"},
    "learn": {"main gather", "main learn", "main batches"},
    "train": {"worker env", "worker wait", "main inference", "main rounds", "main gather", "main learn"},
    "bound": {"env ms/step", "forward ms/step", "train ms/step"},
}


@pytest.mark.usefixtures("no_child_left")
def test_a_gateway_takes_in_what_nodes_send_that_are_never_late(tmp_path: Path) -> None:
    config = config_of(tmp_path, "env=faulty_envs:Marker")  # frame skip 2; two of its segments are canned
    spec = make_env(config.env).spec
    with contextlib.closing(GatewayAlone(config, spec, os.environ, nodes=5)) as alone:
        found = alone.run(SECONDS)
        assert {member.stage for member in alone._gateway._members.members.values()} == {"sampling"}
        deliveries = alone._gateway._deliveries
        assert (deliveries.lost, deliveries.refused) == (0, 0)
        assert deliveries.received == alone._link.segments > found.segments > 0
        assert found.raw_bytes == found.segments * alone._codec.raw_bytes
        assert 0 < found.packed_bytes < found.raw_bytes
        assert 0 < found.steps <= found.segments * 8 * 2
        arena, sampler = alone._sampler.arena, alone._sampler
        sent = {arena["obs:where"][slot].tobytes() for slot in range(arena.slots) if slot not in sampler.remote}
        assert {arena["obs:where"][slot].tobytes() for slot in sampler.remote} <= sent
    result = bench.bench(config, ("cluster",), SECONDS, fake_nodes=1)["cluster"]
    assert result.frames_per_s == pytest.approx(2 * result.steps_per_s)
    assert result.phases.keys() == {"gateway busy", "gateway segments", "received MB/s", "unpacked MB/s"}


@pytest.mark.usefixtures("no_child_left")
def test_every_kind_gives_metrics(tmp_path: Path) -> None:
    results = bench.bench(config_of(tmp_path, *TARGET), KINDS, SECONDS)
    assert tuple(results) == KINDS == tuple(PHASES)
    for kind, result in results.items():
        assert result.kind == kind
        assert result.frames_per_s > 0
        assert result.steps_per_s == pytest.approx(result.frames_per_s)  # toy_target skips no frames
        assert result.phases.keys() == PHASES[kind]
        assert all(value >= 0 for value in result.phases.values())
        assert result.to_dict()["frames_per_s"] == result.frames_per_s
    assert results["train"].phases["main learn"] > 0
    assert results["bound"].steps_per_s < results["sim"].steps_per_s
    assert list(tmp_path.iterdir()) == []


def test_frames_are_steps_times_the_frame_skip(tmp_path: Path) -> None:
    config = config_of(tmp_path, *SERIAL, "env=faulty_envs:Marker")  # frame skip 2
    for kind, result in bench.bench(config, ("sample", "policy"), SECONDS).items():
        assert result.frames_per_s == pytest.approx(2 * result.steps_per_s), kind


def test_the_bound_follows_from_its_parts(tmp_path: Path) -> None:
    """A simulator measured before is not measured again."""
    config = config_of(tmp_path, *SERIAL, *TARGET)
    spec = make_env(config.env).spec
    sim = Measurement("sim", 3000.0, 3000.0)
    result = bench_bound(config, spec, os.environ, {"sim": sim}, SECONDS)
    cores = len(os.sched_getaffinity(0))
    assert result.phases["env ms/step"] == pytest.approx(1e3 * cores / 3000)
    assert result.steps_per_s == pytest.approx(1e3 * cores / sum(result.phases.values()))


def test_the_bound_is_that_of_one_thread_per_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def build(config: TrainConfig, *others: object) -> Parts:
        asked.append(config.learning.threads)
        return build_parts(config, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(build_module, "build_parts", build)
    config = config_of(tmp_path, *TARGET, "sampling.mode=sync", "learning.threads=2")
    bench_bound(config, make_env(config.env).spec, os.environ, {"sim": Measurement("sim", 1.0, 1.0)}, SECONDS)
    assert asked == [1]


def test_the_policy_is_detached_only_after_it_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, a policy that has let go of the arena cannot be asked any more."""
    calls: list[str] = []

    def build(*arguments: Any) -> Parts:
        parts = build_parts(*arguments)
        sampler, policy = parts.sampler, parts.sampler.policies[0]
        monkeypatch.setattr(sampler.inference, "decide", _noted(calls, "decide", sampler.inference.decide))
        monkeypatch.setattr(sampler.pool, "stop", _noted(calls, "end workers", sampler.pool.stop))
        monkeypatch.setattr(policy, "detach", _noted(calls, "detach", policy.detach))
        return parts

    monkeypatch.setattr(build_module, "build_parts", build)
    config = config_of(tmp_path, *SERIAL, *TARGET)
    bench_bound(config, make_env(config.env).spec, os.environ, {"sim": Measurement("sim", 1.0, 1.0)}, SECONDS)
    alone = calls[calls.index("end workers") + 1 :]
    assert alone[-1] == "detach"
    assert len(alone) > 1
    assert set(alone[:-1]) == {"decide"}


def test_a_learner_alone_gets_every_segment_as_if_it_were_new(tmp_path: Path) -> None:
    """Weights stand still, no batch is cut short by ``target_kl``, and none is too old for replay."""
    replayed = ("replay.capacity=64", "replay.samples_per_insert=2", "learning.targets=vtrace")
    for words in ((), ("learning.epochs=3", "learning.target_kl=1e-6"), replayed):
        config = config_of(tmp_path, *SERIAL, *TARGET, *words)
        with contextlib.closing(LearnerAlone(config, make_env(config.env).spec, os.environ)) as alone:
            before = weights(alone)
            learner = alone._parts.learners[0]
            found = alone.run(SECONDS)
            assert found.batches > 0
            assert 0 < found.steps <= found.batches * config.learning.batch_size
            assert found.gather + found.learn <= found.seconds
            batch = alone._parts.gather(alone._slots)
            batch["version"][:] = learner.version
            metrics = learner.train(batch)
            assert metrics["epochs"] == config.learning.epochs, words
            np.testing.assert_allclose(weights(alone), before, atol=1e-6)


def weights(alone: LearnerAlone) -> Any:
    learner: Any = alone._parts.learners[0]
    return np.concatenate([p.detach().numpy().ravel() for p in learner.model.parameters()])


def test_the_time_of_a_learner_alone_begins_when_its_buffer_is_filled(tmp_path: Path) -> None:
    sac = ("env=Pendulum-v1", "learning.algorithm=sac", "model.action_distribution=tanh_gaussian")
    buffer = ("sac.warmup=200", "sac.minibatch=16", "sac.capacity=1000")
    config = config_of(tmp_path, *SERIAL, *sac, "model.log_std=state", *buffer)
    with contextlib.closing(LearnerAlone(config, make_env(config.env).spec, os.environ)) as alone:
        learner = alone._parts.learners[0]
        alone.run(1e-9)
        assert learner.version > 0


def _noted(calls: list[str], name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **words: Any) -> Any:
        calls.append(name)
        return function(*arguments, **words)

    return call


# -- what goes wrong ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_child_left")
@pytest.mark.parametrize(("kind", "error"), [("sim", RollmillError), ("sample", EnvError), ("train", EnvError)])
def test_a_failing_env_is_named(tmp_path: Path, kind: str, error: type[RollmillError]) -> None:
    config = config_of(tmp_path, "env=faulty_envs:Misbehave", "env.args={at_step: 9}", "env.fault_limit=0")
    with pytest.raises(error, match="told to raise in step"):
        bench.bench(config, (kind,), SECONDS)


def test_settings_that_are_wrong_start_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="near: 32, 48"):
        bench.bench(config_of(tmp_path, *TARGET, "learning.batch_size=33"), KINDS, SECONDS)


def test_a_simulator_that_complains_without_end_is_measured_all_the_same(tmp_path: Path) -> None:
    """More than a pipe holds goes to stderr before the first step: Python tells of every import."""
    config = config_of(tmp_path, *TARGET)
    noisy = {**os.environ, "PYTHONVERBOSE": "1"}
    assert bench_sim(config, make_env(config.env).spec, noisy, SECONDS).frames_per_s > 0


def test_a_signal_ends_it_with_its_usual_effect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rollmill: Run) -> None:
    """A training that is told to stop ends tidily; what is being measured must then end as well."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    words = command_words(tmp_path, *TARGET, "sampling.workers=1")[1:]
    command = rollmill("bench", "train", *words, "--seconds", "1000")
    wait_until(command.workers, what="workers")
    command.send(signal.SIGTERM)
    assert command.wait() == 143
    command.assert_nothing_left()
    assert command.text == "rollmill bench: interrupted\n"
    wait_until(lambda: not list(tmp_path.glob("rollmill-*")), what="scratch folders to be removed")


# -- the machine -------------------------------------------------------------------------------------------


def test_the_load_of_others_is_a_number_of_cores() -> None:
    assert 0 <= load_of_others(0.05) <= (os.cpu_count() or 1)


def test_busy_cores_are_counted_from_two_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 400 ticks between the looks 100 were idle and 100 waited for a disk: half of the cores were busy."""
    looks = iter(["cpu 100 0 100 700 100 0 0\n", "cpu 200 0 200 800 200 0 0\n"])

    class Stat:
        def exists(self) -> bool:
            return True

        def read_text(self) -> str:
            return next(looks)

    monkeypatch.setattr(bench, "Path", lambda path: Stat())
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert load_of_others(0.0) == pytest.approx(4.0)


def test_where_nothing_is_known_the_load_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "Path", lambda path: Path("/missing"))
    assert load_of_others(0.0) == 0.0
