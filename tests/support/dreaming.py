"""A tiny world of latents for tests: a point on a line that actions move, and stores of its episodes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from rollmill.core.fields import ActionSpec, EnvSpec, Field
from rollmill.store.episode import Episode, EpisodeInfo
from rollmill.store.format.schema import StoreSchema
from rollmill.store.reader import Store
from rollmill.store.writer import StoreWriter
from rollmill.worldmodel.dynamics.model import Dynamics, Origin, Starts, build_dynamics, save_dynamics
from rollmill.worldmodel.dynamics.settings import DynamicsSettings
from rollmill.worldmodel.encoder.file import build_encoder, save_encoder

LATENT_SPEC = EnvSpec(
    "line",
    (Field("mean", "float32", (2,)), Field("std", "float32", (2,))),
    ActionSpec("discrete", nvec=(3,), start=(0,)),
)
EDGE, STRIDE, STD = 1.0, 0.25, 0.02


def line_episode(number: int, longest: int = 20, terminated: bool | None = None) -> Episode:
    """A random walk: z = (position, last move); reward 1 within half the edge, the episode ends beyond the edge."""
    rng = np.random.default_rng(number)
    position, move = rng.uniform(-0.5, 0.5), 0.0
    latents, actions, rewards = [(position, move)], [], []
    ended = False
    while len(actions) < longest and not ended:
        action = int(rng.integers(3))
        move = STRIDE * (action - 1)
        position += move
        actions.append(action)
        rewards.append(float(abs(position) < EDGE / 2))
        latents.append((position, move))
        ended = abs(position) > EDGE
    n = len(actions)
    columns = {
        "obs:mean": np.asarray(latents, np.float32),
        "obs:std": np.full((n + 1, 2), STD, np.float32),
        "action": np.asarray(actions, np.int64),
        "reward": np.asarray(rewards, np.float32),
        "version": np.zeros(n, np.int64),
        "global_step": np.arange(n),
    }
    return Episode(columns, EpisodeInfo(uid=number), ended, not ended)


def line_store(path: Path, episodes: int = 60) -> Path:
    with StoreWriter(path, StoreSchema.for_env(LATENT_SPEC, env_id="line")) as writer:
        for number in range(episodes):
            writer.add_episode(line_episode(number))
    return path


def poison_store(path: Path) -> Path:
    """A store with one NaN among its latents."""
    episode = line_episode(0)
    episode.columns["obs:mean"][2, 1] = np.nan
    with StoreWriter(path, StoreSchema.for_env(LATENT_SPEC, env_id="line")) as writer:
        writer.add_episode(episode)
    return path


def open_line(path: Path, episodes: int = 60) -> Store:
    return Store(line_store(path, episodes))


def line_model(seed: int = 0, **settings: object) -> Dynamics:
    """An untrained model of the line, with places for dreams to begin."""
    torch.manual_seed(seed)
    chosen = DynamicsSettings(**{"size": 8, "mixtures": 2, "context": 4, "heads": 2, **settings})  # type: ignore[arg-type]
    model = build_dynamics(chosen, Origin(LATENT_SPEC, "line", {}, 2)).eval().requires_grad_(False)
    model.starts = Starts(np.array([[0.0, 0.0], [0.5, 0.0]], np.float32), np.full((2, 2), 0.01, np.float32))
    return model


def corner_encoder(path: Path) -> Path:
    """An untrained encoder for ``toy_image``, whose latents tell the four images apart."""
    torch.manual_seed(0)
    encoder = build_encoder("vae", (36, 36, 3), size=4, channels=(8, 8))
    images = np.zeros((4, 36, 36, 3), np.uint8)
    for corner in range(4):
        top, left = divmod(corner, 2)
        images[corner, top * 18 : top * 18 + 18, left * 18 : left * 18 + 18] = 255
    with torch.no_grad():
        seen, _ = encoder.encode(torch.from_numpy(images))
        centre, spread = seen.mean(0), seen.std(0)
        linear = encoder.moments  # type: ignore[union-attr]
        linear.weight[:4] /= spread[:, None]  # type: ignore[index,operator]
        linear.bias[:4] = (linear.bias[:4] - centre) / spread  # type: ignore[index,operator]
    save_encoder(path, encoder, {})
    return path


def corner_model(path: Path, memory: str = "lstm") -> Path:
    """An untrained dynamics model for latents of ``corner_encoder``."""
    torch.manual_seed(0)
    fields = (Field("mean", "float32", (4,)), Field("std", "float32", (4,)))
    spec = EnvSpec("toy_image", fields, ActionSpec("discrete", nvec=(4,), start=(0,)))
    settings = DynamicsSettings(memory=memory, size=6, mixtures=2, heads=2)  # type: ignore[arg-type]
    model = Dynamics(settings, Origin(spec, "toy_image", {}, 4))
    model.starts = Starts(np.zeros((3, 4), np.float32), np.ones((3, 4), np.float32))
    save_dynamics(path, model, {})
    return path


def corner_latents(path: Path) -> Path:
    """Random latents of the shape that ``corner_encoder`` gives, to be looked up."""
    fields = (Field("mean", "float32", (4,)), Field("std", "float32", (4,)))
    spec = EnvSpec("toy_image", fields, ActionSpec("discrete", nvec=(4,), start=(0,)))
    rng = np.random.default_rng(0)
    with StoreWriter(path, StoreSchema.for_env(spec)) as writer:
        for number in range(4):
            columns = {
                "obs:mean": rng.normal(size=(21, 4)).astype(np.float32),
                "obs:std": np.full((21, 4), STD, np.float32),
                "action": rng.integers(0, 4, 20),
                "reward": rng.normal(size=20).astype(np.float32),
                "version": np.zeros(20, np.int64),
                "global_step": np.arange(20),
            }
            writer.add_episode(Episode(columns, EpisodeInfo(uid=number), True))
    return path
