"""When to learn: the transcript of a competition platform's settings, worked out by hand."""

from __future__ import annotations

from rollmill.replay.limiter import RateLimiter
from rollmill.replay.table import Table
from rollmill.replay.triggers import ByClock, ByNew, ByRatio

CAPACITY, BATCH, PRELOAD, RATIO = 200, 60, 2, 5.0
"""``replay_buffer_capacity``, ``train_batch_size``, ``preload_ratio``, ``production_consume_ratio``."""

TRANSCRIPT = [
    # inserted between two checks -> trained?   inserted, size                          new since the check that trained
    (59, False),  # 59, 59: fewer than 200 // 2 = 100 are there                          59 of 60 / 5 = 12
    (40, False),  # 99, 99: still                                                        99
    (1, True),  # 100, 100: preloaded; all 100 are new, one training                   100, the surplus is forgotten
    (0, False),  # 100: nothing new                                                       0
    (11, False),  # 111: one too few                                                     11
    (1, True),  # 112                                                                  12
    (24, True),  # 136: two trainings' worth, one training                               24
    (0, False),  # 136: the second one is forgotten                                       0
    (12, True),  # 148                                                                   12
    (300, True),  # 448: the table has lost its oldest, and holds 200                    300
    (11, False),  # 459                                                                  11
    (2, True),  # 461                                                                  13
]


def test_by_new_equals_the_transcript() -> None:
    limiter = RateLimiter.by_size(BATCH)
    table: Table[int] = Table(max(CAPACITY, BATCH), limiter)
    trigger = ByNew(limiter, BATCH / RATIO, CAPACITY // PRELOAD)
    trained = 0
    for step, (new, expected) in enumerate(TRANSCRIPT):
        for _ in range(new):
            assert limiter.may_insert()  # never blocked
            table.insert(step)
        due = trigger.due()
        assert due is expected, f"step {step}"
        if due:
            assert len(table.sample(BATCH)) == BATCH
            trained += 1
    assert (trained, len(table), limiter.sampled, limiter.inserted) == (6, 200, 360, 461)
    again = ByNew(limiter, BATCH / RATIO, CAPACITY // PRELOAD)
    again.load_state(trigger.state())
    assert not again.due()


def test_by_clock_asks_nothing_but_the_time() -> None:
    now = 0.0
    limiter = RateLimiter.by_size(2)
    table: Table[int] = Table(5, limiter)
    trigger = ByClock(limiter, 2, 2.0, clock=lambda: now)
    now = 3.0
    table.insert(0)
    assert not trigger.due()  # less than a batch
    table.insert(1)
    assert trigger.due()
    assert not trigger.due()
    now = 4.9
    assert not trigger.due()
    now = 5.0
    assert trigger.due()


def test_by_ratio_repeats_as_long_as_whole_batches_are_allowed() -> None:
    limiter = RateLimiter.by_ratio(2.0, 4, 8.0)
    table: Table[int] = Table(10, limiter)
    trigger = ByRatio(limiter, 6)
    assert trigger.repeats
    for k in range(4):
        table.insert(k)
    assert trigger.due()  # 4 * 2 - 6 = 2 >= 4 * 2 - 8 = 0
    table.sample(6)
    assert not trigger.due()  # 2 - 6 < 0
    table.insert(4)
    table.insert(5)
    assert trigger.due()  # 6 * 2 - 6 - 6 = 0
