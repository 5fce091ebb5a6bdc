"""The choice of episodes: fair numbers, probabilities that follow budget and load."""

from __future__ import annotations

import numpy as np
import pytest

from rollmill.core.fields import Array
from rollmill.recording.choose import MAX_LEVEL, ChosenLanes, KeepProbability, Load, RunShape, draw, level_of
from rollmill.recording.settings import RecordingSettings
from rollmill.recording.sink import COUNTS

NOTHING = dict.fromkeys(COUNTS, 0)
STEPS, LANES = 32, 4


def test_numbers_are_uniform_and_repeat() -> None:
    envs, episodes = (x.ravel() for x in np.meshgrid(np.arange(200), np.arange(500)))
    numbers = draw(7, envs, episodes)
    assert (numbers > 0).all()
    assert (numbers <= 1).all()
    assert np.array_equal(numbers, draw(7, envs, episodes))
    counts, _ = np.histogram(numbers, bins=100, range=(0, 1))
    chi_square = ((counts - 1000.0) ** 2 / 1000).sum()
    assert chi_square < 170, "99 degrees of freedom: once in 100,000"
    for axis in (envs, episodes):  # no row or column of them stands out
        means = np.bincount(axis, numbers) / np.bincount(axis)
        spread = 0.2887 / np.sqrt(np.bincount(axis)[0])
        assert np.abs(means - 0.5).max() < 5 * spread
    assert np.corrcoef(draw(7, envs, episodes), draw(8, envs, episodes))[0, 1] == pytest.approx(0, abs=0.02)


def test_levels_halve() -> None:
    assert [level_of(number) for number in (1.0, 0.51, 0.5, 0.26, 0.25, 1e-12)] == [0, 0, 1, 1, 2, MAX_LEVEL]


def segment_of(steps: list[list[int]], episodes: list[list[int]]) -> dict[str, Array]:
    """Given lane by lane, a row more than there are steps."""
    step = np.array(steps).T
    return {"step": step, "episode": np.array(episodes).T, "valid": np.ones(step.shape, bool)}


def test_lanes_with_a_chosen_episode_are_followed() -> None:
    lanes = ChosenLanes(key=1, groups=2, lanes=2, agents=1)
    first = segment_of([[0, 1, 2, 3], [0, 1, 0, 1]], [[0, 0, 0, 0], [0, 0, 1, 1]])
    assert not lanes.follow(first, 0, 0.0)
    assert lanes.open == 0
    assert lanes.follow(first, 0, 1.0)
    assert lanes.open == 2
    going_on = segment_of([[3, 4, 5, 6], [1, 2, 3, 4]], [[0] * 4, [1] * 4])
    assert lanes.follow(going_on, 0, 0.0), "what was chosen is kept to its end"
    ends = segment_of([[6, 7, 0, 1], [4, 5, 6, 7]], [[0, 0, 1, 1], [1] * 4])
    assert lanes.follow(ends, 0, 0.0)
    assert lanes.open == 1
    assert lanes.forget(0) == 1
    assert not lanes.follow(segment_of([[1, 2, 3, 4], [7, 8, 9, 10]], [[1] * 4] * 2), 0, 1.0)


def test_only_the_last_of_several_counts_as_open() -> None:
    lanes = ChosenLanes(key=1, groups=1, lanes=1, agents=1)
    numbers = draw(1, np.zeros(2, np.int64), np.arange(2))
    between = float(numbers.mean())
    segment = segment_of([[0, 1, 0, 1]], [[0, 0, 1, 1]])
    assert lanes.follow(segment, 0, between), "one of the two is chosen"
    assert lanes.open == int(numbers[1] <= between)


def keep(frames: int = 100_000, **settings: object) -> KeepProbability:
    options = RecordingSettings(**{"keep": "all", **settings})  # type: ignore[arg-type]
    return KeepProbability(options, RunShape(frames, 1, bytes_per_row=100.0, episode_steps=50.0))


def test_no_budget() -> None:
    assert keep(budget_gb=0).now(5, NOTHING, 0, STEPS, LANES) == 1
    assert keep(budget_gb=0, keep="episodes", every=4).now(5, NOTHING, 0, STEPS, LANES) == 0.25
    assert keep(when="after:10").now(9, NOTHING, 0, STEPS, LANES) == 0
    assert keep(when="after:10").now(10, NOTHING, 0, STEPS, LANES) == 1


def test_spread_shares_out_what_is_left() -> None:
    probability = keep(when="spread", budget_gb=0.005)  # half of what there is
    assert probability.now(0, NOTHING, 0, STEPS, LANES) == pytest.approx(0.475)
    half_way = {**NOTHING, "bytes": 2_500_000}
    assert probability.now(50_000, half_way, 0, STEPS, LANES) == pytest.approx(0.45, rel=0.01)
    late = {**NOTHING, "bytes": 4_750_000}
    assert probability.now(80_000, late, 0, STEPS, LANES) == 0
    under_way = keep(when="spread", budget_gb=0.005).now(0, NOTHING, 100, STEPS, LANES)
    assert under_way == pytest.approx((4_750_000 - 100 * 5000) / 10_000_000)


def test_rows_turn_out_larger_than_expected() -> None:
    probability, counts = keep(when="spread", budget_gb=0.005), dict(NOTHING)
    probability.now(0, counts, 0, STEPS, LANES)
    for _ in range(40):
        counts["settled"] += 1000
        counts["bytes"] += 50_000  # 50 instead of 100 bytes
        found = probability.now(0, counts, 0, STEPS, LANES)
    assert found == pytest.approx((4_750_000 - counts["bytes"]) / (100_000 * 50), rel=0.05)


def test_room_for_whole_episodes_is_kept() -> None:
    probability = keep(budget_gb=0.001)
    roomy = {**NOTHING, "longest": 100}  # an episode may need 100 x 1.25 rows of 125 bytes
    assert probability.now(0, roomy, 0, STEPS, LANES) == 1
    tight = {**roomy, "bytes": 900_000}
    assert probability.now(0, tight, 0, STEPS, LANES) < 0.3
    assert probability.now(0, tight, 5, STEPS, LANES) == 0
    assert not probability.full(tight, 5), "those under way may turn out shorter"
    full = {**roomy, "bytes": 980_000}
    assert probability.full(full, 0)
    assert not keep(budget_gb=0.001, at_budget="ring").full(full, 0)


def test_halved() -> None:
    probability = keep(budget_gb=1.0, at_budget="thin")
    assert probability.now(0, {**NOTHING, "level": 3}, 0, STEPS, LANES) == 0.125


class Clocked:
    """A recorder with a fixed speed, offered rows at a fixed rate."""

    def __init__(self, lanes: int, rows_per_s: float, seconds_per_row: float) -> None:
        self.load = Load(lanes)
        self.rate, self.cost = rows_per_s, seconds_per_row
        self.time, self.offered, self.counts = 0.0, 0, dict(NOTHING)
        self.backlog = 0.0

    def run(self, seconds: float, episode_seconds: float, queue_rows: float) -> float:
        """Shares take effect as episodes end; returns the largest backlog, as a share of the queue."""
        chosen, largest, step = self.load.share(0, 0, self.counts, 0), 0.0, 0.01
        while seconds > 0:
            share = self.load.share(self.time, self.offered, self.counts, self.backlog / queue_rows)
            chosen += (share - chosen) * step / episode_seconds
            self.offered += round(self.rate * step)
            self.backlog += self.rate * step * chosen
            done = min(self.backlog, step / self.cost)
            self.backlog -= done
            self.counts["taken"] += round(done)
            self.counts["busy_us"] += round(1e6 * done * self.cost)
            self.time += step
            seconds -= step
            largest = max(largest, self.backlog / queue_rows)
        return largest


def test_a_fast_recorder_gets_everything() -> None:
    few = Clocked(lanes=32, rows_per_s=2000, seconds_per_row=1e-4)
    assert few.load.share(0, 0, NOTHING, 0) == 1
    many = Clocked(lanes=512, rows_per_s=20_000, seconds_per_row=1e-5)
    many.run(10, episode_seconds=1, queue_rows=8000)
    assert many.load.share(many.time, many.offered, many.counts, 0) == 1


@pytest.mark.parametrize("episode_seconds", [0.1, 1, 5])
def test_a_recorder_that_takes_a_third_gets_less_than_a_third(episode_seconds: float) -> None:
    slow = Clocked(lanes=320, rows_per_s=50_000, seconds_per_row=1 / 16_000)
    assert slow.run(40, episode_seconds, queue_rows=8000) < 1, "nothing is dropped"
    taken = slow.counts["taken"] / slow.offered
    assert 0.15 < taken < 0.33


def test_a_full_queue_stops_the_choice() -> None:
    load = Load(4)
    assert load.share(0, 0, NOTHING, 0.3) == 1
    assert load.share(0, 0, NOTHING, 0.6) == 0
