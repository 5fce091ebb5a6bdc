"""Who counts, and what is written: quotas and the episodes that they ask for."""

from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmill.core.fields import ActionSpec, Array, EnvSpec, Field
from rollmill.store.episode import EpisodeInfo
from rollmill.store.extract import EpisodeExtractor, EpisodeQuota
from rollmill.store.format.schema import StoreSchema
from rollmill.store.reader import Store
from rollmill.store.writer import StoreWriter


def play(quota: EpisodeQuota, lanes: int, fails: Collection[tuple[int, int]] = ()) -> list[tuple[int, int]]:
    """(lane, episode) of those that count when all lanes play their n-th episode in turn; ``fails`` are lost."""
    found = []
    for episode in range(100):
        for lane in range(lanes):
            if (lane, episode) in fails:
                quota.lose(lane, episode)
            elif quota.wants(lane, episode):
                quota.end(lane, episode)
                found.append((lane, episode))
    return found


def test_the_first_numbers_count() -> None:
    quota = EpisodeQuota(3, 7)
    assert play(quota, 5) == [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1), (0, 2)]
    assert (quota.is_done, quota.complete) == (True, 7)


@pytest.mark.parametrize(("own_place", "replaced"), [(True, {(2, 2), (2, 3)}), (False, {(1, 2), (2, 2)})])
def test_one_that_fails_is_replaced(own_place: bool, replaced: set[tuple[int, int]]) -> None:
    wanted = {(0, 0), (1, 0), (0, 1), (1, 1), (0, 2)}
    quota = EpisodeQuota(3, 7, own_place=own_place)
    assert set(play(quota, 3, {(2, 0), (2, 1)})) == wanted | replaced
    assert quota.is_done


@given(
    need=st.integers(1, 20), players=st.integers(1, 5), fails=st.sets(st.tuples(st.integers(0, 4), st.integers(0, 9)))
)
def test_own_places_do_not_depend_on_who_is_faster(need: int, players: int, fails: set[tuple[int, int]]) -> None:
    """Each lane's choice is the same whether it plays alone before the others, or in turn with them."""
    in_turn = set(play(EpisodeQuota(players, need, own_place=True), players, fails))
    quota = EpisodeQuota(players, need, own_place=True)
    one_by_one = set()
    for lane in reversed(range(players)):
        for episode in range(100):
            if (lane, episode) in fails:
                quota.lose(lane, episode)
            elif quota.wants(lane, episode):
                quota.end(lane, episode)
                one_by_one.add((lane, episode))
    assert in_turn == one_by_one
    assert len(in_turn) == need


def test_an_episode_counts_when_all_its_lanes_have_ended() -> None:
    quota = EpisodeQuota(2, 2, lanes=3)
    for lane in (0, 1, 3, 4, 5):
        assert quota.wants(lane, 0)
        quota.end(lane, 0)
    assert (quota.complete, quota.is_done) == (1, False)
    assert quota.lose(2, 0), "one of its lanes will never end"
    assert not quota.lose(1, 0), "the episode is lost once"
    assert not quota.wants(0, 0)
    assert all(quota.wants(lane, 1) for lane in (0, 1, 2))
    for lane in (0, 1, 2):
        quota.end(lane, 1)
    assert quota.is_done


def test_what_has_begun_is_finished_when_less_is_needed() -> None:
    quota = EpisodeQuota(4, 8)
    assert [quota.wants(lane, 0) for lane in range(3)] == [True, True, True]
    quota.lower(1)
    assert quota.need == 3
    assert not quota.wants(3, 0)
    quota.closed = True
    assert not quota.is_done
    for lane in range(3):
        quota.end(lane, 0)
    assert quota.is_done


# -- EpisodeExtractor --------------------------------------------------------------------------------------

STEPS = 4


def segments(*lanes: str) -> Iterator[dict[str, Array]]:
    """Segments of four rows of what lanes have played, a character per row: the number of the episode where a step
    counts, ``.`` for the final observation of one that ended, ``!`` where one has failed."""
    for begin in range(0, len(lanes[0]) - 1, STEPS):
        shape = (STEPS + 1, len(lanes))
        rows = {name: np.zeros(shape, bool) for name in ("valid", "terminated", "truncated")}
        rows |= {name: np.zeros(shape, np.int64) for name in ("episode", "step", "action")}
        rows |= {"reward": np.ones(shape, np.float32), "obs:obs": np.zeros((*shape, 1), np.float32)}
        for lane, played in enumerate(lanes):
            for t, now in enumerate(played[begin : begin + STEPS + 1]):
                before = played[: begin + t]
                rows["valid"][t, lane] = now.isdigit()
                rows["episode"][t, lane] = episode = int(now if now.isdigit() else before.rstrip(".!")[-1])
                rows["step"][t, lane] = step = before.count(str(episode))
                rows["terminated"][t, lane] = played[begin + t + 1 : begin + t + 2] == "."
                rows["obs:obs"][t, lane] = 100 * episode + step
        yield rows


@pytest.fixture
def writer(tmp_path: Path) -> StoreWriter:
    spec = EnvSpec("test", (Field("obs", "float32", (1,)),), ActionSpec("discrete", (3,), (0,)))
    return StoreWriter(tmp_path, StoreSchema.for_env(spec, env_id="test"))


def extractor(
    writer: StoreWriter,
    quota: EpisodeQuota,
    present: frozenset[int] = frozenset(),
    step_limit: int | None = None,
) -> EpisodeExtractor:
    def describe(lane: int, episode: int) -> EpisodeInfo:
        return EpisodeInfo(lane=lane, uid=10 * lane + episode)

    constants = {"version": 3, "global_step": 5}
    return EpisodeExtractor(writer, quota, describe, constants, present=present, step_limit=step_limit)


def stored(writer: StoreWriter) -> list[tuple[int, int, bool]]:
    """(uid, length, partial) in the order of the store."""
    writer.close()
    with Store(writer.path) as store:
        ends = [store.end_record(i) for i in range(len(store))]
        for i, end in enumerate(ends):
            first = 100 * (end.uid % 10)
            assert store.episode(i).obs["obs"][:, 0].tolist() == list(range(first, first + end.length + 1))
        return [(end.uid, end.length, end.partial) for end in ends]


def test_whole_episodes_are_written_with_their_metrics(writer: StoreWriter) -> None:
    quota = EpisodeQuota(2, 3)
    found = extractor(writer, quota)
    for rows in segments("00.11.222", "00000.111"):
        found.take(rows, 0, {(0, 0): {"kills": 2.0}})
    assert (quota.is_done, found.written, found.episodes) == (True, {0, 1, 10}, 3)
    found.discard_open()
    assert found.steps == 2 + 2 + 5
    assert stored(writer) == [(0, 2, False), (1, 2, False), (10, 5, False)]
    with Store(writer.path) as store:
        assert [store.end_record(i).stats for i in range(3)] == [{"kills": 2.0}, {}, {}]


def test_what_fails_or_is_missing_is_lost(writer: StoreWriter) -> None:
    """0 fails in its third step, 1 in its first, 2 goes with a worker: others take their places."""
    quota = EpisodeQuota(1, 4)
    found = extractor(writer, quota)
    for rows in segments("00!!3.4.5.6.7"):
        assert not quota.is_done
        found.take(rows, 0, {})
    assert quota.is_done
    found.discard_open()
    assert stored(writer) == [(3, 1, False), (4, 1, False), (5, 1, False), (6, 1, False)]


def test_what_is_present_counts_and_is_not_written(writer: StoreWriter) -> None:
    quota = EpisodeQuota(1, 2)
    found = extractor(writer, quota, present=frozenset({0}))
    for rows in segments("0.1.2"):
        found.take(rows, 0, {})
    assert quota.is_done
    assert stored(writer) == [(1, 1, False)]


def test_steps_are_cut_where_they_are_enough(writer: StoreWriter) -> None:
    found = extractor(writer, EpisodeQuota(2, None), step_limit=6)
    for rows in segments("000000000", "000000000"):
        found.take(rows, 0, {})
    assert (found.is_full, found.steps) == (True, 6)
    assert stored(writer) == [(0, 4, True), (10, 2, True)]


def test_what_has_stopped_is_kept_where_everything_is_ended(writer: StoreWriter) -> None:
    found = extractor(writer, EpisodeQuota(2, None))
    for rows in segments("000!1", "00000"):
        found.take(rows, 0, {})
    found.end_open()
    assert stored(writer) == [(0, 3, True), (10, 4, True)]
