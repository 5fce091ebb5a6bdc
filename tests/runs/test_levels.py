"""Levels in whole runs: what is known comes first, nothing comes twice, train and test stay apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from level_envs import id_of, played
from running import SERIAL, assert_same, config_of, rows_of, saved_state, train_here

from rollmill.cli.main import main
from rollmill.core.errors import ConfigError
from rollmill.core.run_folder import RunFolder
from rollmill.envs.levels.draw import Division
from rollmill.envs.make import level_store
from rollmill.runs.evaluate.options import EvalOptions
from rollmill.runs.evaluate.run import evaluate


def words(folder: Path, log: Path, *more: str) -> tuple[str, ...]:
    own = (f"env={id_of()}", f"env.args.log={log}", f"env.levels.folder={folder}/levels", "report.page=false")
    return (*own, "sampling.mode=async", *more)


def known(folder: Path) -> set[int]:
    return set(level_store(config_of(folder, *words(folder, folder)).env).seeds().tolist())


def test_a_second_run_plays_what_the_first_has_made(tmp_path: Path) -> None:
    logs = [tmp_path / f"{k}.log" for k in range(2)]
    train_here(tmp_path / "a", *words(tmp_path, logs[0], "stop.frames=600"))
    first = played(logs[0])
    assert len(first) > 100
    assert len(set(first)) == len(first), "none comes twice"
    assert known(tmp_path) == set(first)
    _, folder = train_here(tmp_path / "b", *words(tmp_path, logs[1], "stop.frames=300", "run.seed=7"))
    second = played(logs[1])
    assert set(second) <= set(first)
    assert len(set(second)) == len(second)
    assert rows_of(folder)[-1]["episode/level_kept"] == 1


def test_a_resumed_run_plays_none_again(tmp_path: Path) -> None:
    log = tmp_path / "log"
    common = words(tmp_path, log, "env.levels.part=train")
    train_here(tmp_path, *common, "stop.frames=300")
    half = len(played(log))
    train_here(tmp_path, *common, "stop.frames=600", mode="resume")
    assert len(played(log)) > half + 50
    assert len(set(played(log))) == len(played(log))
    assert Division("train", 0.1).has(np.array(played(log))).all()


def test_a_new_run_in_the_place_of_an_old_one_draws_from_the_start(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for _ in range(2):
        train_here(tmp_path, *words(tmp_path, log, "stop.frames=100", "sampling.mode=serial"), mode="overwrite")
    first, second = np.array_split(played(log), 2)
    assert set(second) == set(first), "which are the known ones by now"


def test_a_serial_run_that_was_stopped_goes_on_bit_for_bit(tmp_path: Path) -> None:
    runs = {}
    for name, parts in (("whole", (600,)), ("parts", (320, 600))):
        folder, log = tmp_path / name, tmp_path / f"{name}.log"
        for frames in parts:
            mode = "new" if frames == parts[0] else "resume"
            common = words(folder, log, f"stop.frames={frames}", "checkpoints.every_seconds=1e9")
            _, runs[name] = train_here(folder, *common, *SERIAL, mode=mode)
    one, two = (saved_state(runs[name])["learners"] for name in ("whole", "parts"))
    assert_same(one, two)
    assert_same(
        [row["episode/return"] for row in rows_of(runs["whole"])],
        [row["episode/return"] for row in rows_of(runs["parts"])],
    )
    assert set(played(tmp_path / "whole.log")) == set(played(tmp_path / "parts.log"))


def test_an_evaluation_plays_levels_that_the_training_has_not_seen(tmp_path: Path) -> None:
    log = tmp_path / "log"
    _, folder = train_here(tmp_path, *words(tmp_path, log, "env.levels.part=train", "stop.frames=300"))
    trained = set(played(log))
    log.unlink()
    result = evaluate(folder.path, EvalOptions(episodes=12, trust_code=True, overrides=("env.levels.part=test",)))
    assert result.to_dict()["episodes"] == 12
    tested = played(log)
    assert len(set(tested)) == len(tested) >= 12
    assert not trained & set(tested)
    assert Division("test", 0.1).has(np.array(tested)).all()


def test_a_fixed_set_is_played_round_and_round(tmp_path: Path) -> None:
    log = tmp_path / "log"
    own = (f"env={id_of()}", f"env.args.log={log}", "env.levels.count=16", "env.levels.first=100")
    train_here(tmp_path, *own, *SERIAL, "stop.frames=300", "report.page=false")
    counts = np.unique(played(log), return_counts=True)
    assert counts[0].tolist() == list(range(100, 116))
    assert counts[1].max() - counts[1].min() <= 1


def test_nothing_to_draw_from_is_refused_before_a_folder_is_made(tmp_path: Path, capfd: object) -> None:
    own = (f"env={id_of()}", f"env.levels.folder={tmp_path}/none", "env.levels.draw=cycle", f"run.dir={tmp_path}/runs")
    assert main(["train", *own]) == ConfigError.exit_code
    assert not (tmp_path / "runs").exists()
    assert not RunFolder(tmp_path / "none").path.exists()
