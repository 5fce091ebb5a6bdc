"""Groups that are passed over while the recorder is slow."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from rollmill.runs.shedding import FIRST_SECONDS, MOST_SECONDS, Shedding


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_group_is_taken_in_again_when_there_was_room_for_a_while() -> None:
    clock = Clock()
    shedding = Shedding(clock)
    shedding.give_up(3)
    clock.now = 0.5
    shedding.give_up(1)
    shedding.take_in()
    assert 3 in shedding
    clock.now = 0.5 + FIRST_SECONDS
    shedding.take_in()
    assert 3 not in shedding, "it waited longest"
    assert 1 in shedding
    shedding.take_in()
    assert 1 in shedding, "one after the other"
    clock.now += FIRST_SECONDS
    shedding.take_in()
    assert 1 not in shedding
    shedding.take_in()


def test_what_was_too_early_is_tried_later_and_what_went_well_sooner() -> None:
    clock = Clock()
    shedding = Shedding(clock)
    waits = []
    for _ in range(9):
        shedding.give_up(0)
        begun = clock.now
        while 0 in shedding:
            clock.now += 0.25
            shedding.take_in()
        waits.append(clock.now - begun)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert waits[-1] == MOST_SECONDS
    for group in range(8):
        shedding.give_up(group)
    times = []
    for group in range(8):
        while group in shedding:
            clock.now += 0.25
            shedding.take_in()
        times.append(clock.now)
    assert np.diff(times).tolist() == [60, 30, 15, 7.5, 3.75, 2, 1], "to the next quarter of a second"


def test_whole_episodes_that_are_left_are_not_the_short_ones() -> None:
    """Half of the room that eight groups would need: with holes here and there, no long episode would be whole."""
    clock = Clock()
    shedding = Shedding(clock)
    groups, long_episode, room, steps = 8, 40, 4, 4000
    whole: Counter[int] = Counter()
    unbroken = [0] * groups
    for step in range(steps):
        clock.now = step * 0.1
        shedding.take_in()
        left = room
        for group in np.random.default_rng(step).permutation(groups).tolist():
            if group in shedding:
                unbroken[group] = 0
            elif left == 0:
                shedding.give_up(group)
                unbroken[group] = 0
            else:
                left -= 1
                unbroken[group] += 1
                whole[group] += unbroken[group] % long_episode == 0
    possible = steps * room // long_episode
    assert sum(whole.values()) > 0.8 * possible
