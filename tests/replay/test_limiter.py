"""The rule of the limiter, its named settings, and the ratio it holds for any speeds."""

from __future__ import annotations

import heapq
import math

import pytest

from rollmill.replay.limiter import RateLimiter
from rollmill.replay.table import Table
from rollmill.replay.triggers import ByRatio


def test_named_settings() -> None:
    def numbers(limiter: RateLimiter) -> tuple[float, int, float, float]:
        return limiter.samples_per_insert, limiter.min_size, limiter.min_diff, limiter.max_diff

    assert numbers(RateLimiter.by_size(7)) == (1, 7, -math.inf, math.inf)
    assert numbers(RateLimiter.by_ratio(3.0, 10, 12.0)) == (3, 10, 18, 42)
    assert numbers(RateLimiter.by_ratio(3.0, 10, (1.0, 90.0))) == (3, 10, 1, 90)
    assert numbers(RateLimiter.queue(5)) == (1, 1, 0, 5)


def test_settings_that_would_block_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    for ratio, size, error, words in (
        (0.0, 1, 9.0, "positive"),
        (math.nan, 1, 9.0, "positive"),
        (1.0, 0, 9.0, "min_size"),
        (4.0, 5, 3.9, "wait for ever"),
        (1.0, 2, (3.0, 9.0), "ever be sampled"),
    ):
        with pytest.raises(ValueError, match=words):
            RateLimiter.by_ratio(ratio, size, error)
    assert not caplog.records
    RateLimiter.by_ratio(1.0, 10, (0.0, 5.0))
    assert "inserts wait" in caplog.text


def test_deletions_bring_a_table_back_below_its_minimum() -> None:
    table: Table[int] = Table(9, RateLimiter.by_ratio(1.0, 3, 3.0))
    keys = [table.insert(k) for k in range(3)]
    assert table.limiter.may_sample()
    table.delete(keys[:1])
    assert not table.limiter.may_sample()
    assert table.limiter.may_insert()  # free until the minimum is reached again
    table.insert(3)
    assert table.limiter.may_sample()


def simulate(ratio: float, producer_seconds: float, learner_seconds: float, inserts: int = 4000) -> RateLimiter:
    """Three producers and a learner that draws batches, each as fast as it may; time is a number."""
    batch, minimum = 8, 40
    limiter = RateLimiter.by_ratio(ratio, minimum, batch + ratio)
    table: Table[int] = Table(100, limiter, seed=1)
    trigger = ByRatio(limiter, batch)
    waiting = [(producer_seconds * k / 3, k) for k in range(3)] + [(0.0, 3)]
    heapq.heapify(waiting)
    while limiter.inserted < inserts:
        now, who = heapq.heappop(waiting)
        if who == 3:
            if trigger.due():
                assert len(table.sample(batch)) == batch
            heapq.heappush(waiting, (now + learner_seconds, who))
        else:
            if limiter.may_insert():
                table.insert(who)
            heapq.heappush(waiting, (now + producer_seconds, who))
    return limiter


@pytest.mark.parametrize("ratio", [0.5, 1.0, 3.0, 8.0])
@pytest.mark.parametrize("producer", [0.1, 1.0, 10.0])
def test_the_ratio_holds_for_fast_and_slow_producers(ratio: float, producer: float) -> None:
    """``producer`` 1: both sides could keep the ratio by themselves."""
    seconds_for_a_batch = 8 / ratio / 3
    limiter = simulate(ratio, producer, seconds_for_a_batch)
    assert limiter.ratio == pytest.approx(ratio, rel=0.02)
    # And at any moment within the bounds that were set.
    assert limiter.min_diff <= limiter.inserted * ratio - limiter.sampled <= limiter.max_diff


def test_the_ratio_is_zero_before_there_is_one() -> None:
    assert RateLimiter.by_size(3).ratio == 0.0
