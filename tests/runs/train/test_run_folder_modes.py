"""The command and the folder of a run: new, --resume, --overwrite, and two at a time."""

import hashlib
import json
import signal
from pathlib import Path

import pytest
from running import SERIAL, Run, command_words

from rollmill.cli.main import main
from rollmill.core.checkpoints import Checkpoints
from rollmill.core.config.load import load_config
from rollmill.core.run_folder import RunFolder
from rollmill.runs.settings.train import TrainConfig

TARGET = (*SERIAL, "env=toy_target", "stop.batches=2")


def contents(folder: Path) -> dict[str, str]:
    """Every file below a folder and the sum of its content."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def sessions(folder: RunFolder) -> int:
    return len(json.loads(folder.diary.read_text())["sessions"])


@pytest.fixture
def finished(tmp_path: Path) -> RunFolder:
    assert main([*command_words(tmp_path, *TARGET), "learning.gamma=0.9"]) == 0
    return RunFolder(tmp_path / "x/run")


def test_an_existing_run_is_left_alone(tmp_path: Path, finished: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(tmp_path)
    assert main(command_words(tmp_path, *TARGET, "run.seed=1")) == 2
    message = capsys.readouterr().err
    assert f"{finished.path}: exists and is not empty" in message
    for way_out in ("--resume", "--overwrite", "another name"):
        assert way_out in message
    assert contents(tmp_path) == before


def test_overwrite_leaves_nothing_of_the_old_run(tmp_path: Path, finished: RunFolder) -> None:
    old = Checkpoints(finished.checkpoints).newest()
    assert old is not None
    assert main([*command_words(tmp_path, *TARGET, "stop.batches=3"), "--overwrite"]) == 0
    assert not old.path.exists()
    assert sessions(finished) == 1
    assert load_config(TrainConfig, [finished.config], []).learning.gamma == 0.99


def test_overwrite_of_nothing_is_a_new_run(tmp_path: Path) -> None:
    assert main([*command_words(tmp_path, *TARGET), "--overwrite"]) == 0


def test_resume_keeps_the_settings_of_the_run_below_the_given_ones(tmp_path: Path, finished: RunFolder) -> None:
    where = ["train", f"run.dir={tmp_path}", "run.experiment=x", "run.name=run", "--resume"]
    assert main([*where, "stop.batches=4", "learning.gae_lambda=0.8"]) == 0
    config = load_config(TrainConfig, [finished.config], [])
    assert config.learning.gamma == 0.9
    assert config.learning.gae_lambda == 0.8
    assert config.sampling.mode == "serial"
    assert sessions(finished) == 2
    assert finished.read_state()["reason"] == "reached stop.batches=4"  # type: ignore[index]


@pytest.mark.parametrize("is_folder", [False, True])
@pytest.mark.parametrize("restore", [False, True])
def test_resume_without_config_yaml_takes_the_settings_of_the_checkpoint(
    tmp_path: Path, finished: RunFolder, capsys: pytest.CaptureFixture[str], is_folder: bool, restore: bool
) -> None:
    finished.config.unlink()
    if is_folder:
        finished.config.mkdir()
    newest = Checkpoints(finished.checkpoints).newest()
    assert newest is not None
    words = ["train", f"run.dir={tmp_path}", "run.experiment=x", "run.name=run", "--resume", "stop.batches=3"]
    capsys.readouterr()
    assert main([*words, *(["--restore", str(newest.path)] if restore else [])]) == 0
    captured = capsys.readouterr()
    assert f"{finished.config} is missing: the settings are those of {newest.path}" in captured.err
    assert "learning.gamma=0.9" in captured.out
    state = Checkpoints(finished.checkpoints).load_newest().state
    assert (state["iteration"], state["config"]["learning"]["gamma"]) == (3, 0.9)
    if is_folder:
        assert "the settings could not be written: " in finished.log.read_text()
        assert not list(finished.config.iterdir())
    else:
        assert load_config(TrainConfig, [finished.config], []).learning.gamma == 0.9


def test_resume_without_config_and_checkpoint_does_not_take_the_defaults(
    tmp_path: Path, finished: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    finished.config.unlink()
    for checkpoint in Checkpoints(finished.checkpoints).list():
        checkpoint.path.unlink()
    before = contents(tmp_path)
    assert main([*command_words(tmp_path, *TARGET), "--resume"]) == 2
    assert "config.yaml is missing, and there is no checkpoint" in capsys.readouterr().err
    assert contents(tmp_path) == before


NETWORK = """
from torch import nn

class Wide(nn.Module):
    def __init__(self, spec, settings, width):
        super().__init__()
        self.output_size = width
        self.net = nn.Linear(spec.inputs[0].shape[0], width)

    def forward(self, obs):
        return self.net(next(iter(obs.values())))
"""


@pytest.mark.parametrize("flag", ["--resume", "--restore"])
@pytest.mark.parametrize(
    ("words", "named", "back"),
    [
        (("model.mlp=[32,16]",), "model.mlp [16] -> [32, 16]", "'model.mlp=[16]'"),
        (("model.memory=gru", "model.memory_layers=2"), 'model.memory "none" -> "gru"', "model.memory=none"),
        (("model.separate_critic=true", "model.nonlinearity=tanh"), "model.separate_critic", "separate_critic=false)"),
        (("model.custom=own.py:Wide", "model.custom_args.width=4"), 'model.custom null -> "', "model.custom=null"),
    ],
)
def test_another_network_is_refused_before_the_folder_is_touched(
    tmp_path: Path,
    finished: RunFolder,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flag: str,
    words: tuple[str, ...],
    named: str,
    back: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(NETWORK)
    before = contents(finished.path)
    newest = Checkpoints(finished.checkpoints).newest()
    assert newest is not None
    how = ["--resume"] if flag == "--resume" else ["--restore", str(newest.path), "run.name=second"]
    capsys.readouterr()
    assert main([*command_words(tmp_path, *TARGET, "stop.batches=4"), *words, *how]) == 2
    message = capsys.readouterr().err
    assert named in message
    assert back in message
    assert f"the shape of the network cannot change, and {newest.path} has the weights of another one" in message
    assert message.count("\n") == 1
    assert len(message) < 500
    for harmless in ("gamma", "nonlinearity", "hidden_size"):
        assert harmless not in message
    assert contents(finished.path) == before
    assert [path.name for path in finished.path.parent.iterdir()] == ["run"]


def test_settings_of_the_network_that_leave_its_shape_may_change(tmp_path: Path, finished: RunFolder) -> None:
    words = ("stop.batches=3", "model.nonlinearity=tanh", "model.hidden_size=99", "model.policy_gain=0.5", "--resume")
    assert main([*command_words(tmp_path, *TARGET), *words]) == 0


def test_resume_of_a_missing_run_names_near_ones(
    tmp_path: Path, finished: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(tmp_path)
    assert main([*command_words(tmp_path, *TARGET, "run.name=runn"), "--resume"]) == 2
    message = capsys.readouterr().err
    assert "runn: nothing to resume" in message
    assert "there are run\n" in message
    assert contents(tmp_path) == before


def test_two_trainings_in_one_folder(tmp_path: Path, rollmill: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """The second one is refused in every mode; the first does not notice."""
    words = command_words(tmp_path, *SERIAL, "env=toy_target", "stop.frames=100000000", "checkpoints.every_seconds=0.2")
    first = rollmill(*words)
    first.wait_for_text("checkpoint ", times=2)  # with frames: what has none is taken over, once it is free
    for flag, reason in (("--resume", "in use by pid"), ("--overwrite", "in use by pid"), ("", "is not empty")):
        capsys.readouterr()
        assert main([*words, *filter(None, [flag])]) == 2
        message = capsys.readouterr().err
        assert reason in message
        if flag:
            assert f"in use by pid {first.process.pid} on " in message
    first.wait_for_text("checkpoint ", times=first.text.count("checkpoint ") + 1)
    first.send(signal.SIGINT)
    assert first.wait() == 130
    assert "Traceback" not in first.text
    assert sessions(RunFolder(tmp_path / "x/run")) == 1
    assert main([*words, "stop.batches=1", "--resume"]) == 0  # and the lock is free again
