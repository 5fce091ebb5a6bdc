"""Why a run ends: its limits, whatever comes first, or a signal."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from running import SERIAL, config_of, saved_state, train_here

from rollmill.core.errors import ConfigError, Interrupted
from rollmill.core.run_folder import RunFolder
from rollmill.core.stopping import Interrupt
from rollmill.runs.train.loop import OnlineRun
from rollmill.runs.train.observers import Observer

TARGET = (*SERIAL, "env=toy_target")
EVEN = (*SERIAL, "env=faulty_envs:Misbehave", "env.args={where: nowhere}")
"""Every episode has 5 steps and returns 5."""


def test_frames(tmp_path: Path) -> None:
    outcome, folder = train_here(tmp_path, *TARGET, "stop.frames=300")
    assert outcome.state == "finished"
    assert outcome.reason == "reached stop.frames=300"
    assert 300 <= outcome.frames < 300 + 2 * 32  # all groups fill up together: two batches
    assert saved_state(folder)["sampler"]["steps"] == outcome.frames


def test_batches(tmp_path: Path) -> None:
    outcome, folder = train_here(tmp_path, *TARGET, "stop.batches=3")
    assert outcome.reason == "reached stop.batches=3"
    assert saved_state(folder)["iteration"] == 3


def test_seconds_are_those_of_all_sessions(tmp_path: Path) -> None:
    words = (*TARGET, "stop.frames=0", "stop.seconds=0.1")
    outcome, folder = train_here(tmp_path, *words)
    assert outcome.reason == "reached stop.seconds=0.1"
    state = saved_state(folder)
    assert state["seconds"] >= 0.1
    again, _ = train_here(tmp_path, *words, mode="resume")
    assert (again.frames, again.reason) == (outcome.frames, "reached stop.seconds=0.1")
    assert saved_state(folder)["iteration"] == state["iteration"]


def test_mean_return_over_a_full_window(tmp_path: Path) -> None:
    """The very first episode returns 5; it takes all of the window to believe it."""
    outcome, folder = train_here(tmp_path, *EVEN, "stop.mean_return=5", "report.window=30")
    assert outcome.reason == "reached stop.mean_return=5"
    assert outcome.mean_return == 5.0
    count = saved_state(folder)["reporter"]["episodes"]["count"]
    assert 30 <= count < 30 + 16


def test_a_return_that_is_never_reached(tmp_path: Path) -> None:
    outcome, _ = train_here(tmp_path, *EVEN, "stop.mean_return=5.1", "report.window=1", "stop.frames=300")
    assert outcome.reason == "reached stop.frames=300"


@pytest.mark.parametrize(
    ("limits", "reason"), [((2, 10_000), "reached stop.batches=2"), ((50, 100), "reached stop.frames=100")]
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_the_exit_code_is_that_of_the_last_signal(number: signal.Signals) -> None:
    with Interrupt() as interrupt:
        signal.raise_signal(signal.SIGTERM)
        assert interrupt.signal == signal.SIGTERM
        with pytest.raises(Interrupted) as ending:
            signal.raise_signal(number)
    with pytest.raises(Interrupted) as at_once, Interrupt(at_once=True):
        signal.raise_signal(number)
    assert ending.value.exit_code == at_once.value.exit_code == 128 + number
    assert ending.value.name == at_once.value.name == number.name


def test_a_forked_child_ends_by_a_signal_as_any_process() -> None:
    """As ``multiprocessing`` means it with ``terminate``: the plans for the run are not the child's."""
    with Interrupt() as interrupt:
        child = os.fork()
        if not child:
            signal.pause()
            os._exit(0)
        os.kill(child, signal.SIGTERM)
        assert os.waitpid(child, 0)[1] == signal.SIGTERM
        assert interrupt.signal is None
        assert signal.getsignal(signal.SIGTERM) == interrupt._on_signal


COMMAND = """
import signal, sys, time
from rollmill.core.errors import Interrupted
from rollmill.core.stopping import CommandSignals
{before}
signals = CommandSignals("rollmill test")
{after}
try:
    for _ in range(2):
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            print("put away")
            signal.raise_signal(signal.SIGTERM)
            print("completely")
except Interrupted as error:
    sys.exit(error.exit_code)
"""


def command_signals(before: str = "", after: str = "") -> tuple[int, str]:
    words = [sys.executable, "-c", COMMAND.format(before=before, after=after)]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout


def test_signals_of_a_command_that_is_being_loaded() -> None:
    assert command_signals() == (143, "rollmill test: interrupted\n")


def test_signals_of_a_command_that_is_under_way() -> None:
    """What it does on its way out is not broken off by a second signal that belongs to the first."""
    assert command_signals(after="signals.loaded()") == (143, "put away\ncompletely\n")


def test_signals_wait_for_modules_that_are_being_imported(tmp_path: Path) -> None:
    """One that takes whatever is raised for something else, as they do."""
    (tmp_path / "heavy.py").write_text(
        "import signal\nfrom rollmill.core.errors import Interrupted\n"
        "try:\n    signal.raise_signal(signal.SIGTERM)\nexcept BaseException:\n    raise ImportError('no such part')\n"
    )
    after = f"sys.path.insert(0, {str(tmp_path)!r}); signals.loaded(); import heavy; print('imported'); signal.pause()"
    code, said = command_signals(
        after=f"try:\n    {after}\nexcept Interrupted as error:\n    sys.exit(error.exit_code)"
    )
    assert (code, said) == (143, "imported\n")


def test_signals_of_a_command_that_is_over() -> None:
    assert command_signals(after="signals.loaded(); signals.ignore()") == (0, "put away\ncompletely\n" * 2)


def test_signals_that_are_ignored_stay_so() -> None:
    before = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    assert command_signals(before) == (0, "put away\ncompletely\n" * 2)


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
