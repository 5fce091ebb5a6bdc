"""The two ends of a run, by themselves; whole runs are in ``test_checkpointing`` and ``test_run_folder_modes``."""

from pathlib import Path

import pytest

from rollmill.core.diary import Diary
from rollmill.core.errors import CheckpointError, EnvError, RunFolderError
from rollmill.core.run_folder import RunFolder
from rollmill.core.tree_file import save_tree
from rollmill.runs.lifecycle import ending, find_checkpoint, resumed_settings, why_failed
from rollmill.runs.settings import TrainConfig


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_why_it_failed_can_always_be_written_down(tmp_path: Path) -> None:
    assert why_failed(EnvError("x" * 5000)) == f"EnvError: {'x' * 5000}"  # ours: with the traceback of the worker
    assert len(why_failed(ValueError("x" * 5000))) < 2000
    with RunFolder.create(tmp_path / "run", "new") as folder:
        diary = Diary.create(folder.diary, ("test",))
        diary.begin_session(("test",), 0)
        with pytest.raises(Mute), ending(folder, diary, 7):
            raise Mute
        state = folder.read_state()
    assert state is not None
    assert (state["state"], state["frames"]) == ("failed", 7)
    assert state["reason"] == "Mute: (it cannot be shown: its text raises RuntimeError)"


def test_a_run_in_use_is_not_read(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", "new") as folder:
        folder.set_state("running")
        with pytest.raises(RunFolderError, match="in use"):
            find_checkpoint(tmp_path / "run", "resume", None, lambda loaded: loaded)


def test_a_checkpoint_without_settings_is_named(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", "new") as folder:
        folder.set_state("running")
        folder.checkpoints.mkdir()
        save_tree(folder.checkpoints / "frames-000000000001.ckpt", {"frames": 1, "metric": None, "state": {}})
        with pytest.raises(CheckpointError, match=r"it has no settings, and .*config\.yaml is missing"):
            resumed_settings(TrainConfig, folder, (), ())
