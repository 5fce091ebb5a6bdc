"""The buffer of packed segments: what goes in comes out, and nothing too old, too much or too large."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from replaying import complex_hunt

from rollmill.core.errors import ConfigError
from rollmill.core.fields import Array
from rollmill.core.shapes import ShapeError
from rollmill.replay import buffer as module
from rollmill.replay.buffer import SegmentBuffer
from rollmill.replay.settings import ReplaySettings


def segment_of(number: int, steps: int = 5) -> dict[str, Array]:
    """Version ``number`` acted, but in the bootstrap row."""
    versions = np.full(steps + 1, number)
    versions[-1] = 0
    return {"obs:x": np.full((steps + 1, 3), number, np.float32), "version": versions}


def buffer_of(batch: int = 4, seed: int = 0, **settings: Any) -> SegmentBuffer:
    return SegmentBuffer(ReplaySettings(**{"capacity": 10, **settings}), batch, seed)


def test_a_batch_holds_segments_as_they_came() -> None:
    buffer = buffer_of()
    for number in range(12):
        while not buffer.may_add():
            assert buffer.due()
            buffer.draw()
        buffer.add(segment_of(number))
    assert buffer.due()
    batch = buffer.draw()
    assert batch["obs:x"].shape == (6, 4, 3)
    for column in range(4):
        number = batch["version"][0, column]
        assert 2 <= number < 12  # the oldest have given way
        assert np.array_equal(batch["obs:x"][:, column], segment_of(number)["obs:x"])
    assert buffer.draw()["obs:x"] is batch["obs:x"], "the same memory again"


def test_the_ratio_holds_and_nothing_is_drawn_before_its_time() -> None:
    buffer = buffer_of(samples_per_insert=3.0, preload=2.0)
    limiter = buffer.table.limiter
    assert limiter.min_size == 5
    buffer.add(segment_of(0))
    with pytest.raises(RuntimeError, match="`due` first"):
        buffer.draw()
    for number in range(1, 400):
        while not buffer.may_add():
            assert buffer.due()
            buffer.draw()
        buffer.add(segment_of(number))
        while buffer.due():
            buffer.draw()
    assert limiter.ratio == pytest.approx(3.0, rel=0.02)
    assert buffer.counts()["ratio"] == limiter.ratio


@pytest.mark.parametrize(("preload", "expected"), [(0.0, 4), (0.5, 5), (2.0, 5), (1.0, 10), (3.0, 4), (0.1, 4)])
def test_preload_divides_or_is_a_share(preload: float, expected: int) -> None:
    assert ReplaySettings(capacity=10, preload=preload).min_size(4) == expected


def test_what_is_too_old_goes_and_is_counted() -> None:
    buffer = buffer_of()
    for number in range(6):
        buffer.add(segment_of(number))
    buffer.expire(3)
    assert [item.data.version for item in buffer.table] == [3, 4, 5]
    assert not buffer.due(), "fewer than a batch are left"
    counts = buffer.counts()
    assert (counts["expired"], counts["unused"], counts["size"]) == (3, 3, 3)


def test_the_triggers_of_the_settings() -> None:
    new = buffer_of(trigger="new", samples_per_insert=2.0, preload=2.0)
    due = []
    for number in range(9):
        new.add(segment_of(number))
        due.append(new.due())
    # 10 // 2 = 5 must be there; then every 4 / 2 = 2 new ones.
    assert due == [False, False, False, False, True, False, True, False, True]
    ratio = buffer_of()
    assert [(buffer.repeats, buffer.timed) for buffer in (new, ratio)] == [(False, False), (True, False)]


def test_by_the_clock_a_batch_is_due_although_nothing_is_new() -> None:
    now = 0
    settings = ReplaySettings(capacity=10, trigger="clock", clock_seconds=100.0)
    buffer = SegmentBuffer(settings, 4, 0, clock=lambda: now)
    assert buffer.timed
    for number in range(9):
        buffer.add(segment_of(number))
    for now, due in ((99, False), (100, True), (100, False), (199, False), (200, True), (1000, True), (1001, False)):
        assert buffer.due() is due, now


def test_the_first_segment_tells_what_the_buffer_takes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        buffer_of(capacity=1000).add(segment_of(0))
    assert "1,000 like it take" in caplog.text
    monkeypatch.setattr(module, "available_memory", lambda: 1000)
    with pytest.raises(ConfigError, match=r"replay\.capacity=1000.*smaller"):
        buffer_of(capacity=1000).add(segment_of(0))


def test_the_preset_of_a_competition_takes_less_than_a_gigabyte() -> None:
    """Capacity 200, batches of 60 segments of 256 steps, with maps that cannot shrink."""
    _, segment = complex_hunt()
    buffer = SegmentBuffer(ReplaySettings(capacity=200, preload=2.0, trigger="new", samples_per_insert=5.0), 60, 0)
    buffer.add(segment)
    (first,) = buffer.table
    while len(buffer.table) < 200:  # packing them all takes seconds and gives the same bytes
        buffer.table.insert(first.data)
    assert buffer.due()
    batch = sum(array.nbytes for array in buffer.draw().values())
    one = sum(array.nbytes for array in segment.values())
    # Each segment is unpacked before it goes into the batch, one at a time.
    assert buffer.counts()["bytes"] + batch + one <= 500_000_000


def test_a_state_goes_on_with_or_without_contents() -> None:
    for save in (True, False):
        buffer = buffer_of(save=save, samples_per_insert=2.0)
        for number in range(6):
            buffer.add(segment_of(number))
        buffer.draw()
        buffer.expire(1)
        buffer.missed()
        twin = buffer_of(save=save, samples_per_insert=2.0, seed=9)
        twin.load_state(buffer.state())
        assert twin.counts() | {"age": 0} == buffer.counts() | {"age": 0} if save else twin.counts()["size"] == 0
        assert twin.table.limiter.sampled == 4
        twin.add(segment_of(7))
        buffer.add(segment_of(7))
        if save:
            assert np.array_equal(twin.draw()["version"], buffer.draw()["version"])
    with pytest.raises(ShapeError, match="table"):
        twin.load_state({})


def test_contents_of_a_checkpoint_are_drawn_once_a_segment_has_shown_their_layout() -> None:
    """A run may be saved while batches are due."""
    buffer = buffer_of(save=True)
    number = 0
    while buffer.may_add():
        buffer.add(segment_of(number))
        number += 1
    twin = buffer_of(save=True)
    twin.load_state(buffer.state())
    assert buffer.due()
    assert not twin.due()
    twin.open(segment_of(number))
    assert twin.due()
    assert np.array_equal(twin.draw()["version"], buffer.draw()["version"])
    assert twin.may_add()


def test_contents_of_another_shape_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    buffer = buffer_of(save=True)
    for number in range(5):
        buffer.add(segment_of(number))
    twin = buffer_of(save=True)
    twin.load_state(buffer.state())
    twin.add(segment_of(5, steps=8))
    assert "5 of 5 replayed segments of the checkpoint cannot be used, and are left out: the packed" in caplog.text
    assert [item.data.version for item in twin.table] == [5]


def test_every_segment_of_a_checkpoint_is_looked_at(caplog: pytest.LogCaptureFixture) -> None:
    buffer = buffer_of(save=True)
    for number in range(5):
        buffer.add(segment_of(number))
    state = buffer.state()
    state["table"]["items"][3]["data"]["packed"] = state["table"]["items"][3]["data"]["packed"][:-1]
    twin = buffer_of(save=True)
    twin.load_state(state)
    twin.add(segment_of(5))
    assert "1 of 5 replayed segments of the checkpoint cannot be used, and are left out: the checksum" in caplog.text
    assert [item.data.version for item in twin.table] == [0, 1, 2, 4, 5]
    assert twin.due()
    assert twin.draw()["obs:x"].shape == (6, 4, 3)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"capacity": -1}, "capacity"),
        ({"samples_per_insert": 0.0}, "positive"),
        ({"clock_seconds": 0.0}, "positive"),
        ({"sampler": "fifo"}, "for ever"),
        ({"sampler": "max_heap"}, "for ever"),
    ],
)
def test_settings_that_make_no_sense_are_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ReplaySettings(**values)
    ReplaySettings(sampler="fifo", max_times_sampled=1)
