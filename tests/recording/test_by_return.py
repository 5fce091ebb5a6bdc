"""Episodes kept by their return, against a plain list."""

from collections.abc import Hashable

import numpy as np
import pytest

from rollmill.recording.by_return import ReturnFilter
from rollmill.store.assemble import Rows
from rollmill.store.episode import EpisodeInfo


class List:
    """An ``EpisodeOut`` that keeps everything."""

    def __init__(self) -> None:
        self.episodes: list[dict[str, np.ndarray]] = []
        self.reserved: list[tuple[int, int]] = []
        self._open: dict[Hashable, list[Rows]] = {}

    def reserve(self, steps: int, episodes: int) -> None:
        self.reserved.append((steps, episodes))

    def begin(self, key: Hashable, info: EpisodeInfo, level: int = 0) -> None:
        self._open[key] = []

    def append(self, key: Hashable, columns: Rows) -> None:
        self._open[key].append(columns)

    def end(self, key: Hashable, final: Rows, terminated: bool, truncated: bool) -> None:
        pieces = self._open.pop(key)
        self.episodes.append({name: np.concatenate([p[name] for p in pieces]) for name in pieces[0]} | dict(final))


def play(judge: ReturnFilter, key: int, rewards: list[float], first_step: int = 0, ended: bool = True) -> None:
    judge.begin(key, EpisodeInfo(first_step=first_step))
    for reward in rewards:
        rows = np.arange(2)[:, None, None] + np.full((2, 4, 3), key)
        columns = {"obs:x": rows.astype(np.uint8), "action": np.array([key, 1]), "reward": np.full(2, reward / 2)}
        judge.append(key, {name: array[::1] for name, array in columns.items()})
    judge.end(key, {"final": np.array(key)}, ended, False)


def returns(out: List) -> list[float]:
    return [float(episode["reward"].sum()) for episode in out.episodes]


def test_only_good_whole_episodes_pass() -> None:
    out = List()
    judge = ReturnFilter(out, min_return=3.0, best_of=1, memory=1 << 20)
    play(judge, 1, [1, 1])
    play(judge, 2, [1, 2])
    play(judge, 3, [4, 4], first_step=2)
    play(judge, 4, [4, 4], ended=False)
    play(judge, 5, [5])
    judge.close()
    assert returns(out) == [3.0, 5.0]
    assert judge.rejected == 3
    assert out.reserved == [(4, 1), (2, 1)]
    episode = out.episodes[0]
    assert episode["obs:x"][:, 0, 0].tolist() == [2, 3, 2, 3]
    assert episode["obs:x"].dtype == np.uint8
    assert episode["final"] == 2


def test_the_best_of_every_three() -> None:
    out = List()
    judge = ReturnFilter(out, min_return=None, best_of=3, memory=1 << 20)
    for key, reward in enumerate([3, 9, 1, 4, 2, 4.5, 7, 8]):
        play(judge, key, [reward])
    assert returns(out) == [9.0, 4.5]
    judge.close()
    assert returns(out) == [9.0, 4.5, 8.0], "the best of the unfinished round"
    assert judge.rejected == 5
    assert judge._held == 0


def test_the_best_may_still_be_too_bad() -> None:
    out = List()
    judge = ReturnFilter(out, min_return=5.0, best_of=2, memory=1 << 20)
    for key, reward in enumerate([1, 2, 6, 3]):
        play(judge, key, [reward])
    assert returns(out) == [6.0]


def test_memory_is_bounded_and_the_longest_goes() -> None:
    out = List()
    judge = ReturnFilter(out, min_return=None, best_of=1, memory=20_000)
    rng = np.random.default_rng(0)

    def add(key: int, rows: int) -> None:
        noise = rng.integers(0, 256, (rows, 100), dtype=np.uint8)
        judge.append(key, {"obs:x": noise, "action": np.arange(rows), "reward": np.ones(rows)})
        assert judge._held <= 20_000

    for key in (1, 2):
        judge.begin(key, EpisodeInfo())
    add(1, 20)
    add(2, 150)
    add(1, 40)
    add(2, 40)
    assert judge.overflows == 1
    for key in (1, 2):
        judge.end(key, {"final": np.array(0)}, True, False)
    assert [len(episode["action"]) for episode in out.episodes] == [60]


@pytest.mark.parametrize("order", ["F", "C"])
def test_strided_rows_come_back_as_they_were(order: str) -> None:
    out = List()
    judge = ReturnFilter(out, None, 1, 1 << 20)
    whole = np.array(np.random.default_rng(0).normal(size=(6, 5, 2)), order=order)  # type: ignore[call-overload]
    judge.begin(0, EpisodeInfo())
    judge.append(0, {"obs:x": whole[1:4, 2], "action": np.arange(3), "reward": np.zeros(3)})
    judge.end(0, {"final": np.array(0)}, False, True)
    np.testing.assert_array_equal(out.episodes[0]["obs:x"], whole[1:4, 2])
