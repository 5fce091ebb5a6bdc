"""Runs of two ranks: what they count, how they end, what ends them, and how they go on."""

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from running import Run, command_words, config_of, rows_of, saved_state, train_here, wait_until

from rollmill.core.errors import ConfigError, EnvError
from rollmill.core.janitor import TOKEN_VARIABLE
from rollmill.core.janitor_main import processes_of
from rollmill.core.run_folder import RunFolder
from rollmill.runs.settings.train import check
from rollmill.runs.train.loop import OnlineRun
from rollmill.runs.train.observers import Observer
from rollmill.runs.train.ranks.processes import share_of, visible_gpus

TWO = ("learning.ranks=2", "learning.device=cpu", "learning.threads=1", "env=toy_target", "sampling.mode=sync")
LONG = ("stop.frames=100000000", "stop.seconds=600")
"""For runs that something else ends; the seconds are for broken ones."""


class At(Observer):
    """Acts at the third training step, and at the end looks for processes that outlive the run."""

    def __init__(self, act: Callable[[int], object] = lambda _pid: None) -> None:
        self._act, self.pid, self.token = act, 0, ""

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        environment = run.parts.sampler.plan.environment
        assert environment is not None
        self.token = environment[TOKEN_VARIABLE]
        if iteration == 3:
            mine = [p for p in processes_of(self.token, set()) if parent_of(p) == os.getpid() and follows(p)]
            self.pid = mine[0]
            self._act(self.pid)

    def assert_nothing_left(self) -> None:
        assert self.pid, "it came to a third step"
        wait_until(lambda: not processes_of(self.token, set()), what="all processes to end")


@pytest.fixture
def at() -> Iterator[type[At]]:
    """Makes observers that are looked after."""
    made: list[At] = []

    class Kept(At):
        def __init__(self, act: Callable[[int], object] = lambda _pid: None) -> None:
            super().__init__(act)
            made.append(self)

    yield Kept
    for observer in made:
        observer.assert_nothing_left()


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def follows(pid: int) -> bool:
    return b"rollmill.runs.train.ranks.rank_main" in Path(f"/proc/{pid}/cmdline").read_bytes()


def log_of(folder: RunFolder) -> str:
    return (folder.path / "log.txt").read_text()


def workers_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


# -- a run ---------------------------------------------------------------------------------------------------


def test_two_ranks_train_and_go_on(tmp_path: Path, at: type[At]) -> None:
    cores = os.sched_getaffinity(0)
    words = (*TWO, "env=toy_memory", "model.memory=gru", "sampling.mode=async", "sampling.affinity=true")
    outcome, folder = train_here(tmp_path, *words, "stop.batches=12", observers=[at()])
    assert outcome.reason == "reached stop.batches=12"
    state = saved_state(folder)
    assert state["iteration"] == state["learners"][0]["version"] == 12
    assert state["config"]["learning"]["ranks"] == 2
    assert state["config"]["sampling"]["workers"] == 2
    assert state["sampler"]["steps"] == outcome.frames >= 12 * 32 * 0.8, "both ranks' steps (resets do not count)"
    rows = rows_of(folder)
    assert rows[-1]["learn/rows"] > 16, "a batch of 32 rows, of which a rank has half"
    assert rows[-1]["episode/count"] > 0
    assert os.sched_getaffinity(0) == cores, "rank 0 kept to its share, for as long as the run took"

    used = state["ranks"][0]
    assert used.shape == state["sampler"]["next_episode"].shape == (4,)
    assert used.min() > 0
    again, folder = train_here(tmp_path, *words, "stop.batches=15", mode="resume")
    later = saved_state(folder)
    assert (again.reason, later["iteration"]) == ("reached stop.batches=15", 15)
    assert again.frames > outcome.frames
    assert (later["ranks"][0] > used).all(), "no episode is played twice"


def test_a_run_may_go_on_with_another_number_of_ranks(tmp_path: Path) -> None:
    one = ("env=toy_target", "sampling.mode=sync")
    _, folder = train_here(tmp_path, *one, "stop.batches=2")
    frames = saved_state(folder)["sampler"]["steps"]
    train_here(tmp_path, *TWO, "stop.batches=4", mode="resume")
    assert saved_state(folder)["sampler"]["steps"] > frames
    outcome, _ = train_here(tmp_path, *one, "stop.batches=6", mode="resume")
    assert outcome.reason == "reached stop.batches=6"


# -- what ends a run, and what does not ------------------------------------------------------------------------


class Left(Observer):
    """Sees the ranks after each step, and ends the run some steps after one is lost."""

    def __init__(self) -> None:
        self.seen: list[tuple[tuple[int, ...], int, int]] = []

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        self.seen.append((run.parts.ranks.present, run.frames, run.iteration))
        if len(self.seen) > 8 and self.seen[-5][0] != (0, 1, 2):
            run.stop("seen enough")


def test_the_others_go_on_without_a_rank_that_stands_still(tmp_path: Path, at: type[At]) -> None:
    words = (*TWO, "learning.ranks=3", "sampling.workers=3", "learning.batch_size=96", "learning.rank_silence=5")
    left, stop = Left(), at(lambda pid: os.kill(pid, signal.SIGSTOP))
    outcome, folder = train_here(tmp_path, *words, *LONG, observers=[stop, left])
    assert outcome.reason == "seen enough"
    present, frames, iterations = zip(*left.seen, strict=True)
    assert set(present[:3]) == {(0, 1, 2)}
    assert present[-1] in ((0, 1), (0, 2)), "the others keep their numbers"
    assert list(frames) == sorted(frames), "what a lost rank has counted stays counted"
    assert list(iterations) == list(range(1, len(left.seen) + 1))
    state = saved_state(folder)
    assert state["sampler"]["steps"] == outcome.frames
    assert len(state["ranks"]) == 2, "a run of three goes on with episodes that were not used"
    assert all(unused.min() > 0 for unused in state["ranks"])
    rows = rows_of(folder)
    assert (rows[0]["learn/ranks"], rows[-1]["learn/ranks"]) == (3, 2)
    assert rows[-1]["learn/rows"] < 0.8 * rows[0]["learn/rows"]
    text = log_of(folder)
    assert "has given no sign of life for 5 s" in text
    assert "2 of 3 ranks go on: a batch has 64 rows now" in text


def test_rank_0_goes_on_alone_and_the_run_resumes_with_all(tmp_path: Path, at: type[At]) -> None:
    killed = at(lambda pid: os.kill(pid, signal.SIGKILL))
    words = (*TWO, "sampling.mode=async", "learning.batch_size=64")
    outcome, folder = train_here(tmp_path, *words, "stop.batches=20", observers=[killed])
    assert outcome.reason == "reached stop.batches=20"
    state = saved_state(folder)
    assert (state["iteration"], state["learners"][0]["version"]) == (20, 21), "weights moved once more"
    assert re.search(r"lost for this run: rank 1 \(pid \d+\) was killed by signal 9", log_of(folder))
    again, folder = train_here(tmp_path, *words, "stop.batches=24", mode="resume")
    assert again.frames > outcome.frames
    assert rows_of(folder)[-1]["learn/rows"] > 32, "both learn again"


def test_a_signal_ends_all_ranks_with_a_checkpoint(tmp_path: Path, at: type[At]) -> None:
    def terminate(pid: int) -> None:
        for process in (pid, *workers_of(pid), os.getpid()):  # as a scheduler does
            os.kill(process, signal.SIGTERM)

    outcome, folder = train_here(tmp_path, *TWO, *LONG, observers=[at(terminate)])
    assert (outcome.state, outcome.exit_code) == ("interrupted", 128 + signal.SIGTERM)
    assert saved_state(folder)["iteration"] == 3


def test_rank_0_may_fail_while_the_others_wait(tmp_path: Path, at: type[At]) -> None:
    def fail(_pid: int) -> None:
        raise EnvError("not today")

    with pytest.raises(EnvError, match="not today"):
        train_here(tmp_path, *TWO, *LONG, observers=[at(fail)])


def test_an_env_that_fails_in_another_rank(tmp_path: Path) -> None:
    """Rank 0 has envs 0 to 3. The error comes home as if it had happened here."""
    words = (*TWO, *LONG, "env=faulty_envs:Misbehave", "env.args={what: raise, where: reset, env: 5}")
    with pytest.raises(EnvError, match=r"^rank 1 \(pid \d+\) failed: env 1 \(faulty_envs:Misbehave\)") as error:
        train_here(tmp_path, *words)
    assert "in reset" in str(error.value)


def test_a_worker_of_another_rank_is_replaced_and_counted(tmp_path: Path, at: type[At]) -> None:
    class Count(Observer):
        def on_training_step(self, run: OnlineRun, iteration: int) -> None:
            if run.counts()["worker_restarts"] == 1:
                run.stop("counted")

    kill = at(lambda pid: os.kill(workers_of(pid)[0], signal.SIGKILL))
    outcome, folder = train_here(tmp_path, *TWO, *LONG, observers=[kill, Count()])
    assert outcome.reason == "counted"
    assert saved_state(folder)["sampler"]["worker_restarts"] == 1
    assert "rank 1: worker 0 (pid" in log_of(folder)


def test_when_the_run_is_killed_no_rank_is_left(rollmill: Run, tmp_path: Path) -> None:
    command = rollmill(*command_words(tmp_path, *TWO, *LONG, "checkpoints.every_seconds=0"))
    command.wait_for_text("checkpoint ")
    assert len(command.processes_of("rollmill.runs.train.ranks.rank_main")) == 1
    command.send(signal.SIGKILL)
    command.process.wait()
    command.assert_nothing_left()


# -- what is refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("sampling.mode=serial",), "serial mode is one process"),
        (("sampling.workers=3",), r"sampling.workers=3 cannot be shared out evenly to learning.ranks=2; near: 2"),
        (("learning.batch_size=48",), r"learning.ranks=2 the same number\); near: 32, 64"),
    ],
)
def test_what_cannot_be_shared_out_is_refused(tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check(config_of(tmp_path, *TWO, *words))


@pytest.mark.parametrize("words", ["learning.ranks=0", "learning.rank_timeout=0", "learning.rank_silence=1"])
def test_impossible_numbers_are_refused(tmp_path: Path, words: str) -> None:
    with pytest.raises(ConfigError, match=words.partition("=")[0].partition(".")[2]):
        config_of(tmp_path, words)


def test_a_rank_gets_its_share(tmp_path: Path) -> None:
    whole = config_of(tmp_path, *TWO, "sampling.workers=6", "learning.batch_size=96")
    share = share_of(whole)
    assert (share.sampling.workers, share.learning.batch_size, share.learning.ranks) == (3, 48, 1)


def test_each_rank_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_gpus("auto", 2) == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4, GPU-8,7")
    assert visible_gpus("cuda", 3) == ["4", "GPU-8", "7"]
    assert visible_gpus("cuda:1", 2) == visible_gpus("cpu", 2) == [], "shared, or none"
    with pytest.raises(ConfigError, match="needs a GPU for each rank, and this process sees 3"):
        visible_gpus("cuda", 4)


# -- what the other ranks take over -----------------------------------------------------------------------


class Dial(Observer):
    """Turns a variable on rank 0, and sees in the moments of observations what all ranks have shown."""

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        run.set_variable("level", 8.0)


def test_variables_reach_the_environments_of_all_ranks(tmp_path: Path) -> None:
    """Observations are averaged over both ranks: only if both show 8 can their mean come near it."""
    words = (*TWO, "env=variable_env:VariableEnv", "env.variables.level=0", "stop.batches=60")
    _, folder = train_here(tmp_path, *words, observers=[Dial()])
    model = saved_state(folder)["learners"][0]["model"]
    (name,) = [name for name in model if name.startswith("observation_moments") and name.endswith("shift")]
    assert model[name][0] > 6.0


def test_several_policies_learn_on_several_ranks(tmp_path: Path) -> None:
    words = (*TWO, "env=toy_agents", "env.policies=[0,1]", "learning.batch_size=256", "stop.batches=8")
    _, folder = train_here(tmp_path, *words)
    learners = saved_state(folder)["learners"]
    assert [learner["version"] for learner in learners] == [8, 8]
    row = rows_of(folder)[-1]
    assert {"episode/return", "policy1/episode/return"} <= set(row)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("recording.keep=all",), "a recorder sees the workers of rank 0 alone"),
        (("learning.algorithm=sac", "model.action_distribution=tanh_gaussian"), "a replay buffer of its own"),
        (("sampling.mode=serial",), "serial mode is one process"),
    ],
)
def test_what_several_ranks_cannot_do_is_said_with_its_reason(
    tmp_path: Path, words: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        check(config_of(tmp_path, *TWO, *words, "learning.minibatches=4", "learning.epochs=4"))
