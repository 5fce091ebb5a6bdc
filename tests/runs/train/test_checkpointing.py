"""Checkpoints of real runs: killed, damaged, moved to new runs, and on a disk that is full."""

import json
import math
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from disks import mounted
from holding import HOLDING
from running import SERIAL, Run, assert_same, command_words, saved_state, train_here, wait_until

from rollmill.cli.main import main
from rollmill.core import checkpoints as checkpoints_module
from rollmill.core import run_folder as run_folder_module
from rollmill.core.checkpoints import Checkpoints, load_checkpoint
from rollmill.core.errors import CheckpointError, ConfigError, RunFolderError, RunFolderLost
from rollmill.core.run_folder import RunFolder
from rollmill.monitor.jsonl import read_jsonl
from rollmill.runs.settings.train import CheckpointSettings
from rollmill.runs.train.loop import OnlineRun
from rollmill.runs.train.observers import Observer
from rollmill.store.reader import Store

TARGET = ("env=toy_target",)
OFTEN = ("checkpoints.every_seconds=0", "checkpoints.keep_last=3", "checkpoints.keep_best=0")


def diary_of(folder: RunFolder) -> dict:
    return json.loads(folder.diary.read_text())


# -- resume ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_resume_counts_on(tmp_path: Path, mode: str) -> None:
    words = (*TARGET, f"sampling.mode={mode}", "sampling.workers=1")
    first, folder = train_here(tmp_path, *words, "stop.frames=400")
    before = saved_state(folder)
    second, _ = train_here(tmp_path, *words, "stop.frames=1000", mode="resume")
    after = saved_state(folder)
    assert second.frames >= 1000
    assert after["iteration"] > before["iteration"]
    assert after["learners"][0]["version"] == after["iteration"]
    assert after["seconds"] > before["seconds"]
    frames = [row["frames"] for row in read_jsonl(folder.metrics)]
    assert frames == sorted(set(frames))
    assert frames[0] < 400
    assert [s["step_at_start"] for s in diary_of(folder)["sessions"]] == [0, first.frames]
    assert diary_of(folder)["sessions"][1]["overrides"] == {"stop.frames": [400, 1000]}


def test_resume_after_kill_9(tmp_path: Path, rollmill: Run) -> None:
    words = command_words(tmp_path, *TARGET, *OFTEN, "sampling.workers=1")
    command = rollmill(*words, "stop.frames=100000000")
    command.wait_for_text("checkpoint ", times=5)
    command.send(signal.SIGKILL)
    command.wait()
    folder = RunFolder(tmp_path / "x/run")
    saved = Checkpoints(folder.checkpoints).newest()
    assert saved is not None
    assert folder.read_state()["state"] == "running"  # type: ignore[index]
    again = rollmill(*words, f"stop.frames={saved.step + 500}", "--resume")
    assert again.wait() == 0, again.text
    assert f"continuing from {saved.path}" in again.text
    assert folder.read_state()["state"] == "finished"  # type: ignore[index]
    assert diary_of(folder)["sessions"][0]["how"] == "killed (its end was not recorded)"
    frames = [row["frames"] for row in read_jsonl(folder.metrics)]
    assert frames == sorted(set(frames))


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_run_that_is_killed_before_its_first_own_checkpoint_keeps_its_data(
    tmp_path: Path, rollmill: Run, mode: str
) -> None:
    held = (f"observers=[{HOLDING}:Gate]", "observers.args.Gate.at=20", f"observers.args.Gate.gate={tmp_path / 'gate'}")
    words = command_words(tmp_path, *TARGET, f"sampling.mode={mode}", "recording=all", *held)
    command = rollmill(*words)
    folder = RunFolder(tmp_path / "x/run")

    def episodes() -> set[int]:
        return set(Store(folder.data).table.uid.tolist()) if (folder.data / "store.json").exists() else set()

    wait_until(lambda: len(episodes()) > 10 or command.process.poll() is not None, what="recorded episodes")
    command.send(signal.SIGKILL)
    command.wait()
    before = episodes()
    assert len(before) > 10, command.text
    assert [path.name for path in folder.checkpoints.iterdir()] == ["frames-000000000000.ckpt"]
    assert main([*words, "stop.batches=3", "--resume"]) == 0
    assert "(0 frames)" in folder.log.read_text()
    assert before < episodes()
    assert saved_state(folder)["iteration"] == 3
    assert len(diary_of(folder)["sessions"]) == 2


class CountsOn(Observer):
    """Saves while the sampler counts on, as its thread does in async mode: right after the state was taken."""

    saved: Path | None = None

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        if iteration != 3:
            return
        sampler, original = run.parts.sampler, run.state

        def state(with_envs: bool = True) -> dict:
            taken = original(with_envs)
            sampler.steps += 16
            return taken

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(run, "state", state)
            self.saved = run.save()
        sampler.steps -= 16


def test_a_checkpoint_is_where_its_name_says(tmp_path: Path) -> None:
    """Otherwise a resume would take the very checkpoint it starts from for the future, and set it aside."""
    observer = CountsOn()
    train_here(tmp_path, *SERIAL, *TARGET, "stop.frames=300", observers=[observer])
    assert observer.saved is not None
    loaded = checkpoints_module.load_checkpoint(observer.saved)
    assert loaded.state["sampler"]["steps"] == loaded.step
    assert observer.saved.name == f"frames-{loaded.step:012d}.ckpt"


def test_resume_of_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    first, folder = train_here(tmp_path, *SERIAL, *TARGET, "stop.frames=300")
    before = saved_state(folder)
    again, _ = train_here(tmp_path, *SERIAL, *TARGET, "stop.frames=300", mode="resume")
    assert again.frames == first.frames
    assert_same(before["learners"], saved_state(folder)["learners"])


def test_a_changed_learning_rate_takes_effect_on_resume(tmp_path: Path) -> None:
    words = (*SERIAL, *TARGET)
    _, folder = train_here(tmp_path, *words, "stop.frames=300", "learning.learning_rate=0.001")
    assert read_jsonl(folder.metrics)[-1]["learn/learning_rate"] == 0.001
    train_here(tmp_path, *words, "stop.frames=600", "learning.learning_rate=0.002", mode="resume")
    assert read_jsonl(folder.metrics)[-1]["learn/learning_rate"] == 0.002
    assert diary_of(folder)["sessions"][1]["overrides"]["learning.learning_rate"] == [0.001, 0.002]
    assert "changed since the checkpoint: learning.learning_rate: 0.001 -> 0.002" in folder.log.read_text()


def test_another_env_is_refused(tmp_path: Path) -> None:
    train_here(tmp_path, *SERIAL, *TARGET, "stop.frames=100")
    with pytest.raises(CheckpointError, match="was made for another environment: toy_target"):
        train_here(tmp_path, *SERIAL, "env=toy_memory", "stop.frames=200", mode="resume")


# -- damage ----------------------------------------------------------------------------------------------


def test_a_torn_checkpoint_is_named_and_the_good_one_works(tmp_path: Path) -> None:
    words = (*SERIAL, *TARGET, *OFTEN)
    _, folder = train_here(tmp_path, *words, "stop.frames=400")
    good, torn = Checkpoints(folder.checkpoints).list()[-2:]
    os.truncate(torn.path, torn.path.stat().st_size // 2)
    before = sorted(path.name for path in folder.path.iterdir())
    with pytest.raises(CheckpointError) as failure:
        train_here(tmp_path, *words, "stop.frames=600", mode="resume")
    message = str(failure.value)
    assert str(torn.path) in message
    assert f"--restore {good.path}" in message
    assert sorted(path.name for path in folder.path.iterdir()) == before

    outcome, _ = train_here(tmp_path, *words, "stop.frames=600", mode="resume", restore=good.path)
    assert outcome.frames >= 600
    assert (torn.path.parent / f"{torn.path.name}.abandoned").exists()
    assert f"continuing from {good.path}" in folder.log.read_text()
    frames = [row["frames"] for row in read_jsonl(folder.metrics)]
    assert frames == sorted(set(frames))


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    _, folder = train_here(tmp_path, *SERIAL, *TARGET, "stop.frames=100")
    newest = Checkpoints(folder.checkpoints).newest()
    assert newest is not None
    content = bytearray(newest.path.read_bytes())
    content[len(content) // 2] ^= 4
    newest.path.write_bytes(content)
    with pytest.raises(CheckpointError, match="The newest good checkpoint is at 0 frames"):
        train_here(tmp_path, *SERIAL, *TARGET, "stop.frames=200", mode="resume")


def test_resume_without_a_checkpoint_says_so(tmp_path: Path) -> None:
    _, folder = train_here(tmp_path, *SERIAL, *TARGET, "stop.frames=100")
    shutil.rmtree(folder.checkpoints)
    with pytest.raises(CheckpointError, match="no checkpoint to continue from"):
        train_here(tmp_path, *SERIAL, *TARGET, mode="resume")


# -- a new run from an old checkpoint --------------------------------------------------------------------


def test_a_restored_run_knows_its_parent(tmp_path: Path) -> None:
    first, parent = train_here(tmp_path / "parent", *SERIAL, *TARGET, "stop.frames=300")
    origin = Checkpoints(parent.checkpoints).newest()
    assert origin is not None
    changes = ("learning.gamma=0.9", "stop.frames=600", "run.seed=3")
    _, child = train_here(tmp_path / "child", *SERIAL, *TARGET, *changes, restore=origin.path)
    entry = diary_of(child)["parent"]
    assert entry["checkpoint"] == str(origin.path)
    assert entry["frames"] == first.frames
    assert entry["difference"]["learning.gamma"] == [0.99, 0.9]
    assert entry["difference"]["run.seed"] == [0, 3]
    assert read_jsonl(child.metrics)[0]["frames"] > first.frames
    assert origin.path.exists()
    assert "not reproducible" not in child.log.read_text()  # another seed: other episodes, not a replay of these


def test_a_restored_run_can_be_resumed_from_its_first_moment(tmp_path: Path) -> None:
    """It has a checkpoint of its own where it begins; that of a run that is resumed stays as it is."""
    _, parent = train_here(tmp_path / "parent", *SERIAL, *TARGET, "stop.frames=300")
    origin = Checkpoints(parent.checkpoints).newest()
    assert origin is not None
    words = (*SERIAL, *TARGET, "stop.frames=600")
    _, child = train_here(tmp_path / "child", *words, restore=origin.path, observers=[StopAtOnce()])
    (own,) = Checkpoints(child.checkpoints).list()
    assert own.step == origin.step
    content = own.path.read_bytes()
    _, child = train_here(tmp_path / "child", *words, mode="resume")
    assert own.path.read_bytes() == content
    _, whole = train_here(tmp_path / "parent", *words, mode="resume")
    assert_same(saved_state(whole)["learners"], saved_state(child)["learners"])


class StopAtOnce(Observer):
    def on_start(self, run: OnlineRun) -> None:
        run.stop("told to")


def test_weights_of_an_untrained_checkpoint_are_restored_too(tmp_path: Path) -> None:
    """Version 0 replaces version 0: the acting copy must take the restored weights, not keep its own first ones."""
    _, parent = train_here(tmp_path / "parent", *SERIAL, *TARGET, observers=[StopAtOnce()])
    origin = Checkpoints(parent.checkpoints).newest()
    assert origin is not None

    class Compare(Observer):
        agree = False

        def on_start(self, run: OnlineRun) -> None:
            policy, learner = run.parts.policies[0], run.parts.learners[0]
            policy.refresh()
            pairs = zip(policy.model.parameters(), learner.model.parameters(), strict=True)
            self.agree = all(bool((a == b).all()) for a, b in pairs)
            run.stop("seen")

    compare = Compare()
    words = ("run.seed=5", "stop.frames=600")
    train_here(tmp_path / "child", *SERIAL, *TARGET, *words, restore=origin.path, observers=[compare])
    assert compare.agree


def test_restore_from_nowhere_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"missing\.ckpt"):
        train_here(tmp_path, *SERIAL, *TARGET, restore=tmp_path / "missing.ckpt")
    assert not (tmp_path / "x").exists()


# -- a lost folder -----------------------------------------------------------------------------------------


class Remove(Observer):
    """Removes the folder of the run: at a training step, or when it stops."""

    def __init__(self, at: int = 0) -> None:
        self._at = at

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        if iteration == self._at:
            shutil.rmtree(run.folder.path)

    def on_stop(self, run: OnlineRun) -> None:
        if not self._at:
            shutil.rmtree(run.folder.path)


@pytest.mark.parametrize("mode", ["serial", "sync", "async"])
def test_a_run_whose_folder_is_removed_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    monkeypatch.setattr(run_folder_module, "LOOK_SECONDS", 0.0)
    words = (*TARGET, f"sampling.mode={mode}", "recording=all", "report.tensorboard=true", "stop.frames=100000000")
    with pytest.raises(
        RunFolderLost, match="run: the folder of the run is lost: it does not exist any more"
    ) as failure:
        train_here(tmp_path, *words, observers=[Remove(3)])
    assert failure.value.exit_code == 1
    assert not list((tmp_path / "x").iterdir())


@pytest.mark.parametrize("at", [2, 0], ids=["before the last checkpoint", "after it"])
def test_a_folder_that_is_removed_in_the_last_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    monkeypatch.setattr(run_folder_module, "LOOK_SECONDS", 1e9)
    with pytest.raises(RunFolderLost):
        train_here(tmp_path, *SERIAL, *TARGET, "stop.batches=2", observers=[Remove(at)])
    assert not list((tmp_path / "x").iterdir())


def test_the_command_says_what_was_lost(tmp_path: Path, rollmill: Run) -> None:
    command = rollmill(*command_words(tmp_path, *TARGET, "recording=all", "stop.frames=100000000"))
    command.wait_for_text("frames/s")
    shutil.rmtree(tmp_path / "x/run")
    assert command.wait() == 1
    assert command.text.splitlines()[-1].startswith(f"rollmill train: {tmp_path}/x/run: the folder of the run is lost")
    assert "Traceback" not in command.text
    assert not list((tmp_path / "x").rglob("*")), command.text
    command.assert_nothing_left()


# -- a full disk -----------------------------------------------------------------------------------------


class Full(Observer):
    """Makes writing checkpoints fail from one training step to another."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, begin: int, end: int) -> None:
        self._patch, self._begin, self._end = monkeypatch, begin, end

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        if iteration == self._begin:
            self._patch.setattr(checkpoints_module, "_free_bytes", lambda folder: 1000)
        if iteration == self._end:
            self._patch.undo()


def test_training_goes_on_while_no_checkpoint_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    observers = [Full(monkeypatch, 3, 8)]
    outcome, folder = train_here(tmp_path, *SERIAL, *TARGET, *OFTEN, "stop.frames=600", observers=observers)
    assert outcome.state == "finished"
    assert read_jsonl(folder.metrics)[-1]["run/checkpoint_failures"] == 5
    text = folder.log.read_text()
    assert text.count("no checkpoint was written, training goes on: disk of") == 5
    assert saved_state(folder)["iteration"] > 8


def test_a_last_checkpoint_that_cannot_be_written_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    observers = [Full(monkeypatch, 3, 0)]
    with pytest.raises(CheckpointError, match="too full") as failure:
        train_here(tmp_path, *SERIAL, *TARGET, "stop.frames=300", observers=observers)
    assert failure.value.exit_code == 1
    state = RunFolder(tmp_path / "x/run").read_state()
    assert state is not None
    assert state["state"] == "failed"
    assert "too full" in state["reason"]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 60 megabytes."""
    with mounted(tmp_path / "disk", "60m") as disk:
        yield disk


class Fill(Observer):
    """Fills the disk to the last byte at one training step."""

    def __init__(self, disk: Path, at: int) -> None:
        self._disk, self._at = disk, at

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        if iteration == self._at:
            with open(self._disk / "filler", "wb", buffering=0) as file:
                for size in (1 << 20, 1 << 12, 1):
                    try:
                        while file.write(bytes(size)) == size:
                            pass
                    except OSError:
                        continue


def test_a_disk_that_fills_up_for_real(tmp_path: Path, disk: Path) -> None:
    """Metrics, log, state and the last checkpoint all fail to be written; the first error is the one that counts."""
    words = (*SERIAL, *TARGET, *OFTEN, "checkpoints.min_free_mb=0", "report.tensorboard=true")
    with pytest.raises(CheckpointError, match="too full") as failure:
        train_here(disk, *words, "stop.frames=600", observers=[Fill(disk, 5)])
    assert failure.value.exit_code == 1
    folder = RunFolder(disk / "x/run")
    assert saved_state(folder)["iteration"] == 4
    (disk / "filler").unlink()
    outcome, _ = train_here(disk, *words, "stop.frames=600", mode="resume")
    assert outcome.state == "finished"
    _, whole = train_here(tmp_path, *words, "stop.frames=600")
    assert_same(saved_state(whole)["learners"], saved_state(folder)["learners"])


def test_a_disk_that_is_full_from_the_start_is_refused(disk: Path) -> None:
    (disk / "filler").write_bytes(bytes(30_000_000))
    with pytest.raises(RunFolderError, match="too full for a run"):
        train_here(disk, *SERIAL, *TARGET)


# -- folders ---------------------------------------------------------------------------------------------


def test_an_existing_run_is_not_touched_without_being_asked(tmp_path: Path) -> None:
    _, folder = train_here(tmp_path, *SERIAL, *TARGET, "stop.frames=100")
    before = folder.log.read_text()
    with pytest.raises(RunFolderError, match=r"--resume, .* --overwrite") as failure:
        train_here(tmp_path, *SERIAL, *TARGET)
    assert failure.value.exit_code == 2
    assert folder.log.read_text() == before


def test_a_start_that_fails_does_not_block_its_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="reads images"):
        train_here(tmp_path, *SERIAL, *TARGET, "model.encoder=convnet_simple", "recording=all")
    outcome, folder = train_here(tmp_path, *SERIAL, *TARGET, "stop.batches=1")
    assert outcome.state == "finished"
    text = folder.log.read_text()
    assert text.index("reads images") < text.index("left by a start that ended before its first training step")
    assert not folder.data.exists()
    assert len(diary_of(folder)["sessions"]) == 1
    with pytest.raises(RunFolderError, match="is not empty"):
        train_here(tmp_path, *SERIAL, *TARGET, "stop.batches=1")


def test_a_start_that_failed_can_also_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="reads images"):
        train_here(tmp_path, *SERIAL, *TARGET, "model.encoder=convnet_simple")
    outcome, folder = train_here(tmp_path, *SERIAL, *TARGET, "stop.batches=1", mode="resume")
    assert outcome.state == "finished"
    assert len(diary_of(folder)["sessions"]) == 2
    assert "encoder: auto" in folder.config.read_text()


def test_a_resume_that_fails_at_the_start_costs_nothing(tmp_path: Path) -> None:
    first, folder = train_here(tmp_path, *SERIAL, *TARGET, "stop.batches=2")
    with pytest.raises(CheckpointError, match="another environment"):
        train_here(tmp_path, *SERIAL, "env=toy_memory", mode="resume")
    state = folder.read_state()
    assert state is not None
    assert (state["state"], state["frames"]) == ("failed", first.frames)
    assert train_here(tmp_path, *SERIAL, *TARGET, "stop.batches=3", mode="resume")[0].state == "finished"


def test_a_restored_run_that_failed_does_not_begin_without_its_parent(tmp_path: Path) -> None:
    _, parent = train_here(tmp_path / "parent", *SERIAL, *TARGET, "stop.batches=2")
    origin = Checkpoints(parent.checkpoints).newest()
    assert origin is not None
    words = (*SERIAL, *TARGET, "stop.batches=3")
    with pytest.raises(CheckpointError, match="another environment"):
        train_here(tmp_path / "child", *words, "env=toy_memory", restore=origin.path)
    with pytest.raises(CheckpointError, match=f"before it had loaded {origin.path}: .* without --resume"):
        train_here(tmp_path / "child", *words, mode="resume")
    outcome, _ = train_here(tmp_path / "child", *words, restore=origin.path)
    assert outcome.frames > origin.step


def test_overwrite_begins_anew(tmp_path: Path) -> None:
    words = (*SERIAL, *TARGET, "stop.frames=300")
    _, folder = train_here(tmp_path, *words)
    train_here(tmp_path, *words, "run.seed=1", "run.name=run", mode="overwrite")
    assert len(diary_of(folder)["sessions"]) == 1
    assert saved_state(folder)["config"]["run"]["seed"] == 1


def test_two_trainings_in_one_folder_are_refused(tmp_path: Path) -> None:
    class Second(Observer):
        error: RunFolderError | None = None

        def on_training_step(self, run: OnlineRun, iteration: int) -> None:
            if iteration == 1:
                with pytest.raises(RunFolderError) as failure:
                    train_here(tmp_path, *SERIAL, *TARGET, mode="overwrite")
                self.error = failure.value

    second = Second()
    outcome, _ = train_here(tmp_path, *SERIAL, *TARGET, "stop.frames=300", observers=[second])
    assert outcome.state == "finished"
    assert f"in use by pid {os.getpid()}" in str(second.error)


def test_nothing_is_created_for_a_config_that_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="batch_size=33 is not a multiple"):
        train_here(tmp_path, *SERIAL, *TARGET, "learning.batch_size=33")


# -- when ------------------------------------------------------------------------------------------------


def test_checkpoints_by_training_steps(tmp_path: Path) -> None:
    words = (*SERIAL, *TARGET, "checkpoints.every_updates=3", "checkpoints.keep_last=0", "stop.batches=8")
    _, folder = train_here(tmp_path, *words)
    found = [load_checkpoint(checkpoint.path).state for checkpoint in Checkpoints(folder.checkpoints).list()]
    assert [state["iteration"] for state in found] == [0, 3, 6, 8], (
        "at the start, by threes, at the end; not by the clock"
    )


def test_without_anything_said_the_clock_decides() -> None:
    assert CheckpointSettings().seconds == 120.0
    assert CheckpointSettings(every_updates=5).seconds == math.inf
    assert CheckpointSettings(every_updates=5, every_seconds=30).seconds == 30.0


# -- temporary files -------------------------------------------------------------------------------------


class Where(Observer):
    """Notes where temporary files lie while the run goes on, in this process and in its workers."""

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        self.here = tempfile.gettempdir()
        self.for_workers = run.parts.sampler.plan.environment["TMPDIR"]
        self.scratch = Path(run.parts.sampler.plan.environment["ROLLMILL_SCRATCH"])


def test_temporary_files_lie_where_they_should(tmp_path: Path) -> None:
    folder, look, before = tmp_path / "own" / "tmp", Where(), (tempfile.gettempdir(), os.environ.get("TMPDIR"))
    train_here(tmp_path, *SERIAL, *TARGET, f"run.temp_dir={folder}", "stop.batches=1", observers=[look])
    assert look.here == look.for_workers == str(folder)
    assert look.scratch.parent == folder
    assert list(folder.iterdir()) == [], "nothing is left there"
    assert (tempfile.gettempdir(), os.environ.get("TMPDIR")) == before


def test_a_folder_for_temporary_files_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"run\.temp_dir=.*file/tmp: nothing can be written there"):
        train_here(tmp_path, *SERIAL, *TARGET, f"run.temp_dir={tmp_path}/file/tmp", "stop.batches=1")
    assert not (tmp_path / "x").exists()
