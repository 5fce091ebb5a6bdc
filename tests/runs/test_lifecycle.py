"""The life of a run, by itself; whole runs are in ``test_checkpointing``, ``test_run_folder_modes`` and their like."""

import json
import signal
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from rollmill.core.checkpoints import Checkpoints, Loaded
from rollmill.core.errors import CheckpointError, ConfigError, EnvError, RunFolderError
from rollmill.core.run_folder import RunFolder
from rollmill.core.tree_file import save_tree
from rollmill.monitor.metrics import Progress
from rollmill.monitor.reporter import Display
from rollmill.runs.lifecycle import Ended, Life, Request, live, why_failed
from rollmill.runs.resume import KINDS, compare, find_checkpoint, may_change, resumed_settings, stage_check
from rollmill.runs.settings.offline import OfflineConfig
from rollmill.runs.settings.train import TrainConfig
from rollmill.runs.settings.world import VaeConfig
from rollmill.worldmodel.controller.settings import ControllerSettings
from rollmill.worldmodel.dynamics.settings import DynamicsSettings

CHECK = stage_check("dynamics", {"count": int})
CONTINUE = Request("continue", command=("test",), console="off")


class Counting:
    """A run that counts to ten."""

    def __init__(self, life: Life, until: int = 10) -> None:
        self.life, self.step, self._until = life, 0, until

    def load_state(self, loaded: Loaded) -> None:
        self.step = loaded.state["count"]

    def limit(self) -> str:
        return "counted" if self.step >= self._until else ""

    def loop(self) -> None:
        with self.life.interrupt:
            while not self.life.over(self.limit):
                self.step += 1
                self.life.report(self.step, {"twice": 2 * self.step}, of=self._until)
        self.life.save({"count": self.step}, self.step)


def count(path: Path, until: int = 10, request: Request = CONTINUE, **more: Any) -> Ended:
    settings, inputs = more.pop("settings", DynamicsSettings()), more.pop("inputs", {"store": "a"})
    with live("dynamics", path, settings, request, CHECK, inputs=inputs, **more) as life:
        run = Counting(life, until)
        life.begin(run)
        display = Display("off", "counting", (), Progress(until), 5.0)
        life.reporter.open(run.step, display, tensorboard=False)
        run.loop()
    return Ended(**life.ended())


def state_of(path: Path) -> dict[str, Any]:
    return RunFolder(path).read_state() or {}


def test_a_run_begins_goes_on_and_says_how_it_ended(tmp_path: Path) -> None:
    shares: list[float] = []
    first = count(tmp_path / "run", 4, progress=lambda share, metrics: shares.append(share))
    assert (first.state, first.reason, first.exit_code, first.interrupted) == ("finished", "counted", 0, False)
    assert shares == [0.25, 0.5, 0.75, 1.0]
    count(tmp_path / "run", 6)
    folder = RunFolder(tmp_path / "run")
    assert (state_of(folder.path)["state"], state_of(folder.path)["step"]) == ("finished", 6)
    sessions = json.loads(folder.diary.read_text())["sessions"]
    assert {s["unit"] for s in sessions} == {state_of(folder.path)["unit"]} == {"updates"}
    assert folder.checkpoints.joinpath("updates-000000000006.ckpt").is_file()
    assert [(s["step_at_start"], s["step_at_end"], s["how"]) for s in sessions] == [
        (0, 4, "finished: counted"),
        (4, 6, "finished: counted"),
    ]
    assert [json.loads(line)["step"] for line in folder.metrics.read_text().splitlines()] == [1, 2, 3, 4, 5, 6]
    assert "continuing from" in folder.log.read_text()
    assert (folder.path / "report.html").is_file()


def test_a_signal_ends_it_and_it_goes_on(tmp_path: Path) -> None:
    def stop(share: float, _: object) -> None:
        if share == 0.3:
            signal.raise_signal(signal.SIGTERM)

    ended = count(tmp_path / "run", progress=stop)
    assert (ended.interrupted, ended.reason, ended.exit_code) == (True, "SIGTERM received", 128 + 15)
    assert state_of(tmp_path / "run")["state"] == "interrupted"
    assert count(tmp_path / "run").state == "finished"


def test_what_comes_after_the_last_checkpoint_ends_at_once(tmp_path: Path) -> None:
    with live("dynamics", tmp_path / "run", DynamicsSettings(), CONTINUE, CHECK) as life, life.afterwards():
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("it goes on")
    assert Ended(**life.ended()).exit_code == 130
    assert state_of(tmp_path / "run")["reason"] == "SIGINT received while it was judged"


@pytest.mark.parametrize(
    ("error", "state", "reason"),
    [
        (EnvError("broken"), "failed", "EnvError: broken"),
        (ValueError("a bug"), "failed", "ValueError: a bug"),
        (KeyboardInterrupt(), "interrupted", "interrupted"),
    ],
)
def test_a_failure_is_written_down_with_the_step_it_came_at(
    tmp_path: Path, error: BaseException, state: str, reason: str
) -> None:
    count(tmp_path / "run", 3)
    with pytest.raises(type(error)), live("dynamics", tmp_path / "run", DynamicsSettings(), CONTINUE, CHECK):
        raise error  # before the checkpoint is loaded
    found = state_of(tmp_path / "run")
    assert (found["state"], found["reason"], found["step"]) == (state, reason, 3)


def test_a_checkpoint_that_cannot_be_written_is_a_failure_only_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> Path:
        raise CheckpointError("the disk is full")

    monkeypatch.setattr(Checkpoints, "save", full)
    with live("dynamics", tmp_path / "run", DynamicsSettings(), CONTINUE, CHECK) as life:
        assert not life.try_save({"count": 1}, 1)
        with pytest.raises(CheckpointError):
            life.save({"count": 1}, 1)
    said = RunFolder(tmp_path / "run").log.read_text()
    assert said.count("no checkpoint was written, training goes on: the disk is full") == 1


def test_a_new_run_with_a_parent(tmp_path: Path) -> None:
    count(tmp_path / "parent", 3)
    newest = Checkpoints(RunFolder(tmp_path / "parent").checkpoints).newest()
    assert newest is not None
    other = DynamicsSettings(size=64)  # of a parent, other settings are welcome
    count(tmp_path / "child", 5, Request("new", newest.path, ("test",), "off"), settings=other)
    diary = json.loads(RunFolder(tmp_path / "child").diary.read_text())
    assert (diary["parent"]["step"], diary["sessions"][0]["step_at_start"]) == (3, 3)


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_why_it_failed_can_always_be_written_down(tmp_path: Path) -> None:
    assert why_failed(EnvError("x" * 5000)) == f"EnvError: {'x' * 5000}"  # ours: with the traceback of the worker
    assert len(why_failed(ValueError("x" * 5000))) < 2000
    with pytest.raises(Mute), live("dynamics", tmp_path / "run", DynamicsSettings(), CONTINUE, CHECK):
        raise Mute
    assert state_of(tmp_path / "run")["reason"] == "Mute: (it cannot be shown: its text raises RuntimeError)"


# -- what it goes on from ------------------------------------------------------------------------------------------


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


def test_other_settings_and_inputs_are_refused_and_change_nothing(tmp_path: Path) -> None:
    count(tmp_path / "run", 3)
    before = state_of(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"run was begun with other settings \(size: 256 -> 8, another store\)"):
        count(tmp_path / "run", settings=DynamicsSettings(size=8), inputs={"store": "b"})
    assert state_of(tmp_path / "run") == before
    assert count(tmp_path / "run", 4, settings=DynamicsSettings(steps=7, threads=3)).state == "finished"


# -- may this setting change? --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "key", "answer"),
    [
        ("online", "learning.learning_rate", "extends"),
        ("offline", "model.size", "extends"),  # refused by the weights, if they do not fit
        ("collect", "episodes.random", "extends"),
        ("collect", "workers", "free"),
        ("collect", "env.args.mode", "never"),  # an environment's own words are not the machine's
        ("vae", "fit.steps", "extends"),
        ("vae", "fit.device", "free"),
        ("vae", "fit.learning_rate", "never"),
        ("encode", "batch_size", "free"),
        ("dynamics", "seconds", "extends"),
        ("dynamics", "sequence_length", "never"),
        ("controller", "generations", "extends"),
        ("controller", "population", "never"),
    ],
)
def test_may_this_setting_change(kind: str, key: str, answer: str) -> None:
    assert may_change(kind, key) == answer


def test_the_table_names_settings_that_exist() -> None:
    known = {"vae": VaeConfig, "dynamics": DynamicsSettings, "controller": ControllerSettings}
    for kind, cls in known.items():
        for key in (*KINDS[kind].free, *KINDS[kind].extends):
            assert key.partition(".")[0] in {entry.name for entry in fields(cls)}, f"{kind}: {key}"


def test_what_matters_of_a_change_is_said_in_words() -> None:
    one, other = OfflineConfig(), OfflineConfig(algorithm="bc")
    assert compare("offline", one, other).extends == ['algorithm: "dt" -> "bc"']
    found = compare("encode", {"gpu": 0}, {"gpu": 1}, {"encoder": "a"}, {"encoder": "b"})
    assert (found.extends, found.never) == ([], ["another encoder"])
