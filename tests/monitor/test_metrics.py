import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmill.core.tree_file import load_tree, save_tree
from rollmill.monitor.metrics import EpisodeStats, MetricWindow, Progress, Rate


class FakeClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


# ------------------------------------------------------------------------------------------------ windows


@given(values=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), size=st.integers(1, 20))
def test_a_window_is_the_mean_of_the_last_values(values: list[float], size: int) -> None:
    window = MetricWindow(size)
    for value in values:
        window.add({"x": value})
    last = values[-size:]
    assert window.means()["x"] == pytest.approx(sum(last) / len(last))


def test_names_of_a_window_are_independent_and_nan_stays_visible() -> None:
    window = MetricWindow(2)
    window.add({"a": 1.0, "b": math.nan})
    window.add({"a": np.float32(3.0)})
    means = window.means()
    assert means["a"] == 2.0
    assert math.isnan(means["b"])
    window.clear()
    assert window.means() == {}


@pytest.mark.parametrize("make", [MetricWindow, EpisodeStats])
def test_a_window_of_nothing_is_refused(make) -> None:
    with pytest.raises(ValueError, match="at least 1, not 0"):
        make(0)


def test_episodes_before_the_first_has_ended() -> None:
    stats = EpisodeStats()
    assert stats.mean_return is None
    assert stats.mean_length is None
    assert stats.metrics() == {"episode/count": 0.0}


def test_episodes_are_averaged_over_the_last_ones_and_counted_in_all() -> None:
    stats = EpisodeStats(size=3)
    stats.add(np.array([1, 2, 3], np.float32), np.array([10, 20, 30]))
    stats.add([10.0], [100])
    assert stats.mean_return == 5.0
    assert stats.mean_length == 50.0
    assert stats.metrics() == {
        "episode/count": 4.0,
        "episode/return": 5.0,
        "episode/return_min": 2.0,
        "episode/return_max": 10.0,
        "episode/length": 50.0,
    }


def test_each_episode_has_a_return_and_a_length() -> None:
    with pytest.raises(ValueError):
        EpisodeStats().add([1.0, 2.0], [3])


def test_the_window_of_episodes_survives_a_checkpoint(tmp_path) -> None:
    stats = EpisodeStats(size=2)
    stats.add([1.0, 2.0, 4.0], [5, 6, 7])
    save_tree(tmp_path / "a", stats.state())
    again = EpisodeStats(size=2)
    again.add([99.0], [99])
    again.load_state(load_tree(tmp_path / "a"))
    assert again.metrics() == stats.metrics()


# --------------------------------------------------------------------------------------------------- rate


def test_the_rate_of_a_steady_stream() -> None:
    clock = FakeClock()
    rate = Rate(window_s=10, clock=clock)
    for n in range(1000):
        rate.update(5000 + 25 * n)
        clock.now += 0.25
    clock.now -= 0.25
    assert rate.per_second() == pytest.approx(100.0)


def test_the_rate_knows_nothing_at_first() -> None:
    clock = FakeClock()
    rate = Rate(clock=clock)
    assert rate.per_second() == 0.0
    rate.update(10**9)  # a resumed run starts with many frames: they were not made now
    assert rate.per_second() == 0.0
    clock.now += 2
    rate.update(10**9 + 10)
    assert rate.per_second() == 5.0


def test_the_rate_follows_a_change_within_a_window_and_falls_to_zero_when_nothing_comes() -> None:
    clock = FakeClock()
    rate = Rate(window_s=10, clock=clock)
    total = 0
    for speed in (10, 1000):
        for _ in range(20):
            clock.now += 1
            total += speed
            rate.update(total)
    assert rate.per_second() == pytest.approx(1000.0)
    clock.now += 5
    assert 0 < rate.per_second() < 1000
    clock.now += 20
    assert rate.per_second() == 0.0


def test_the_rate_needs_little_memory_however_often_it_is_told() -> None:
    clock = FakeClock()
    rate = Rate(window_s=1, clock=clock)
    for n in range(10_000):
        rate.update(n)
        clock.now += 0.001
    clock.now -= 0.001
    assert len(rate._samples) < 100
    assert rate.per_second() == pytest.approx(1000.0, rel=1e-6)


# ----------------------------------------------------------------------------------------------- progress


def test_progress_without_limits() -> None:
    clock = FakeClock()
    progress = Progress(clock=clock)
    clock.now += 5
    assert progress.elapsed() == 5
    assert progress.nearest(10**9) is None
    assert progress.seconds_left(10, 1.0) is None
    assert not progress.reached(10**12)


def test_progress_towards_frames() -> None:
    progress = Progress(max_frames=1000)
    assert progress.nearest(250) == ("frames", 0.25)
    assert progress.seconds_left(250, 50.0) == 15.0
    assert progress.seconds_left(250, 0.0) is None
    assert not progress.reached(999)
    assert progress.reached(1000)
    assert progress.nearest(2000) == ("frames", 1.0)
    assert progress.seconds_left(2000, 0.0) == 0.0


def test_progress_towards_a_time_counts_earlier_sessions() -> None:
    clock = FakeClock()
    progress = Progress(max_seconds=100, seconds_before=60, clock=clock)
    clock.now += 15
    assert progress.nearest(0) == ("seconds", 0.75)
    assert progress.seconds_left(0, 0.0) == 25.0
    clock.now += 30
    assert progress.reached(0)
    assert progress.seconds_left(0, 0.0) == 0.0


def test_the_limit_that_comes_first_counts() -> None:
    clock = FakeClock()
    progress = Progress(max_frames=1000, max_seconds=100, clock=clock)
    clock.now += 10
    assert progress.nearest(500) == ("frames", 0.5)
    assert progress.nearest(50) == ("seconds", 0.1)
    assert progress.seconds_left(500, 100.0) == 5.0
    assert progress.seconds_left(500, 1.0) == 90.0


def test_an_infinite_time_is_no_limit() -> None:
    assert Progress(max_seconds=math.inf).nearest(1) is None


def test_batches_are_a_limit_too() -> None:
    clock = FakeClock()
    progress = Progress(max_frames=1_000_000, max_batches=100, clock=clock)
    clock.now += 10
    assert progress.nearest(3200, 25) == ("batches", 0.25)
    assert progress.seconds_left(3200, 320.0, 25) == 30.0
    assert not progress.reached(3200, 99)
    assert progress.reached(3200, 100)
