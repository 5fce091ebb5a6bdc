from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from storing import make_episode, same, small_schema, write_episodes

from rollmill.core.errors import ConfigError, StoreError
from rollmill.core.fields import Array
from rollmill.store.episode import Episode, EpisodeInfo
from rollmill.store.reader import Store
from rollmill.store.replay import ReplayBuffer

SCHEMA = small_schema()


def steps_of(episode: Episode) -> list[dict[str, Array]]:
    """Every transition by the plain definition."""
    found = []
    for t in range(len(episode)):
        row = {name: episode.column(name)[t] for name in (*SCHEMA.names, "terminated", "truncated")}
        row |= {f"next_{c.name}": episode.columns[c.name][t + 1] for c in SCHEMA.obs_columns}
        found.append(row)
    return found


def key(row: dict[str, Array]) -> bytes:
    return b"".join(np.asarray(row[name]).tobytes() for name in sorted(row))


def keys(batch: dict[str, Array]) -> list[bytes]:
    return [key({name: array[k] for name, array in batch.items()}) for k in range(len(batch["action"]))]


def tail(episodes: list[Episode], capacity: int) -> list[dict[str, Array]]:
    return [step for episode in episodes for step in steps_of(episode)][-capacity:]


@given(st.lists(st.integers(1, 12), min_size=1, max_size=12), st.integers(1, 30))
@settings(max_examples=60, deadline=None)
def test_the_newest_steps_are_held_and_sampled(lengths: list[int], capacity: int) -> None:
    buffer = ReplayBuffer(SCHEMA, capacity)
    episodes = []
    for k, n in enumerate(lengths):
        episodes.append(make_episode(SCHEMA, n, k, terminated=k % 2 == 0))
        buffer.add_episode(episodes[-1])
        expected = tail(episodes, capacity)
        assert len(buffer) == len(expected)
    assert buffer.added == sum(lengths)
    batch = buffer.sample(40 * capacity)
    assert set(keys(batch)) <= {key(step) for step in expected}
    if capacity <= 10:
        assert set(keys(batch)) == {key(step) for step in expected}, "each is drawn sooner or later"
    held = [step for segment in buffer.segments() for step in steps_of(segment)]
    assert [key(step) for step in held] == [key(step) for step in expected]


@given(st.lists(st.integers(1, 12), min_size=1, max_size=8), st.integers(1, 30), st.integers(1, 9))
@settings(max_examples=40, deadline=None)
def test_windows_stay_within_a_segment(lengths: list[int], capacity: int, length: int) -> None:
    buffer = ReplayBuffer(SCHEMA, capacity)
    for k, n in enumerate(lengths):
        buffer.add_episode(make_episode(SCHEMA, n, k))
    expected = set()
    names = [*SCHEMA.names, "terminated", "truncated"]
    for segment in buffer.segments():
        for start in range(len(segment)):
            window = {"mask": np.arange(length) < len(segment) - start}
            for name in names:
                rows = segment.column(name)[start : min(start + length, len(segment))]
                window[name] = np.concatenate([rows, np.zeros((length - len(rows), *rows.shape[1:]), rows.dtype)])
            expected.add(key(window))
    assert set(keys(buffer.sample_windows(200, length))) <= expected


def test_sampling_is_uniform_and_follows_the_seed() -> None:
    buffers = [ReplayBuffer(SCHEMA, 10, seed) for seed in (1, 1, 2)]
    for buffer in buffers:
        for k in range(4):
            buffer.add_episode(make_episode(SCHEMA, 4, k))
    first, same_seed, other_seed = (buffer.sample(5000)["reward"] for buffer in buffers)
    assert np.array_equal(first, same_seed)
    assert not np.array_equal(first, other_seed)
    _, counts = np.unique(first, return_counts=True)
    assert len(counts) == 10
    assert np.allclose(counts / 5000, 0.1, atol=0.03)


def test_a_segment_that_is_cut_knows_its_steps() -> None:
    buffer = ReplayBuffer(SCHEMA, 10)
    buffer.add_episode(make_episode(SCHEMA, 8, 0, EpisodeInfo(first_step=100, uid=0)))
    buffer.add_episode(make_episode(SCHEMA, 5, 1))
    assert [(len(s), s.info.first_step) for s in buffer.segments()] == [(5, 103), (5, 0)]
    buffer.add_episode(make_episode(SCHEMA, 25, 2))
    assert [(len(s), s.info.first_step) for s in buffer.segments()] == [(10, 15)]
    assert len(buffer) == 10


def test_memory_for_final_observations_is_used_again() -> None:
    buffer = ReplayBuffer(SCHEMA, 10)
    for k in range(200):
        buffer.add_episode(make_episode(SCHEMA, 1 + k % 3, k))
    assert len(buffer._finals["value"]) <= 16


def test_rows_may_be_numbers_and_are_copied() -> None:
    buffer = ReplayBuffer(SCHEMA, 10)
    episode = make_episode(SCHEMA, 3)
    rows = {name: array[:3].copy() for name, array in episode.columns.items()}
    rows |= {"version": 7, "reward": 0.5}  # type: ignore[dict-item]
    buffer.add(rows, final={c.name: episode.columns[c.name][3] for c in SCHEMA.obs_columns})
    rows["obs:image"][:] = 0
    (segment,) = buffer.segments()
    assert segment.versions.tolist() == [7] * 3
    assert segment.rewards.tolist() == [0.5] * 3
    assert np.array_equal(segment.obs["image"], episode.obs["image"])


@pytest.mark.parametrize("capacity", [1000, 33, 1])
def test_a_saved_buffer_comes_back(tmp_path: Path, capacity: int) -> None:
    buffer = ReplayBuffer(SCHEMA, capacity, seed=3)
    for k, n in enumerate([8, 20, 7, 7]):
        info = EpisodeInfo(uid=min(k, 2), policy="p", seed=k)  # two pieces of one episode
        buffer.add_episode(make_episode(SCHEMA, n, k, info, terminated=k != 2))
    buffer.save(tmp_path / "saved")
    assert [p.name for p in tmp_path.iterdir()] == ["saved"]
    assert len(Store(tmp_path / "saved")) == len(list(buffer.segments()))
    loaded = ReplayBuffer.load(tmp_path / "saved", capacity, seed=3)
    assert len(loaded) == len(buffer)
    for one, other in zip(loaded.segments(), buffer.segments(), strict=True):
        assert same(one, other)
        assert (one.terminated, one.truncated, one.stats) == (other.terminated, other.truncated, other.stats)
        assert (one.info.first_step, one.info.policy, one.info.seed) == (
            other.info.first_step,
            other.info.policy,
            other.info.seed,
        )
    assert ReplayBuffer.load(tmp_path / "saved").capacity == len(buffer)


def test_the_last_steps_of_any_store_can_be_loaded(tmp_path: Path) -> None:
    episodes = write_episodes(tmp_path, SCHEMA, [5, 6, 7, 8])
    buffer = ReplayBuffer.load(tmp_path, 12)
    assert [key(step) for s in buffer.segments() for step in steps_of(s)] == [key(step) for step in tail(episodes, 12)]


def test_an_empty_buffer(tmp_path: Path) -> None:
    buffer = ReplayBuffer(SCHEMA, 5)
    assert len(buffer) == 0
    for draw in (lambda: buffer.sample(1), lambda: buffer.sample_windows(1, 2)):
        with pytest.raises(StoreError, match="the replay buffer is empty"):
            draw()
    buffer.save(tmp_path / "empty")
    assert len(ReplayBuffer.load(tmp_path / "empty")) == 0


def test_wrong_use_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="capacity 0"):
        ReplayBuffer(SCHEMA, 0)
    buffer = ReplayBuffer(SCHEMA, 5)
    episode = make_episode(SCHEMA, 3)
    buffer.add_episode(episode)
    rows = {name: array[:3] for name, array in episode.columns.items()}
    final = {c.name: episode.columns[c.name][3] for c in SCHEMA.obs_columns}
    with pytest.raises(StoreError, match="rows need the column 'reward'"):
        buffer.add({name: array for name, array in rows.items() if name != "reward"}, final=final)
    with pytest.raises(StoreError, match="final observation needs the column 'obs:image'"):
        buffer.add(rows, final={})
    with pytest.raises(StoreError, match="at least one step"):
        buffer.add({name: array[:0] for name, array in rows.items()}, final=final)
    with pytest.raises(ConfigError, match="windows of 0 steps"):
        buffer.sample_windows(1, 0)
    assert len(buffer) == 3
    (tmp_path / "taken").mkdir()
    with pytest.raises(StoreError, match="exists already"):
        buffer.save(tmp_path / "taken")
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be created"):
        buffer.save(tmp_path / "file" / "below")


def test_what_appears_while_saving_is_not_replaced(tmp_path: Path) -> None:
    class Slow(ReplayBuffer):
        def segments(self) -> Iterator[Episode]:
            (tmp_path / "saved").mkdir()
            (tmp_path / "saved" / "precious").write_text("")
            return super().segments()

    buffer = Slow(SCHEMA, 5)
    buffer.add_episode(make_episode(SCHEMA, 3))
    with pytest.raises(StoreError, match="cannot be saved as"):
        buffer.save(tmp_path / "saved")
    assert [str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*")] == ["saved", "saved/precious"]


def test_transitions_of_several_steps_add_up_to_the_end_of_their_segment() -> None:
    buffer = ReplayBuffer(SCHEMA, 30)
    episodes = [make_episode(SCHEMA, n, k, terminated=k == 1) for k, n in enumerate((7, 2, 5))]
    for episode in episodes:
        buffer.add_episode(episode)
    steps, gamma = 3, 0.5
    expected = {}
    for episode in episodes:
        rows = steps_of(episode)
        for t in range(len(rows)):
            part = rows[t : t + steps]
            total = sum(np.float32(gamma**k) * row["reward"] for k, row in enumerate(part))
            discount = 0.0 if part[-1]["terminated"] else gamma ** len(part)
            observed = {f"next_{c.name}": part[-1][f"next_{c.name}"] for c in SCHEMA.obs_columns}
            expected[rows[t]["reward"].tobytes()] = (total, discount, observed)
    batch = buffer.sample_n_step(500, steps, gamma)
    plain = ReplayBuffer(SCHEMA, 30)  # the same draws, one step each, tell where each transition begins
    for episode in episodes:
        plain.add_episode(episode)
    starts = plain.sample(500)
    for k in range(500):
        total, discount, observed = expected[starts["reward"][k].tobytes()]
        assert batch["reward"][k] == pytest.approx(total, rel=1e-6)
        assert batch["discount"][k] == np.float32(discount)
        assert all(np.array_equal(batch[name][k], value) for name, value in observed.items())
    with pytest.raises(ConfigError, match="transitions of 0 steps"):
        buffer.sample_n_step(1, 0, gamma)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=12), st.integers(1, 30), st.integers(1, 30))
@settings(max_examples=40, deadline=None)
def test_a_state_brings_back_contents_and_the_samples_to_come(lengths: list[int], capacity: int, other: int) -> None:
    buffer = ReplayBuffer(SCHEMA, capacity, seed=1)
    for k, n in enumerate(lengths):
        buffer.add_episode(make_episode(SCHEMA, n, k, terminated=k % 2 == 0))
    buffer.sample(3)
    twin = ReplayBuffer(SCHEMA, capacity, seed=2)
    twin.add_episode(make_episode(SCHEMA, 5, 99))
    twin.load_state(buffer.state())
    assert keys(buffer.sample(50)) == keys(twin.sample(50))
    for one in (buffer, twin):  # and both go on alike
        one.add_episode(make_episode(SCHEMA, 4, 50))
    assert keys(buffer.sample(50)) == keys(twin.sample(50))
    smaller = ReplayBuffer(SCHEMA, other)
    smaller.load_state(buffer.state())
    held = [key(step) for segment in buffer.segments() for step in steps_of(segment)]
    kept = [key(step) for segment in smaller.segments() for step in steps_of(segment)]
    assert kept == held[-other:]


def test_a_capacity_that_no_memory_holds() -> None:
    with pytest.raises(ConfigError, match=r"no memory for a capacity of 1,000,000,000,000,000 steps"):
        ReplayBuffer(SCHEMA, 10**15)
