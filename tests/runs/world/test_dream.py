"""Videos of dreams beside what really happened."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest
from dreaming import corner_encoder, corner_model

from rollmill.core.errors import StoreError
from rollmill.core.fields import ActionSpec, EnvSpec, Field
from rollmill.reports.video.images import GAP
from rollmill.runs.settings.world import DreamVideo
from rollmill.runs.world.dream import ALONE, SHOWN, _dream, write_dream_video
from rollmill.store.episode import Episode, EpisodeInfo
from rollmill.store.format.schema import StoreSchema
from rollmill.store.reader import Store
from rollmill.store.writer import StoreWriter
from rollmill.worldmodel.dynamics.model import load_dynamics

ACTION = ActionSpec("discrete", nvec=(4,), start=(0,))
RAW = EnvSpec("toy_image", (Field("obs", "uint8", (36, 36, 3)),), ACTION)
LATENTS = EnvSpec("toy_image", (Field("mean", "float32", (4,)), Field("std", "float32", (4,))), ACTION)
LENGTHS = (9, 5, 12)


def stores(folder: Path, first: int = 1) -> tuple[Path, Path]:
    """Images and latents of the same three episodes."""
    rng = np.random.default_rng(0)
    with (
        StoreWriter(folder / "raw", StoreSchema.for_env(RAW)) as raw,
        StoreWriter(folder / "lat", StoreSchema.for_env(LATENTS)) as lat,
    ):
        for number, n in enumerate(LENGTHS):
            common = {
                "action": rng.integers(0, 4, n),
                "reward": np.zeros(n, np.float32),
                "version": np.zeros(n, np.int64),
                "global_step": np.arange(n),
            }
            images = np.full((n + 1, 36, 36, 3), 80 * number, np.uint8)
            latents = rng.normal(size=(2, n + 1, 4)).astype(np.float32)
            info = EpisodeInfo(uid=number + first)
            raw.add_episode(Episode({"obs:obs": images, **common}, info, True))
            lat.add_episode(Episode({"obs:mean": latents[0], "obs:std": abs(latents[1]), **common}, info, True))
    return folder / "raw", folder / "lat"


def frames(path: Path) -> list[np.ndarray]:
    with av.open(str(path)) as video:
        return [frame.to_ndarray(format="rgb24") for frame in video.decode(video=0)]


def test_a_video_shows_reality_reconstruction_and_dream(tmp_path: Path) -> None:
    raw, lat = stores(tmp_path)
    models = (corner_encoder(tmp_path / "encoder.bin"), corner_model(tmp_path / "dynamics.bin"))
    options = DreamVideo(episodes=2, steps=10, shown=3, scale=2)
    found = frames(write_dream_video(lat, *models, tmp_path / "video.mp4", options, raw))
    assert len(found) == 11  # the longest episode, cut to ten steps
    cell = 72 + 2 * GAP
    assert found[0].shape == (2 * cell, 3 * cell, 3)
    assert abs(int(found[0][30, GAP + 30, 0]) - 160) < 12  # the longest episode has number 2
    frames_of_dreams = [found[t][:GAP, 2 * cell :].mean(axis=(0, 1)) for t in (1, 9)]
    assert np.abs(frames_of_dreams[0] - SHOWN).max() < 30, "it is shown what happened"
    assert np.abs(frames_of_dreams[1] - ALONE).max() < 30, "it dreams alone"
    assert np.abs(found[9][:GAP, :cell].mean(axis=(0, 1)) - SHOWN).max() < 30, "what was seen is never dreamt"
    assert len(frames(write_dream_video(lat, *models, tmp_path / "two.mp4", options))) == 11


def test_the_model_is_shown_some_steps_and_then_dreams_alone(tmp_path: Path) -> None:
    _, lat = stores(tmp_path)
    model = load_dynamics(corner_model(tmp_path / "dynamics.bin"))
    with Store(lat) as store:
        real, dreamt = _dream(store, 2, model, DreamVideo(steps=10, shown=3))
        assert real.shape == dreamt.shape == (11, 4)
        assert np.array_equal(real[:3], dreamt[:3])
        assert not np.isclose(real[3:], dreamt[3:]).all(1).any()
        short, _ = _dream(store, 1, model, DreamVideo(steps=10, shown=8))  # five steps: two of them are shown
        assert len(short) == 6


def test_what_cannot_be_shown_is_said(tmp_path: Path) -> None:
    _, lat = stores(tmp_path)
    models = (corner_encoder(tmp_path / "encoder.bin"), corner_model(tmp_path / "dynamics.bin"))
    other, _ = stores(tmp_path / "other", first=100)
    with pytest.raises(StoreError, match="does not hold episode"):
        write_dream_video(lat, *models, tmp_path / "video.mp4", DreamVideo(steps=5, shown=2), other)
    assert not list(tmp_path.glob("*.mp4"))
    with pytest.raises(ValueError, match="shown below steps"):
        DreamVideo(steps=5, shown=5)
    with pytest.raises(ValueError, match="temperature"):
        DreamVideo(temperature=-1)
