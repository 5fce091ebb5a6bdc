"""LeRobot datasets: their files read by pyarrow and PyAV. ``test_lerobot_reader`` has LeRobot itself read them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow.parquet as pq
import pytest
from converting import schema_of, smooth_store, write_store
from PIL import Image

from rollmill.core.errors import StoreError
from rollmill.core.fields import Field
from rollmill.store.convert import lerobot
from rollmill.store.convert.lerobot import Options, export_episodes
from rollmill.store.episode import Episode

LENGTHS = [9, 4, 1, 30, 12, 7]
SCREEN = "observation.images.image"


def tables(folder: Path) -> Any:
    return pq.read_table(folder)


def test_rows_are_what_was_seen_and_done(tmp_path: Path) -> None:
    store, episodes = smooth_store(tmp_path / "store", LENGTHS)
    told: list[tuple[int, int]] = []
    done = export_episodes(store, np.arange(6), tmp_path / "x", Options(), lambda d, t: told.append((d, t)))
    assert told[-1] == (sum(LENGTHS),) * 2
    rows = tables(tmp_path / "x" / "data").to_pydict()
    assert rows["index"] == list(range(sum(LENGTHS)))
    for number, episode in enumerate(episodes):
        here = [k for k, found in enumerate(rows["episode_index"]) if found == number]
        n = episode.length
        assert [rows["frame_index"][k] for k in here] == list(range(n))
        assert np.allclose([rows["timestamp"][k] for k in here], np.arange(n) / 30)
        assert [rows["action"][k] for k in here] == (episode.actions + 2).tolist()
        assert [rows["next.reward"][k] for k in here] == episode.rewards.tolist()
        assert [rows["next.done"][k] for k in here] == [False] * (n - 1) + [episode.terminated or episode.truncated]
        assert rows["next.terminated"][here[-1]] == episode.terminated
        assert rows["next.truncated"][here[-1]] == episode.truncated
        assert [rows["observation.state"][k] for k in here] == episode.obs["vector"][:-1].tolist()
        assert [rows["observation.flags"][k] for k in here] == episode.obs["flags"][:-1].tolist()
        assert [rows["info.value"][k] for k in here] == episode.columns["value"][:-1].tolist()
        assert [rows["info.half"][k] for k in here] == episode.columns["half"].tolist()
    assert "info.big" not in rows
    assert any("64-bit" in note for note in done.notes)
    assert any("1 episodes have no recorded end" in note for note in done.notes)
    assert {str(file.relative_to(done.path)) for file in done.files} == {
        "README.md",
        "data/chunk-000/file-000.parquet",
        "meta/episodes/chunk-000/file-000.parquet",
        "meta/info.json",
        "meta/stats.json",
        "meta/tasks.parquet",
        f"videos/{SCREEN}/chunk-000/file-000.mp4",
    }


def test_what_the_dataset_says_of_itself(tmp_path: Path) -> None:
    store, episodes = smooth_store(tmp_path / "store", LENGTHS, size=(35, 40))
    export_episodes(store, np.arange(6), tmp_path / "x", Options(fps=8.75, task="Hit the monster."))
    info = json.loads((tmp_path / "x" / "meta" / "info.json").read_text())
    assert (info["codebase_version"], info["fps"], info["splits"]) == ("v3.0", 8.75, {"train": "0:6"})
    assert (info["total_episodes"], info["total_frames"], info["total_tasks"]) == (6, sum(LENGTHS), 1)
    assert info["features"][SCREEN]["shape"] == [36, 40, 3]  # as the video has it
    assert info["features"]["action"] == {"dtype": "int64", "shape": [1], "names": None}
    summary = tables(tmp_path / "x" / "meta" / "episodes").to_pydict()
    ends = np.cumsum(LENGTHS)
    assert summary["dataset_from_index"] == [0, *ends[:-1].tolist()]
    assert summary["dataset_to_index"] == ends.tolist()
    assert summary["tasks"] == [["Hit the monster."]] * 6
    assert summary["uid"] == [f"{1000 + k:016x}" for k in range(6)]
    assert summary[f"videos/{SCREEN}/to_timestamp"] == (ends / 8.75).tolist()
    frame = tables(tmp_path / "x" / "meta" / "tasks.parquet").to_pandas()
    assert frame.iloc[0].name == "Hit the monster."
    check_statistics(json.loads((tmp_path / "x" / "meta" / "stats.json").read_text()), episodes)
    for number, episode in enumerate(episodes):
        check_statistics(
            {
                name: {key: summary[f"stats/{name}/{key}"][number] for key in ("min", "max", "mean", "std", "count")}
                for name in (SCREEN, "observation.state", "next.reward")
            },
            [episode],
        )


def check_statistics(stats: Any, episodes: list[Episode]) -> None:
    images = np.concatenate([e.obs["image"][:-1] for e in episodes]).reshape(-1, 3) / 255
    vectors = np.concatenate([e.obs["vector"][:-1] for e in episodes]).astype(np.float64)
    rewards = np.concatenate([e.rewards for e in episodes]).astype(np.float64)[:, None]
    for name, rows in ((SCREEN, images), ("observation.state", vectors), ("next.reward", rewards)):
        for key in ("min", "max", "mean", "std"):
            assert np.allclose(np.ravel(stats[name][key]), getattr(rows, key)(0)), (name, key)
        assert stats[name]["count"] == [sum(e.length for e in episodes)]
    assert np.shape(stats[SCREEN]["mean"]) == (3, 1, 1)


def test_videos_show_the_frames_in_order(tmp_path: Path) -> None:
    store, episodes = smooth_store(tmp_path / "store", LENGTHS)
    export_episodes(store, np.arange(6), tmp_path / "x", Options())
    with av.open(str(tmp_path / "x" / "videos" / SCREEN / "chunk-000" / "file-000.mp4")) as container:
        frames = list(container.decode(video=0))
    images = np.array([frame.to_ndarray(format="rgb24") for frame in frames])
    expected = np.concatenate([e.obs["image"][:-1] for e in episodes]).astype(int)
    assert np.abs(images - expected).mean() < 3
    assert np.allclose([frame.time for frame in frames], np.arange(len(frames)) / 30)
    keys = [k for k, frame in enumerate(frames) if frame.key_frame]
    assert np.diff(keys).max() <= 2


def test_images_can_be_exact(tmp_path: Path) -> None:
    fields = (Field("image", "uint8", (36, 41, 3)), Field("grey", "uint8", (8, 6)), Field("stack", "uint8", (8, 6, 4)))
    store, (episode,) = write_store(tmp_path / "store", schema_of(fields), [5])
    export_episodes(store, np.arange(1), tmp_path / "x", Options(images="png"))
    assert not (tmp_path / "x" / "videos").exists()
    assert json.loads((tmp_path / "x" / "meta" / "info.json").read_text())["video_path"] is None
    rows = tables(tmp_path / "x" / "data").to_pydict()
    images = [np.array(Image.open(io.BytesIO(item["bytes"]))) for item in rows[SCREEN]]
    assert np.array_equal(images, episode.obs["image"][:-1])
    grey = [np.array(Image.open(io.BytesIO(item["bytes"]))) for item in rows["observation.images.grey"]]
    assert np.array_equal(grey, np.repeat(episode.obs["grey"][:-1, ..., None], 3, axis=-1))
    assert rows["observation.stack"] == episode.obs["stack"][:-1].tolist()


def test_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are cut between episodes, at their size or (videos) their time; folders at a number of files."""
    monkeypatch.setattr(lerobot, "MAX_SECONDS", 1.0)
    monkeypatch.setattr(lerobot, "CHUNK", 2)
    store, _ = smooth_store(tmp_path / "store", [12] * 10)
    export_episodes(store, np.arange(10), tmp_path / "x", Options(file_mb=0.002))
    summary = tables(tmp_path / "x" / "meta" / "episodes").to_pydict()
    assert summary["episode_index"] == list(range(10))
    videos = list(zip(summary[f"videos/{SCREEN}/chunk_index"], summary[f"videos/{SCREEN}/file_index"]))
    assert videos == [(0, 0)] * 2 + [(0, 1)] * 2 + [(1, 0)] * 2 + [(1, 1)] * 2 + [(2, 0)] * 2
    assert summary[f"videos/{SCREEN}/from_timestamp"] == [0.0, 0.4] * 5
    for kind in ("data", "meta/episodes"):
        places = list(zip(summary[f"{kind}/chunk_index"], summary[f"{kind}/file_index"]))
        assert len(set(places)) > 1
        for number, (chunk, file) in enumerate(places):
            found = tables(tmp_path / "x" / kind / f"chunk-{chunk:03d}" / f"file-{file:03d}.parquet")
            assert number in found["episode_index"].to_pylist()


def test_wishes_that_cannot_be_met(tmp_path: Path) -> None:
    store, _ = write_store(tmp_path / "store", schema_of(), [3])
    for options in (Options(fps=0), Options(images="gif"), Options(file_mb=0)):  # type: ignore[arg-type]
        with pytest.raises(StoreError):
            export_episodes(store, np.arange(1), tmp_path / "x", options)
        assert not (tmp_path / "x").exists()
