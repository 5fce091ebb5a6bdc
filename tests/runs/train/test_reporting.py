"""Rows of metrics: when they are written, what stands in them, and what happens when they cannot be."""

import re
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from running import SERIAL, assert_same, config_of, saved_state, train_here

from rollmill.core.checkpoints import Checkpoints
from rollmill.core.errors import RunFolderError
from rollmill.core.run_folder import RunFolder
from rollmill.monitor import reporter as reporter_module
from rollmill.monitor.console import count_text
from rollmill.monitor.jsonl import JsonlSink, read_jsonl
from rollmill.runs.lifecycle import Life, Request
from rollmill.runs.settings.train import TrainConfig
from rollmill.runs.train import run as train_module
from rollmill.runs.train.loop import OnlineRun
from rollmill.runs.train.observers import Observer
from rollmill.runs.train.reporting import Phases, TrainMetrics, panel_rows
from rollmill.sampling.sampler import EpisodeEnd

TARGET = (*SERIAL, "env=toy_target")


class Frames(Observer):
    def __init__(self) -> None:
        self.frames: list[int] = []

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        self.frames.append(run.frames)


def due(frames: list[int], every: int) -> list[int]:
    """The steps that cross the next multiple of ``every``."""
    rows, following = [], every
    for reached in frames:
        if reached >= following:
            rows.append(reached)
            following = (reached // every + 1) * every
    return rows


@pytest.mark.parametrize("every", [1, 50, 100, 1000])
def test_rows_are_written_by_the_clock_of_the_run(tmp_path: Path, every: int) -> None:
    seen = Frames()
    _, folder = train_here(tmp_path, *TARGET, "stop.frames=700", f"report.every_frames={every}", observers=[seen])
    assert [row["frames"] for row in read_jsonl(folder.metrics)] == due(seen.frames, every)


@pytest.mark.parametrize(
    ("stop", "every", "expected"),
    [
        ("stop.frames=1000000", 0, 2000),
        ("stop.frames=400", 0, 1),  # a short run has rows, too
        ("stop.frames=0 stop.seconds=5", 0, 10_000),
        ("stop.frames=1000000", 7, 7),
    ],
)
def test_how_often_by_default(tmp_path: Path, stop: str, every: int, expected: int) -> None:
    assert config_of(tmp_path, *stop.split(), f"report.every_frames={every}").report_frames == expected


def metrics_of(config: TrainConfig) -> TrainMetrics:
    """What collects metrics, without a run and without sinks."""
    return TrainMetrics(config, Life("online", RunFolder(config.folder), config))


# -- what stands in them -----------------------------------------------------------------------------------


class Listening(TrainMetrics):
    """Keeps what the learner has said."""

    said: list[dict[str, float]]

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        Listening.said = []

    def add_learning(self, policy_id: int, metrics: Mapping[str, float]) -> None:
        self.said.append(dict(metrics))
        super().add_learning(policy_id, metrics)


def test_metrics_of_learning_are_means_since_the_last_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_module, "TrainMetrics", Listening)
    _, folder = train_here(tmp_path, *TARGET, "stop.batches=12", "report.every_frames=150")
    rows = read_jsonl(folder.metrics)
    assert len(rows) >= 2
    start = 0
    for row in rows:
        end = row["learn/batches"]
        for name in Listening.said[0]:
            values = [metrics[name] for metrics in Listening.said[start:end]]
            assert row[f"learn/{name}"] == pytest.approx(sum(values) / len(values)), name
        start = end


def test_metrics_of_other_policies_have_names_of_their_own(tmp_path: Path) -> None:
    reporter = metrics_of(config_of(tmp_path))
    reporter.add_learning(0, {"loss": 1.0})
    reporter.add_learning(0, {"loss": 3.0})
    reporter.add_learning(2, {"loss": 5.0})
    assert reporter.state()["sums"] == {"learn/loss": [4.0, 2.0], "policy2/learn/loss": [5.0, 1.0]}


def test_the_mean_return_is_that_of_the_window(tmp_path: Path) -> None:
    reporter = metrics_of(config_of(tmp_path, "report.window=3"))
    assert reporter.mean_return is None
    for value in (1.0, 2.0):
        reporter.episodes.add([value], [1])
    assert (reporter.mean_return, reporter.window_full) == (1.5, False)
    for value in (3.0, 7.0):
        reporter.episodes.add([value], [1])
    assert (reporter.mean_return, reporter.window_full) == (4.0, True)


def test_every_worker_has_a_mean_return_of_its_own(tmp_path: Path) -> None:
    """Worker 1 has lanes 4 to 7: its environments bring less."""
    reporter = metrics_of(config_of(tmp_path, "report.window=2"))
    returns = {0: [9.0, 10.0, 12.0], 3: [14.0], 4: [1.0], 7: [3.0]}
    ended = deque(EpisodeEnd(lane, 0, value, 5, True, 0, 0) for lane, values in returns.items() for value in values)
    plan = SimpleNamespace(lanes_per_group=2, settings=SimpleNamespace(groups=2))
    report = SimpleNamespace(episode_stats=deque())
    sampler = SimpleNamespace(episodes=ended, plan=plan, pool=SimpleNamespace(report=report))
    reporter._count_episodes(SimpleNamespace(parts=SimpleNamespace(sampler=sampler), selfplay=None))  # type: ignore[arg-type]
    assert reporter._workers.means() == {"worker0/return": 13.0, "worker1/return": 2.0}


def test_faults_and_restarts_are_counted_in_the_rows(tmp_path: Path) -> None:
    faulty = ("env=faulty_envs:Misbehave", f"env.args={{env: 3, at_step: 9, once: {tmp_path / 'once'}}}")
    _, folder = train_here(tmp_path, *SERIAL, *faulty, "stop.frames=300")
    last = read_jsonl(folder.metrics)[-1]
    assert last["sample/env_faults"] == 1
    assert last["sample/steps"] == last["frames"]
    assert last["episode/return"] == 5.0
    assert last["episode/length"] == 5.0


# -- sinks that fail ---------------------------------------------------------------------------------------


class Flaky(JsonlSink):
    """Fails to write some of its rows, and to close."""

    failing: set[int] = set()
    written = 0

    def write(self, frames: int, metrics: Mapping[str, float]) -> None:
        Flaky.written += 1
        if Flaky.written in self.failing:
            raise RunFolderError(f"row {Flaky.written} does not fit on the disk")
        super().write(frames, metrics)

    def close(self) -> None:
        super().close()
        raise RunFolderError("nor does the end")


@pytest.fixture
def flaky(monkeypatch: pytest.MonkeyPatch) -> type[Flaky]:
    monkeypatch.setattr(reporter_module, "JsonlSink", Flaky)
    monkeypatch.setattr(Flaky, "written", 0)
    return Flaky


def test_rows_that_cannot_be_written_do_not_stop_the_training(tmp_path: Path, flaky: type[Flaky]) -> None:
    """Complained about once, not at every row; once more when it happens again after a while of good rows."""
    flaky.failing = {2, 3, 4, 7}
    outcome, folder = train_here(tmp_path, *TARGET, "stop.frames=700", "report.tensorboard=true")
    assert outcome.state == "finished"
    assert flaky.written > 8
    assert len(read_jsonl(folder.metrics)) == flaky.written - 4
    text = folder.log.read_text()
    assert text.count("metrics are being lost, training goes on: row 2 ") == 1
    assert text.count("metrics are being lost, training goes on: row 7 ") == 1
    assert text.count("metrics are being lost") == 2
    assert text.count("the last metrics could not be written: nor does the end") == 1
    assert list(folder.tensorboard.iterdir())  # the other sinks are not held back


def test_a_sink_that_cannot_be_opened_ends_the_run(tmp_path: Path) -> None:
    _, folder = train_here(tmp_path, *TARGET, "stop.batches=1")
    folder.metrics.unlink()
    folder.metrics.mkdir()
    with pytest.raises(RunFolderError, match=r"metrics\.jsonl: metrics cannot be written"):
        train_here(tmp_path, *TARGET, "stop.batches=2", mode="resume")
    assert folder.read_state()["state"] == "failed"  # type: ignore[index]


# -- checkpoints -------------------------------------------------------------------------------------------


def test_state_and_back_again(tmp_path: Path) -> None:
    _, folder = train_here(tmp_path, *TARGET, "stop.frames=400", "report.every_frames=90")
    state = saved_state(folder)["reporter"]
    assert state["episodes"]["count"] > 0
    assert state["sums"]
    other = metrics_of(config_of(tmp_path))
    other.load_state(state)
    assert_same(other.state(), state)


def test_a_saved_state_does_not_change_afterwards(tmp_path: Path) -> None:
    reporter = metrics_of(config_of(tmp_path))
    reporter.add_learning(0, {"loss": 1.0})
    state = reporter.state()
    other = metrics_of(config_of(tmp_path))
    other.load_state(state)
    for one in (reporter, other):
        one.add_learning(0, {"loss": 2.0})
        one.episodes.add([1.0], [1])
    assert state["sums"] == {"learn/loss": [1.0, 1.0]}
    assert state["episodes"]["count"] == 0


class StopAtOnce(Observer):
    def on_start(self, run: OnlineRun) -> None:
        run.stop("told to")


def test_rows_beyond_a_checkpoint_of_no_frames_are_written_again(tmp_path: Path) -> None:
    """Killed before its second checkpoint, a run goes back to the first: the one without a single frame."""
    _, folder = train_here(tmp_path, *TARGET, observers=[StopAtOnce()])
    train_here(tmp_path, *TARGET, "stop.frames=300", mode="resume")
    for checkpoint in Checkpoints(folder.checkpoints).list()[1:]:
        checkpoint.path.unlink()
    before = read_jsonl(folder.metrics)
    train_here(tmp_path, *TARGET, "stop.frames=300", mode="resume")
    assert [row["frames"] for row in read_jsonl(folder.metrics)] == [row["frames"] for row in before]


# -- the machine -------------------------------------------------------------------------------------------


def test_shares_of_the_time_since_the_last_row() -> None:
    phases = Phases()
    assert phases.shares(2.0, {"main learn": 1.0}) == {"time/main_learn": 0.5}
    assert phases.shares(4.0, {"main learn": 1.5}) == {"time/main_learn": 0.25}
    assert phases.shares(4.0, {"main learn": 1.5}) == {"time/main_learn": 0.0}


def test_rows_say_what_the_run_takes_of_the_machine(tmp_path: Path) -> None:
    _, folder = train_here(tmp_path, "env=toy_target", "sampling.mode=sync", "stop.frames=2000", "stop.seconds=1000")
    last = read_jsonl(folder.metrics)[-1]
    assert last["usage/processes"] >= 4, "this one, two workers, the janitor"
    assert last["usage/threads_worker"] == 1, "workers start with one thread"
    assert last["usage/memory_mb"] > last["usage/memory_main_mb"] > last["usage/memory_worker_mb"] > 0
    assert 0 < last["time/worker_env"] < 1
    assert 0 < last["time/main_learn"] < 1
    assert 0 <= last["time/seconds_left"] < 1000


def test_the_panel_shows_metrics_beside_their_limits(tmp_path: Path) -> None:
    rows = {row.label: row for row in panel_rows(config_of(tmp_path, "report.sim_rate=2000"))}
    assert rows["frames/s"].text(500.0) == "500 (25% of bare simulation)"
    assert rows["grad norm"].text(0.25) == "0.2500 (max 1)"
    assert rows["clipped"].text(0.125) == "12.5%"
    assert rows["memory"].text(250.0) == "250 MB"
    assert not rows["memory"].in_line
    unlimited = {row.label: row for row in panel_rows(config_of(tmp_path, "learning.max_grad_norm=0"))}
    assert unlimited["grad norm"].text(0.25) == "0.2500"
    assert unlimited["frames/s"].text(500.0) == "500"
    recording = {row.label for row in panel_rows(config_of(tmp_path, "recording.keep=all"))}
    assert "recorded" in recording
    assert "recorded" not in unlimited


def test_the_last_line_has_the_final_metrics_of_the_run(tmp_path: Path) -> None:
    """Rows go by frames, so the last one is a little older than the end; recorded episodes come later still."""
    words = ("stop.frames=1500", "report.every_frames=1000", "recording.keep=all", "report.console_seconds=1000")
    config = config_of(tmp_path, *TARGET, *words)
    outcome = train_module.train(config, Request(command=("test",), console="plain"))
    lines = RunFolder(config.folder).log.read_text().splitlines()
    last = [line for line in lines if " | frames/s " in line][-1]
    assert f"{count_text(outcome.frames)} of 1.50K frames (100 %)" in last
    (closing,) = [line for line in lines if " recorded " in line and " rows, " in line]
    kept = re.search(r"([\d,]+) episodes", closing)
    assert kept is not None
    assert f"kept episodes {kept[1].replace(',', '')} " in last
