from collections import Counter

import pytest

from rollmill.recording.pieces import SegmentChoice


@pytest.mark.parametrize("keep", ["one", "rotate", "every"])
def test_pieces_are_of_what_was_learnt_from(keep: str) -> None:
    assert SegmentChoice(keep, 2, 2, 1).choose([0, 1], learnt=False) == []  # type: ignore[arg-type]
    assert SegmentChoice(keep, 2, 2, 1).choose([]) == []  # type: ignore[arg-type]


def test_one_segment_per_step_stays_with_a_group() -> None:
    selector = SegmentChoice("one", 2, 2)
    assert selector.choose([3, 1, 2]) == [1]
    assert selector.choose([2, 3, 1, 0]) == [2], "it continues group 1, though 0 is lower"


def test_one_segment_per_step_where_batches_do_not_hold_every_group() -> None:
    selector = SegmentChoice("one", 2, 2)
    chosen = [groups[selector.choose(groups)[0]] for groups in ([0, 1], [2, 3], [1, 0], [3, 2], [0, 1])]
    assert chosen == [0, 2, 0, 2, 0], "each kept group is continued"


def test_only_the_first_segment_of_a_group_continues_it() -> None:
    selector = SegmentChoice("one", 1, 1)
    selector.choose([0])
    assert selector.choose([0, 0]) == [0]


def test_a_different_worker_each_time() -> None:
    selector = SegmentChoice("rotate", 2, 3)
    groups = list(range(6))
    chosen = [selector.choose(groups)[0] // 2 for _ in range(6)]
    assert chosen == [0, 1, 2, 0, 1, 2]
    assert selector.choose([5]) == [0], "the one in turn has none: the next one that has"
    assert selector.choose([1, 4]) == [0]


def test_every_kth_over_batches() -> None:
    selector = SegmentChoice("every", 1, 5, every=3)
    chosen = [5 * batch + i for batch in range(6) for i in selector.choose(range(5))]
    assert chosen == list(range(0, 30, 3))
    assert Counter(k % 5 for k in chosen) == dict.fromkeys(range(5), 2), "all groups come up"
