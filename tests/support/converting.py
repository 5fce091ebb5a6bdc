"""Stores whose actions lie within their space, for exports that other programs read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from storing import make_episode

from rollmill.core.fields import ActionSpec, EnvSpec, Field
from rollmill.store.episode import Episode, EpisodeInfo
from rollmill.store.format.schema import Column, StoreSchema
from rollmill.store.reader import Store
from rollmill.store.writer import StoreWriter

IMAGES = (Field("image", "uint8", (36, 40, 3)), Field("vector", "float32", (2,)), Field("flags", "bool", (3,)))
DISCRETE = ActionSpec("discrete", nvec=(4,), start=(2,))


def schema_of(
    fields: tuple[Field, ...] = IMAGES,
    action: ActionSpec = DISCRETE,
    extra: tuple[Column, ...] = (),
    env: str = "toy",
) -> StoreSchema:
    return StoreSchema.for_env(EnvSpec(env, fields, action), extra=extra)


def sane_episode(schema: StoreSchema, steps: int, seed: int, **options: object) -> Episode:
    """Random values everywhere, actions within their space."""
    info = EpisodeInfo(uid=1000 + seed, seed=seed, policy="expert", first_step=0)
    episode = make_episode(schema, steps, seed, info, **options)  # type: ignore[arg-type]
    rng, spec = np.random.default_rng(seed), schema.env.action
    if spec.kind == "continuous":
        episode.columns["action"] = rng.normal(size=(steps, *spec.shape)).astype(np.float32) * 2
    elif spec.kind == "discrete":
        episode.columns["action"] = rng.integers(0, spec.nvec[0], steps)
    else:
        episode.columns["action"] = rng.integers(0, spec.nvec, (steps, len(spec.nvec)))
    return episode


def write_store(path: Path, schema: StoreSchema, lengths: list[int]) -> tuple[Store, list[Episode]]:
    """Episode k terminates if k is even, is truncated if k is odd; one with the number 5 has no end."""
    episodes = [sane_episode(schema, steps, k, terminated=k % 2 == 0) for k, steps in enumerate(lengths)]
    if len(episodes) > 5:
        episodes[5].terminated = episodes[5].truncated = False
    with StoreWriter(path, schema, block=8) as writer:
        for episode in episodes:
            writer.add_episode(episode)
    return Store(path), episodes


MANY_KINDS = (
    Column("value", "float64", per="obs"),
    Column("log_prob", "float32"),
    Column("half", "float16", (2, 2)),
    Column("big", "uint64"),
)


def smooth_store(path: Path, lengths: list[int], size: tuple[int, int] = (36, 40)) -> tuple[Store, list[Episode]]:
    """Images without noise, so that a video shows what they were; every frame has its own shade."""
    schema = schema_of((Field("image", "uint8", (*size, 3)), *IMAGES[1:]), extra=MANY_KINDS)
    _, episodes = write_store(path.with_name("made"), schema, lengths)
    with StoreWriter(path, schema, block=8) as writer:
        for k, episode in enumerate(episodes):
            shades = (40 * k + 5 * np.arange(episode.length + 1)) % 200
            ramp = shades[:, None, None, None] + np.arange(size[1])[None, None, :, None]
            episode.columns["obs:image"] = np.broadcast_to(ramp, (len(shades), *size, 3)).astype(np.uint8)
            writer.add_episode(episode)
    return Store(path), episodes
