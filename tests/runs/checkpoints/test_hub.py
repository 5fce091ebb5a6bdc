"""Policies and stores to a Hugging Face Hub and back, through a Hub on the loopback interface."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from converting import schema_of, write_store
from hub_server import Hub, hub_server
from running import command_words, train_here

pytest.importorskip("huggingface_hub")


@pytest.fixture
def hub() -> Iterator[Hub]:
    with hub_server() as server:
        yield server


def rollmill(hub: Hub, folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own: the library reads its variables when it is imported."""
    environment = os.environ | hub.environment | {"HF_HOME": str(folder / "hf")} | variables
    command = [sys.executable, "-P", "-m", "rollmill.cli.main", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def good(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short training with a recording, in an environment that can be shown."""
    words = ("env=CartPole-v1", "sampling.mode=serial", "stop.frames=320", "recording=all", "recording.budget_gb=0.1")
    return train_here(tmp_path_factory.mktemp("run"), *words)[1].path


def head_of(card: bytes) -> dict[str, object]:
    match = re.match(rb"---\n(.*?)---\n", card, re.S)
    assert match is not None
    found: dict[str, object] = yaml.safe_load(match[1])
    return found


def test_a_policy_there_and_back(hub: Hub, run: Path, tmp_path: Path) -> None:
    said = json.loads(good(rollmill(hub, tmp_path, "hub", "push", str(run), "me/pole", "--episodes", "4", "--json")))
    files = hub.files["model", "me/pole"]
    assert said["files"] == sorted(files) == ["README.md", "metrics.jsonl", "policy.ckpt", "replay.mp4", "results.json"]
    assert said["place"] == f"{hub.url}/me/pole"
    assert b"ftyp" in files["replay.mp4"][:12]
    evaluation = json.loads(files["results.json"])
    assert len(evaluation["returns"]) == 4
    (entry,) = head_of(files["README.md"])["model-index"]  # type: ignore[misc, attr-defined]
    assert entry["results"][0]["metrics"][0]["value"].startswith(f"{evaluation['mean']:.2f} +/- ")
    assert f"**{evaluation['mean']:.2f}**" in files["README.md"].decode()
    assert hub.large  # the checkpoint went by LFS, the card in the commit
    assert hub.commits == 1

    good(rollmill(hub, tmp_path, "hub", "pull", "me/pole"))
    pulled = {p.name: p.read_bytes() for p in (tmp_path / "pole").rglob("*") if p.is_file()}
    assert pulled == files
    again = good(rollmill(hub, tmp_path, "eval", "pole/policy.ckpt", "--episodes", "4", "--json"))
    assert json.loads(again)["returns"] == evaluation["returns"]


def test_a_store_there_and_back(hub: Hub, run: Path, tmp_path: Path) -> None:
    good(rollmill(hub, tmp_path, "hub", "push", str(run), "me/episodes", "--data", "--private", "--licence", "mit"))
    files = hub.files["dataset", "me/episodes"]
    assert hub.private["dataset", "me/episodes"]
    assert head_of(files["README.md"])["license"] == "mit"
    assert "rollmill data info" in good(
        rollmill(hub, tmp_path, "hub", "pull", "me/episodes", "--data", "--out", "data")
    )
    assert "all good" in good(rollmill(hub, tmp_path, "data", "verify", "data"))
    for path in (run / "data" / "shards").iterdir():
        assert (tmp_path / "data" / "shards" / path.name).read_bytes() == path.read_bytes()


def test_a_second_push_replaces_what_has_changed(hub: Hub, tmp_path: Path) -> None:
    for lengths in ([3], [3, 5]):
        store, _ = write_store(tmp_path / f"store-{len(lengths)}", schema_of(), lengths)
        good(rollmill(hub, tmp_path, "hub", "push", str(store.path), "me/st"))
    assert hub.commits == 2
    assert "2 episodes, 8 steps" in hub.files["dataset", "me/st"]["README.md"].decode()


def test_an_interrupted_pull_goes_on(hub: Hub, tmp_path: Path) -> None:
    store, _ = write_store(tmp_path / "store", schema_of(), [30])
    good(rollmill(hub, tmp_path, "hub", "push", str(store.path), "me/st"))
    (shard,) = [name for name in hub.files["dataset", "me/st"] if name.startswith("shards/")]
    hub.broken.add(shard)
    broken = rollmill(hub, tmp_path, "hub", "pull", "me/st", "--data", "--out", "back")
    assert broken.returncode == 1, broken.stdout
    assert broken.stderr.splitlines()[-1].startswith("rollmill hub pull: me/st: the Hub did not answer"), broken.stderr
    assert "Traceback" not in broken.stderr
    assert not (tmp_path / "back").exists()
    hub.broken.clear()
    hub.downloads.clear()
    good(rollmill(hub, tmp_path, "hub", "pull", "me/st", "--data", "--out", "back"))
    assert not {"store.json"} & set(hub.downloads)  # was there already
    assert "all good" in good(rollmill(hub, tmp_path, "data", "verify", "back"))


def test_code_that_a_pulled_policy_names_is_not_run(hub: Hub, run: Path, tmp_path: Path) -> None:
    """A checkpoint that was pulled is a stranger's: it is refused where it names code, until the user names it."""
    own = tmp_path / "own"
    own.mkdir()
    (own / "mine.py").write_text(
        "import pathlib, gymnasium\npathlib.Path('ran').write_text('')\n"
        "def make():\n    return gymnasium.make('CartPole-v1')\n"
    )
    path = f"{own}:{os.environ.get('PYTHONPATH', '')}"
    words = command_words(own, "env=mine:make", "sampling.mode=serial", "stop.frames=64", "run.name=own")
    good(rollmill(hub, own, *words, PYTHONPATH=path))
    refused = rollmill(hub, own, "hub", "push", "x/own", "me/own", "--no-video", PYTHONPATH=path)
    assert refused.returncode == 2
    assert "--trust-code" in refused.stderr
    assert ("model", "me/own") not in hub.files
    named = ("env=mine:make", "--no-video", "--episodes", "2")
    good(rollmill(hub, own, "hub", "push", "x/own", "me/own", *named, PYTHONPATH=path))
    (own / "ran").unlink()
    good(rollmill(hub, own, "hub", "pull", "me/own", "--out", "pulled", PYTHONPATH=path))
    played = rollmill(hub, own, "eval", "pulled/policy.ckpt", "--episodes", "2", PYTHONPATH=path)
    assert played.returncode == 2
    assert "names code that would be run with your rights" in played.stderr
    assert not (own / "ran").exists()
    good(rollmill(hub, own, "eval", "pulled/policy.ckpt", "--episodes", "2", "env=mine:make", PYTHONPATH=path))


def test_files_of_strangers_stay_where_they_belong(hub: Hub, run: Path, tmp_path: Path) -> None:
    """Only what a policy or a store has is fetched, and nothing lands outside the folder."""
    good(rollmill(hub, tmp_path, "hub", "push", str(run), "me/pole", "--episodes", "0"))
    files = hub.files["model", "me/pole"]
    assert "results.json" not in files
    files |= {"config.yaml": b"run: {}", "checkpoints/evil.ckpt": b"x", "json.py": b"raise SystemExit"}
    good(rollmill(hub, tmp_path, "hub", "pull", "me/pole", "--out", "a"))
    assert sorted(p.name for p in (tmp_path / "a").rglob("*")) == ["README.md", "metrics.jsonl", "policy.ckpt"]
    hub.files["dataset", "me/evil"] = {"store.json": b"{}", "shards/../../../escaped": b"x"}
    hub.private["dataset", "me/evil"] = False
    assert rollmill(hub, tmp_path, "hub", "pull", "me/evil", "--data", "--out", "b/c").returncode == 1
    assert list(tmp_path.rglob("escaped")) == []
    assert not (tmp_path / "b" / "c").exists()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("hub pull me/nothing", "there is no such repository or revision"),
        ("hub pull me/pole --out there", "nothing is overwritten"),
        ("hub pull a/b/c", "a repository is called USER/NAME"),
        ("hub push policy:nothing me/pole", "no policy of this name"),
        ("hub push there me/pole --data", "is not a store"),
        ("hub pull me/junk", "holds no policy of rollmill"),
        ("hub push policy:cartpole me/pole --episodes -1", "--episodes"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(hub: Hub, tmp_path: Path, words: str, reason: str) -> None:
    (tmp_path / "there").mkdir()
    hub.files["model", "me/junk"], hub.private["model", "me/junk"] = {"policy.ckpt": b"junk", "README.md": b""}, False
    done = rollmill(hub, tmp_path, *words.split())
    assert done.returncode in (1, 2)
    assert reason in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr


def test_without_a_token_and_without_a_hub(hub: Hub, tmp_path: Path) -> None:
    push = ("hub", "push", "policy:cartpole", "me/pole", "--episodes", "0")
    unknown = rollmill(hub, tmp_path, *push, HF_TOKEN="hf_of_nobody")
    assert (unknown.returncode, len(unknown.stderr.strip().splitlines())) == (1, 1), unknown.stderr
    assert "401" in unknown.stderr
    gone = rollmill(hub, tmp_path, *push, HF_ENDPOINT="http://127.0.0.1:9")
    assert (gone.returncode, len(gone.stderr.strip().splitlines())) == (1, 1), gone.stderr
