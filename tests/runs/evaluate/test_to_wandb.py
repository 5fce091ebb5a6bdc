"""Tables and videos of an evaluation in an offline run of W&B, read back from its files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from running import SERIAL, train_here

from rollmill.core.errors import ConfigError
from rollmill.runs.evaluate.options import EvalOptions
from rollmill.runs.evaluate.run import evaluate, evaluate_all

pytest.importorskip("wandb")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = ("env=CartPole-v1", "stop.batches=2", "wandb.project=mine")
    return train_here(tmp_path_factory.mktemp("run"), *SERIAL, *words)[1].path


def sessions(run: Path) -> list[Path]:
    return sorted((run / "wandb").glob("offline-run-*"))


def one(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


def test_episodes_and_videos_are_in_the_run(run: Path, tmp_path: Path) -> None:
    options = EvalOptions(
        episodes=3, seed=5, video=tmp_path / "films", video_count=2, wandb=True, overrides=("wandb.mode=offline",)
    )
    result = evaluate(str(run), options)
    (session,) = sessions(run)
    table: dict[str, Any] = json.loads(one(session, "files/media/table/evaluation/episodes*.json").read_text())
    assert table["columns"][:5] == ["episode", "agent", "seed", "return", "length"]
    assert [row[3] for row in table["data"]] == result.returns
    assert [row[2] for row in table["data"]] == [row.seed for row in result.policy.rows]
    assert len(result.videos) == 2
    for number, video in enumerate(result.videos):
        sent = one(session, f"files/media/videos/evaluation/video_{number}_*.mp4")
        assert sent.read_bytes() == Path(video.file).read_bytes()
    history = one(session, "*.wandb").read_bytes()
    for word in (b"evaluation/episodes", b"evaluation/video_0", b"evaluation/video_1", b"evaluation/mean", b"mine"):
        assert word in history, word
    identity = (run / "wandb" / "run_id.txt").read_text().strip()
    assert session.name.endswith(identity)
    evaluate(str(run), EvalOptions(episodes=1, wandb=True, overrides=("wandb.mode=offline",)))
    # The same run there; a session of the same second has a number behind the id.
    assert {path.name.split("-")[3] for path in sessions(run)} == {identity}


def test_a_policy_without_a_run_is_refused_before_anything_is_played(run: Path) -> None:
    before = sessions(run)
    with pytest.raises(ConfigError, match=r"--wandb: .*cartpole.* no run at W&B"):
        evaluate_all([str(run), "policy:cartpole"], EvalOptions(episodes=1, wandb=True))
    with pytest.raises(ConfigError, match="--wandb: random"):
        evaluate_all(["random"], EvalOptions(episodes=1, wandb=True, overrides=("env=CartPole-v1",)))
    assert sessions(run) == before
