"""Code that a file names runs only when the user says so: through every command that builds what a file names."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dreaming import corner_encoder, corner_model
from offlining import skilled_store, write_store
from running import SERIAL, Call, command_words, rows_of, saved_state, train_here

from rollmill.core import tree_file
from rollmill.core.config.load import load_config
from rollmill.core.errors import UntrustedCodeError
from rollmill.core.run_folder import RunFolder
from rollmill.envs.settings import EnvSettings
from rollmill.runs.evaluate.options import EvalOptions
from rollmill.runs.evaluate.run import evaluate
from rollmill.runs.lifecycle import Request
from rollmill.runs.offline.run import train_offline
from rollmill.runs.settings.offline import OfflineConfig
from rollmill.runs.world.controller import train_controller
from rollmill.store.reader import Store
from rollmill.worldmodel.controller.settings import ControllerSettings

FIT = ("fit.steps=2", "model.context=2", "model.size=8", "model.layers=1", "model.mlp=[8]", "fit.warmup_steps=1")
PLAY = ("evaluation.episodes=1", "evaluation.final_episodes=1", "evaluation.workers=1", "evaluation.envs=1")
QUIET = ("report.tensorboard=false", "checkpoints.min_free_mb=1")


class Trap:
    """A Python file that leaves a mark when it is imported."""

    def __init__(self, folder: Path) -> None:
        self.file, self._marker = folder / "evil.py", folder / "MARK"
        self.file.write_text(
            "from pathlib import Path\nfrom rollmill.envs.toy import Image, Target\n"
            f"Path({str(self._marker)!r}).touch()\n"
        )

    @property
    def sprung(self) -> bool:
        found = self._marker.exists()
        self._marker.unlink(missing_ok=True)
        return found


@pytest.fixture
def trap(tmp_path: Path) -> Trap:
    return Trap(tmp_path)


@pytest.fixture(scope="module")
def online(tmp_path_factory: pytest.TempPathFactory) -> Path:
    _, folder = train_here(tmp_path_factory.mktemp("online"), *SERIAL, "env=toy_target", "stop.batches=1")
    return next(folder.checkpoints.iterdir())


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return skilled_store(tmp_path_factory.mktemp("skilled") / "store", 20).path


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory, store: Path) -> Path:
    words = [f"run.dir={tmp_path_factory.mktemp('offline')}", f"store={store}", "algorithm=bc", *FIT, *PLAY, *QUIET]
    outcome = train_offline(load_config(OfflineConfig, [], words), Request(command=("test",), console="off"))
    return next((outcome.folder / "checkpoints").iterdir())


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an encoder, a dynamics model and a controller."""
    folder = tmp_path_factory.mktemp("world")
    corner_encoder(folder / "encoder.bin")
    corner_model(folder / "dynamics.bin")
    settings = ControllerSettings(
        inputs="z", population=4, trials=1, generations=1, envs=2, mode="serial", evaluate_every=0, final_episodes=0
    )
    outcome = train_controller(settings, EnvSettings(id="toy_image"), folder, None, folder / "search")
    shutil.copy(outcome.controller, folder / "controller.bin")
    return folder


def forge(source: Path, target: Path, change: Callable[[Any], None]) -> Path:
    tree = tree_file.load_tree(source)
    change(tree)
    tree_file.save_tree(target, tree)
    return target


def online_env(name: str) -> Callable[[Any], None]:
    return lambda tree: tree["state"]["config"]["env"].update(id=name)


def refused(call: Call, trap: Trap, named: str, *words: str) -> None:
    """The command is refused and names the code; nothing was imported. With the flag it is."""
    result = call(*words)
    assert (result.code, trap.sprung) == (2, False), result.err
    assert named in result.err
    assert "--trust-code" in result.err
    assert "Traceback" not in result.err
    call(*words, "--trust-code")
    assert trap.sprung


# -- checkpoints of online runs ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ("eval", "CKPT", "--episodes", "1", "--workers", "1"),
        ("watch", "CKPT", "--terminal", "--episodes", "1"),
        ("collect", "--policy", "CKPT", "--out", "c", "--episodes", "1", "sampling.workers=1"),
    ],
)
def test_a_checkpoint_that_names_an_environment(
    call: Call, trap: Trap, online: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    name = f"{trap.file}:Target"
    forged = forge(online, tmp_path / "forged.ckpt", online_env(name))
    words = tuple(str(forged) if word == "CKPT" else word for word in words)
    refused(call, trap, f"{forged} names code that would be run with your rights: env.id={name}", *words)
    call(*words, f"env={name}")
    assert trap.sprung, "named by the user"


def test_the_command_of_the_report(call: Call, online: Path, tmp_path: Path) -> None:
    def change(tree: Any) -> None:
        tree["state"]["config"]["env"] |= {"id": "os:system", "args": {"command": f"touch {tmp_path}/PWNED"}}

    forged = forge(online, tmp_path / "evil.ckpt", change)
    result = call("eval", str(forged), "--episodes", "1")
    assert result.code == 2
    assert "env.id=os:system" in result.err
    assert f"name it yourself: env=os:system 'env.args.command=\"touch {tmp_path}/PWNED\"';" in result.err
    assert not (tmp_path / "PWNED").exists()
    with pytest.raises(UntrustedCodeError):
        evaluate(forged, EvalOptions(episodes=1))


def test_a_checkpoint_that_names_a_network(call: Call, trap: Trap, online: Path, tmp_path: Path) -> None:
    def change(tree: Any) -> None:
        tree["state"]["config"]["model"]["custom"] = f"{trap.file}:Net"

    forged = forge(online, tmp_path / "forged.ckpt", change)
    words = ("eval", str(forged), "--episodes", "1", "--workers", "1")
    refused(call, trap, f"model.custom={trap.file}:Net", *words)
    refused(call, trap, f"model.custom={trap.file}:Net", *words, "env=toy_target")


def test_what_the_user_names_does_not_cover_what_the_file_adds(call: Call, online: Path, tmp_path: Path) -> None:
    def change(tree: Any) -> None:
        tree["state"]["config"]["env"]["args"] = {"env": "evil"}

    forged = forge(online, tmp_path / "forged.ckpt", change)
    result = call("eval", str(forged), "--episodes", "1", "env=pettingzoo")
    assert result.code == 2
    assert "env.args.env=evil" in result.err


def test_odd_characters_are_not_sent_to_the_terminal(call: Call, online: Path, tmp_path: Path) -> None:
    def change(tree: Any) -> None:
        tree["state"]["config"]["env"] |= {"id": "\033[2J; rm -r ~:f", "args": {"\033[2J\n": "/"}}

    forged = forge(online, tmp_path / "forged.ckpt", change)
    result = call("eval", str(forged), "--episodes", "1")
    assert "\033" not in result.err
    assert len(result.err.splitlines()) == 1
    assert """'env="\\u001b[2J; rm -r ~:f"'""" in result.err


# -- stores and offline runs -------------------------------------------------------------------------------


def test_a_store_that_names_an_environment(call: Call, trap: Trap, store: Path, tmp_path: Path) -> None:
    with Store(store) as source:
        schema = replace(source.schema, env_id=f"{trap.file}:Target")
        own = write_store(tmp_path / "store", schema, [source.episode(i) for i in range(len(source))]).path
    words = ("offline", str(own), "algorithm=bc", *FIT, *PLAY, *QUIET)
    refused(call, trap, f"{own} names code that would be run with your rights: env.id={trap.file}:Target", *words)
    assert call(*words, "run.name=named", "env=toy_target").code == 0
    assert call(*words, "run.name=unplayed", "evaluation.episodes=0").code == 0
    assert not trap.sprung


def test_an_offline_checkpoint_that_names_an_environment(call: Call, trap: Trap, offline: Path, tmp_path: Path) -> None:
    forged = forge(offline, tmp_path / "o.ckpt", lambda tree: tree["state"]["env"].update(id=f"{trap.file}:Target"))
    words = ("eval", str(forged), "--episodes", "1", "--workers", "1", "--envs", "1")
    refused(call, trap, f"env.id={trap.file}:Target", *words)
    assert call(*words, "env=toy_target").code == 0
    assert not trap.sprung


def test_a_behaviour_that_names_a_network(
    call: Call, trap: Trap, online: Path, offline: Path, store: Path, tmp_path: Path
) -> None:
    """Its environment does not matter: it plays in the one of the data."""

    def change(tree: Any) -> None:
        online_env(f"{trap.file}:Target")(tree)
        tree["state"]["config"]["model"]["custom"] = f"{trap.file}:Net"

    forged = forge(online, tmp_path / "b.ckpt", change)
    compare = ("eval", str(offline), "--behaviour", str(forged), "--episodes", "1", "--workers", "1")
    for words in (compare, ("offline", str(store), "algorithm=bc", f"evaluation.behaviour={forged}", *FIT, *PLAY)):
        refused(call, trap, f"rights: model.custom={trap.file}:Net. ", *words)
    harmless = forge(online, tmp_path / "h.ckpt", online_env(f"{trap.file}:Target"))
    assert call(*compare[:3], str(harmless), *compare[4:]).code == 0
    assert not trap.sprung


# -- world models ------------------------------------------------------------------------------------------


def test_a_dynamics_model_that_names_an_environment(call: Call, trap: Trap, world: Path, tmp_path: Path) -> None:
    forged = tmp_path / "dynamics.bin"
    forge(world / "dynamics.bin", forged, lambda tree: tree["origin"].update(env_id=f"{trap.file}:Image"))
    small = [f"controller.{word}" for word in ("population=4", "trials=1", "generations=1", "final_episodes=0")]
    encoder = str(world / "encoder.bin")
    for words in (
        ("controller", encoder, "--dynamics", str(forged), "--out", "c"),
        ("dream", encoder, str(forged), "--out", "d"),
    ):
        refused(call, trap, f"{forged} names code", "world", *words, *small, "controller.mode=serial")


def test_a_controller_that_names_an_environment(call: Call, trap: Trap, world: Path, tmp_path: Path) -> None:
    forged = tmp_path / "controller.bin"
    forge(world / "controller.bin", forged, lambda tree: tree["env"].update(id=f"{trap.file}:Image"))
    words = ("eval", str(forged), "--encoder", str(world), "--episodes", "1", "--workers", "1", "--envs", "1")
    refused(call, trap, f"{forged} names code", *words)
    assert call(*words, "env=toy_image").code == 0
    assert not trap.sprung


# -- what a training starts itself -------------------------------------------------------------------------


def test_a_training_trusts_what_it_was_told(call: Call, trap: Trap, tmp_path: Path) -> None:
    """Evaluation beside it, and going on with it, need no flag: the user has named the code."""
    words = command_words(tmp_path, "evaluation.final=true", "evaluation.episodes=1", "sampling.workers=1")
    first = call(*words, f"env={trap.file}:Target", "stop.batches=1")
    assert first.code == 0, first.err
    again = call(*words, "--resume", "stop.batches=2")
    assert again.code == 0, again.err
    assert trap.sprung
    folder = RunFolder(tmp_path / "x" / "run")
    assert [row["eval/done"] for row in rows_of(folder)][-1] == 1
    assert saved_state(folder)["config"]["env"]["id"] == f"{trap.file}:Target"
    assert call("eval", str(folder.path), "--episodes", "1").code == 2, "the folder may have been copied from anywhere"
