"""``rollmill models`` and ``rollmill data list``: what there is, and how it was made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from running import SERIAL, Call, train_here

from rollmill.runs.policies.find import TRAINED

ROOT = Path(__file__).parents[1]
OLD = ROOT / "written_by_0_1"


@pytest.fixture
def run(call: Call) -> Path:
    words = ("env=toy_target", "stop.batches=1", "run.name=agent", "recording=all")
    return train_here(Path("runs"), *SERIAL, *words)[1].path


def by_name(rows: Any, key: str) -> dict[str, Any]:
    return {row[key]: row for row in rows}


def test_models_of_runs_and_of_the_package(call: Call, run: Path) -> None:
    found = by_name(call("models", "--json").json, "name")
    assert set(found) == {f"policy:{card.stem}" for card in TRAINED.glob("*.ckpt")} | {"runs/x/agent"}
    mine = found["runs/x/agent"]
    assert (mine["kind"], mine["env"], mine["unit"]) == ("online", "toy_target", "frames")
    assert mine["trained"] > 0
    card = json.loads((TRAINED / "cartpole.json").read_text())
    shipped = found["policy:cartpole"]
    assert (shipped["score"], shipped["made_by"]) == (card["mean_return"], card["command"])
    head, *rows = call("models", "toy_target").out.splitlines()
    assert head.split() == ["model", "kind", "env", "trained", "score", "made", "by"]
    assert [row.split()[0] for row in rows] == ["runs/x/agent"]
    # What the first column says is what other commands take.
    assert call("eval", rows[0].split()[0], "--episodes", "1").code == 0
    assert call("models", "nothing").out == "no model fits ['nothing']\n"


def test_models_of_every_kind_are_known(call: Call) -> None:
    found = by_name(call("models", str(OLD), "--root", str(OLD), "--json").json, "name")
    kinds = {Path(name).relative_to(OLD).as_posix(): row["kind"] for name, row in found.items()}
    assert kinds["offline/dt"] == "offline"
    assert {kinds[f"world/{stage}"] for stage in ("vae", "dynamics", "controller")} == {
        "encoder",
        "dynamics",
        "controller",
    }
    assert found[str(OLD / "online/target")]["made_by"].startswith("rollmill train run.dir=.")


def test_stores_with_how_they_were_made(call: Call, run: Path) -> None:
    [told] = call("data", "list", "--json").json  # type: ignore[misc]
    info = call("data", "info", "runs/x/agent/data", "--json").json
    assert (told["path"], told["env"]) == ("runs/x/agent/data", "toy_target")
    assert (told["episodes"], told["steps"]) == (info["episodes"], info["rows"])  # type: ignore[index]
    assert told["episodes"] > 0
    assert told["made_by"], "the command of the run that has recorded it"
    assert call("data", "list", "runs/*/data").out.splitlines()[1].split()[0] == "runs/x/agent/data"
    assert call("data", "list", "--root", "nowhere").code == 2
    assert call("data", "list", "doom").out == "no store below . fits ['doom']\n"


def test_stores_of_collections_and_evaluations_say_how_they_were_made(
    call: Call, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for words in (
        ("collect", "env=toy_target", "sampling.mode=serial", "--out", "mine", "--until", "2", "--seed", "7"),
        ("eval", "runs/x/agent", "--episodes", "2", "--serial", "--record", "played"),
    ):
        monkeypatch.setattr("sys.argv", ["/usr/bin/rollmill", *words])
        assert call(*words).code == 0
        assert call("data", "list", words[-1] if words[0] == "eval" else "mine", "--json").json[0]["made_by"] == (
            f"rollmill {' '.join(words)}"
        )
    assert "; policy random; seed 7; rollmill collect env=toy_target" in call("data", "info", "mine").out
    assert call("data", "split", "mine", "--out", "parts", "--parts", "2").code == 0
    derived = by_name(call("data", "list", "parts", "--json").json, "path")
    assert derived
    assert not any("collect" in row["made_by"] for row in derived.values())


def test_a_damaged_store_is_a_row_and_does_not_hide_the_others(call: Call, run: Path) -> None:
    broken = Path("broken")
    broken.mkdir()
    (broken / "store.json").write_text("{")
    found = by_name(call("data", "list", "--json").json, "path")
    assert found["broken"]["problem"].endswith(
        "is damaged: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"
    )
    assert found["runs/x/agent/data"]["problem"] == ""
    assert "broken/store.json is damaged" in call("data", "list").out
