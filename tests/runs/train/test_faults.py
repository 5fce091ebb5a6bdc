"""What envs, workers and signals can do to a run: it survives and counts, or it stops and says what, where and why."""

import os
import re
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from faulty_envs import helpers_of
from running import Run, command_words, saved_state, train_here, wait_until

from rollmill.cli.main import main
from rollmill.core.errors import EnvError, RunFolderError, WorkerError
from rollmill.core.janitor import TOKEN_VARIABLE
from rollmill.core.janitor_main import command_of, is_alive, processes_of, vizdoom_instance
from rollmill.core.run_folder import RunFolder
from rollmill.core.seeds import Seeds
from rollmill.monitor.jsonl import read_jsonl
from rollmill.runs.train.loop import OnlineRun
from rollmill.runs.train.observers import Observer
from rollmill.sampling.pool import ProcessPool

FAULTY = "env=faulty_envs:Misbehave"
SEEN = "seen what was waited for"
LONG = ("stop.frames=100000000", "stop.seconds=600")
"""For runs that something else ends; the seconds are for broken ones."""
SEED = re.compile(r"env 3 \(faulty_envs:Misbehave\) \w+ in (\w+).*?seed (\d+), episode (\d+), step (\d+)\)")
TIMEOUTS = ("sampling.step_timeout=3", "sampling.reset_timeout=3")
"""Long enough that no env which is only kept waiting by a busy machine is taken for one that hangs."""


class Watcher(Observer):
    """Remembers the run, and at its end looks for processes that outlive it.

    Ends the run ten training steps after as many faults and replaced workers as were waited for.
    """

    def __init__(self) -> None:
        self.run: OnlineRun | None = None
        self.faults = self.restarts = 0
        self._after = 10

    def on_init(self, run: OnlineRun) -> None:
        self.run = run

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        report = run.parts.sampler.pool.report
        waiting = report.env_faults < self.faults or report.worker_restarts < self.restarts
        if self.faults + self.restarts and not waiting:
            self._after -= 1
            if not self._after:
                run.stop(SEEN)

    @property
    def pool(self) -> ProcessPool:
        assert self.run is not None
        return self.run.parts.sampler.pool  # type: ignore[return-value]

    def assert_nothing_left(self) -> None:
        assert self.run is not None
        environment = self.run.parts.sampler.plan.environment
        assert environment is not None
        wait_until(lambda: not processes_of(environment[TOKEN_VARIABLE], set()), what="workers to end")


@pytest.fixture
def watcher() -> Iterator[Watcher]:
    watcher = Watcher()
    yield watcher
    watcher.assert_nothing_left()


def misbehaviour(what: str, where: str = "step", once: Path | None = None, env: int = 3, at_step: int = 7) -> list[str]:
    """Overrides for a run whose env 3 misbehaves: ``once``, or again and again."""
    args = f"what: {what}, where: {where}, env: {env}, at_step: {at_step if where == 'step' else 0}"
    file = str(once) if once else ""
    return ["sampling.workers=1", FAULTY, f"env.args={{{args}, once: {file!r}, masked: {str(what == 'mask').lower()}}}"]


def assert_names_the_place(text: str, where: str) -> None:
    """The message holds phase, seed, episode and step, and the seed is the one that reproduces the episode."""
    found = SEED.search(text)
    assert found is not None, text
    phase, seed, episode, step = found.group(1), *map(int, found.groups()[1:])
    assert phase == where
    assert seed == Seeds(0).branch("envs").branch("worker", 0).branch(3).branch("episode", episode).integer()
    assert step == (0 if where != "step" else step)


# -- faults of envs that pass --------------------------------------------------------------------------

NONSENSE = [
    ("raise", "step", "RuntimeError: told to raise"),
    ("none", "step", "observation 'obs' is None"),
    ("nan", "step", "observation 'obs' is NaN or infinite"),
    ("nan_reward", "step", "reward is NaN or infinite"),
    ("none_reward", "step", "reward is None, expected a number"),
    ("shape", "step", "has shape (3,), the space says (2,)"),
    ("dtype", "step", "has dtype <U1, the space says float32"),
    ("mask", "step", "action_mask forbids every choice: [[0, 0, 0]]"),
    ("raise", "reset", "RuntimeError: told to raise"),
    ("none", "reset", "observation 'obs' is None"),
    ("nan", "reset", "observation 'obs' is NaN or infinite"),
    ("mask", "reset", "action_mask forbids every choice: [[0, 0, 0]]"),
    ("raise", "constructor", "RuntimeError: told to raise"),
    ("sys_exit", "step", "SystemExit: 0"),
    ("sys_exit", "reset", "SystemExit: 0"),
    ("text_reward", "step", "ValueError: reward is '1.0', expected a number"),
    ("raise_long", "step", "z [... 1,099,000 characters left out ...] z"),
    ("raise_unprintable", "step", "Unprintable: (it cannot be shown: its text raises RuntimeError)"),
]


@pytest.mark.parametrize(("what", "where", "message"), NONSENSE)
def test_one_fault_is_counted_and_survived(
    tmp_path: Path, watcher: Watcher, what: str, where: str, message: str
) -> None:
    overrides = [*misbehaviour(what, where, once=tmp_path / "once"), "sampling.mode=serial"]
    watcher.faults = 1
    outcome, folder = train_here(tmp_path, *LONG, *overrides, observers=[watcher])
    assert outcome.reason == SEEN
    assert (tmp_path / "once").exists()
    assert watcher.pool.report.env_faults == 1
    assert watcher.pool.report.worker_restarts == 0
    assert read_jsonl(folder.metrics)[-1]["sample/env_faults"] == 1
    warnings = [line for line in folder.log.read_text().splitlines() if "restarting it" in line]
    assert len(warnings) == 1
    assert message in warnings[0]
    assert_names_the_place(warnings[0], where)


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize(("what", "where"), [("raise", "step"), ("nan", "reset"), ("raise", "constructor")])
def test_the_other_modes_survive_it_too(tmp_path: Path, watcher: Watcher, mode: str, what: str, where: str) -> None:
    overrides = misbehaviour(what, where, once=tmp_path / "once")
    watcher.faults = 1
    outcome, folder = train_here(tmp_path, *LONG, f"sampling.mode={mode}", *overrides, observers=[watcher])
    assert outcome.reason == SEEN
    assert watcher.pool.report.env_faults == 1
    assert_names_the_place(folder.log.read_text(), where)


def test_an_env_that_cannot_even_close_is_survived(tmp_path: Path, watcher: Watcher) -> None:
    overrides = misbehaviour("raise_close", at_step=7)
    watcher.faults = 2
    outcome, folder = train_here(tmp_path, *LONG, *overrides, "env.fault_limit=1000", observers=[watcher])
    assert outcome.state == "finished"
    assert "failed in close" in folder.log.read_text()


def test_chatter_of_an_env_is_logged_within_bounds(tmp_path: Path, watcher: Watcher) -> None:
    outcome, folder = train_here(tmp_path, "stop.frames=5000", *misbehaviour("print", at_step=1), observers=[watcher])
    text = folder.log.read_text()
    assert outcome.state == "finished"
    assert "worker 0: complaint" in text
    assert text.count("worker 0: ") <= 201
    assert "lines of output were not logged" in text


# -- faults of envs that last --------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["async", "sync", "serial"])
@pytest.mark.parametrize("where", ["step", "reset", "constructor"])
def test_a_lasting_fault_stops_the_run_and_names_the_place(
    tmp_path: Path, watcher: Watcher, mode: str, where: str
) -> None:
    overrides = [*misbehaviour("raise", where), "env.fault_limit=2", f"sampling.mode={mode}"]
    with pytest.raises(EnvError, match=r"env\.fault_limit is 2") as failure:
        train_here(tmp_path, *LONG, *overrides, observers=[watcher])
    assert_names_the_place(str(failure.value), where)
    assert "told to raise" in str(failure.value)
    assert "Traceback" in str(failure.value)
    assert watcher.pool.report.env_faults == 3


def test_a_failed_run_keeps_its_weights_and_can_go_on(tmp_path: Path, watcher: Watcher) -> None:
    """Serial mode: the fault ends a step in the middle, so the envs begin anew instead of going on askew."""
    overrides = [*misbehaviour("raise", at_step=20), "sampling.mode=serial"]
    with pytest.raises(EnvError):
        train_here(tmp_path, *LONG, "env.fault_limit=0", *overrides, observers=[watcher])
    outcome, folder = train_here(tmp_path, "stop.frames=600", "env.fault_limit=50", *overrides, mode="resume")
    assert outcome.state == "finished"
    assert "not reproducible" not in folder.log.read_text()
    assert folder.read_state()["state"] == "finished"  # type: ignore[index]


def test_a_constructor_that_always_fails_stops_before_the_workers(tmp_path: Path) -> None:
    with pytest.raises(EnvError, match="the constructor failed with RuntimeError: told to raise"):
        train_here(tmp_path, FAULTY, "sampling.workers=1", "env.args={where: constructor}")


@pytest.mark.parametrize(("what", "how"), [("exit", "ended with exit code 7"), ("kill", "was killed by signal 9")])
def test_a_constructor_that_ends_its_process_stops_the_run(tmp_path: Path, what: str, how: str) -> None:
    with pytest.raises(EnvError, match=f"building it ended the process, which {how}"):
        train_here(tmp_path, FAULTY, f"env.args={{where: constructor, what: {what}}}")


@pytest.mark.parametrize("mode", ["serial", "async"])
@pytest.mark.parametrize("where", ["constructor", "step"])
@pytest.mark.parametrize("what", ["sys_exit", "exit_0"])
def test_an_env_that_exits_does_not_end_the_run_as_if_all_were_well(
    tmp_path: Path, rollmill: Run, capfd: pytest.CaptureFixture[str], mode: str, where: str, what: str
) -> None:
    """In serial mode the env tries to end the main process, with an exit code of 0; else that of a worker."""
    limits = ["env.fault_limit=1", "sampling.worker_restarts=1", f"sampling.mode={mode}"]
    words = command_words(tmp_path, *LONG, FAULTY, f"env.args={{what: {what}, where: {where}}}", *limits)
    if mode == "serial":
        command = rollmill(*words)
        assert command.wait() == 1, command.text
        command.assert_nothing_left()
        text = command.text
    else:
        assert main(words) == 1
        text = capfd.readouterr().err
    said = "ended with exit code 0" if (mode, what) == ("async", "exit_0") else "SystemExit: 0"
    assert said in text
    state = RunFolder(tmp_path / "x/run").read_state()
    assert state is not None
    assert state["state"] == "failed"
    assert said in state["reason"]


def test_a_constructor_that_hangs_stops_the_run(tmp_path: Path) -> None:
    with pytest.raises(EnvError, match="the constructor hangs for more than 2 s"):
        train_here(tmp_path, FAULTY, "env.args={where: constructor, what: hang}", "sampling.start_timeout=2")


# -- workers that hang or die --------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["async", "sync"])
@pytest.mark.parametrize("where", ["step", "reset"])
def test_a_hang_replaces_the_worker(tmp_path: Path, watcher: Watcher, mode: str, where: str) -> None:
    overrides = [*misbehaviour("hang", where, once=tmp_path / "once"), f"sampling.mode={mode}", *TIMEOUTS]
    watcher.restarts = 1
    outcome, folder = train_here(tmp_path, *LONG, *overrides, observers=[watcher])
    assert outcome.reason == SEEN
    assert watcher.pool.report.worker_restarts == 1
    assert watcher.run is not None
    assert watcher.run.parts.sampler.lost_segments == 2  # the two groups of one worker
    assert read_jsonl(folder.metrics)[-1]["sample/worker_restarts"] == 1
    warning = next(line for line in folder.log.read_text().splitlines() if "replacing the worker" in line)
    assert f"hangs in {where} for more than 3 s" in warning
    assert_names_the_place(warning, where)


class LosePatience(Observer):
    """Shortens ``start_timeout`` while a constructor is known to hang: otherwise a slow start would be a hang, too."""

    def __init__(self, once: Path) -> None:
        self._once = once

    def on_start(self, run: OnlineRun) -> None:
        pool = run.parts.sampler.pool
        assert isinstance(pool, ProcessPool)
        wait_until(self._once.exists, what="the constructor to hang")
        usual = pool._settings
        pool._settings = replace(usual, start_timeout=0.5)
        wait_until(lambda: pool.report.worker_restarts, what="the worker to be replaced")
        pool._settings = usual


def test_a_hang_in_the_constructor_of_a_worker_replaces_it(tmp_path: Path, watcher: Watcher) -> None:
    overrides = misbehaviour("hang", "constructor", once=tmp_path / "once")
    watcher.restarts = 1
    observers = [watcher, LosePatience(tmp_path / "once")]
    outcome, folder = train_here(tmp_path, *LONG, *overrides, observers=observers)
    assert outcome.reason == SEEN
    assert watcher.pool.report.worker_restarts == 1
    assert "hangs in constructor for more than 0.5 s" in folder.log.read_text()


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_lasting_hang_stops_the_run_and_names_the_place(tmp_path: Path, watcher: Watcher, mode: str) -> None:
    overrides = [*misbehaviour("hang"), f"sampling.mode={mode}", "sampling.worker_restarts=1", *TIMEOUTS]
    with pytest.raises(EnvError, match=r"replaced 1 times .* sampling\.worker_restarts is 1") as failure:
        train_here(tmp_path, *LONG, *overrides, observers=[watcher])
    assert_names_the_place(str(failure.value), "step")


@pytest.mark.parametrize(
    ("what", "where", "how"),
    [
        ("kill", "step", "was killed by signal 9 (SIGKILL)"),
        ("exit", "step", "ended with exit code 7"),
        ("exit_0", "reset", "ended with exit code 0"),
    ],
)
def test_a_worker_that_ends_is_replaced_and_explained(
    tmp_path: Path, watcher: Watcher, what: str, where: str, how: str
) -> None:
    overrides = misbehaviour(what, where, once=tmp_path / "once")
    watcher.restarts = 1
    outcome, folder = train_here(tmp_path, *LONG, *overrides, observers=[watcher])
    assert outcome.reason == SEEN
    assert watcher.pool.report.worker_restarts == 1
    warning = next(line for line in folder.log.read_text().splitlines() if "replacing the worker" in line)
    assert f"{how} while env 3" in warning
    assert_names_the_place(warning, where)


def test_a_crash_shows_its_stack(tmp_path: Path, watcher: Watcher) -> None:
    """In the log, and in the error that ends the run."""
    overrides = [*misbehaviour("segfault"), "sampling.worker_restarts=1"]
    with pytest.raises(
        WorkerError, match=r"was killed by signal 11 \(SIGSEGV\) while env 3 .* replaced 1 times"
    ) as failure:
        train_here(tmp_path, *LONG, *overrides, observers=[watcher])
    log = RunFolder(tmp_path / "x/run").log.read_text()
    for text in (str(failure.value), log.partition("replacing the worker")[2]):
        assert "Fatal Python error: Segmentation fault" in text
        assert re.search(r'File ".*faulty_envs.py", line \d+ in step', text)
    assert_names_the_place(str(failure.value), "step")


def test_a_worker_that_ends_again_and_again_stops_the_run(tmp_path: Path, watcher: Watcher) -> None:
    with pytest.raises(WorkerError, match=r"worker 0 \(pid \d+\) was killed by signal 9 .*; replaced 1 times"):
        train_here(tmp_path, *LONG, *misbehaviour("kill"), "sampling.worker_restarts=1", observers=[watcher])


def test_messages_of_any_length_come_home(tmp_path: Path, watcher: Watcher) -> None:
    watcher.faults = 1
    outcome, folder = train_here(
        tmp_path, *LONG, *misbehaviour("raise_long", once=tmp_path / "once"), observers=[watcher]
    )
    assert outcome.reason == SEEN
    assert "z [... 1,099,000 characters left out ...] z" in folder.log.read_text()
    assert len(folder.log.read_text()) < 100_000


def test_a_forked_child_does_not_go_on_with_a_copy_of_the_run(tmp_path: Path, watcher: Watcher) -> None:
    """It comes back by an exception out of code that was meant for it alone."""
    journal = tmp_path / "journal"
    overrides = [*misbehaviour("stray_fork"), f"env.args.journal={journal}", f"env.args.once={tmp_path}/once"]
    outcome, folder = train_here(tmp_path, "stop.frames=300", *overrides, "sampling.mode=serial", observers=[watcher])
    assert outcome.state == "finished"
    assert watcher.pool.report.env_faults == 0, "the fault was the child's"
    assert re.search(r"child \d+ 256\n", journal.read_text()), "it has ended with exit code 1"
    assert folder.log.read_text().count("finished") == 1


# -- what envs leave running ---------------------------------------------------------------------------


def left_running(what: str, folder: Path, where: str = "reset") -> list[str]:
    """Overrides for a run in which one env starts something and never ends it."""
    args = f"what: {what}, where: {where}, once: {folder}/once, journal: {folder}/journal"
    return ["sampling.workers=1", FAULTY, f"env.args={{{args}}}", *LONG, "report.console_seconds=0.1"]


@pytest.mark.parametrize("mode", ["serial", "async"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=lambda number: number.name)
def test_whatever_envs_have_started_ends_with_the_run(
    tmp_path: Path, rollmill: Run, mode: str, number: signal.Signals
) -> None:
    """A forked child, and a helper without variables in a session of its own."""
    command = rollmill(*command_words(tmp_path, *left_running("fork+helper", tmp_path), f"sampling.mode={mode}"))
    command.wait_for_text("frames/s")
    wait_until(lambda: len(helpers_of(tmp_path / "journal")) == 2, what="both to be started")
    started = helpers_of(tmp_path / "journal")
    assert all(map(is_alive, started))
    command.send(number)
    assert command.wait() == (-number if number == signal.SIGKILL else 128 + number)
    command.assert_nothing_left()
    wait_until(lambda: not any(map(is_alive, started)), what="both to be ended")


@pytest.mark.parametrize("mode", ["serial", "async"])
def test_what_an_env_leaves_running_does_not_hold_up_the_end(tmp_path: Path, rollmill: Run, mode: str) -> None:
    words = [*left_running("thread+child", tmp_path), "stop.frames=300", "recording=all", f"sampling.mode={mode}"]
    command = rollmill(*command_words(tmp_path, *words))
    assert command.wait() == 0, command.text
    command.assert_nothing_left()
    assert "finished: reached stop.frames=300" in command.text
    assert "the forecast is an upper bound" not in command.text


@pytest.mark.parametrize("mode", ["serial", "async"])
@pytest.mark.parametrize("what", ["shape", "none_reward", "sys_exit"])
def test_a_fault_in_the_trial_of_a_recording_is_survived(
    tmp_path: Path, watcher: Watcher, mode: str, what: str
) -> None:
    args = f"env.args={{what: {what}, at_step: 7, once: {tmp_path}/once}}"
    words = [FAULTY, args, "recording=all", f"sampling.mode={mode}", "stop.frames=300"]
    outcome, folder = train_here(tmp_path, *words, observers=[watcher])
    assert outcome.state == "finished"
    log = folder.log.read_text()
    said = (
        "the forecast is an upper bound, a trial of faulty_envs:Misbehave failed: faulty_envs:Misbehave failed in step"
    )
    assert f"{said} (seed 1, step 1): " in log
    assert watcher.pool.report.env_faults == 0, "the only fault was that of the trial"


@pytest.mark.parametrize("mode", ["serial", "async"])
def test_an_env_that_never_closes_well_is_used_all_the_same(tmp_path: Path, watcher: Watcher, mode: str) -> None:
    words = [FAULTY, "env.args={what: raise, where: close}", f"sampling.mode={mode}", "recording=all"]
    outcome, folder = train_here(tmp_path, *words, "stop.frames=300", observers=[watcher])
    assert outcome.state == "finished"
    log = folder.log.read_text()
    assert log.count("close() failed with RuntimeError: told to raise in close") == 2, "the probe's, and the trial's"
    assert "failed in close" in log, "and those of the run"


class KillWorkers(Watcher):
    """kill -9 for both workers, and again for both that replace them."""

    def __init__(self) -> None:
        super().__init__()
        self.restarts = 4
        self._at = [0, 2]
        self._killed: set[int] = set()

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        super().on_training_step(run, iteration)
        if iteration < 3 or not self._at or self.pool.report.worker_restarts != self._at[0]:
            return
        pids = set(self.pool.pids())
        if len(pids - self._killed) == 2:  # a worker that is just being replaced is counted before it is there
            del self._at[0]
            self._killed |= pids
            for pid in pids:
                os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_workers_killed_from_outside_are_replaced(tmp_path: Path, mode: str) -> None:
    killer = KillWorkers()
    outcome, _ = train_here(tmp_path, *LONG, "env=toy_target", f"sampling.mode={mode}", observers=[killer])
    assert outcome.reason == SEEN
    killer.assert_nothing_left()


def test_episodes_of_a_replaced_worker_are_not_played_again(tmp_path: Path, watcher: Watcher) -> None:
    """Every reset of every env has a seed of its own, also after the replacement."""
    journal = tmp_path / "journal"
    overrides = [*misbehaviour("kill", at_step=20), f"env.args.journal={journal}"]
    watcher.restarts = 2
    train_here(tmp_path, *LONG, *overrides, "sampling.worker_restarts=100", observers=[watcher])
    resets = [line for line in journal.read_text().splitlines() if line.startswith("reset")]
    assert journal.read_text().count("constructor 3") > 1
    assert len(resets) == len(set(resets))


class StopWhenReplaced(Watcher):
    """Ends the run once the second env number 3 has been reset."""

    def __init__(self, journal: Path) -> None:
        super().__init__()
        self._journal = journal

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        parts = self._journal.read_text().split("constructor 3")
        if len(parts) > 2 and "reset 3" in parts[2]:
            run.stop(SEEN)


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_replaced_worker_closes_its_envs_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setattr("rollmill.sampling.pool.STOP_SECONDS", 60.0)  # it may have to wait for its turn
    journal, once = tmp_path / "journal", tmp_path / "once"
    overrides = [
        "sampling.workers=1",
        FAULTY,
        f"env.args={{what: kill, env: 3, at_step: 20, once: {once}, journal: {journal}}}",
    ]
    observers = [StopWhenReplaced(journal)]
    outcome, _ = train_here(tmp_path, *LONG, *overrides, f"sampling.mode={mode}", observers=observers)
    assert outcome.reason == SEEN
    assert "close 3" in journal.read_text()


# -- signals to the command ----------------------------------------------------------------------------

ENDLESS = ("env=toy_target", "stop.frames=100000000", "report.console_seconds=0.1")


@pytest.mark.parametrize(
    ("number", "mode"),
    [(signal.SIGINT, "async"), (signal.SIGTERM, "sync"), (signal.SIGINT, "serial")],
    ids=lambda value: getattr(value, "name", value),
)
def test_a_signal_ends_the_run_cleanly(tmp_path: Path, rollmill: Run, number: signal.Signals, mode: str) -> None:
    command = rollmill(*command_words(tmp_path, *ENDLESS, f"sampling.mode={mode}"))
    command.wait_for_text("frames/s")
    if number == signal.SIGINT:
        command.press_ctrl_c()
    else:
        command.send(number)
    assert command.wait() == 128 + number
    command.assert_nothing_left()
    assert f"interrupted: {number.name} received" in command.text
    assert "--resume continues it" in command.text
    assert "Traceback" not in command.text
    assert list((tmp_path / "x/run/checkpoints").glob("*.ckpt"))


def test_ctrl_c_while_the_workers_are_starting(tmp_path: Path, rollmill: Run) -> None:
    """They cannot ignore it yet, so it must not reach them."""
    command = rollmill(*command_words(tmp_path, *ENDLESS))
    workers = wait_until(command.workers, what="the workers to be started")
    assert all(os.getpgid(pid) == pid for pid in workers)
    command.press_ctrl_c()
    assert command.wait() == 130, command.text
    command.assert_nothing_left()
    assert "interrupted: SIGINT received" in command.text
    assert "Traceback" not in command.text


def test_a_second_signal_ends_it_at_once(tmp_path: Path, rollmill: Run) -> None:
    """The first signal finds a worker that cannot stop: its env hangs. Whoever asks twice does not want to wait."""
    once = tmp_path / "once"
    command = rollmill(*command_words(tmp_path, *LONG, *misbehaviour("hang", once=once)))
    wait_until(once.exists, what="the env to hang")
    command.send(signal.SIGTERM)
    command.send(signal.SIGINT)
    assert command.wait() in (130, 143)  # Linux may hand them over together, in its own order
    command.assert_nothing_left()
    assert "interrupted twice, ended at once" in command.text
    assert "Traceback" not in command.text


def starting(folder: Path) -> list[str]:
    """A run that does not get beyond its start: the constructor of its env hangs."""
    args = f"env.args={{what: hang, where: constructor, once: {folder}/once}}"
    return command_words(folder, *LONG, FAULTY, args)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_signal_before_the_run_has_begun(tmp_path: Path, rollmill: Run, number: signal.Signals) -> None:
    command = rollmill(*starting(tmp_path))
    wait_until((tmp_path / "once").exists, what="the constructor to hang")
    command.send(number)
    assert command.wait() == 128 + number
    command.assert_nothing_left()
    state = RunFolder(tmp_path / "x/run").read_state()
    assert state is not None
    assert (state["state"], state["reason"]) == ("interrupted", f"{number.name} received")
    assert "Traceback" not in command.text


def test_a_signal_before_the_run_has_begun_and_the_janitor_is_dead(
    tmp_path: Path, rollmill: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    command = rollmill(*starting(tmp_path))
    wait_until((tmp_path / "once").exists, what="the constructor to hang")
    (janitor,) = [pid for pid in command.processes() if "janitor_main.py" in command_of(pid)]
    os.kill(janitor, signal.SIGKILL)
    command.send(signal.SIGTERM)
    assert command.wait() == 143
    command.assert_nothing_left()
    assert not list((tmp_path / "scratch").glob("rollmill-*"))


def test_a_folder_in_use_cannot_be_resumed(tmp_path: Path, rollmill: Run) -> None:
    """It has no checkpoint yet: that is no reason to overwrite it."""
    command = rollmill(*starting(tmp_path))
    wait_until((tmp_path / "once").exists, what="the constructor to hang")
    with pytest.raises(RunFolderError, match=f"in use by pid {command.process.pid}"):
        train_here(tmp_path, FAULTY, mode="resume")
    command.send(signal.SIGTERM)
    assert command.wait() == 143  # with its janitor: whatever kills all processes leaves the scratch folder


def test_kill_9_of_the_run_leaves_nothing(tmp_path: Path, rollmill: Run) -> None:
    command = rollmill(*command_words(tmp_path, *ENDLESS))
    command.wait_for_text("frames/s")
    token = command.token()
    assert token.startswith(TOKEN_VARIABLE)
    command.send(signal.SIGKILL)
    assert command.wait() == -signal.SIGKILL
    command.assert_nothing_left()


def test_kill_9_of_the_run_while_an_env_hangs_leaves_nothing(tmp_path: Path, rollmill: Run) -> None:
    once = tmp_path / "once"
    command = rollmill(*command_words(tmp_path, *LONG, *misbehaviour("hang", once=once)))
    wait_until(once.exists, what="the env to hang")
    command.send(signal.SIGKILL)
    command.wait()
    command.assert_nothing_left()


def test_a_failure_has_an_honest_exit_code_and_message(tmp_path: Path, rollmill: Run) -> None:
    words = command_words(tmp_path, *misbehaviour("raise"), "env.fault_limit=1", "stop.frames=1000000")
    command = rollmill(*words)
    assert command.wait() == 1
    command.assert_nothing_left()
    assert "rollmill train: env 3 (faulty_envs:Misbehave) failed in step" in command.text
    run = RunFolder(tmp_path / "x" / "run")
    state = run.read_state()
    assert state is not None
    assert state["state"] == "failed"
    assert "told to raise" in state["reason"]
    assert saved_state(run)["iteration"] > 0


@pytest.mark.vizdoom
def test_kill_9_of_a_doom_run_leaves_no_engine_and_no_segment(tmp_path: Path, rollmill: Run) -> None:
    pytest.importorskip("vizdoom")
    small = ("sampling.envs_per_worker=2", "sampling.workers=1", "learning.batch_size=8", "model.fc=[8]")
    command = rollmill(*command_words(tmp_path, *LONG, "env=doom_basic", *small, "report.console_seconds=0.1"))
    command.wait_for_text("frames/s")
    instances = [name for pid in command.processes() for name in vizdoom_instance(pid)]
    assert len(instances) == 2
    command.send(signal.SIGKILL)
    command.wait()
    command.assert_nothing_left()
    assert not [name for name in os.listdir("/dev/shm") if any(name.endswith(i) for i in instances)]
