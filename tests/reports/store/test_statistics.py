from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from storing import make_episode, small_schema, write_episodes

from rollmill.core.errors import ConfigError
from rollmill.core.fields import ActionSpec, EnvSpec, Field
from rollmill.reports.store.contents import ActionCounts, find_duplicates, look_inside
from rollmill.reports.store.histograms import DISTINCT, GrowingHistogram, histogram
from rollmill.reports.store.statistics import (
    arrow_of_time,
    average_ranks,
    describe,
    rank_correlation,
    spread,
    spread_evenly,
)
from rollmill.store.derive.derivation import open_quietly
from rollmill.store.episode import Episode, EpisodeInfo
from rollmill.store.format.schema import StoreSchema
from rollmill.store.reader import Store
from rollmill.store.writer import StoreWriter

SCHEMA = small_schema()
LENGTHS = [5, 17, 40, 3, 9, 30]


def choices_schema() -> StoreSchema:
    spec = EnvSpec("steps", (Field("x", "uint8", (2,)),), ActionSpec("multi_discrete", nvec=(3, 2), start=(1, 0)))
    return StoreSchema.for_env(spec)


def vector_episode(schema: StoreSchema, steps: int, k: int, **changes: object) -> Episode:
    """Episode k of a policy that gets better: reward k at every step."""
    rng = np.random.default_rng(k)
    columns = {
        "obs:x": rng.integers(0, 9, (steps + 1, 2)).astype(np.uint8),
        "action": np.stack([rng.integers(0, 3, steps), rng.integers(0, 2, steps)], 1),
        "reward": np.full(steps, k, np.float32),
        "global_step": 100 * k + 4 * np.arange(steps),
        "version": np.full(steps, k),
        **changes,
    }
    return Episode(columns, EpisodeInfo(uid=k, worker=k % 2, policy="p"), terminated=True)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------- histograms


def test_a_histogram_counts_every_finite_value_once() -> None:
    values = np.array([0.5, 0.25, 2.0, 2.0, np.nan, np.inf])
    found = histogram(values, bins=4)
    assert sum(found["counts"]) == 4
    assert len(found["edges"]) == len(found["counts"]) + 1
    assert histogram(np.array([]))["counts"] == []


def test_bins_of_whole_numbers_hold_equally_many() -> None:
    found = histogram(np.arange(100), bins=40)
    assert set(found["counts"][:-1]) == {3}
    assert sum(found["counts"]) == 100
    assert histogram(np.array([7, 7]))["edges"] == [6.5, 7.5]


@given(st.lists(st.floats(-1e6, 1e6) | st.sampled_from([1.0, 1.0 + 1e-12, np.nan, 1e-300]), min_size=1, max_size=60))
def test_a_growing_histogram_agrees_with_plain_metrics(values: list[float]) -> None:
    grown = GrowingHistogram(bins=8)
    for part in np.array_split(np.array(values), 5):
        grown.add(part)
    found = grown.metrics()
    finite = np.array([v for v in values if np.isfinite(v)])
    assert found["non_finite"] == len(values) - len(finite)
    assert sum(found["counts"]) == found["count"] == len(finite)
    if len(finite):
        assert np.isclose(found["mean"], finite.mean(), atol=1e-9)
        assert np.isclose(found["std"], finite.std(), rtol=1e-6, atol=1e-6)
        assert (found["min"], found["max"]) == (finite.min(), finite.max())
        edges = np.array(found["edges"])
        # rounding at an edge may move a value to the neighbour, never farther
        near = 1e-6 * np.diff(edges).min()
        below = np.cumsum(found["counts"])
        assert edges[0] <= finite.min() + near
        assert (below >= [(finite < edge - near).sum() for edge in edges[1:]]).all()
        assert (below <= [(finite < edge + near).sum() for edge in edges[1:]]).all()
    json.dumps(found, allow_nan=False)


def test_few_different_values_are_counted_one_by_one() -> None:
    grown = GrowingHistogram()
    grown.add(np.array([1.0, 0.0, 1.0]))
    assert grown.metrics()["distinct"] == [[0.0, 1], [1.0, 2]]
    grown.add(np.arange(DISTINCT + 1))
    assert grown.metrics()["distinct"] is None


def test_values_too_large_for_bins_are_counted_apart() -> None:
    grown = GrowingHistogram()
    grown.add(np.array([1e308, -1e308, 2.0]))
    assert (grown.count, grown.non_finite) == (1, 2)


# ------------------------------------------------------------------------------------------- metrics of the table


def test_metrics_are_those_of_plain_loops(tmp_path: Path) -> None:
    episodes = write_episodes(tmp_path, SCHEMA, LENGTHS, block=8, shard_bytes=6000)
    store = Store(tmp_path)
    found = describe(store)
    assert found["rows"] == {"steps": 104, "observations": 110, "raw_row_bytes": SCHEMA.row_bytes}
    assert found["episodes"]["total"] == found["episodes"]["whole"] == 6
    assert found["lengths"]["mean"] == np.mean(LENGTHS)
    assert found["lengths"]["max"] == 40
    returns = [episode.rewards.sum(dtype=np.float64) for episode in episodes]
    assert np.isclose(found["returns"]["mean"], np.mean(returns))
    assert np.isclose(found["returns"]["median"], np.median(returns))
    assert sum(found["returns"]["counts"]) == 6
    rewards = np.concatenate([episode.rewards for episode in episodes])
    assert found["rewards"]["count"] == 104
    assert np.isclose(found["rewards"]["std"], rewards.std(dtype=np.float64))
    assert found["shards"][0]["episodes"] + found["shards"][1]["episodes"] <= 6
    assert sum(shard["steps"] for shard in found["shards"]) == 104
    assert found["problems"] == []
    assert found["looked_at"] == {"episodes": 6, "of": 6, "read": 6}
    json.dumps(found, allow_nan=False)


def test_ends_and_partial_episodes(tmp_path: Path) -> None:
    with StoreWriter(tmp_path, SCHEMA) as writer:
        for k in range(6):
            episode = make_episode(SCHEMA, 4 + k, k, EpisodeInfo(uid=k, first_step=3 if k == 4 else 0), k < 3)
            if k == 5:
                episode.terminated = episode.truncated = False
            writer.add_episode(episode)
    found = describe(Store(tmp_path))
    assert found["ends"] == {"terminated": 3, "truncated": 2, "both": 0, "partial": 1}
    wanted = {"total": 6, "whole": 4, "partial": 2, "partial_start": 1, "partial_end": 1, "unfinished": 0}
    assert found["episodes"] == wanted
    assert found["lengths"]["count"] == 4
    assert found["lengths"]["max"] == 7


def test_unfinished_episodes_are_counted(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path, SCHEMA, block=2)
    writer.add_episode(make_episode(SCHEMA, 4))
    episode = make_episode(SCHEMA, 6, 1)
    writer.begin("lane")
    writer.append("lane", {name: array[:6] for name, array in episode.columns.items()})
    store = open_quietly(tmp_path)
    assert describe(store)["episodes"]["unfinished"] == 1
    writer.discard("lane")
    writer.close()


def test_an_empty_store_has_metrics_too(tmp_path: Path) -> None:
    StoreWriter(tmp_path, SCHEMA).close()
    found = describe(Store(tmp_path))
    assert found["returns"]["mean"] is None
    assert found["arrow_of_time"]["verdict"] == "unknown"
    json.dumps(found, allow_nan=False)


def test_bytes_of_columns(tmp_path: Path) -> None:
    write_episodes(tmp_path, SCHEMA, LENGTHS, block=8)
    store = Store(tmp_path)
    columns = {column["name"]: column for column in describe(store)["columns"]}
    assert columns["obs:image"]["rows"] == 110
    assert columns["obs:image"]["raw"] == 110 * 36
    assert columns["reward"]["raw"] == 104 * 4
    assert columns["value"]["rows"] == 110
    stored = sum(column["stored"] for column in columns.values())
    # the rest are frames, names of records and end records
    assert 0.5 * store.table["bytes"].sum() < stored < store.table["bytes"].sum()


def test_versions_and_groups(tmp_path: Path) -> None:
    schema = choices_schema()
    with StoreWriter(tmp_path, schema) as writer:
        for k in range(50):
            writer.add_episode(vector_episode(schema, 4, k))
    found = describe(Store(tmp_path))
    versions = found["versions"]
    assert len(versions) == 40
    assert sum(row["episodes"] for row in versions) == 50
    assert sum(row["steps"] for row in versions) == 200
    assert [row["version_min"] for row in versions][1:] == [row["version_max"] + 1 for row in versions][:-1]
    assert versions[0]["return_mean"] == np.mean([4 * k for k in range(versions[0]["version_max"] + 1)])
    workers = found["groups"]["worker"]["rows"]
    assert [(row["name"], row["episodes"]) for row in workers] == [(0, 25), (1, 25)]
    assert workers[0]["return_mean"] == np.mean([4 * k for k in range(0, 50, 2)])
    assert np.isclose(workers[0]["apart"], -workers[1]["apart"])
    assert found["groups"]["policy"] == {"total": 1, "rows": found["groups"]["policy"]["rows"]}


def test_a_worker_that_differs_stands_apart(tmp_path: Path) -> None:
    schema = choices_schema()
    with StoreWriter(tmp_path, schema) as writer:
        for k in range(40):
            reward = np.full(4, k % 4 + (20 if k % 2 else 0), np.float32)
            writer.add_episode(vector_episode(schema, 4, k, reward=reward))
    rows = describe(Store(tmp_path))["groups"]["worker"]["rows"]
    assert rows[1]["apart"] > 4


# ------------------------------------------------------------------------------------------- the arrow of time


@given(st.lists(st.integers(0, 5), min_size=1, max_size=12))
def test_ranks_share_their_mean(values: list[int]) -> None:
    def plain(value: int) -> float:
        below = sum(other < value for other in values)
        return below + (values.count(value) - 1) / 2

    assert average_ranks(np.array(values)).tolist() == [plain(value) for value in values]


def test_rank_correlation() -> None:
    up = np.arange(50)
    assert rank_correlation(up, np.exp(up / 5.0)) == pytest.approx(1.0)
    assert rank_correlation(up, -up) == pytest.approx(-1.0)
    assert rank_correlation(up, np.ones(50)) is None
    # without ties: 1 - 6 sum(d^2) / (n (n^2 - 1))
    rng = np.random.default_rng(3)
    other = rng.permutation(50)
    assert rank_correlation(up, other) == pytest.approx(1 - 6 * ((up - other) ** 2).sum() / (50 * (50**2 - 1)))


@pytest.mark.parametrize(("slope", "verdict"), [(1.0, "rising"), (-1.0, "falling"), (0.0, "flat")])
def test_the_verdict_on_the_arrow_of_time(slope: float, verdict: str) -> None:
    steps = np.arange(200) * 1000
    returns = slope * steps / 1e5 + np.random.default_rng(1).normal(size=200)
    found = arrow_of_time(steps, returns)
    assert found["verdict"] == verdict
    assert f"{found['rank_correlation']:+.2f}" in found["reason"]
    assert (found["last_tenth"] > found["first_tenth"]) == (slope > 0) or slope == 0
    assert sum(one["episodes"] for one in found["bins"]) == 200


def test_no_verdict_without_enough_to_tell() -> None:
    assert arrow_of_time(np.arange(10), np.arange(10.0))["verdict"] == "unknown"
    assert "too few" in arrow_of_time(np.arange(10), np.arange(10.0))["reason"]
    assert "equal" in arrow_of_time(np.arange(100), np.ones(100))["reason"]
    assert arrow_of_time(np.arange(100), np.full(100, np.nan))["episodes"] == 0


def test_points_and_bins_stay_few() -> None:
    found = arrow_of_time(np.arange(100_000), np.random.default_rng(0).normal(size=100_000))
    assert len(found["points"]) <= 1500
    assert len(found["bins"]) <= 40
    assert found["points"][-1][0] == 99_999


def test_rows_that_go_back_in_time_are_counted(tmp_path: Path) -> None:
    schema = choices_schema()
    with StoreWriter(tmp_path, schema) as writer:
        writer.add_episode(vector_episode(schema, 4, 1))
        writer.add_episode(vector_episode(schema, 4, 2, global_step=np.array([4, 8, 7, 9])))
        writer.add_episode(vector_episode(schema, 4, 3, version=np.array([4, 4, 3, 4])))
    assert describe(Store(tmp_path))["order"] == {"episodes": 3, "step_goes_back": 1, "version_goes_back": 1}


# ------------------------------------------------------------------------------------------- actions


def test_choices_are_counted_per_component(tmp_path: Path) -> None:
    schema = choices_schema()
    episodes = [vector_episode(schema, 30, k) for k in range(5)]
    with StoreWriter(tmp_path, schema, block=8) as writer:
        for episode in episodes:
            writer.add_episode(episode)
    found = describe(Store(tmp_path))["actions"]
    actions = np.concatenate([episode.actions for episode in episodes])
    assert (found["kind"], found["rows"]) == ("multi_discrete", 150)
    for k, n in enumerate((3, 2)):
        assert found["components"][k]["counts"] == [int((actions[:, k] == choice).sum()) for choice in range(n)]
    assert found["components"][0]["start"] == 1


def test_actions_outside_their_space_are_counted() -> None:
    counts = ActionCounts(ActionSpec("discrete", nvec=(3,), start=(0,)), (), floats=False)
    counts.add(np.array([0, 2, 2, 7, -1]))
    (part,) = counts.metrics()["components"]
    assert part["counts"] == [1, 0, 2]
    assert (part["other"], part["never"]) == (2, 1)


def test_choices_of_an_unknown_space() -> None:
    counts = ActionCounts(ActionSpec("discrete"), (), floats=False)
    counts.add(np.array([0, 2]))
    counts.add(np.array([5, 1 << 40]))
    (part,) = counts.metrics()["components"]
    assert part["counts"] == [1, 0, 1, 0, 0, 1]
    assert part["other"] == 1


def test_vectors_are_measured_per_component() -> None:
    spec = ActionSpec("continuous", shape=(2,), low=(-1.0, -np.inf), high=(1.0, np.inf))
    counts = ActionCounts(spec, (2,), floats=True)
    actions = np.random.default_rng(0).normal(size=(500, 2)).astype(np.float32)
    for part in np.array_split(actions, 7):
        counts.add(part)
    first, second = counts.metrics()["components"]
    assert first["outside"] == int((np.abs(actions[:, 0]) > 1).sum())
    assert (first["low"], first["high"]) == (-1.0, 1.0)
    assert (second["low"], second["outside"]) == (None, 0)
    assert np.isclose(second["mean"], actions[:, 1].mean(dtype=np.float64))
    assert sum(second["counts"]) == 500


# ------------------------------------------------------------------------------------------- duplicates


def test_duplicates_are_found_by_content(tmp_path: Path) -> None:
    with StoreWriter(tmp_path, SCHEMA, block=4) as writer:
        for k, seed in enumerate([1, 2, 1, 3, 1]):
            episode = make_episode(SCHEMA, 10, seed, EpisodeInfo(uid=k))
            episode.columns["version"] = np.full(10, k)  # when it was played does not matter
            writer.add_episode(episode)
    found = describe(Store(tmp_path))["duplicates"]
    assert found["groups"] == [[0, 2, 4]]
    assert (found["copies"], found["same_uid"], found["not_compared"]) == (2, 0, 0)


def test_duplicates_in_blocks_of_another_size_are_found(tmp_path: Path) -> None:
    for block in (4, 7):
        with StoreWriter(tmp_path, SCHEMA, block=block) as writer:
            writer.add_episode(make_episode(SCHEMA, 20, 1, EpisodeInfo(uid=block)))
            other = make_episode(SCHEMA, 20, 1, EpisodeInfo(uid=10 + block))
            other.columns["obs:image"][-1] ^= block  # alike but for the final observation
            writer.add_episode(other)
    store = Store(tmp_path)
    found = describe(store)["duplicates"]
    assert [[int(store.table.uid[i]) for i in group] for group in found["groups"]] in ([[4, 7]], [[7, 4]])


def test_what_is_too_much_to_compare_is_said(tmp_path: Path) -> None:
    for block in (4, 7):
        with StoreWriter(tmp_path, SCHEMA, block=block) as writer:
            writer.add_episode(make_episode(SCHEMA, 20, 1, EpisodeInfo(uid=block)))
    store = Store(tmp_path)
    digests = look_inside(store, range(2)).digests
    assert find_duplicates(store, digests)["copies"] == 1
    found = find_duplicates(store, digests, max_decoded=10)
    assert (found["copies"], found["not_compared"]) == (0, 2)


def test_copies_with_the_same_uid_are_counted(tmp_path: Path) -> None:
    for _ in range(2):
        write_episodes(tmp_path, SCHEMA, [5, 6])
    found = describe(Store(tmp_path), max_episodes=1)["duplicates"]
    assert (found["same_uid"], found["looked_at"]) == (2, 1)


# ------------------------------------------------------------------------------------------- limits and damage


def test_a_sample_is_spread_evenly() -> None:
    assert spread_evenly(10, 0).tolist() == list(range(10))
    assert spread_evenly(101, 5).tolist() == [0, 25, 50, 75, 100]
    assert len(spread_evenly(10_000, 777)) == 777


def test_rows_of_a_sample_only(tmp_path: Path) -> None:
    write_episodes(tmp_path, SCHEMA, LENGTHS)
    seen: list[tuple[int, int]] = []
    found = describe(Store(tmp_path), max_episodes=2, progress=lambda done, total: seen.append((done, total)))
    assert found["looked_at"] == {"episodes": 2, "of": 6, "read": 2}
    assert found["actions"]["rows"] == LENGTHS[0] + LENGTHS[-1]
    assert found["lengths"]["count"] == 6
    assert seen[0] == (0, 35)
    assert seen[-1] == (35, 35)
    with pytest.raises(ConfigError, match="max_episodes -1"):
        describe(Store(tmp_path), max_episodes=-1)


def test_damaged_episodes_are_named_and_left_out(tmp_path: Path) -> None:
    write_episodes(tmp_path, SCHEMA, [30, 30, 30], block=8)
    store = Store(tmp_path)
    path = store.shards[0].path
    data = bytearray(path.read_bytes())
    offset, length, _ = store._indexes[0].places[5].item()  # the second block of the second episode
    data[offset + 12 + length // 2] ^= 1
    path.write_bytes(data)
    found = describe(Store(tmp_path))
    assert found["looked_at"]["read"] == 2
    assert len(found["problems"]) == 1
    assert "checksum" in found["problems"][0]
    assert found["actions"]["rows"] == 60


def test_returns_that_are_no_numbers_are_counted() -> None:
    found = spread(np.array([1.0, np.nan, 3.0, np.inf]))
    assert (found["count"], found["non_finite"], found["mean"]) == (2, 2, 2.0)
    assert spread(np.array([]))["median"] is None
