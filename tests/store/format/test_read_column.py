"""The rewards of an episode are read alone where their blocks are large, and damage is found all the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from damaging import exchange, flip, only_shard, places, rewrite
from storing import make_episode, small_schema, write_episodes

from rollmill.core.errors import BadBlock, StoreError
from rollmill.core.fields import ActionSpec, EnvSpec, Field
from rollmill.store.cache import DecodedCache
from rollmill.store.care.recover import recover
from rollmill.store.care.verify import verify_store
from rollmill.store.episode import Episode
from rollmill.store.format.read_column import HEAD_BYTES
from rollmill.store.format.records import pack, split
from rollmill.store.format.schema import Column, StoreSchema
from rollmill.store.reader import COLUMN_READ_BYTES, Store
from rollmill.store.returns import sums_to
from rollmill.store.views import Windows
from rollmill.store.writer import StoreWriter

LENGTH = 37


def images(extra: tuple[Column, ...] = ()) -> StoreSchema:
    fields = (Field("image", "uint8", (24, 64, 3)),)
    spec = EnvSpec("toy", fields, ActionSpec("discrete", nvec=(3,), start=(0,)))
    return StoreSchema.for_env(spec, extra=extra)


def write(path: Path, schema: StoreSchema, rewards: np.ndarray | None = None) -> Episode:
    """One episode of noise in blocks of 8 steps, which are larger than ``COLUMN_READ_BYTES``."""
    episode = make_episode(schema, LENGTH, 3)
    if rewards is not None:
        episode.columns["reward"] = rewards.astype(np.float32)
    noise = np.random.default_rng(0).integers(0, 256, (LENGTH + 1, 24, 64, 3))
    episode.columns["obs:image"] = noise.astype(np.uint8)
    with StoreWriter(path, schema, block=8) as writer:
        writer.add_episode(episode)
    return episode


def whole_blocks_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    reads: list[int] = []
    real = Store._read_block
    monkeypatch.setattr(Store, "_read_block", lambda self, i, k: (reads.append(k), real(self, i, k))[1])
    return reads


def test_only_rewards_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    episode = write(tmp_path, images())
    assert min(length for _, _, length in places(only_shard(tmp_path))[3][:-2]) > COLUMN_READ_BYTES
    store = Store(tmp_path)
    reads = whole_blocks_read(store, monkeypatch)
    assert np.array_equal(store.rewards(0), episode.rewards)
    assert np.array_equal(store.rewards(-1), episode.rewards)
    assert reads == []
    Windows(store, 4).batch([9])
    assert reads == [1], "the window's own block"
    with pytest.raises(StoreError, match="no number 1"):
        store.rewards(1)


def test_small_blocks_are_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = write_episodes(tmp_path, small_schema(), [20, 3], block=8)
    store = Store(tmp_path)
    reads = whole_blocks_read(store, monkeypatch)
    for i, episode in enumerate(written):
        assert np.array_equal(store.rewards(i), episode.rewards)
    assert reads == [0, 1, 2, 0]


def test_rewards_that_are_no_numbers_are_read_alone_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rewards = np.arange(LENGTH, dtype=np.float32)
    rewards[5] = np.nan
    write(tmp_path, images(), rewards)
    store = Store(tmp_path)
    reads = whole_blocks_read(store, monkeypatch)
    assert np.array_equal(store.rewards(0), rewards, equal_nan=True)
    assert reads == []


def test_blocks_without_checksums_of_their_columns_are_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    episode = write(tmp_path, images())
    rewrite(only_shard(tmp_path), lambda number, payload: without_sums(payload))
    recover(tmp_path)
    assert verify_store(tmp_path, workers=1).good
    store = Store(tmp_path)
    reads = whole_blocks_read(store, monkeypatch)
    assert np.array_equal(store.rewards(0), episode.rewards)
    assert reads == [0, 1, 2, 3, 4]
    (_, offset, _) = places(only_shard(tmp_path))[3][1]
    flip(only_shard(tmp_path).path, offset + 5000, 1)
    with pytest.raises(BadBlock, match="checksum"):
        store.rewards(0)
    reads.clear()
    assert np.array_equal(Store(tmp_path, verify=False).rewards(0), episode.rewards)
    assert reads == [], "whoever wants no checks gets none"


def without_sums(payload: bytes) -> bytes:
    """A block as version 0.1 wrote it."""
    tag, header, data = split(payload)
    if "k" not in header:
        return payload
    del header["k"]
    return b"".join([*pack(tag, header), bytes(data)])


def test_a_map_that_is_longer_than_what_is_read_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    extra = tuple(Column(f"x{k}", "float32") for k in range(HEAD_BYTES // 2))
    episode = write(tmp_path, images(extra))
    store = Store(tmp_path)
    reads = whole_blocks_read(store, monkeypatch)
    assert np.array_equal(store.rewards(0), episode.rewards)
    assert reads == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("last", [None, 1e3, 1e6])
def test_damaged_rewards_are_found(tmp_path: Path, last: float | None) -> None:
    # With a last reward that is large, what happens to the small ones does not show in their sum.
    rewards = make_episode(images(), LENGTH, 3).rewards
    rewards[-1] = rewards[-1] if last is None else last
    write(tmp_path, images(), rewards)
    ref = only_shard(tmp_path)
    shard, store = ref.path.read_bytes(), Store(tmp_path)
    for k in (0, 2, 4):
        part = rewards[8 * k : 8 * (k + 1)].tobytes()
        (_, offset, length) = places(ref)[3][k]
        at = shard.index(part, offset, offset + length)
        for bit in range(8 * len(part)):
            flip(ref.path, at + bit // 8, bit % 8)
            with pytest.raises(BadBlock, match="checksum") as caught:
                store.rewards(0)
            assert caught.value.offset == offset
            flip(ref.path, at + bit // 8, bit % 8)
    assert np.array_equal(store.rewards(0), rewards)


def test_rewards_that_changed_places_are_found(tmp_path: Path) -> None:
    episode = write(tmp_path, images())
    ref = only_shard(tmp_path)
    shard, spans = ref.path.read_bytes(), []
    for k in (1, 2):
        part = episode.rewards[8 * k : 8 * (k + 1)].tobytes()
        at = shard.index(part, places(ref)[3][k][1])
        spans.append((at, at + len(part)))
    exchange(ref.path, *spans)  # a sum does not see the order
    with pytest.raises(BadBlock, match="checksum"):
        Store(tmp_path).rewards(0)


def test_every_damaged_bit_of_a_map_is_found_or_harmless(tmp_path: Path) -> None:
    episode = write(tmp_path, images())
    ref = only_shard(tmp_path)
    (_, offset, _) = places(ref)[3][1]
    found = 0
    for byte in range(offset + 12, offset + 12 + 90):
        for bit in range(8):
            flip(ref.path, byte, bit)
            try:
                rewards = Store(tmp_path).rewards(0)
            except BadBlock:
                found += 1
            else:
                assert np.array_equal(rewards, episode.rewards)
            flip(ref.path, byte, bit)
    assert found > 100


def test_damage_beside_the_rewards_does_not_matter(tmp_path: Path) -> None:
    episode = write(tmp_path, images())
    ref = only_shard(tmp_path)
    (_, offset, _) = places(ref)[3][1]
    flip(ref.path, offset + 5000, 1)
    store = Store(tmp_path)
    assert np.array_equal(store.rewards(0), episode.rewards)
    with pytest.raises(BadBlock):
        store.read(0, 8, 10, ["obs:image"])


def test_a_decoded_cache_has_them_too(tmp_path: Path) -> None:
    episode = write(tmp_path / "store", images())
    store = Store(tmp_path / "store")
    for number, columns in enumerate((["obs:image", "reward"], ["obs:image"])):
        cache = DecodedCache(store, tmp_path / f"cache{number}", columns=columns)
        assert np.array_equal(cache.rewards(0), episode.rewards)
        assert np.array_equal(cache.rewards(-1), episode.rewards)


def test_sums_are_compared_up_to_rounding() -> None:
    rewards = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    total = float(np.sum(rewards[::-1], dtype=np.float64))
    assert sums_to(rewards, total)
    assert not sums_to(rewards, total + 1e-4)
    assert not sums_to(rewards, np.nan)
    assert sums_to(np.zeros(0, np.float32), 0.0)
    assert sums_to(np.array([np.nan], np.float32), np.nan)
    assert sums_to(np.array([np.inf], np.float32), np.inf)
    for wrong in (np.inf, -np.inf, np.nan, 1e38):
        assert not sums_to(np.array([1, wrong], np.float32), 1.0)
