"""What the folders of runs tell, whatever state they are in."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from rollmill.core.errors import ConfigError
from rollmill.core.run_folder import RunFolder
from rollmill.launch.listing import compare, describe, find_all, find_run, fits, list_runs

ONLINE = "run: {name: a, seed: 1}\nenv: {id: CartPole-v1}\nlearning: {gamma: 0.9}\n"
OFFLINE = "algorithm: dt\nfit: {steps: 3}\nenv: {id: doom_basic}\nstore: gone\n"
WORLD = "env: {id: car_racing}\ncollect: {}\ndynamics: {}\ncontroller: {}\n"


def make_run(
    folder: Path, config: str = ONLINE, state: str = "finished", time: str = "2026-01-01T00:00:00+00:00", **row: Any
) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(config)
    if state:
        saved = {"state": state, "reason": "because\nof much", "frames": 10, "time": time}
        (folder / "state.json").write_text(json.dumps(saved))
    if row:
        (folder / "metrics.jsonl").write_text(json.dumps({"frames": 20, **row}) + "\n")
    for path in folder.iterdir():
        os.utime(path, (0, 0))
    return folder


def test_a_run_that_has_ended(tmp_path: Path) -> None:
    row = describe(make_run(tmp_path / "x/a", **{"episode/return": 7.5}), tmp_path)
    assert (row.name, row.state, row.kind, row.env) == ("x/a", "finished", "online", "CartPole-v1")
    assert (row.frames, row.unit, row.mean_return, row.reason) == (20, "frames", 7.5, "because")
    assert row.changed == 1767225600.0
    assert row.bytes == sum(path.stat().st_size for path in row.folder.iterdir())
    assert row.to_dict()["frames"] == 20


def test_an_offline_run_counts_updates(tmp_path: Path) -> None:
    row = describe(make_run(tmp_path / "x/dt", OFFLINE, **{"eval/return": 3.0}), tmp_path)
    assert (row.kind, row.env, row.unit, row.mean_return) == ("offline", "doom_basic", "updates", 3.0)
    assert row.to_dict()["updates"] == 20


def test_running_and_killed(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "x/a", state="running")
    assert describe(folder, tmp_path).state == "killed"
    with RunFolder.create(folder, "resume", min_free_mb=0):
        assert describe(folder, tmp_path).state == "running"
    assert describe(folder, tmp_path).state == "killed"


def test_a_world_model_stands_as_its_stages_do(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "world/car", WORLD, state="")
    make_run(folder / "vae")  # part of it, not a run of its own
    assert [(row.name, row.kind, row.state) for row in list_runs(tmp_path)] == [("world/car", "world", "interrupted")]
    (folder / "stages").mkdir()
    (folder / "stages/report.json").write_text('{"state": "done"}')
    assert describe(folder, tmp_path).state == "finished"
    with RunFolder.create(folder / "vae", "resume", min_free_mb=0):
        assert describe(folder, tmp_path).state == "running"


@pytest.mark.parametrize("name", ["config.yaml", "state.json", "metrics.jsonl"])
def test_a_damaged_file_hides_no_run(tmp_path: Path, name: str) -> None:
    folder = make_run(tmp_path / "x/a", **{"episode/return": 1.0})
    (folder / name).write_text("{[damaged")
    (row,) = list_runs(tmp_path)
    assert row.name == "x/a"
    assert (row.kind, row.state) == ("?" if name == "config.yaml" else "online", "?" if "state" in name else "finished")


def test_the_newest_comes_first_at_any_depth(tmp_path: Path) -> None:
    make_run(tmp_path / "x/old", time="2026-01-01T00:00:00+00:00")
    make_run(tmp_path / "x/new", time="2026-01-03T00:00:00+00:00")
    make_run(tmp_path / "deep/er/run", time="2026-01-02T00:00:00+00:00")
    make_run(tmp_path / "top", time="2025-01-02T00:00:00+00:00")
    (tmp_path / "x/empty").mkdir()
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "x/loop").symlink_to(tmp_path)
    assert [row.name for row in list_runs(tmp_path)] == ["x/new", "deep/er/run", "x/old", "top"]


def test_words_and_patterns(tmp_path: Path) -> None:
    row = describe(make_run(tmp_path / "sweep/Gamma-1", state="failed"), tmp_path)
    texts = (row.name, row.state, row.kind, row.env)
    for word in ("gamma", "sweep/g", "failed", "online", "cartpole", "sweep*", "Gamma-*", "*/Gamma-1"):
        assert fits(texts, row.name, [word]), word
    for word in ("doom", "finished", "gamma*", "sweep"[::-1]):
        assert not fits(texts, row.name, [word]), word
    assert list_runs(tmp_path, ["gamma", "failed"])
    assert not list_runs(tmp_path, ["gamma", "finished"])


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder of runs; --root names another"):
        list_runs(tmp_path / "nowhere")


def test_one_run_by_its_name(tmp_path: Path) -> None:
    one, two = make_run(tmp_path / "x/a"), make_run(tmp_path / "y/a")
    only = make_run(tmp_path / "x/only")
    assert find_run(str(one), tmp_path / "elsewhere") == one
    assert find_run("y/a", tmp_path) == two
    assert find_run("only", tmp_path) == only
    for word, answer in (
        ("a", "there are 2 runs called 'a': x/a, y/a"),
        ("onli", "no run 'onli' .*did you mean '(x/)?only'"),
        (str(tmp_path / "x"), "x is a folder, but no run"),
    ):
        with pytest.raises(ConfigError, match=answer):
            find_run(word, tmp_path)


def test_several_runs_by_names_and_patterns(tmp_path: Path) -> None:
    one, two, three = (make_run(tmp_path / name) for name in ("x/a1", "x/a2", "y/b"))
    assert find_all(["a*", "x/a1", "b"], tmp_path) == [one, two, three]
    with pytest.raises(ConfigError, match=r"matches 'c\*'"):
        find_all(["c*"], tmp_path)


def test_two_runs_side_by_side(tmp_path: Path) -> None:
    one = make_run(tmp_path / "x/a", **{"episode/return": 1.0, "worker0/x": 3})
    other = ONLINE.replace("name: a, seed: 1", "name: b, seed: 2").replace("0.9", "0.99")
    two = make_run(tmp_path / "x/b", other, "failed", **{"eval/return": 2.0})
    found = compare(one, two, tmp_path)
    assert found.names == ("x/a", "x/b")
    assert found.settings == {"run.seed": (1, 2), "learning.gamma": (0.9, 0.99)}
    results = dict(found.results)
    sizes = results.pop("bytes")
    assert all(size > 100 for size in sizes)
    assert results == {
        "state": ("finished", "failed"),
        "env": ("CartPole-v1", "CartPole-v1"),
        "frames": (20, 20),
        "episode/return": (1.0, None),
        "eval/return": (None, 2.0),
    }
    assert json.loads(json.dumps(found.to_dict()))["runs"] == ["x/a", "x/b"]
