"""Whatever is written comes back: any columns, episodes, block lengths, chunks and shard sizes."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from storing import by_uid, make_episode, same

from rollmill.core.fields import ActionSpec, EnvSpec, Field
from rollmill.store.episode import Episode, EpisodeInfo
from rollmill.store.format.schema import Column, StoreSchema
from rollmill.store.reader import Store
from rollmill.store.writer import StoreWriter

DTYPES = ["bool", "uint8", "int16", "uint64", "float16", "float32", "float64"]
SHAPES = st.sampled_from([(), (1,), (3,), (4, 4, 3), (2, 0)])
ACTIONS = [
    ActionSpec("discrete", nvec=(3,), start=(1,)),
    ActionSpec("multi_discrete", nvec=(3, 2), start=(0, 0)),
    ActionSpec("continuous", shape=(2,), low=(-1.0, -np.inf), high=(1.0, np.inf)),
]


@st.composite
def schemas(draw: st.DrawFn) -> StoreSchema:
    fields = [Field(f"f{k}", draw(st.sampled_from(DTYPES)), draw(SHAPES)) for k in range(draw(st.integers(1, 3)))]
    codecs = st.sampled_from(["auto", "raw", "zstd:3", "shuffle:1"])
    extra = [
        Column(
            f"x{k}", draw(st.sampled_from(DTYPES)), draw(SHAPES), draw(st.sampled_from(["obs", "step"])), draw(codecs)
        )
        for k in range(draw(st.integers(0, 2)))
    ]
    return StoreSchema.for_env(EnvSpec("any", tuple(fields), draw(st.sampled_from(ACTIONS))), extra=extra)


def write_interleaved(writer: StoreWriter, episodes: list[Episode], rng: np.random.Generator, lanes: int) -> None:
    """Several episodes at a time, in chunks of random length."""
    waiting, at = list(range(len(episodes))), {}
    while waiting or at:
        while waiting and len(at) < lanes:
            k = waiting.pop(0)
            writer.begin(k, episodes[k].info)
            at[k] = 0
        k = int(rng.choice(list(at)))
        episode = episodes[k]
        count = min(int(rng.integers(0, 9)), episode.length - at[k])
        rows = slice(at[k], at[k] + count)
        writer.append(k, {name: array[: episode.length][rows] for name, array in episode.columns.items()})
        at[k] += count
        if at[k] == episode.length:
            final = {c.name: episode.columns[c.name][-1] for c in writer.schema.obs_columns}
            writer.end(k, final=final, terminated=episode.terminated, truncated=episode.truncated, stats=episode.stats)
            del at[k]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_any_episodes_come_back(data: st.DataObject) -> None:
    schema = data.draw(schemas())
    lengths = data.draw(st.lists(st.integers(1, 40), max_size=6))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    options = {
        "block": data.draw(st.sampled_from([0, 1, 2, 5, 16])),
        "shard_bytes": data.draw(st.sampled_from([1, 3000, 1 << 20])),
        "sync": data.draw(st.sampled_from(["episode", "seal"])),
    }
    written = [
        make_episode(schema, n, k, EpisodeInfo(uid=k, first_step=k % 2 * 7, seed=k or None), terminated=k % 3 > 0)
        for k, n in enumerate(lengths)
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        with StoreWriter(path, schema, **options) as writer:  # type: ignore[arg-type]
            write_interleaved(writer, written, rng, lanes=data.draw(st.integers(1, 4)))
        store = Store(path, max_files=2, cache_bytes=data.draw(st.sampled_from([0, 2000, 1 << 20])))
        assert store.problems == []
        numbers = by_uid(store)
        assert sorted(numbers) == list(range(len(written)))
        for k, episode in enumerate(written):
            check_episode(store, numbers[k], episode, rng)


def check_episode(store: Store, i: int, written: Episode, rng: np.random.Generator) -> None:
    read = store.episode(i)
    assert same(read, written)
    assert (read.info.first_step, read.info.seed) == (written.info.first_step, written.info.seed)
    end = store.end_record(i)
    assert (end.length, end.return_) == (written.length, written.return_)
    assert (end.terminated, end.truncated) == (written.terminated, written.truncated)
    assert end.stats == written.stats
    for name in ("step", "terminated", "truncated"):
        assert np.array_equal(store.read(i, 0, written.length, [name])[name], written.column(name))
    for _ in range(4):
        start, stop = sorted(rng.integers(0, written.length + 1, 2))
        extra = int(rng.integers(0, 2))
        columns = rng.permutation(store.schema.names)[: rng.integers(1, 5)].tolist()
        for name, array in store.read(i, start, stop, columns, next_obs=bool(extra)).items():
            until = stop + extra * (store.schema[name].per == "obs")
            assert array.tobytes() == written.columns[name][start:until].tobytes()
