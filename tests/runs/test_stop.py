"""Why a run ends: its limits, whatever comes first, or a signal."""

import signal
import threading
from pathlib import Path

import pytest

from rollmill.core.errors import ConfigError
from rollmill.core.run_folder import RunFolder
from rollmill.runs.observers import Observer
from rollmill.runs.online import OnlineRun
from rollmill.runs.stopping import Interrupt, StopRules
from running import SERIAL, config_of, saved_state, train_here

TARGET = (*SERIAL, "env=toy_target")
EVEN = (*SERIAL, "env=faulty_envs:Misbehave", "env.args={where: nowhere}")
"""Every episode has 5 steps and returns 5."""


def test_frames(tmp_path: Path) -> None:
    outcome, folder = train_here(tmp_path, *TARGET, "stop.frames=300")
    assert outcome.state == "finished"
    assert outcome.reason == "limit of 300 frames"
    assert 300 <= outcome.frames < 300 + 2 * 32  # all groups fill up together: two batches
    assert saved_state(folder)["sampler"]["steps"] == outcome.frames


def test_batches(tmp_path: Path) -> None:
    outcome, folder = train_here(tmp_path, *TARGET, "stop.batches=3")
    assert outcome.reason == "limit of 3 batches"
    assert saved_state(folder)["iteration"] == 3


def test_seconds_are_those_of_all_sessions(tmp_path: Path) -> None:
    words = (*TARGET, "stop.frames=0", "stop.seconds=0.1")
    outcome, folder = train_here(tmp_path, *words)
    assert outcome.reason == "limit of 0.1 seconds"
    state = saved_state(folder)
    assert state["seconds"] >= 0.1
    again, _ = train_here(tmp_path, *words, mode="resume")
    assert (again.frames, again.reason) == (outcome.frames, "limit of 0.1 seconds")
    assert saved_state(folder)["iteration"] == state["iteration"]


def test_mean_return_over_a_full_window(tmp_path: Path) -> None:
    """The very first episode returns 5; it takes all of the window to believe it."""
    outcome, folder = train_here(tmp_path, *EVEN, "stop.mean_return=5", "report.window=30")
    assert outcome.reason == "mean return 5"
    assert outcome.mean_return == 5.0
    count = saved_state(folder)["reporter"]["episodes"]["count"]
    assert 30 <= count < 30 + 16


def test_a_return_that_is_never_reached(tmp_path: Path) -> None:
    outcome, _ = train_here(tmp_path, *EVEN, "stop.mean_return=5.1", "report.window=1", "stop.frames=300")
    assert outcome.reason == "limit of 300 frames"


@pytest.mark.parametrize(
    ("limits", "reason"), [((2, 10_000), "limit of 2 batches"), ((50, 100), "limit of 100 frames")]
)
def test_whatever_comes_first(tmp_path: Path, limits: tuple[int, int], reason: str) -> None:
    outcome, _ = train_here(tmp_path, *TARGET, f"stop.batches={limits[0]}", f"stop.frames={limits[1]}")
    assert outcome.reason == reason


@pytest.mark.parametrize("limit", ["frames", "seconds", "batches"])
def test_negative_limits_are_refused(tmp_path: Path, limit: str) -> None:
    with pytest.raises(ConfigError, match=r"stop: limits must be 0 \(off\) or positive"):
        config_of(tmp_path, f"stop.{limit}=-1")


def test_a_run_without_any_limit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give at least one of frames, seconds, batches and mean_return"):
        config_of(tmp_path, "stop.frames=0")
    assert config_of(tmp_path, "stop.frames=0", "stop.mean_return=-3").stop.mean_return == -3.0


# -- signals -----------------------------------------------------------------------------------------------


class Signal(Observer):
    """Sends signals to this very process at the second training step."""

    def __init__(self, *numbers: signal.Signals) -> None:
        self.numbers = numbers

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        if iteration == 2:
            for number in self.numbers:
                signal.raise_signal(number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_ends_the_run_after_the_step(tmp_path: Path, number: signal.Signals) -> None:
    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
    outcome, folder = train_here(tmp_path, *TARGET, observers=[Signal(number)])
    assert (outcome.state, outcome.reason) == ("interrupted", f"{number.name} received")
    assert (outcome.signal, outcome.exit_code) == (number, 128 + number)
    assert saved_state(folder)["iteration"] == 2
    assert {n: signal.getsignal(n) for n in before} == before


def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train_here(tmp_path, *TARGET, observers=[Signal(signal.SIGTERM, signal.SIGINT)])
    state = RunFolder(tmp_path / "x/run").read_state()
    assert state is not None
    assert (state["state"], state["reason"]) == ("interrupted", "interrupted twice, ended at once")


def test_outside_the_main_thread_signals_are_left_alone() -> None:
    before = signal.getsignal(signal.SIGINT)
    seen: list[object] = []

    def look() -> None:
        with Interrupt():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [before]


def test_the_first_rule_that_holds_gives_the_reason() -> None:
    assert StopRules([]).reason() == ""
    assert StopRules([lambda: "", lambda: "second", lambda: "third"]).reason() == "second"
