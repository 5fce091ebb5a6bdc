from rollmill.core.slots import SharedBlock
from rollmill.recording.segment_queue import LEAVE, SegmentQueue


def test_entries_come_out_in_order_and_wrap_around() -> None:
    queue = SegmentQueue(capacity=3)
    other = SegmentQueue(capacity=3, block=SharedBlock(queue.block.fd, queue.block.nbytes))
    out = []
    for k in range(10):
        assert queue.free == 3
        assert queue.push(k, 10 * k, k / 10) == k
        assert queue.free == 2
        out.append(other.take())
        assert queue.free == 2, "it is only free when it is done"
        other.finish()
    assert out == [(k, 10 * k, k / 10) for k in range(10)]
    assert other.take() is None


def test_the_entry_of_a_dead_reader_is_lost_and_the_next_one_is_not() -> None:
    queue = SegmentQueue(capacity=4)
    for slot in (5, 6, 7):
        queue.push(slot, 0)
    queue.take()
    queue.finish()
    queue.take()  # and dies
    assert queue.give_up_begun() == 1
    assert queue.take() == (7, 0, 1.0)
    queue.finish()
    assert queue.free == 4


def test_nothing_is_lost_with_a_message() -> None:
    queue = SegmentQueue(capacity=2)
    queue.push(LEAVE, 3)
    queue.take()
    assert queue.give_up_begun() == 0
    assert queue.give_up_begun() == 0
