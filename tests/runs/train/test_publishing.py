"""Models published by a training, checkpoints asked for from outside, and the best by any metric."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import numpy as np
import pytest
from running import SERIAL, Command, config_of, rows_of, saved_state, small_words, train_here, wait_until

from rollmill.core.checkpoints import Checkpoints, load_checkpoint
from rollmill.core.errors import CheckpointError, ConfigError, RollmillError
from rollmill.core.model_pool import Entry, ModelPool
from rollmill.core.run_folder import RunFolder
from rollmill.runs.policies.find import checkpoint_name
from rollmill.runs.policies.online_state import require_online
from rollmill.runs.train import publishing
from rollmill.runs.train.loop import OnlineRun
from rollmill.runs.train.observers import Observer
from rollmill.runs.train.save_requests import ask_to_save

TOY = ("env=toy_target", *SERIAL, "stop.frames=0")


def test_models_are_published_by_updates_and_at_the_end(tmp_path: Path) -> None:
    words = (*TOY, "pool.every_updates=3", "pool.keep=2", "pool.milestone_updates=6")
    _, folder = train_here(tmp_path, *words, "stop.batches=14")
    pool = ModelPool(folder.pool)
    assert [(entry.id, entry.version) for entry in pool.entries()] == [(1, 6), (3, 12), (4, 14)]
    row = rows_of(folder)[-1]
    assert (row["pool/models"], row["pool/failures"]) == (2 + 1, 0)
    latest = pool.latest()
    last = saved_state(folder)["learners"][0]["model"]
    assert all(np.array_equal(latest.state["learners"][0]["model"][name], last[name]) for name in last)
    first = pool.entries()[0]
    assert checkpoint_name(pool.path_of(first)) == "run/model 1"
    assert require_online(load_checkpoint(pool.path_of(first))).step == first.frames
    _, folder = train_here(tmp_path, *words, "stop.batches=20", mode="resume")
    assert [(entry.id, entry.version) for entry in pool.entries()] == [(1, 6), (3, 12), (6, 18), (7, 20)]


def test_models_are_published_by_the_clock(tmp_path: Path) -> None:
    _, folder = train_here(tmp_path, *TOY, "pool.every_seconds=1e-6", "pool.keep=100", "stop.batches=5")
    assert [entry.version for entry in ModelPool(folder.pool).entries()] == [1, 2, 3, 4, 5]


def test_a_model_that_cannot_be_written_does_not_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise CheckpointError("disk full")

    monkeypatch.setattr(publishing.ModelPool, "publish", full)
    outcome, folder = train_here(tmp_path, *TOY, "pool.every_updates=1", "stop.batches=6")
    assert outcome.state == "finished"
    assert rows_of(folder)[-1]["pool/failures"] >= 3


def test_settings_of_a_pool_that_publishes_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match="nothing is published"):
        config_of(Path(), "pool.keep=3")
    with pytest.raises(ConfigError, match="at least 1"):
        config_of(Path(), "pool.every_updates=1", "pool.keep=0")


FIRST, MORE = 5_000, 1_000
"""Frames until the first kill, and between two: from there on a segment more or less is below 2 % of what was drawn."""


def test_kill_and_resume_with_pool_and_replay(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """Whatever moment it is: no model is lost or half written, and the ratio of replay holds after every resume."""
    words = (
        *("env=toy_target", f"run.dir={tmp_path}", "run.experiment=x", *small_words("stop.frames=0")),
        *("stop.batches=1000000", "learning.targets=vtrace", "replay.capacity=24", "replay.samples_per_insert=3"),
        *("learning.batch_size=64", "pool.every_updates=5", "pool.keep=4", "pool.milestone_updates=100"),
        "checkpoints.every_seconds=0.3",
    )
    folder, rng = RunFolder(tmp_path / "x" / "run"), np.random.default_rng(0)
    pool, saved = ModelPool(folder.pool), Checkpoints(folder.checkpoints)
    before: tuple[Entry, ...] = ()
    frames = FIRST
    for session in range(pytestconfig.getoption("--kills")):
        command = Command("train", *words, *(["--resume"] if session else []), cwd=tmp_path)
        try:
            wait_until(lambda: (newest := saved.newest()) and newest.step >= frames, what="a checkpoint")  # noqa: B023
            time.sleep(float(rng.random()) * 0.3)
            seen = pool.entries()
            command.send(signal.SIGKILL)
            command.process.wait()
        finally:
            command.kill()
        command.assert_nothing_left()
        newest = saved.newest()
        assert newest
        frames = newest.step + MORE
        require_whole(pool, {*before, *seen})
        assert pool.entries()[-1].id > max((entry.id for entry in before), default=-1), "new ones were published"
        before = pool.entries()
        counters = saved_state(folder)["learners"][0]["replay"]["table"]["limiter"]
        # Within a batch and a segment's share; a buffer that fills again after a kill lets 8 segments in ahead.
        assert -11 <= 3 * (counters["inserted"] - 8) - counters["sampled"] <= 11 + 3 * 8
        assert counters["sampled"] / (counters["inserted"] - 8) == pytest.approx(3.0, rel=0.02)


def require_whole(pool: ModelPool, seen: set[Entry]) -> None:
    """After a kill: every model is there that should be, and is what the index says of it."""
    entries = pool.entries()
    for entry in entries:
        assert load_checkpoint(pool.path_of(entry)).state["learners"][0]["version"] == entry.version
    oldest = entries[-4].id
    assert {entry for entry in seen if entry.milestone or entry.id >= oldest} <= {*entries}, "none is lost"
    others = {path.name for path in pool.folder.glob("*.ckpt")} - {entry.file for entry in entries}
    assert len(others) <= 1, "one was written, or had given way, and is swept by the next session"


# -- checkpoints by hand ---------------------------------------------------------------------------


def test_a_running_training_is_asked_for_a_checkpoint(tmp_path: Path) -> None:
    words = ("env=toy_target", f"run.dir={tmp_path}", "run.experiment=x", *small_words("stop.frames=0"))
    command = Command("train", *words, "stop.batches=1000000", cwd=tmp_path)
    try:
        command.wait_for_text("checkpoint ")
        saved = ask_to_save(tmp_path / "x" / "run", 60.0)
        assert saved.name.startswith("milestone-"), "it stays"
        assert load_checkpoint(saved).step > 0
        assert list(saved.parent.glob("save-*")) == []
        command.send(signal.SIGINT)
        command.wait()
    finally:
        command.kill()
    assert saved.exists()
    with pytest.raises(RollmillError, match="no training is running"):
        ask_to_save(tmp_path / "x" / "run", 1.0)


class Asks(Observer):
    """Asks within a training step, when nobody can answer."""

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        with pytest.raises(RollmillError, match="no training step has ended"):
            ask_to_save(run.folder.path, 0.1)
        assert list(run.folder.checkpoints.glob("save-*")) == []


def test_who_is_not_answered_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    train_here(tmp_path, *TOY, "stop.batches=1", observers=[Asks()])


# -- the best --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "sign"), [("learn/entropy", 1.0), ("-learn/entropy", -1.0)])
def test_the_best_by_any_metric(tmp_path: Path, name: str, sign: float) -> None:
    words = (f"checkpoints.best_metric={name}", "checkpoints.every_seconds=0", "checkpoints.keep_last=0")
    _, folder = train_here(tmp_path, *TOY, *words, "report.every_frames=1", "stop.batches=12")
    entropies = {row["frames"]: row["learn/entropy"] for row in rows_of(folder)}
    checkpoints = Checkpoints(folder.checkpoints)
    best = checkpoints.best()
    assert best is not None
    assert sign * entropies[best.step] == max(sign * value for value in entropies.values())
    assert load_checkpoint(best.path).metric == sign * entropies[best.step]


def test_a_metric_that_nobody_logs_keeps_no_best(tmp_path: Path) -> None:
    _, folder = train_here(tmp_path, *TOY, "checkpoints.best_metric=learn/nonsense", "stop.batches=3")
    assert Checkpoints(folder.checkpoints).best() is None


@pytest.mark.parametrize(
    ("name", "said"),
    [("-learn/entropi", "did you mean 'learn/entropy'"), ("learn/entropy", ""), ("eval/return", "")],
)
def test_a_misspelt_best_metric_is_said_once(name: str, said: str, tmp_path: Path) -> None:
    words = (f"checkpoints.best_metric={name}", "report.every_frames=1", "stop.batches=3")
    _, folder = train_here(tmp_path, *TOY, *words)
    log = folder.log.read_text()
    assert log.count("a row of metrics has none of this name") == bool(said)
    assert said in log
