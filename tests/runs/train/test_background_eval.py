"""Evaluation beside a training: metrics arrive, failures are counted, nothing is left behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from running import SERIAL, Run, command_words, saved_state, train_here, wait_until

from rollmill.monitor.jsonl import read_jsonl
from rollmill.runs.evaluate.options import EvalOptions
from rollmill.runs.evaluate.run import evaluate
from rollmill.runs.settings.train import EvaluationSettings
from rollmill.runs.train import background_eval
from rollmill.runs.train.background_eval import PROCESS, BackgroundEval
from rollmill.runs.train.loop import OnlineRun
from rollmill.runs.train.observers import Observer

WORDS = (*SERIAL, "env=toy_target", "evaluation.episodes=6", "evaluation.envs=3", "evaluation.nice=0")


def the_evaluation(run: OnlineRun) -> BackgroundEval:
    return next(observer for observer in run.observers if isinstance(observer, BackgroundEval))


class Hold(Observer):
    """Keeps the training at a step until something has happened, so that nothing depends on speed."""

    def __init__(self, until: Callable[[BackgroundEval], bool], at: int = 8) -> None:
        self._until, self._at = until, at
        self.met: dict[str, int] = {}

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        if iteration == self._at:
            beside = the_evaluation(run)

            def happened() -> bool:
                beside.extra_summaries(run)
                return self._until(beside)

            wait_until(happened, what="the evaluation")
            self.met = {"done": beside.done, "skipped": beside.skipped, "failures": beside.failures}


def test_metrics_arrive_and_the_last_weights_are_judged_as_by_the_command(tmp_path: Path) -> None:
    hold = Hold(lambda beside: beside.done >= 1)
    words = (*WORDS, "stop.batches=10", "evaluation.every_frames=100", "evaluation.final=true", "run.seed=5")
    _, folder = train_here(tmp_path, *words, observers=[hold])
    rows = read_jsonl(folder.path / "eval/training.jsonl")
    assert 100 <= rows[0]["frames"] < 132, "the first batch that ends after 100 frames"
    final = evaluate(folder.path, EvalOptions(episodes=6, envs=3, workers=1, seed=5)).policy.summary()
    frames = saved_state(folder)["sampler"]["steps"]
    assert rows[-1]["frames"] == frames
    assert rows[-1]["eval/return"] == final["mean"]
    last = read_jsonl(folder.metrics)[-1]
    assert (last["eval/frames"], last["eval/return"], last["eval/failures"]) == (frames, final["mean"], 0)
    assert "no evaluation was finished" not in folder.log.read_text()


def test_what_cannot_keep_up_is_left_out_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as the first has not answered, those that are due later are not begun."""
    begun: list[int] = []
    monkeypatch.setattr(background_eval.Evaluator, "heard", lambda child: [])
    monkeypatch.setattr(
        background_eval.Evaluator, "evaluate", lambda child, weights, frames: _note(child, begun, frames)
    )
    _, folder = train_here(tmp_path, *WORDS, "stop.batches=8", "evaluation.every_frames=32", "report.every_frames=1")
    last = read_jsonl(folder.metrics)[-1]
    assert len(begun) == 1
    assert (last["eval/done"], last["eval/failures"]) == (0, 0)
    assert last["eval/skipped"] >= 3


def _note(child: background_eval.Evaluator, begun: list[int], frames: int) -> None:
    begun.append(frames)
    child.busy = True


def test_a_run_without_a_finished_evaluation_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for and never come: neither metrics nor counters in a file are a place where anybody looks."""
    monkeypatch.setattr(background_eval.Evaluator, "heard", lambda child: [])
    monkeypatch.setattr(background_eval.Evaluator, "evaluate", lambda child, weights, frames: _note(child, [], frames))
    _, folder = train_here(tmp_path, *WORDS, "stop.batches=8", "evaluation.every_frames=32")
    (line,) = [line for line in folder.log.read_text().splitlines() if "no evaluation was finished" in line]
    assert "WARNING" in line
    assert "1 was still being played when the run ended" in line
    assert "left out because the one before was not finished" in line


def test_a_run_that_ended_before_the_first_evaluation_says_so(tmp_path: Path) -> None:
    _, folder = train_here(tmp_path, *WORDS, "stop.batches=2", "evaluation.every_frames=1000000")
    expected = "no evaluation was finished: the first was due at 1,000,000 frames, the run ended at "
    assert expected in folder.log.read_text()


def test_a_process_that_dies_is_counted_and_started_again(tmp_path: Path) -> None:
    pids: list[int] = []

    class Kill(Observer):
        def on_training_step(self, run: OnlineRun, iteration: int) -> None:
            child = the_evaluation(run)._child
            if iteration == 1:
                assert child is None
            if child is not None and not pids:
                pids.append(child.pid)
                os.kill(child.pid, signal.SIGKILL)
                wait_until(lambda: not child.alive, what="its end")

    hold = Hold(lambda beside: beside.done >= 1)
    train_here(tmp_path, *WORDS, "stop.batches=9", "evaluation.every_frames=64", observers=[Kill(), hold])
    assert hold.met["failures"] == 1
    assert hold.met["done"] >= 1
    assert "was killed by signal 9" in (tmp_path / "x/run/log.txt").read_text()


def test_what_an_environment_prints_there_is_logged_within_bounds(tmp_path: Path) -> None:
    words = (*WORDS, "env=faulty_envs:Misbehave", "env.args={what: print, env: 0, at_step: 1}", "stop.batches=2")
    _, folder = train_here(tmp_path, *words, "evaluation.episodes=300", "evaluation.final=true")
    text = folder.log.read_text()
    assert "evaluation: complaint" in text
    assert text.count(" evaluation: ") == 201, "200 lines, and one about the rest"
    assert "lines of output were not logged (too many)" in text


def test_failures_in_a_row_end_the_attempts_and_not_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    beside = BackgroundEval(EvaluationSettings(every_frames=1), {})
    for k in range(3):
        assert not beside.gave_up
        beside._take({"kind": "failed", "error": f"no {k}", "trace": ""})
    assert beside.gave_up
    assert "no 2; 3 in a row, no more are tried" in caplog.text


@pytest.mark.parametrize("words", ["every_frames=-1", "episodes=0", "envs=0", "nice=20"])
def test_settings_that_are_wrong(words: str) -> None:
    name, value = words.split("=")
    with pytest.raises(ValueError):
        EvaluationSettings(**{name: int(value)})


def test_it_ends_with_the_run(tmp_path: Path, rollmill: Run) -> None:
    """Whatever ends the run: here it cannot do anything about it itself."""
    words = ("env=toy_target", "stop.frames=0", "stop.seconds=600", "evaluation.every_frames=64")
    command = rollmill(*command_words(tmp_path, *SERIAL, *words, "evaluation.episodes=100000000"))
    wait_until(lambda: command.processes_of(PROCESS), what="the evaluation's process")
    command.send(signal.SIGKILL)
    assert command.wait() == -9
    command.assert_nothing_left()
