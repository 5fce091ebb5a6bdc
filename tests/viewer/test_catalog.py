"""Runs below a folder: what is shown of them, and what has changed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from experimenting import online, write_run

from rollmill.core.errors import ConfigError
from rollmill.viewer.catalog import Catalog, common_settings, id_of
from rollmill.viewer.index import Index


def look(catalog: Catalog) -> int:
    catalog._due = 0.0
    return catalog.refresh()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for gamma in (0.9, 0.99):
        for seed in range(3):
            settings = online(seed, learning={"gamma": gamma, "epochs": 2})
            write_run(tmp_path / "runs" / "sweep" / f"g{gamma}-s{seed}", settings, [1.0, 2.0 + seed])
    return tmp_path / "runs"


def test_a_run_is_told_by_its_files(root: Path) -> None:
    catalog = Catalog(root, Index(None))
    look(catalog)
    found = catalog.to_dict()
    assert found["common"] == {"env.id": "CartPole-v1", "learning.epochs": 2}
    run = next(run for run in found["runs"] if run["name"] == "sweep/g0.9-s2")
    assert run["settings"] == {"run.seed": 2, "learning.gamma": 0.9}
    assert (run["group"], run["experiment"], run["env"]) == ("gamma-0.9", "sweep", "CartPole-v1")
    assert (run["state"], run["return"], run["frames"], run["unit"]) == ("finished", 4.0, 20, "frames")
    assert run["spark"] == [[10, 1.0], [20, 4.0]]
    assert run["metrics"] == ["frames", "episode/return", "time/seconds"]
    assert run["id"] == id_of(run["name"])


def test_a_metric_of_few_rows_is_listed(root: Path) -> None:
    run = root / "sweep" / "sparse"
    write_run(run, online(), [0.0] * 1000, metric="learn/loss")
    lines = (run / "metrics.jsonl").read_text().splitlines()
    for k in (333, 501, 777):
        lines[k] = json.dumps({**json.loads(lines[k]), "eval/return": float(k)})
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    catalog = Catalog(root, Index(None))
    look(catalog)
    (found,) = (run for run in catalog.to_dict()["runs"] if run["name"] == "sweep/sparse")
    assert "eval/return" in found["metrics"]
    assert found["spark"] == [[3340, 333], [5020, 501], [7780, 777]]


def test_stages_of_a_world_model_that_learn_are_runs(root: Path) -> None:
    """The whole has no curves; what its encoder learns would be seen nowhere."""
    world = root / "world" / "car"
    write_run(world, {"collect": {}, "dynamics": {}, "controller": {}}, [])
    (world / "stages").mkdir()
    write_run(world / "vae", {"encoder": {"size": 3}, "images": {}}, [0.5, 0.25], metric="learn/loss")
    (world / "raw").mkdir()
    (world / "raw" / "store.json").write_text("{}")
    write_run(world / "another", online(), [1.0])
    catalog = Catalog(root, Index(None))
    look(catalog)
    found = {run["name"]: run for run in catalog.to_dict()["runs"] if run["name"].startswith("world")}
    assert list(found) == ["world/car", "world/car/vae"]
    assert (found["world/car/vae"]["kind"], found["world/car/vae"]["experiment"]) == ("encoder", "world/car")
    assert "learn/loss" in found["world/car/vae"]["metrics"]


def test_only_what_has_changed_is_told_again(root: Path) -> None:
    catalog = Catalog(root, Index(None))
    first = look(catalog)
    assert look(catalog) == first
    assert catalog.to_dict(first)["runs"] == []
    file = root / "sweep" / "g0.9-s0" / "metrics.jsonl"
    with open(file, "a") as text:
        text.write(json.dumps({"frames": 30, "episode/return": 9.0}) + "\n")
    second = look(catalog)
    (run,) = catalog.to_dict(first)["runs"]
    assert (run["name"], run["return"], run["rows"]) == ("sweep/g0.9-s0", 9.0, 3)
    assert second == first + 1


def test_runs_come_and_go_and_groups_with_them(root: Path, tmp_path: Path) -> None:
    catalog = Catalog(root, Index(None))
    first = look(catalog)
    write_run(root / "sweep" / "new", online(0, learning={"gamma": 0.9, "epochs": 5}), [])
    look(catalog)
    groups = {run["name"]: run["group"] for run in catalog.to_dict()["runs"]}
    assert groups["sweep/new"] == "new"
    assert groups["sweep/g0.9-s0"] == "gamma-0.9_epochs-2"
    assert {run["name"] for run in catalog.to_dict(first)["runs"]} >= {"sweep/new", "sweep/g0.9-s0"}
    (root / "sweep" / "new").rename(tmp_path / "elsewhere")
    look(catalog)
    assert len(catalog.to_dict()["ids"]) == 6


def test_nothing_is_read_that_a_link_leads_to_outside(root: Path, tmp_path: Path) -> None:
    write_run(tmp_path / "secret", online(), [1.0])
    (root / "linked").symlink_to(tmp_path / "secret")
    write_run(root / "sweep" / "sly", online(), [1.0])
    (root / "sweep" / "sly" / "metrics.jsonl").unlink()
    (root / "sweep" / "sly" / "metrics.jsonl").symlink_to(tmp_path / "secret" / "metrics.jsonl")
    (root / "inside").symlink_to(root / "sweep" / "g0.9-s0")
    catalog = Catalog(root, Index(None))
    look(catalog)
    names = {run["name"] for run in catalog.to_dict()["runs"]}
    assert "inside" in names
    assert not names & {"linked", "sweep/sly"}
    assert [text.partition(":")[0] for text in catalog.to_dict()["refused"]] == ["linked", "sweep/sly"]
    assert "it is a link that leads out of" in catalog.to_dict()["refused"][0]


def test_what_cannot_be_read_is_shown_with_the_reason(root: Path) -> None:
    (root / "sweep" / "g0.9-s0" / "config.yaml").write_text("a: [")
    (root / "sweep" / "g0.9-s1" / "state.json").write_text("{")
    (root / "sweep" / "g0.9-s2" / "metrics.jsonl").write_text("\x00\n{}\n[1]\n")
    os.mkfifo(root / "sweep" / "g0.99-s0" / "diary.json")
    catalog = Catalog(root, Index(None))
    look(catalog)
    runs = {run["name"]: run for run in catalog.to_dict()["runs"]}
    assert runs["sweep/g0.9-s0"]["kind"] == "?"
    assert "config.yaml" in runs["sweep/g0.9-s0"]["reason"]
    assert runs["sweep/g0.9-s1"]["state"] == "?"
    assert runs["sweep/g0.9-s2"]["return"] is None
    assert json.loads(json.dumps(catalog.to_dict(), allow_nan=False))


def test_numbers_that_json_lacks_are_words(root: Path) -> None:
    write_run(root / "x" / "odd", online(learning={"rate": float("inf")}), [1.0])
    (root / "x" / "odd" / "config.yaml").write_text("env: {id: a}\nlearning: {rate: .inf, list: [.nan]}\n")
    catalog = Catalog(root, Index(None))
    look(catalog)
    run = next(run for run in catalog.to_dict()["runs"] if run["name"] == "x/odd")
    assert run["settings"]["learning.rate"] == "inf"
    assert run["settings"]["learning.list"] == ["nan"]


def test_a_folder_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        Catalog(tmp_path / "none", Index(None))


def test_common_settings_tell_true_from_one() -> None:
    assert common_settings([{"a": 1, "b": 2}, {"a": True, "b": 2, "c": 3}]) == {"b": 2}
    assert common_settings([]) == {}


def test_nothing_is_written_where_runs_live(root: Path) -> None:
    def files() -> list[tuple[str, int]]:
        return sorted((str(path), path.stat().st_mtime_ns) for path in root.rglob("*"))

    before = files()
    catalog = Catalog(root, Index(None))
    look(catalog)
    catalog.to_dict()
    assert files() == before


def test_an_answer_is_of_one_look(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks while a look is under way is told of the one before, with its revision: nothing is missed by it."""
    catalog, during = Catalog(root, Index(None)), []
    first = look(catalog)
    write_run(root / "sweep" / "late", online(0, learning={"gamma": 0.9, "epochs": 2}), [1.0])
    save = catalog.index.save
    monkeypatch.setattr(catalog.index, "save", lambda: (during.append(catalog.to_dict(first)), save()))
    second = look(catalog)
    (told,) = during
    assert (told["revision"], told["runs"]) == (first, [])
    assert "sweep/late" in {run["name"] for run in catalog.to_dict(told["revision"])["runs"]}
    assert second == first + 1


def test_what_is_not_looked_into_is_said(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linked folders, those far down, and those that may not be read; without saying where the root lies."""
    write_run(tmp_path / "elsewhere" / "run", online(), [1.0])
    (root / "linked").symlink_to(tmp_path / "elsewhere")
    write_run(root / "a" / "b" / "c" / "d" / "e" / "run", online(), [1.0])
    write_run(root / "closed" / "run", online(), [1.0])
    write_run(root / "sly" / "run", online(), [1.0])
    (root / "sly" / "run" / "config.yaml").write_text("a: [")
    closed, iterdir = root / "closed", Path.iterdir

    def refusing(path: Path) -> object:  # root may read everything, so that modes say nothing in some places
        if path == closed:
            raise PermissionError(13, "Permission denied", str(path))
        return iterdir(path)

    monkeypatch.setattr(Path, "iterdir", refusing)
    catalog = Catalog(root, Index(None))
    look(catalog)
    found = catalog.to_dict()
    told = dict(text.split(": ", 1) for text in found["refused"])
    assert told.keys() == {"a/b/c/d/e", "closed", "linked"}
    assert "more than 4 folders down" in told["a/b/c/d/e"]
    assert told["closed"] == "Permission denied"
    assert told["linked"].startswith("it is a link to a folder")
    assert len(found["ids"]) == 7
    assert str(tmp_path) not in json.dumps(found), "where the root lies is nobody's business"
