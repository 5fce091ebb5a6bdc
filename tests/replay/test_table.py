"""The table equals a short model of it, whatever is done to it; and chance is fair."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from replaying import ModelTable

from rollmill.replay.limiter import RateLimiter
from rollmill.replay.selectors import SELECTORS, Prioritized
from rollmill.replay.table import Table

EXPONENT = 0.7
KINDS = tuple(SELECTORS)
LIMITS = {
    "size": (1.0, 5, -math.inf, math.inf),
    "ratio": (3.0, 8, 3.0 * 8 - 9, 3.0 * 8 + 9),
    "slow": (0.5, 4, 0.5 * 4 - 2, 0.5 * 4 + 2),
    "queue": (1.0, 1, 0.0, 12.0),
}


def operate(table: Table[int], model: ModelTable, rng: np.random.Generator) -> None:
    """One random operation on both, and a look at everything that can be seen."""
    for count in (1, int(rng.integers(1, 9))):
        assert table.limiter.may_insert(count) == model.may_insert(count)
        assert table.limiter.may_sample(count) == model.may_sample(count)
    operation = rng.choice(4, p=[0.42, 0.42, 0.1, 0.06])
    keys = [int(item["key"]) for item in model.items]
    priority = float(rng.choice([0.0, 1.0, rng.random() * 9]))
    if operation == 0 and model.may_insert():
        insert(table, model, priority)
    elif operation == 1:
        for draw in table.sample(int(rng.integers(1, 6))):
            assert model.may_sample()
            chance = model.chances(model.sampler, EXPONENT)[draw.item.key]
            assert chance > 0
            assert draw.probability == pytest.approx(chance)
            assert (draw.size, draw.item.data) == (len(model.items), draw.item.key)
            model.sample(draw.item.key)
    elif operation == 2 and keys:
        key = int(rng.choice(keys))
        table.insert(key, priority, key=key)  # of a key that is there: its priority only
        model.set_priority(key, priority)
    elif operation == 3 and keys:
        key = int(rng.choice(keys))
        table.delete([key])
        model.delete(key)
    assert [(i.key, i.times_sampled, i.priority) for i in table] == [
        (i["key"], i["times"], i["priority"]) for i in model.items
    ]
    limiter = table.limiter
    assert (limiter.inserted, limiter.sampled, limiter.deleted) == (model.inserted, model.sampled, model.deleted)


def insert(table: Table[int], model: ModelTable, priority: float) -> None:
    key = model.inserted
    before = {item.key for item in table}
    assert table.insert(key, priority) == key
    if model.insert(key, priority):
        (gone,) = {*before, key} - {item.key for item in table}
        assert model.chances(model.remover, EXPONENT)[gone] > 0
        model.delete(gone)


@pytest.mark.parametrize("sampler", KINDS)
def test_a_hundred_thousand_operations_equal_the_model(sampler: str) -> None:
    """Over all pairs of sampler and remover, all limiters, with and without a limit of samples."""
    cases = list(itertools.product(KINDS, LIMITS, (0, 2)))
    each = -(-100_000 // (len(KINDS) * len(cases)))
    for number, (remover, limits, most) in enumerate(cases):
        rng = np.random.default_rng(number)
        numbers = LIMITS[limits]
        limiter = RateLimiter(*numbers)
        table: Table[int] = Table(
            12, limiter, sampler, remover, max_times_sampled=most, priority_exponent=EXPONENT, seed=number
        )
        model = ModelTable(12, numbers, (sampler, remover), most)
        for _ in range(each):
            operate(table, model, rng)
        assert model.inserted > 5


def chi_square_tail(counts: np.ndarray, chances: np.ndarray) -> float:
    """Upper tail of the chi-square statistic, by Wilson and Hilferty's normal approximation."""
    expected = counts.sum() * chances
    freedom = len(counts) - 1
    statistic = float(((counts - expected) ** 2 / expected).sum())
    z = ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))
    return 0.5 * math.erfc(z / math.sqrt(2))


@pytest.mark.parametrize("sampler", ["uniform", "prioritized"])
def test_draws_are_as_likely_as_they_should_be(sampler: str) -> None:
    table: Table[int] = Table(64, RateLimiter.by_size(1), sampler, priority_exponent=0.5, seed=3)
    for k in range(200):  # deletions and updates behind it, so that the places are mixed
        table.insert(k, float(k % 7))
    for item in list(table)[::3]:
        table.update(item.key, 2.5)
    keys = {item.key: n for n, item in enumerate(table)}
    weights = np.array([1.0 if sampler == "uniform" else math.sqrt(item.priority) for item in table])
    counts = np.zeros(64)
    for draw in table.sample(100_000):
        counts[keys[draw.item.key]] += 1
    drawn = weights > 0
    assert counts[~drawn].sum() == 0
    assert chi_square_tail(counts[drawn], weights[drawn] / weights.sum()) > 0.001


def test_the_chi_square_would_notice_a_bias() -> None:
    chances = np.full(64, 1 / 64)
    counts = np.random.default_rng(0).multinomial(100_000, (chances + np.linspace(-1, 1, 64) * 0.0008))
    assert chi_square_tail(counts, chances) < 0.001


def test_priorities_that_make_no_sense_are_refused() -> None:
    table: Table[int] = Table(4, RateLimiter.by_size(1), "prioritized")
    for bad in (math.nan, -1.0, math.inf):
        with pytest.raises(ValueError, match="priority"):
            table.insert(0, bad)
    assert len(table) == 0
    with pytest.raises(ValueError, match="exponent"):
        Prioritized(np.random.default_rng(), -1.0)
    with pytest.raises(ValueError, match="never fit"):
        Table(4, RateLimiter.by_size(5))
    with pytest.raises(ValueError, match="capacity"):
        Table(0, RateLimiter.by_size(1))


def test_a_queue_gives_everything_once_and_blocks_when_full() -> None:
    table: Table[str] = Table.queue(2)
    table.insert("a")
    table.insert("b")
    assert not table.limiter.may_insert()
    with pytest.raises(RuntimeError, match="ask it first"):
        table.insert("c")
    assert [draw.item.data for draw in table.sample(5)] == ["a", "b"]
    assert table.sample() == []
    assert table.limiter.may_insert(2)


@pytest.mark.parametrize("sampler", KINDS)
def test_a_state_goes_on_with_the_same_draws(sampler: str) -> None:
    table: Table[int] = Table(8, RateLimiter.by_ratio(2.0, 2, 10.0), sampler, "max_heap", max_times_sampled=3, seed=5)
    for k in range(30):
        if table.limiter.may_insert():
            table.insert(k, float(k % 5))
        table.sample(2)
    twin: Table[int] = Table(8, RateLimiter.by_ratio(2.0, 2, 10.0), sampler, "max_heap", max_times_sampled=3, seed=6)
    state = table.state()
    twin.load_state(state)
    assert twin.state() == state
    assert [(d.item.key, d.probability) for d in table.sample(9)] == [
        (d.item.key, pytest.approx(d.probability)) for d in twin.sample(9)
    ]
    with pytest.raises(ValueError, match="no place"):
        Table[int](8, RateLimiter.by_size(1)).load_state(state | {"orders": [[], []]})
    smaller: Table[int] = Table(2, RateLimiter.by_size(1))
    smaller.load_state(state)
    assert [item.key for item in smaller] == [item["key"] for item in state["items"][-2:]]
    assert smaller.limiter.size == 2
    with pytest.raises(RuntimeError, match="empty"):
        smaller.load_state(state)


def test_counters_without_contents_keep_the_ratio() -> None:
    table: Table[int] = Table(8, RateLimiter.by_ratio(2.0, 2, 8.0))
    for k in range(4):
        table.insert(k)
    table.sample(3)
    twin: Table[int] = Table(8, RateLimiter.by_ratio(2.0, 2, 8.0))
    twin.load_state(table.state(contents=False))
    assert (len(twin), twin.limiter.size) == (0, 0)
    assert (twin.limiter.inserted, twin.limiter.sampled) == (4, 3)
    assert not twin.limiter.may_sample()
    assert twin.insert(9) == 4  # keys go on
    assert [item.number for item in twin] == [4]


def test_draws_of_a_batch_belong_together() -> None:
    table: Table[int] = Table(6, RateLimiter.by_size(4), "fifo", max_times_sampled=1)
    for k in range(5):
        table.insert(k)
    assert len(table.sample(4)) == 2  # then there are 3, fewer than the minimum
    assert table.sample(3, together=True) == []
    table.insert(5)
    assert [draw.item.data for draw in table.sample(4, together=True)] == [2, 3, 4, 5]
    assert len(table) == 0


def test_unused_items_are_counted() -> None:
    table: Table[int] = Table(2, RateLimiter.by_size(1), "lifo")
    for k in range(4):
        table.insert(k)
    table.sample(1)
    table.delete([item.key for item in list(table)])
    assert table.unused == 3
