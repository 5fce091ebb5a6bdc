"""LeRobot reads what we write: its own ``LeRobotDataset``, where it is installed (``make consumers``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from converting import schema_of, smooth_store, write_store

from rollmill.core.fields import ActionSpec, Field
from rollmill.store.convert import lerobot
from rollmill.store.convert.columns import env_actions
from rollmill.store.convert.lerobot import Options, export_episodes

pytest.importorskip("lerobot")
LENGTHS = [9, 4, 1, 30, 12, 7]
SCREEN = "observation.images.image"


def its_reader() -> Any:
    """``LeRobotDataset``. It imports torchvision, whose compiled operators fit one build of torch only; the reader
    needs none of them, but without this one the import fails."""
    import torch

    declared = torch.library.Library("torchvision", "FRAGMENT")
    if not hasattr(torch.ops.torchvision, "nms"):
        declared.define("nms(Tensor boxes, Tensor scores, float iou_threshold) -> Tensor")
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    return LeRobotDataset


@pytest.mark.parametrize("images", ["video", "png"])
def test_every_step_of_every_episode(tmp_path: Path, images: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lerobot, "MAX_SECONDS", 4.0)  # several files of each kind
    monkeypatch.setattr(lerobot, "CHUNK", 2)
    dataset_class = its_reader()
    store, episodes = smooth_store(tmp_path / "store", LENGTHS)
    export_episodes(store, np.arange(6), tmp_path / "x", Options(8.75, images, "Play.", file_mb=0.002))
    dataset = dataset_class("nobody/toy", root=tmp_path / "x", video_backend="pyav")
    assert (dataset.num_episodes, dataset.num_frames, dataset.fps) == (6, sum(LENGTHS), 8.75)
    assert np.allclose(dataset.meta.stats["next.reward"]["mean"], np.concatenate([e.rewards for e in episodes]).mean())
    index = 0
    for number, episode in enumerate(episodes):
        actions = env_actions(store.schema.env.action, episode.actions)
        for t in range(episode.length):
            item = dataset[index]
            index += 1
            assert (int(item["episode_index"]), int(item["frame_index"])) == (number, t)
            assert item["task"] == "Play."
            assert int(item["action"]) == actions[t]
            assert float(item["next.reward"]) == episode.rewards[t]
            assert bool(item["next.terminated"]) == (episode.terminated and t == episode.length - 1)
            assert np.array_equal(item["observation.state"], episode.obs["vector"][t])
            assert np.array_equal(item["observation.flags"], episode.obs["flags"][t])
            assert np.array_equal(item["info.half"], episode.columns["half"][t])
            image = item[SCREEN].numpy().transpose(1, 2, 0) * 255
            difference = np.abs(image - episode.obs["image"][t])
            assert difference.max() < 0.01 if images == "png" else difference.mean() < 3


def test_one_episode_and_neighbouring_steps(tmp_path: Path) -> None:
    dataset_class = its_reader()
    action = ActionSpec("continuous", shape=(2,), low=(-1.0, -1.0), high=(1.0, 1.0))
    fields = (Field("vector", "float32", (2,)), Field("stack", "uint8", (8, 6, 4)))
    store, episodes = write_store(tmp_path / "store", schema_of(fields, action), LENGTHS)
    export_episodes(store, np.arange(6), tmp_path / "x", Options(fps=10))
    deltas = {"observation.state": [-0.1, 0.0], "action": [0.0, 0.1]}
    dataset = dataset_class("nobody/toy", root=tmp_path / "x", episodes=[3], delta_timestamps=deltas)
    assert len(dataset) == LENGTHS[3]
    item, episode = dataset[5], episodes[3]
    assert np.array_equal(item["observation.state"], episode.obs["vector"][4:6])
    assert np.array_equal(item["action"], np.clip(episode.actions[5:7], -1, 1))
    assert np.array_equal(item["observation.stack"], episode.obs["stack"][5])
