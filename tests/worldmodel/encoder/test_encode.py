from pathlib import Path

import numpy as np
import pytest
import torch
from image_stores import SHAPE, image_episode, image_schema, tiny_encoder

from rollmill.core.errors import NonFiniteError, StoreError
from rollmill.core.fields import Field
from rollmill.store.format.schema import Column, StoreSchema
from rollmill.worldmodel.encoder.encode import EpisodeEncoder, latent_names, latent_schema
from rollmill.worldmodel.encoder.file import load_encoder


def test_the_schema_has_latents_for_images_and_all_else_as_it_was() -> None:
    source = image_schema()
    made = latent_schema(source, latent_names(["obs:image"]), 7)
    assert made.names == ("obs:mean", "obs:std", "obs:speed", "action", "reward", "global_step", "version")
    assert made["obs:mean"] == Column("obs:mean", "float32", (7,), "obs")
    assert made.env.observation[:2] == (Field("mean", "float32", (7,)), Field("std", "float32", (7,)))
    assert (made.env_id, made.env.action) == (source.env_id, source.env.action)
    taken = StoreSchema.for_env(source.env, extra=[Column("obs:std", "float32", (1,), "obs")])
    with pytest.raises(StoreError, match="field 'std' already"):
        latent_schema(taken, latent_names(["obs:image"]), 7)


def test_latents_of_several_images_have_their_names() -> None:
    names = latent_names(["obs:left", "obs:right"])
    assert names == {"obs:left": ("obs:left_mean", "obs:left_std"), "obs:right": ("obs:right_mean", "obs:right_std")}


def test_an_episode_keeps_everything_but_its_images(tmp_path: Path) -> None:
    encoder = load_encoder(tiny_encoder(tmp_path / "e.bin"))
    episode = image_episode(3, 9)
    whole, pieces = (EpisodeEncoder(encoder, latent_names(["obs:image"]), size)(episode) for size in (100, 10))
    mean, std = encoder.encode(torch.from_numpy(episode.columns["obs:image"]))
    assert np.array_equal(whole.columns["obs:mean"], mean.numpy())
    assert np.array_equal(whole.columns["obs:std"], std.numpy())
    assert np.allclose(whole.columns["obs:mean"], pieces.columns["obs:mean"], atol=1e-6)
    assert (whole.info, whole.terminated, whole.truncated, whole.stats) == (
        *(episode.info, episode.terminated, episode.truncated, episode.stats),
    )
    assert "obs:image" not in whole.columns
    assert np.array_equal(whole.columns["obs:speed"], episode.columns["obs:speed"])


def test_nan_in_latents_is_an_error_that_names_the_episode(tmp_path: Path) -> None:
    encoder = load_encoder(tiny_encoder(tmp_path / "e.bin", shape=SHAPE))
    encoder.moments.bias[0] = torch.nan
    with pytest.raises(NonFiniteError, match="image 0 of episode 0000000000000003"):
        EpisodeEncoder(encoder, latent_names(["obs:image"]), 8)(image_episode(3, 2))
