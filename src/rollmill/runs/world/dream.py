"""``rollmill world dream``: look into the model's dreams beside what really happened.

Row by row an episode of the store: what was seen (where the images are at hand), what the encoder makes of it, and
what the model dreams when it is shown the first steps and then goes on alone, with the same actions.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from rollmill.core.errors import ConfigError, StoreError
from rollmill.core.fields import Array
from rollmill.core.seeds import Seeds
from rollmill.reports.video.images import enlarge, framed, tiled
from rollmill.runs.settings.world import DreamVideo
from rollmill.store.convert.h264 import VideoFile
from rollmill.store.images import choose_image, read_images
from rollmill.store.reader import Store
from rollmill.worldmodel.dynamics.fit import MEAN, check_latents
from rollmill.worldmodel.dynamics.mixture import draw
from rollmill.worldmodel.dynamics.model import Dynamics, load_dynamics
from rollmill.worldmodel.encoder.file import ImageEncoder, load_encoder
from rollmill.worldmodel.own import NOBODY, Trust

SHOWN, ALONE = (52, 60, 72), (220, 120, 40)
"""Colours of an image's frame: what is or was really seen, and what the model dreams alone."""


def write_dream_video(
    encoded_store: Path,
    encoder_path: Path,
    dynamics_path: Path,
    out: Path,
    options: DreamVideo | None = None,
    raw_store: Path | None = None,
    trust: Trust = NOBODY,
) -> Path:
    """Write the video ``out``; ``raw_store`` holds the images that the latents were made from.

    ``trust``: code that the models' files may name.
    """
    options = options or DreamVideo()
    encoder, dynamics = load_encoder(encoder_path, trust=trust), load_dynamics(dynamics_path, trust=trust)
    with Store(encoded_store) as store:
        check_latents(store)
        sizes = (int(store.schema[MEAN].shape[0]), encoder.size, dynamics.latent_size)
        if len(set(sizes)) > 1:
            raise ConfigError(
                f"{encoded_store} holds latents of {sizes[0]} numbers, the encoder has {sizes[1]}, "
                f"the dynamics model {sizes[2]}: they do not belong together"
            )
        chosen = _choose(store, options)
        latents, dreams = zip(*(_dream(store, i, dynamics, options) for i in chosen), strict=True)
        columns = [_images(encoder, latents), _images(encoder, dreams)]
        if raw_store is not None:
            columns.insert(0, _real(raw_store, store, chosen, options))
    _write(out, columns, options)
    return out


def _choose(store: Store, options: DreamVideo) -> list[int]:
    """Choose the longest of some random episodes: short ones would stand still for most of the video."""
    rng = Seeds(options.seed).branch("film").generator()
    some = rng.permutation(len(store))[: 4 * options.episodes]
    if not len(some):
        raise StoreError(f"{store.path}: the store holds no finished episode")
    order = np.argsort(-np.asarray(store.table.length)[some], kind="stable")
    return [int(i) for i in some[order[: options.episodes]]]


def _shown(steps: int, options: DreamVideo) -> int:
    """Return how many real steps of an episode the model is shown."""
    return min(options.shown, max(1, steps // 2))


@torch.inference_mode()
def _dream(store: Store, i: int, dynamics: Dynamics, options: DreamVideo) -> tuple[Array, Array]:
    """Return latents ``[n + 1, Z]``: those of the episode, and those dreamt with its actions."""
    n = min(int(store.table.length[i]), options.steps)
    read = store.read(i, 0, n, [MEAN, "action"], next_obs=True)
    real, actions = torch.from_numpy(read[MEAN]), torch.from_numpy(read["action"])
    generator = torch.Generator().manual_seed(Seeds(options.seed).branch("dream", i).integer())
    memory, lane = dynamics.begin(1), torch.zeros(1, dtype=torch.int64)
    now, dreamt = real[:1], [real[:1]]
    for t in range(n):
        said = dynamics.predict(dynamics.read(now, actions[t : t + 1], memory, lane)).latent
        drawn = draw(said, options.temperature, generator)
        drawn = now + drawn if dynamics.settings.differences else drawn
        now = real[t + 1 : t + 2] if t + 1 < _shown(n, options) else drawn
        dreamt.append(now)
    return real.numpy(), torch.cat(dreamt).numpy()


@torch.inference_mode()
def _images(encoder: ImageEncoder, episodes: tuple[Array, ...]) -> list[Array]:
    return [encoder.decode(torch.from_numpy(latents)).numpy() for latents in episodes]


def _real(raw_store: Path, encoded: Store, chosen: list[int], options: DreamVideo) -> list[Array]:
    """Return the images of the same episodes, found by their names (uid)."""
    with Store(raw_store) as store:
        image = choose_image(store.schema, None)
        found = []
        for i in chosen:
            same = np.flatnonzero(store.table.uid == encoded.table.uid[i])
            if not len(same):
                raise StoreError(f"{raw_store}: does not hold episode {int(encoded.table.uid[i]):016x} of the latents")
            images = np.concatenate(list(read_images(store, int(same[0]), image)))
            found.append(images[: options.steps + 1])
        return found


def _write(out: Path, columns: list[list[Array]], options: DreamVideo) -> None:
    frames = max(len(images) for images in columns[-1])
    with VideoFile(out, options.fps) as video:
        for t in range(frames):
            video.add(_frame(columns, t, options))


def _frame(columns: list[list[Array]], t: int, options: DreamVideo) -> Array:
    """Return one image of the video, a row for each episode; those that have ended stand still."""
    cells = []
    for row in range(len(columns[0])):
        alone = t >= _shown(len(columns[-1][row]) - 1, options)
        for column in columns:
            large = enlarge(column[row][min(t, len(column[row]) - 1)], options.scale)
            cells.append(framed(large, ALONE if alone and column is columns[-1] else SHOWN))
    return tiled(cells, len(columns), gap=0)
