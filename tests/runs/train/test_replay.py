"""Trainings that learn from their segments several times."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from running import SERIAL, assert_same, config_of, rows_of, saved_state, train_here

from rollmill.core.errors import ConfigError
from rollmill.core.fields import ActionSpec, EnvSpec, Field
from rollmill.core.slots import SegmentLayout
from rollmill.learning.off_policy import OffPolicyAppo
from rollmill.replay import buffer
from rollmill.replay.settings import ReplaySettings
from rollmill.replay.triggers import ByClock
from rollmill.runs.settings import replay_checks
from rollmill.runs.settings.train import check, segments_taken
from rollmill.runs.train import forecasting
from rollmill.runs.train.loop import OnlineRun
from rollmill.runs.train.observers import Observer

REPLAY = (
    *("env=toy_target", "learning.targets=vtrace", "learning.batch_size=64"),
    *("replay.capacity=24", "replay.samples_per_insert=3"),
)
"""Batches of 8 segments of a lane; the sampler hands them over two by two."""


class Watch(Observer):
    """Looks at the learner after every round."""

    def __init__(self) -> None:
        self.rounds: list[dict[str, float]] = []

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        learner = run.parts.learners[0]
        assert isinstance(learner, OffPolicyAppo)
        limiter = learner.buffer.table.limiter
        ahead = limiter.inserted * limiter.samples_per_insert - limiter.sampled
        assert ahead <= limiter.max_diff or limiter.size <= limiter.min_size
        assert ahead >= limiter.min_diff or limiter.size < limiter.min_size
        self.rounds.append({"version": learner.version, **learner.counts()})


@pytest.mark.parametrize("mode", ["serial", "sync", "async"])
@pytest.mark.parametrize("sampler", ["uniform", "prioritized"])
def test_the_ratio_holds_in_every_mode(tmp_path: Path, mode: str, sampler: str) -> None:
    watch = Watch()
    words = (f"sampling.mode={mode}", f"replay.sampler={sampler}", "stop.frames=0", "stop.batches=120")
    outcome, folder = train_here(tmp_path, *REPLAY, *words, observers=[watch])
    assert outcome.state == "finished"
    last = watch.rounds[-1]
    assert last["inserted"] == 120 * 2
    assert last["ratio"] == pytest.approx(3.0, rel=0.02)
    assert last["sampled"] == 8 * last["version"]
    assert last["size"] <= 24
    row = rows_of(folder)[-1]
    assert row["learn/policy_lag_max"] <= 20
    assert row["replay/inserted"] > 0


def test_staleness_is_bounded_at_the_moment_of_training(tmp_path: Path) -> None:
    words = ("replay.capacity=200", "learning.max_policy_lag=4", "stop.batches=80", "stop.frames=0", *SERIAL)
    watch = Watch()
    _, folder = train_here(tmp_path, *REPLAY, *words, observers=[watch])
    lags = [row["learn/policy_lag_max"] for row in rows_of(folder) if "learn/policy_lag_max" in row]
    assert 2 < max(lags) <= 4
    assert watch.rounds[-1]["expired"] > 0
    assert watch.rounds[-1]["size"] < 200


def test_by_the_clock_learning_goes_on_while_nothing_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second passes whenever somebody looks at the clock, which is between all rounds of the sampler."""
    seconds = itertools.count()
    monkeypatch.setattr(buffer, "ByClock", lambda *words: ByClock(*words[:3], clock=lambda: float(next(seconds))))
    words = ("replay.trigger=clock", "replay.clock_seconds=3", "stop.batches=20", "stop.frames=0", *SERIAL)
    watch = Watch()
    _, folder = train_here(tmp_path, *REPLAY, *words, "learning.max_policy_lag=1000", observers=[watch])
    last, looks = watch.rounds[-1], next(seconds)
    assert looks > 2 * 20, "twenty times segments came; it is asked more often than that"
    assert looks / 3 - 5 < last["version"] <= looks / 3, "but for the time until there was a batch"
    assert last["sampled"] == 8 * last["version"]
    assert rows_of(folder)[-1]["learn/loss"] is not None


def test_by_the_clock_a_resumed_run_may_wait_for_its_first_segment(tmp_path: Path) -> None:
    words = ("replay.trigger=clock", "replay.clock_seconds=0.001", "replay.save=true", "learning.max_policy_lag=100000")
    train_here(tmp_path, *REPLAY, *words, "sampling.mode=sync", "stop.frames=1024")
    outcome, _ = train_here(tmp_path, *REPLAY, *words, "sampling.mode=sync", "stop.frames=2048", mode="resume")
    assert outcome.state == "finished"


def test_recurrent_networks_and_several_agents_replay_too(tmp_path: Path) -> None:
    for number, words in enumerate((("env=toy_memory", "model.memory=gru"), ("env=toy_agents", "env.policies=[0,1]"))):
        more = ("learning.batch_size=128", "replay.trigger=new", "stop.frames=0", "stop.batches=60")
        _, folder = train_here(tmp_path / str(number), *REPLAY, *words, *more, *SERIAL)
        row = rows_of(folder)[-1]
        assert row["replay/sampled"] > row["replay/inserted"]
        assert ("policy1/replay/sampled" in row) == (number == 1)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The end of a run that was not interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    return saved_state(train_here(folder, *REPLAY, *SERIAL, "replay.save=true", "stop.frames=1024")[1])


@pytest.mark.parametrize("stop", [64, 512])
def test_a_resumed_run_ends_with_the_same_bits(tmp_path: Path, whole: Any, stop: int) -> None:
    """Stopped while the buffer fills, or later."""
    words = (*REPLAY, *SERIAL, "replay.save=true")
    train_here(tmp_path, *words, f"stop.frames={stop}")
    _, folder = train_here(tmp_path, *words, "stop.frames=1024", mode="resume")
    state = saved_state(folder)
    assert_same(state["learners"], whole["learners"])
    assert_same(state["policies"], whole["policies"])


def test_without_contents_a_resumed_run_keeps_the_ratio(tmp_path: Path) -> None:
    train_here(tmp_path, *REPLAY, *SERIAL, "stop.frames=2000")
    _, folder = train_here(tmp_path, *REPLAY, *SERIAL, "stop.frames=8000", mode="resume")
    saved = saved_state(folder)["learners"][0]["replay"]
    assert saved["table"]["items"] is None
    counters = saved["table"]["limiter"]
    assert counters["inserted"] >= 990
    assert counters["sampled"] / (counters["inserted"] - 8) == pytest.approx(3.0, rel=0.03)


def test_replay_can_be_turned_on_and_off_by_a_resume(tmp_path: Path) -> None:
    words = ("env=toy_target", "learning.targets=vtrace", "learning.batch_size=64", *SERIAL)
    train_here(tmp_path, *words, "stop.frames=256")
    _, folder = train_here(tmp_path, *REPLAY, *SERIAL, "stop.frames=512", mode="resume")
    assert "replay" in saved_state(folder)["learners"][0]
    _, folder = train_here(tmp_path, *words, "stop.frames=768", mode="resume")
    assert "replay" not in saved_state(folder)["learners"][0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("learning.targets=gae",), r"learning\.targets=vtrace"),
        (("learning.ranks=2", "sampling.mode=sync"), r"use learning\.ranks=1"),
        (("replay.capacity=0",), r"replay\.\* is set"),
        (("replay.capacity=7",), "fewer segments than the 8"),
        (("replay.error_buffer=5",), "5.5 at least"),
        (("replay.capacity=100", "replay.preload=1", "learning.max_policy_lag=5"), r"higher learning\.max_policy_lag"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_reason(words: tuple[str, ...], message: str) -> None:
    check(config_of(Path(), *REPLAY))
    with pytest.raises(ConfigError, match=message):
        check(config_of(Path(), *REPLAY, *words))


def test_sac_names_its_own_settings() -> None:
    words = ("env=Pendulum-v1", "learning.algorithm=sac", "model.action_distribution=tanh_gaussian")
    words += ("learning.minibatches=4", "learning.epochs=4")
    with pytest.raises(ConfigError, match=r"sac\.capacity"):
        check(config_of(Path(), *words, "replay.capacity=24"))


SPEC = EnvSpec("e", (Field("x", "float32", (3,)),), ActionSpec("discrete", nvec=(2,)))


def test_a_buffer_that_can_never_fit_is_refused_before_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    found = replay_checks.replay_forecast(config_of(Path(), *REPLAY), SegmentLayout(SPEC, 8, 1))
    monkeypatch.setattr(replay_checks, "available_memory", lambda: found.memory[0])
    segments_taken(config_of(Path(), *REPLAY), SPEC)
    with pytest.raises(ConfigError, match=r"replay\.capacity=25: .* at the very least, a batch included"):
        segments_taken(config_of(Path(), *REPLAY, "replay.capacity=25"), SPEC)
    two = ("env.policies=[0,1]", "replay.capacity=20")
    with pytest.raises(ConfigError, match=r"at the very least"):
        segments_taken(config_of(Path(), *REPLAY, *two), SPEC)


def test_what_replay_and_pool_will_take_is_said_before_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the buffer, the checkpoints and the models are as large as was said."""
    words = ("replay.save=true", "replay.samples_per_insert=1", "checkpoints.keep_last=2", "pool.every_updates=1")
    words = (*words, "pool.keep=4", "stop.batches=20", "stop.frames=0", *SERIAL)
    _, folder = train_here(tmp_path, *REPLAY, *words)
    text = folder.log.read_text()
    assert text.index("replay: 24 segments take") < text.index("checkpoint "), "before anything is played"
    bytes_of = {"B": 1, "KB": 1e3, "MB": 1e6}

    def told(pattern: str) -> list[float]:
        numbers = re.findall(rf"(?m){pattern}", text)[0]
        return [float(number) * bytes_of[unit] for number, unit in (word.split() for word in numbers)]

    size = r"([\d.]+ [KM]?B)"
    least, most = told(rf"24 segments take .*\({size} to {size} each\)")
    assert least <= rows_of(folder)[-1]["replay/bytes"] / 24 <= most
    contents = told(rf"replay.save: the contents take {size} to {size} of disk \(3 checkpoints are kept\)")
    assert contents == pytest.approx([3 * 24 * least, 3 * 24 * most], rel=0.01)
    assert len(list(folder.checkpoints.glob("frames-*.ckpt"))) <= 3
    one, four = told(rf"pool: 4 models of {size} take {size} of disk")
    sizes = [path.stat().st_size for path in folder.pool.glob("*.ckpt")]
    assert sizes == pytest.approx([one] * 4, rel=0.02)
    assert four == pytest.approx(4 * one, rel=0.01)
    assert "less than" not in text
    monkeypatch.setattr(forecasting, "available_memory", lambda: 1000)
    full = SimpleNamespace(disk_usage=lambda _: SimpleNamespace(free=1000))
    monkeypatch.setattr(forecasting, "shutil", full)
    train_here(tmp_path, *REPLAY, *words, mode="resume")
    text = folder.log.read_text()
    assert "segments that hardly pack will not fit into memory, of which 1.00 KB are free" in text
    assert text.count("1.00 KB free, less than this may take") == 2


def test_the_learner_is_given_what_makes_a_batch() -> None:
    def taken(*words: str) -> int:
        return segments_taken(config_of(Path(), *REPLAY, *words), SPEC)

    assert taken("replay.capacity=0", "replay.samples_per_insert=1") == 4
    assert taken("replay.samples_per_insert=0.5") == 4
    assert taken("replay.samples_per_insert=2") == 2
    assert taken("replay.samples_per_insert=9") == 1


def test_priorities_are_the_errors_of_values() -> None:
    learner = OffPolicyAppo.__new__(OffPolicyAppo)
    learner.settings = config_of(Path(), *REPLAY, "learning.gamma=0.5", "learning.reward_scale=2").learning
    learner._by_priority = True
    learner.policy_id = 1
    segment = {
        "value": np.array([1.0, 2.0, 4.0, 8.0, 9.0], np.float32),
        "reward": np.array([1.0, 1.0, 9.0, 9.0, 9.0], np.float32),
        "terminated": np.array([False, True, False, False, False]),
        "valid": np.array([True, True, False, True, True]),
        "policy_id": np.array([1, 1, 1, 0, 1], np.int16),
    }
    # 2 * 1 + 0.5 * 2 - 1 = 2 and, after the end, 2 * 1 - 2 = 0; the third row does not count, the fourth is another's.
    assert learner._priority(segment) == pytest.approx(1.0)


def test_batches_that_were_due_when_a_run_was_saved_are_learnt_from_before_anything_is_added() -> None:
    def learner_of() -> OffPolicyAppo:
        made = OffPolicyAppo.__new__(OffPolicyAppo)
        made.policy_id, made._by_priority, made._over = 0, False, False
        made.buffer = buffer.SegmentBuffer(ReplaySettings(capacity=24, samples_per_insert=4.0, save=True), 4, 0)
        made._replay = lambda reports, progress: made.buffer.due() and bool(made.buffer.draw())  # type: ignore[method-assign]
        return made

    ended, resumed = learner_of(), learner_of()
    zeros = np.zeros((5, 2), np.int64)
    segments = {"version": zeros, "policy_id": zeros, "valid": np.ones((5, 2), bool)}
    while ended.buffer.may_add():
        ended.buffer.add({name: array[:, 0] for name, array in segments.items()})
    resumed.buffer.load_state(ended.buffer.state())
    inserted = resumed.buffer.counts()["inserted"]
    resumed.train(segments)
    assert resumed.buffer.counts()["inserted"] == inserted + 2
    assert not resumed.buffer.due()
