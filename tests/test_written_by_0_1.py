"""What version 0.1 has written opens, goes on, and comes to the same weights bit for bit.

``written_by_0_1/README.md`` says how its folders were made.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollmill.cli.main import main
from rollmill.store.reader import Store

OLD = Path(__file__).parent / "written_by_0_1"
DIGESTS = json.loads((OLD / "digests.json").read_text())
STORES = list(DIGESTS["stores"])
ONLINE = ("online/target", "online/reach", "launched/launched_s0")
OFFLINE = ("offline/dt", "offline/bc-data-s0")
TOLERANCE = 1e-5
"""Of single weights, where other kernels add up in another order: they then differ by 1e-8 to 9e-6, by a hundred times
more where something else was learnt."""

Say = Callable[..., str]


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of all folders; commands run in it, as in the one they were made in."""
    copy = shutil.copytree(OLD, tmp_path / "old")
    monkeypatch.chdir(copy)
    return copy


@pytest.fixture
def say(old: Path, capfd: pytest.CaptureFixture[str]) -> Say:
    """Runs ``rollmill <words>`` there, which must end well; gives what it printed."""

    def run(*words: str) -> str:
        capfd.readouterr()
        code = main(words)
        out, err = capfd.readouterr()
        assert code == 0, out + err
        return out

    return run


# -- the same weights, bit for bit ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def now(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """``digests.json`` of the present code: everything is read and trained again, in one process."""
    out = tmp_path_factory.mktemp("now") / "digests.json"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(OLD / "digest.py"), str(out)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return {**json.loads(out.read_text()), "said": done.stdout + done.stderr}


def test_nothing_is_left_out(now: dict[str, Any]) -> None:
    assert {kind: list(now[kind]) for kind in ("stores", "trained", "continued")} == {
        kind: list(DIGESTS[kind]) for kind in ("stores", "trained", "continued")
    }


@pytest.mark.parametrize("path", STORES)
def test_stores_hold_the_same_bytes(now: dict[str, Any], path: str) -> None:
    assert now["stores"][path] == DIGESTS["stores"][path]


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in ("trained", "continued") for name in DIGESTS[kind]]
)
def test_the_same_is_learnt(now: dict[str, Any], kind: str, name: str) -> None:
    """To the last bit with the libraries and the processor of the digests, closely with others."""
    before, after = DIGESTS[kind][name], now[kind][name]
    assert "error" not in after, now["said"]
    assert after["numbers"] == before["numbers"]
    np.testing.assert_allclose(after["values"], before["values"], rtol=TOLERANCE, atol=TOLERANCE)
    if now["arithmetic"] == DIGESTS["arithmetic"]:
        assert after["sha256"] == before["sha256"]


# -- stores -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", STORES)
def test_stores_open_without_a_complaint(say: Say, path: str, recwarn: pytest.WarningsRecorder) -> None:
    with Store(path) as store:
        for i in range(len(store)):
            rewards = store.episode(i).rewards
            assert np.array_equal(store.rewards(i), rewards)
            assert store.end_record(i).return_ == pytest.approx(float(rewards.sum()))
        assert store.problems == []
        env = store.schema.env_id
    assert not recwarn
    say("data", "verify", path)
    assert env in say("data", "info", path)
    say("data", "report", path, "--out", "page.html")


def test_stores_are_added_to_merged_and_repaired(say: Say) -> None:
    """The next episodes of the seed come after those of 0.1, by a policy of 0.1."""
    small = ("sampling.workers=1", "sampling.envs_per_worker=2", "sampling.affinity=false")
    words = ("collect", "env=toy_memory", "--policy", "launched/launched_s0", "--seed", "3", *small, "--json")
    assert json.loads(say(*words, "--out", "collected", "--until", "9"))["episodes"] == 3
    say("data", "verify", "collected")
    say("data", "merge", "online/target/data", "online/target/eval/played", "--out", "merged")
    with Store("merged") as merged, Store("collected") as collected:
        assert (len(merged), len(collected)) == (24, 9)
        assert len(set(collected.table["seed"].tolist())) == 9
    say("data", "repair", "online/target/data", "--out", "repaired")
    with Store("repaired") as repaired, Store("online/target/data") as before:
        assert sorted(repaired.table.uid.tolist()) == sorted(before.table.uid.tolist())


def test_the_same_episodes_are_collected_again(say: Say) -> None:
    """In serial mode: in others, the order in which groups are ready decides who gets which of the network's draws."""
    small = ("sampling.mode=serial", "sampling.workers=1", "sampling.envs_per_worker=2")
    words = ("collect", "env=toy_memory", "--policy", "launched/launched_s0", "--seed", "3", *small)
    say(*words, "--out", "again", "--episodes", "6")
    with Store("again") as again, Store("collected") as before:
        assert _by_seed(again) == _by_seed(before)


def _by_seed(store: Store) -> dict[int, tuple[list[int], list[float]]]:
    played = {int(store.table["seed"][i]): store.episode(i) for i in range(len(store))}
    return {seed: (one.columns["action"].tolist(), one.rewards.tolist()) for seed, one in sorted(played.items())}


# -- policies ---------------------------------------------------------------------------------------------------


def test_runs_are_evaluated_and_play_as_before(say: Say, old: Path) -> None:
    said = json.loads(say("eval", *ONLINE, "--episodes", "4", "--workers", "1", "--envs", "4", "--json"))
    assert len(said["results"]) == 3
    before = json.loads((old / "online/target/eval/summary.json").read_text())
    target = next(one for one in said["results"] if one["checkpoint"] == before["checkpoint"])
    for name in ("frames", "env", "returns", "lengths", "seeds", "mean", "standard_error"):
        assert target[name] == before[name]


def test_an_evaluation_adds_to_files_of_before(say: Say, old: Path) -> None:
    folder = old / "online/target/eval"
    files = ("--record", str(folder / "played"), "--out", str(folder / "summary.json"))
    say("eval", "online/target", "--episodes", "6", "--workers", "1", "--envs", "4", *files)
    assert json.loads((folder / "summary.json").read_text())["episodes"] == 6
    with Store(folder / "played") as store:
        assert len(store) >= 6


def test_offline_policies_are_judged_as_before(say: Say, old: Path) -> None:
    words = ("--episodes", "4", "--workers", "1", "--envs", "4", "--behaviour", "online/target", "--json")
    rows = json.loads(say("eval", *OFFLINE, *words))["rows"]
    before = json.loads((old / "offline/dt/eval/results.json").read_text())["rows"]
    own = {row["target"]: row["mean"] for row in before if row["policy"] == "dt"}
    assert {row["target"]: row["mean"] for row in rows if row["policy"] == "dt"} == own
    assert len(rows) == len(own) + 2


def test_a_run_begins_from_a_checkpoint_of_before(say: Say, old: Path) -> None:
    (checkpoint,) = (old / "online/target/checkpoints").iterdir()
    words = ("run.dir=.", "run.experiment=online", "run.name=child", "stop.frames=230", "recording.keep=off")
    settings = ("--config", "online/target/config.yaml", "evaluation.every_frames=0", "evaluation.final=false")
    outcome = json.loads(say("train", "--restore", str(checkpoint), *settings, *words, "--json"))
    assert outcome["frames"] >= 230
    assert json.loads((old / "online/child/diary.json").read_text())["parent"]


# -- what goes on -----------------------------------------------------------------------------------------------


def test_a_recording_goes_on_in_its_store_and_its_pages(say: Say, old: Path) -> None:
    """``digests.json`` holds the weights of runs that go on; here is what lies beside them."""
    run = old / "online/target"
    say("train", "--resume", "run.dir=.", "run.experiment=online", "run.name=target", "stop.frames=320")
    say("data", "verify", "online/target/data")
    with Store(run / "data") as store:
        assert len(store) > DIGESTS["stores"]["online/target/data"]["episodes"]
        assert json.loads((run / "data_report.json").read_text())["episodes"]["total"] == len(store)
    assert len((run / "eval/training.jsonl").read_text().splitlines()) == 2
    assert [path.name for path in run.glob("*.html")] == ["data_report.html"], "the page of 0.1 is written anew"
    assert len(json.loads((run / "diary.json").read_text())["sessions"]) == 2


def test_an_offline_run_is_found_under_its_old_name(say: Say, old: Path) -> None:
    """0.1 called runs after the folder of their store alone."""
    words = ("offline", "online/target/data", "run.dir=.", "run.experiment=offline", "algorithm=bc", "fit.steps=13")
    words += ("checkpoints.keep_last=2",)  # the run itself keeps one
    assert json.loads(say(*words, "--resume", "--json"))["folder"] == "offline/bc-data-s0"
    kept = sorted(path.name for path in (old / "offline/bc-data-s0/checkpoints").iterdir())
    assert kept == ["frames-000000000012.ckpt", "updates-000000000013.ckpt"], "0.1 called updates frames"
    assert "12 to 13 updates" in say("diary", "offline/bc-data-s0", "--root", ".")
    assert sorted(path.name for path in (old / "offline").iterdir()) == ["bc-data-s0", "comparison.html", "dt"]
    assert [path.name for path in (old / "offline/bc-data-s0").glob("*.html")] == ["report.html"]
    shutil.copytree("online/target/data", "other/data")  # another recording, which nobody has learnt from
    assert main(("offline", "other/data", *words[2:], "--resume")) != 0


def test_a_world_model_is_complete_and_goes_on(say: Say) -> None:
    words = ("world", "run", "--out", "world", "--config", "world/config.yaml", "--json")
    stages = ("collect", "vae", "encode", "dynamics", "controller", "report")
    assert json.loads(say(*words))["stages"] == dict.fromkeys(stages, "skipped")
    longer = json.loads(say(*words, "dynamics.steps=5"))
    done = {"dynamics": "done", "controller": "done", "report": "done"}
    assert longer["stages"] == {**dict.fromkeys(stages, "skipped"), **done}
    assert longer["results"]["dynamics"]["steps"] == 5
    assert json.loads(say("eval", "world/controller", "--episodes", "2", "--json"))["episodes"] == 2


def test_a_launched_experiment_is_finished(say: Say) -> None:
    """The same command finds the runs and starts none again, also where the folder has moved."""
    say("launch", "run", "grid.yaml", "--root", ".")
    runs = json.loads(say("launch", "status", "launched", "--root", ".", "--json"))
    assert [(run["run"], run["state"], run["attempts"]) for run in runs] == [("launched_s0", "finished", 1)]
    assert "launched_s0" in say("diary", "launched", "--root", ".")


# -- pages ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    ["online", "launched", "offline", *ONLINE, *OFFLINE, "world", "world/vae", "world/dynamics", "world/controller"],
)
def test_pages_are_made(say: Say, old: Path, path: str) -> None:
    say("report", path, "--root", ".")
    assert [page.name for page in (old / path).glob("report*.html")] == ["report.html"]


def test_a_comparison_of_before_is_replaced(say: Say, old: Path) -> None:
    before = (old / "offline/comparison.html").read_text()
    say("eval", *OFFLINE, "--episodes", "2", "--workers", "1", "--report", "offline/comparison.html")
    assert (old / "offline/comparison.html").read_text() != before
    assert [page.name for page in (old / "offline").glob("*.html")] == ["comparison.html"]
