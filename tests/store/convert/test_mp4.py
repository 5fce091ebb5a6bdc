"""Videos: decoded again by PyAV."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest
from converting import schema_of, write_store

from rollmill.core.errors import StoreError
from rollmill.core.fields import Field
from rollmill.store.convert.mp4 import Options, export_episodes
from rollmill.store.reader import Store
from rollmill.store.writer import StoreWriter


def decode(path: Path) -> tuple[np.ndarray, float]:
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        images = [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]
        return np.array(images), float(stream.average_rate)


def brightness_store(path: Path, shape: tuple[int, ...], lengths: list[int]) -> Store:
    """Images of one shade each: 10 times the number of the observation."""
    schema = schema_of((Field("screen", "uint8", shape),))
    _, episodes = write_store(path.with_name("made"), schema, lengths)
    with StoreWriter(path, schema, block=8) as writer:
        for episode in episodes:
            shades = 10 * np.arange(episode.length + 1, dtype=np.uint8)
            episode.columns["obs:screen"] = np.broadcast_to(
                shades.reshape(-1, *[1] * len(shape)), (len(shades), *shape)
            ).copy()
            writer.add_episode(episode)
    return Store(path)


@pytest.mark.parametrize("shape", [(30, 40, 3), (31, 41, 1), (30, 40), (3, 30, 40)])
def test_every_observation_is_an_image(tmp_path: Path, shape: tuple[int, ...]) -> None:
    store = brightness_store(tmp_path / "store", shape, [10, 3])
    told: list[tuple[int, int]] = []
    done = export_episodes(
        store, np.arange(2), tmp_path / "x", Options(fps=8.75, scale=2), lambda d, t: told.append((d, t))
    )
    assert [file.name for file in done.files] == [f"{k:05d}-{1000 + k:016x}.mp4" for k in range(2)]
    assert told[-1] == (13, 13)
    for file, length in zip(done.files, (10, 3)):
        images, rate = decode(file)
        assert len(images) == length + 1
        assert rate == pytest.approx(8.75)
        assert images.shape[1] in (60, 62)
        assert images.shape[2] in (80, 82)
        shades = images.mean(axis=(1, 2, 3))
        assert np.abs(shades - 10 * np.arange(length + 1)).max() < 4


def test_small_images_are_enlarged(tmp_path: Path) -> None:
    store = brightness_store(tmp_path / "store", (36, 40, 3), [2])
    done = export_episodes(store, np.arange(1), tmp_path / "x", Options())
    assert decode(done.files[0])[0].shape[1] == 7 * 36


def test_what_cannot_be_shown(tmp_path: Path) -> None:
    fields = (Field("a", "uint8", (30, 40, 3)), Field("b", "uint8", (30, 40, 3)), Field("stack", "uint8", (30, 40, 4)))
    store, _ = write_store(tmp_path / "store", schema_of(fields), [2])
    for options, message in (
        (Options(), "images among the observations: a, b; one is needed"),
        (Options("stack"), "stack .* is no image"),
        (Options("c"), "no observation 'c'"),
        (Options("a", fps=0), "fps must be positive"),
    ):
        with pytest.raises(StoreError, match=message):
            export_episodes(store, np.arange(1), tmp_path / "x", options)
        assert not (tmp_path / "x").exists()
    assert len(export_episodes(store, np.arange(1), tmp_path / "x", Options("b")).files) == 1
