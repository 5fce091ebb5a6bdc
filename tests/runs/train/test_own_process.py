"""Runs whose environments have processes of their own: faults, hangs and the end of the run."""

from __future__ import annotations

from pathlib import Path

import pytest
from running import SERIAL, assert_same, rows_of, saved_state, train_here, wait_until

from rollmill.core.janitor import TOKEN_VARIABLE
from rollmill.core.janitor_main import processes_of
from rollmill.monitor.jsonl import read_jsonl
from rollmill.runs.train.loop import OnlineRun
from rollmill.runs.train.observers import Observer

LONG = ("stop.frames=100000000", "stop.seconds=600", "report.page=false")


class UntilFault(Observer):
    """Ends the run some steps after a fault or a replaced worker; then nothing of it may be left."""

    def __init__(self) -> None:
        self.token = ""
        self.left = 5

    def on_init(self, run: OnlineRun) -> None:
        environment = run.parts.sampler.plan.environment
        assert environment is not None
        self.token = environment[TOKEN_VARIABLE]

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        report = run.parts.sampler.pool.report
        if report.env_faults + report.worker_restarts:
            self.left -= 1
            if not self.left:
                run.stop("seen")

    def assert_nothing_left(self) -> None:
        wait_until(lambda: not processes_of(self.token, set()), what="all processes to end")


@pytest.mark.parametrize(
    ("what", "mode", "faults", "restarts"),
    [("kill", "async", 1, 0), ("segfault", "serial", 1, 0), ("hang", "sync", 0, 1)],
)
def test_a_fault_of_one_costs_one_episode(tmp_path: Path, what: str, mode: str, faults: int, restarts: int) -> None:
    args = f"env.args={{what: {what}, where: step, env: 3, at_step: 7, once: {str(tmp_path / 'once')!r}}}"
    words = ("env=faulty_envs:Misbehave", "env.own_process=true", args, f"sampling.mode={mode}")
    observer = UntilFault()
    timeouts = ("sampling.step_timeout=3", "sampling.workers=1", "sampling.envs_per_worker=4")
    outcome, folder = train_here(tmp_path, *LONG, *words, *timeouts, observers=[observer])
    assert outcome.reason == "seen"
    observer.assert_nothing_left()
    row = read_jsonl(folder.metrics)[-1]
    assert (row["sample/env_faults"], row["sample/worker_restarts"]) == (faults, restarts)
    text = folder.log.read_text()
    assert "the process of faulty_envs:Misbehave" in text if faults else "hangs in step for more than 3 s" in text


def test_the_same_run_bit_for_bit(tmp_path: Path) -> None:
    folders = [
        train_here(tmp_path / own, *SERIAL, "env=toy_target", f"env.own_process={own}", "stop.frames=300")[1]
        for own in ("true", "false")
    ]
    assert_same(*map(rows_of, folders))
    assert_same(*(saved_state(folder)["learners"] for folder in folders))
