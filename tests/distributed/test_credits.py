"""Slots as credit, and segments counted at most once: plain models beside them, thousands of orders of events."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from rollmill.distributed.credits import Credits, fair_share
from rollmill.distributed.deliveries import Deliveries


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 6), st.lists(st.tuples(st.sampled_from(["lend", "use", "settle", "back"]), st.integers(0, 5))))
def test_every_slot_is_in_one_place(slots: int, events: list[tuple[str, int]]) -> None:
    credits, under_way, out = Credits(), dict[int, int](), list[int]()
    credits.give(range(slots))
    for kind, number in events:
        if kind == "lend" and number not in under_way:
            under_way[number] = credits.lend(number, 1 + number % 3)
        elif kind == "use" and number in under_way:
            slot = credits.use(number)
            assert (slot is None) == (under_way[number] == 0), "a call gets what was set aside, and no more"
            if slot is not None:
                under_way[number] -= 1
                out.append(slot)
        elif kind == "settle" and number in under_way:
            credits.settle(number)
            del under_way[number]
        elif kind == "back" and out:
            credits.give([out.pop(0)])
        assert len(set(out)) == len(out)
        assert credits.free + sum(under_way.values()) + len(out) == slots


def test_shares_leave_room_for_all_nodes() -> None:
    assert fair_share(free=16, nodes=2, calls=2) == 4
    assert fair_share(free=1, nodes=8, calls=2) == 1
    assert fair_share(free=0, nodes=0, calls=2) == 1


@settings(max_examples=500, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["open", "take", "skip", "again", "tell", "damage", "close"]),
            st.integers(0, 3),
            st.integers(1, 5),
        )
    )
)
def test_a_segment_counts_once_and_none_is_forgotten(events: list[tuple[str, int, int]]) -> None:
    deliveries, next_number, told = Deliveries(), dict[int, int](), dict[int, int]()
    finished, used, unreadable = 0, set[tuple[int, int]](), 0
    opened = 0
    for kind, which, count in events:
        living = sorted(next_number)
        if kind == "open":
            opened += 1
            deliveries.open(opened)
            next_number[opened], told[opened] = 1, 0
            continue
        if not living:
            continue
        incarnation = living[which % len(living)]
        if kind in ("take", "skip"):
            number = next_number[incarnation] + (count if kind == "skip" else 0)
            hole = deliveries.take(incarnation, number)
            assert hole == number - next_number[incarnation]
            assert (incarnation, number) not in used
            used.add((incarnation, number))
            next_number[incarnation] = number + 1
            told[incarnation] = max(told[incarnation], number)
        elif kind == "again":
            before = deliveries.received
            assert deliveries.take(incarnation, next_number[incarnation] - 1) is None
            assert deliveries.take(opened + 1, count) is None, "nobody has begun that one"
            assert deliveries.received == before
        elif kind == "tell":
            deliveries.hears(incarnation, count)
            told[incarnation] = max(told[incarnation], count)
        elif kind == "damage" and used:
            deliveries.take(incarnation, next_number[incarnation])
            deliveries.damaged()
            unreadable += 1
            next_number[incarnation] += 1
            told[incarnation] = max(told[incarnation], next_number[incarnation] - 1)
        elif kind == "close":
            finished += told.pop(incarnation)
            deliveries.close(incarnation)
            del next_number[incarnation]
            assert deliveries.take(incarnation, 10_000) is None
    assert deliveries.waiting == sum(told[one] - next_number[one] + 1 for one in next_number)
    for incarnation in list(next_number):
        finished += told[incarnation]
        deliveries.close(incarnation)
    assert deliveries.waiting == 0
    assert deliveries.received == len(used)
    assert deliveries.received + deliveries.lost == finished
