"""Serial mode: the same seed gives the same bits, also through a stop and a resume."""

import functools
from collections.abc import Callable
from pathlib import Path

import pytest
from holding import HOLDING
from running import SERIAL, Run, assert_same, command_words, rows_of, saved_state, train_here

from rollmill.cli.main import main
from rollmill.core.run_folder import RunFolder
from rollmill.runs.train.loop import OnlineRun
from rollmill.runs.train.observers import Observer

TARGET = ("env=toy_target",)
MEMORY = ("env=toy_memory", "model.memory=gru", "learning.recurrence=4")
CARTPOLE = ("env=CartPole-v1", "model.normalize_observations=true")
PENDULUM = ("env=Pendulum-v1", "model.normalize_observations=true", "learning.minibatches=2", "learning.epochs=2")
AGENTS = ("env=toy_agents", "learning.batch_size=64", "model.memory=lstm", "learning.targets=vtrace")
WALK = ("env=toy_masked", "sampling.decorrelate_steps=7", "learning.lr_schedule=kl_adaptive")
SUITE = ("env=toy_pair",)
KINDS = [TARGET, MEMORY, CARTPOLE, PENDULUM, AGENTS, WALK, SUITE]
FRAMES = "stop.frames=600"


class StopAt(Observer):
    """Ends the run at a training step, or while the next batch is being collected.

    ``when``: "trained" (at the step itself), "half" (some rounds later), "full" (segments have just finished, and
    nobody has learnt from them or counted their episodes).
    """

    def __init__(self, iteration: int, when: str) -> None:
        self.iteration, self.when = iteration, when

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        if iteration != self.iteration:
            return
        if self.when == "trained":
            run.stop("told to")
            return
        sampler, original, rounds = run.parts.sampler, run.parts.sampler.round, 0

        def watched(timeout: float = 0.1) -> int:
            nonlocal rounds
            rounds += 1
            answered = original(timeout)
            if rounds == 5 if self.when == "half" else sampler.finished:
                run.stop("told to, while collecting")
            return answered

        sampler.round = watched  # type: ignore[method-assign]


def end_of(state: dict) -> dict:
    """What must agree at the end of two runs: all but seconds, folders, and the newest rows' outcomes to come."""
    for held in state["sampler"]["held"]:
        for name in ("reward", "terminated", "truncated", "valid", "episode_return"):
            held["fields"][name] = held["fields"][name][:-1]
    return {name: state[name] for name in state if name not in ("seconds", "config")}


Whole = Callable[..., RunFolder]


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """Gives the folder of an uninterrupted run with these settings; every kind is run once."""

    @functools.cache
    def run(*kind: str) -> RunFolder:
        return train_here(tmp_path_factory.mktemp("whole"), *SERIAL, FRAMES, *kind)[1]

    return run


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind[0])
def test_same_seed_gives_the_same_bits(tmp_path: Path, kind: tuple[str, ...], whole_run: Whole) -> None:
    one = whole_run(*kind)
    _, two = train_here(tmp_path, *SERIAL, FRAMES, *kind)
    assert len(rows_of(one)) > 3
    assert_same(rows_of(one), rows_of(two))
    assert_same(end_of(saved_state(one)), end_of(saved_state(two)))


def test_another_seed_gives_something_else(tmp_path: Path, whole_run: Whole) -> None:
    one = whole_run(*TARGET)
    _, two = train_here(tmp_path, *SERIAL, FRAMES, *TARGET, "run.seed=1")
    assert rows_of(one) != rows_of(two)
    name = "trunk.encoder"
    weights = [saved_state(folder)["learners"][0]["model"] for folder in (one, two)]
    assert any((weights[0][k] != weights[1][k]).any() for k in weights[0] if k.startswith(name))


@pytest.mark.parametrize("when", ["trained", "half", "full"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind[0])
def test_stopped_and_resumed_is_as_if_never_stopped(
    tmp_path: Path, kind: tuple[str, ...], when: str, whole_run: Whole
) -> None:
    whole = whole_run(*kind)
    stopped, parts = train_here(tmp_path, *SERIAL, FRAMES, *kind, observers=[StopAt(4, when)])
    assert stopped.reason.startswith("told to")
    resumed, _ = train_here(tmp_path, *SERIAL, FRAMES, *kind, mode="resume")
    assert resumed.reason == f"reached {FRAMES}"
    assert_same(rows_of(whole), rows_of(parts))
    assert_same(end_of(saved_state(whole)), end_of(saved_state(parts)))


def test_a_real_ctrl_c_and_a_resume_are_as_if_nothing_had_happened(tmp_path: Path, rollmill: Run) -> None:
    gate = tmp_path / "gate"  # before its end: the test may be slower than the run
    held = (f"observers=[{HOLDING}:Gate]", "observers.args.Gate.at=100", f"observers.args.Gate.gate={gate}")
    words = command_words(tmp_path / "parts", *SERIAL, *MEMORY, "stop.frames=6000", "report.every_frames=200", *held)
    command = rollmill(*words, "report.console_seconds=0")
    command.wait_for_text("frames/s")
    command.press_ctrl_c()
    assert command.wait() == 130, command.text
    gate.touch()
    assert main([*words, "--resume"]) == 0
    _, whole = train_here(tmp_path / "whole", *SERIAL, *MEMORY, "stop.frames=6000", "report.every_frames=200")
    parts = RunFolder(tmp_path / "parts/x/run")
    assert_same(rows_of(whole), rows_of(parts))
    assert_same(end_of(saved_state(whole)), end_of(saved_state(parts)))


class StopAtOnce(Observer):
    def on_start(self, run: OnlineRun) -> None:
        run.stop("told to")


def test_stopped_before_the_first_row_and_resumed(tmp_path: Path, whole_run: Whole) -> None:
    """No env has been reset yet: that, too, is a state to continue from."""
    whole = whole_run(*MEMORY)
    stopped, parts = train_here(tmp_path, *SERIAL, FRAMES, *MEMORY, observers=[StopAtOnce()])
    assert stopped.frames == 0
    train_here(tmp_path, *SERIAL, FRAMES, *MEMORY, mode="resume")
    assert_same(rows_of(whole), rows_of(parts))
    assert_same(end_of(saved_state(whole)), end_of(saved_state(parts)))


def test_killed_before_its_first_own_checkpoint_and_resumed(tmp_path: Path, whole_run: Whole) -> None:
    """The one of the start is there; rows of the lost session are written again."""
    whole = whole_run(*CARTPOLE)
    _, parts = train_here(tmp_path, *SERIAL, FRAMES, *CARTPOLE, observers=[StopAt(4, "half")])
    untrained, last = sorted(parts.checkpoints.iterdir())
    assert untrained.name == "frames-000000000000.ckpt"
    last.unlink()
    train_here(tmp_path, *SERIAL, FRAMES, *CARTPOLE, mode="resume")
    assert_same(rows_of(whole), rows_of(parts))
    assert_same(end_of(saved_state(whole)), end_of(saved_state(parts)))


# A batch is three of the four segments that end together, so one is always left over, and some grow too old.
STALE = ("env=toy_target", "learning.batch_size=48", "learning.max_policy_lag=1", "sampling.envs_per_worker=8")
STALE += ("sampling.groups=4", "sampling.poison=true", "stop.frames=1500")


@pytest.mark.parametrize("when", ["trained", "half", "full"])
def test_dropped_and_left_over_segments_survive_a_resume(tmp_path: Path, when: str, whole_run: Whole) -> None:
    whole = whole_run(*STALE)
    train_here(tmp_path, *SERIAL, *STALE, observers=[StopAt(4, when)])
    _, parts = train_here(tmp_path, *SERIAL, *STALE, mode="resume")
    assert saved_state(whole)["dropped_segments"] > 0
    assert_same(rows_of(whole), rows_of(parts))
    assert_same(end_of(saved_state(whole)), end_of(saved_state(parts)))


def test_faults_and_their_counts_survive_a_resume(tmp_path: Path) -> None:
    """Env 3 raises in every 40th step of an instance's life: replacing it is part of the determinism."""
    faulty = ("env=faulty_envs:Misbehave", "env.args={env: 3, at_step: 40}")
    _, whole = train_here(tmp_path / "whole", *SERIAL, FRAMES, *faulty)
    train_here(tmp_path / "parts", *SERIAL, FRAMES, *faulty, observers=[StopAt(12, "full")])
    _, parts = train_here(tmp_path / "parts", *SERIAL, FRAMES, *faulty, mode="resume")
    assert rows_of(whole)[-1]["sample/env_faults"] >= 1
    assert rows_of(parts)[-1]["sample/env_faults"] == rows_of(whole)[-1]["sample/env_faults"]


@pytest.mark.parametrize(
    "change",
    ["learning.recurrence=8", "sampling.workers=1", "sampling.rollout=16", "env.args.delay=2", "sampling.groups=1"],
)
def test_a_changed_shape_goes_on_with_fresh_episodes(tmp_path: Path, change: str) -> None:
    first, folder = train_here(tmp_path, *SERIAL, *MEMORY, "stop.frames=200")
    before = saved_state(folder)
    second, _ = train_here(tmp_path, *SERIAL, *MEMORY, "stop.frames=600", change, mode="resume")
    after = saved_state(folder)
    assert second.frames >= 600 > first.frames
    assert after["iteration"] > before["iteration"]
    assert after["sampler"]["next_episode"].min() > before["sampler"]["next_episode"].max()


def test_an_env_that_does_not_repeat_itself_is_named(tmp_path: Path) -> None:
    drifting = ("env=faulty_envs:Drifting", "stop.frames=200")
    _, folder = train_here(tmp_path, *SERIAL, *drifting)
    train_here(tmp_path, *SERIAL, "stop.frames=300", "env=faulty_envs:Drifting", mode="resume")
    text = folder.log.read_text()
    assert "faulty_envs:Drifting is not reproducible" in text
    assert "'seed' differs" in text


VECTOR = ("env=CartPole-v1", "env.vector=true")


def test_a_vector_env_gives_the_same_bits_from_the_same_seed(tmp_path: Path, whole_run: Whole) -> None:
    one = whole_run(*VECTOR)
    _, two = train_here(tmp_path, *SERIAL, FRAMES, *VECTOR)
    assert len(rows_of(one)) > 3
    assert_same(rows_of(one), rows_of(two))
    assert_same(saved_state(one)["learners"], saved_state(two)["learners"])


def test_a_resumed_vector_env_begins_fresh_episodes_and_says_so(tmp_path: Path) -> None:
    first, folder = train_here(tmp_path, *SERIAL, *VECTOR, "stop.frames=200")
    before = saved_state(folder)
    second, _ = train_here(tmp_path, *SERIAL, *VECTOR, "stop.frames=600", mode="resume")
    after = saved_state(folder)
    assert second.frames >= 600 > first.frames
    assert (after["sampler"]["next_episode"] > before["sampler"]["next_episode"]).all()
    assert "a resumed one begins fresh episodes instead of continuing bit for bit" in folder.log.read_text()
