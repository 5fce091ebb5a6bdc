"""Shared by tests of image encoders: stores of small images, tiny encoders, and ways to die while encoding."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rollmill.core.fields import ActionSpec, EnvSpec, Field
from rollmill.store.episode import Episode, EpisodeInfo
from rollmill.store.format.schema import StoreSchema
from rollmill.store.reader import Store
from rollmill.store.writer import StoreWriter

SHAPE = (16, 16, 3)
TINY = {"size": 4, "channels": (4, 8)}
POINTS = ("writing", "linked", "indexed")
"""Where an instance can be killed: before its shard is public, before its index is, before its mark is."""


def image_schema(shape: tuple[int, int, int] = SHAPE) -> StoreSchema:
    fields = (Field("image", "uint8", shape), Field("speed", "float32", (1,)))
    return StoreSchema.for_env(EnvSpec("squares", fields, ActionSpec("discrete", nvec=(3,), start=(0,))))


def image_episode(uid: int, steps: int, shape: tuple[int, int, int] = SHAPE) -> Episode:
    """A bright square that moves over a dark ground."""
    rng = np.random.default_rng(uid)
    images = np.full((steps + 1, *shape), 30, np.uint8)
    row, column = rng.integers(0, shape[0] - 4), rng.integers(0, shape[1] - 4)
    for t in range(steps + 1):
        left = (column + t) % (shape[1] - 4)
        images[t, row : row + 4, left : left + 4] = 200
    columns: dict[str, Any] = {
        "obs:image": images,
        "obs:speed": rng.random((steps + 1, 1), np.float32),
        "action": rng.integers(0, 3, steps),
        "reward": rng.random(steps, np.float32),
        "global_step": np.arange(steps),
        "version": np.zeros(steps, np.int64),
    }
    return Episode(columns, EpisodeInfo(uid=uid, seed=100 + uid), uid % 2 == 0, uid % 2 == 1, {"laps": uid})


def image_store(path: Path, episodes: int, steps: int = 5, **options: Any) -> Path:
    """Episode k has ``steps + k % 3`` steps and uid k + 1."""
    with StoreWriter(path, image_schema(), sync="seal", **options) as writer:
        for k in range(episodes):
            writer.add_episode(image_episode(k + 1, steps + k % 3))
    return path


def two_eyes(path: Path) -> Path:
    """A store whose observation has two images."""
    fields = (Field("left", "uint8", SHAPE), Field("right", "uint8", SHAPE))
    schema = StoreSchema.for_env(EnvSpec("eyes", fields, ActionSpec("discrete", nvec=(3,), start=(0,))))
    with StoreWriter(path, schema, sync="seal", shard_bytes=1) as writer:
        for uid in (1, 2):
            one = image_episode(uid, 4)
            columns = {name: one.columns[name] for name in ("action", "reward", "global_step", "version")}
            eyes = {"obs:left": one.columns["obs:image"], "obs:right": one.columns["obs:image"][::-1].copy()}
            writer.add_episode(replace(one, columns={**eyes, **columns}))
    return path


def tiny_encoder(path: Path, seed: int = 0, shape: tuple[int, int, int] = SHAPE) -> Path:
    """The file of an untrained encoder."""
    import torch

    from rollmill.worldmodel.encoder.file import build_encoder, save_encoder

    torch.manual_seed(seed)
    save_encoder(path, build_encoder("vae", shape, **TINY), {"made": "for a test"})
    return path


def contents(path: Path) -> dict[int, Episode]:
    """All episodes by uid; none is there twice and nothing is damaged."""
    with Store(path) as store:
        assert not store.problems
        uids = store.table.uid.tolist()
        assert len(set(uids)) == len(uids)
        return {uid: store.episode(i) for i, uid in enumerate(uids)}


def same_contents(one: dict[int, Episode], two: dict[int, Episode]) -> bool:
    """Equal down to the last bit, seeds, ends and statistics included."""
    return one.keys() == two.keys() and all(
        a.columns.keys() == b.columns.keys()
        and all(a.columns[name].tobytes() == b.columns[name].tobytes() for name in a.columns)
        and (a.info, a.terminated, a.truncated, a.stats) == (b.info, b.terminated, b.truncated, b.stats)
        for a, b in ((one[uid], two[uid]) for uid in one)
    )


def damage_images(store: Path, number: int) -> str:
    """Flip a bit in the first block of a shard; returns the shard's name."""
    from damaging import flip, places

    from rollmill.store.format.shards import list_shards

    ref = list_shards(store)[number]
    _, offset, _ = next(iter(places(ref).values()))[0]
    flip(ref.path, offset + 40)
    return ref.name


def die_while_encoding(store: Path, encoder: Path, out: Path, point: str, after: int = 2) -> None:
    """Encode, a file for each shard, and be killed at ``point`` of the one number ``after``."""
    from rollmill.runs.world import encode as world_encode
    from rollmill.store.format.shards import shard_path

    publish, seen = world_encode._Job._publish, 0

    def dies(self: Any, work: Path, shard: str) -> None:
        nonlocal seen
        seen += 1
        if seen <= after:
            publish(self, work, shard)
            return
        if point == "linked":
            os.link(shard_path(work, shard, True), shard_path(self.out, shard, True))
        elif point == "indexed":
            publish(self, work, shard)
        os.kill(os.getpid(), signal.SIGKILL)

    world_encode._Job._publish = dies  # type: ignore[method-assign]
    world_encode.encode_store(world_encode.EncodeOptions(store, encoder, out, shard_bytes=1))


def main() -> None:
    """For a process of its own: forks for each point, and four that work together; torch is imported once."""
    store, encoder, folder = map(Path, sys.argv[1:])
    from rollmill.runs.world.encode import EncodeOptions, encode_store

    for point in POINTS:
        child = os.fork()
        if child == 0:
            die_while_encoding(store, encoder, folder / point, point)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), f"{point}: was not killed"
        assert os.WTERMSIG(status) == signal.SIGKILL, point
    children = []
    for number in range(4):
        child = os.fork()
        if child == 0:
            outcome = encode_store(EncodeOptions(store, encoder, folder / "together", shard_bytes=1))
            (folder / f"together-{number}.json").write_text(json.dumps(outcome.to_dict()))
            os._exit(0)
        children.append(child)
    assert all(os.waitpid(child, 0)[1] == 0 for child in children)


if __name__ == "__main__":
    main()
