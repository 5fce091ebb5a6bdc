from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from storing import make_episode, tiny_schema

from rollmill.core.errors import ConfigError
from rollmill.store.episode import Episode, EpisodeInfo
from rollmill.store.filters import Filter
from rollmill.store.reader import Store
from rollmill.store.table import EpisodeTable
from rollmill.store.writer import StoreWriter

SCHEMA = tiny_schema()


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> EpisodeTable:
    """Ten episodes: k has k + 1 steps, return 10 (k % 5), versions 2k .. 2k + 1, global steps 100k .. 100k + k."""
    path = tmp_path_factory.mktemp("filters")
    with StoreWriter(path, SCHEMA) as writer:
        for k in range(10):
            info = EpisodeInfo(
                first_step=3 * (k == 4),
                env_id=["a", "b"][k % 2],
                policy=["p", "q", "r"][k % 3],
                policy_id=k // 5,
                uid=k,
            )
            episode = make_episode(SCHEMA, k + 1, k, info)
            columns = dict(episode.columns)
            columns["reward"] = np.zeros(k + 1, np.float32)
            columns["reward"][-1] = 10 * (k % 5)
            columns["version"] = np.full(k + 1, 2 * k)
            columns["version"][-1] = 2 * k + 1
            columns["global_step"] = 100 * k + np.arange(k + 1)
            writer.add_episode(Episode(columns, info, terminated=k < 7, truncated=k == 7))  # 8 and 9 end partial
    return Store(path).table


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ({}, list(range(10))),
        ({"return_min": 30}, [3, 4, 8, 9]),
        ({"return_max": 10}, [0, 1, 5, 6]),
        ({"return_min": 20, "return_max": 30}, [2, 3, 7, 8]),
        ({"length_min": 9}, [8, 9]),
        ({"length_max": 2}, [0, 1]),
        ({"version_min": 15}, [8, 9]),  # the first steps of episode 7 are of version 14
        ({"version_max": 4}, [0, 1]),  # the last step of episode 2 is of version 5
        ({"global_step_min": 700}, [7, 8, 9]),
        ({"global_step_max": 302}, [0, 1, 2]),  # episode 3 ends at 303
        ({"env": ("b",)}, [1, 3, 5, 7, 9]),
        ({"policy": ("p", "q")}, [0, 1, 3, 4, 6, 7, 9]),
        ({"policy_id": (1,)}, [5, 6, 7, 8, 9]),
        ({"terminated": False}, [7, 8, 9]),
        ({"truncated": True}, [7]),
        ({"partial": False}, [0, 1, 2, 3, 5, 6, 7]),
        ({"partial": True}, [4, 8, 9]),
        ({"top": 0.2}, [4, 9]),
        ({"top": 0.1}, [4]),  # the earlier of two with the same return
        ({"top": 1.0}, list(range(10))),
        ({"top": 0.3, "partial": False}, [2, 3, 7]),  # the best of those that pass the rest
        ({"return_min": 100}, []),
        ({"return_min": 100, "top": 0.5}, []),
    ],
)
def test_only_episodes_that_meet_every_condition_pass(
    table: EpisodeTable, conditions: dict[str, object], expected: list[int]
) -> None:
    chosen = Filter(**conditions)  # type: ignore[arg-type]
    assert chosen.select(table).tolist() == expected
    assert Filter.parse(chosen.words()) == chosen


def test_what_is_unknown_of_an_unfinished_episode_passes_no_limit(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path, SCHEMA, block=2)
    writer.begin("open")
    columns = make_episode(SCHEMA, 8).columns
    writer.append("open", {name: array[:8] for name, array in columns.items()})
    table = Store(tmp_path, unfinished=True).table
    writer.close()
    assert table["finished"].tolist() == [False]
    for limit in ("return_min", "return_max", "version_min", "version_max", "global_step_min", "global_step_max"):
        for bound in (-(10**9), 10**9):
            assert Filter(**{limit: bound}).select(table).tolist() == []  # type: ignore[arg-type]
    assert Filter(top=1.0).select(table).tolist() == []
    assert Filter(length_min=1, partial=True).select(table).tolist() == [0]


@given(st.integers(1, 400), st.integers(1, 100))
@settings(deadline=None)
@example(100, 7)  # 0.07 x 100 is a little more than 7 in floating point
def test_the_top_share_rounds_up_to_whole_episodes(count: int, percent: int) -> None:
    rows = np.zeros(count, [("return", "<f8")])
    rows["return"] = np.random.default_rng(count).integers(0, 5, count)

    class Table:
        return_ = rows["return"]

        def __len__(self) -> int:
            return count

    chosen = Filter(top=percent / 100).select(Table())  # type: ignore[arg-type]
    assert len(chosen) == -(-count * percent // 100)
    others = np.setdiff1d(np.arange(count), chosen)
    assert not len(others) or rows["return"][chosen].min() >= rows["return"][others].max()


def test_words_become_a_filter() -> None:
    words = ["return_min=-1.5", "length_min=1e3", "env=a, b", "policy_id=1,2", "partial=no", "truncated=YES", "top=10%"]
    expected = Filter(
        return_min=-1.5, length_min=1000, env=("a", "b"), policy_id=(1, 2), partial=False, truncated=True, top=0.1
    )
    assert Filter.parse(words) == expected
    assert Filter.parse([]) == Filter()


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("retrun_min=3", "no key 'retrun_min' did you mean 'return_min'"),
        ("return_min", "a value is missing"),
        ("return_min=", "a value is missing"),
        ("length_min=3.5", "not a whole number"),
        ("length_min=long", "could not convert"),
        ("partial=maybe", "neither yes nor no"),
        ("top=0", "top=0.0 must be above 0"),
        ("top=101%", "must be above 0"),
        ("return_min=nan", "NaN"),
    ],
)
def test_wrong_words_are_named(word: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Filter.parse([word])


def test_contradictions_are_refused() -> None:
    with pytest.raises(ConfigError, match="given twice"):
        Filter.parse(["top=0.1", "top=0.2"])
    with pytest.raises(ConfigError, match=r"return_min=3.* is above return_max=2"):
        Filter.parse(["return_min=3", "return_max=2"])
