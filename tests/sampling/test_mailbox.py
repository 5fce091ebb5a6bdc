"""The numbers and wakeups between main and workers."""

import os
import subprocess
import sys

import numpy as np

from rollmill.core.slots import SharedBlock
from rollmill.sampling.mailbox import Mailbox, SharedWatch, Wakeup


def test_a_group_is_ready_exactly_when_its_command_is_done() -> None:
    box = Mailbox(groups=4, workers=2, envs=8)
    box.command[:] = 1
    assert box.ready().size == 0
    box.done[2] = 1
    assert box.ready().tolist() == [2]
    box.command[2] += 1
    assert box.ready().size == 0


def test_restart_gives_a_group_its_first_command_again() -> None:
    box = Mailbox(4, 2, 8)
    box.command[:], box.done[:], box.row[:] = 5, [5, 4, 5, 4], 3
    box.restart(np.array([0, 1]))
    assert box.row.tolist() == [-1, -1, 3, 3]
    assert box.ready().tolist() == [2]
    box.done[:2] = box.command[:2]
    assert box.ready().tolist() == [0, 1, 2]


def test_two_mailboxes_over_one_block_see_the_same_numbers() -> None:
    one = Mailbox(3, 2, 4)
    two = Mailbox(3, 2, 4, SharedBlock(one.block.fd, one.block.nbytes))
    one.next_episode[:] = np.arange(4)
    one.since[1] = 0.25
    two.stop[0] = 1
    assert two.next_episode.tolist() == [0, 1, 2, 3]
    assert two.since[1] == 0.25
    assert one.stop[0] == 1
    assert one.command.sum() == one.phase.sum() == 0
    one.block.close_fd()


def test_a_watch_says_what_goes_on_and_for_how_long() -> None:
    box = Mailbox(2, 2, 4)
    watch = SharedWatch(box, 1)
    watch.enter(env=3, phase=2, episode=9, step=4)
    assert (box.env[1], box.phase[1], box.episode[1], box.step[1]) == (3, 2, 9, 4)
    assert box.since[1] > 0
    assert box.phase[0] == 0
    watch.leave()
    assert box.phase[1] == 0


def test_every_worker_has_a_cache_line_of_its_own() -> None:
    box = Mailbox(3, 4, 8)
    names = ("phase", "env", "episode", "step", "since", "seconds_env", "seconds_wait", "sleeping")
    for worker in range(4):
        lines = {getattr(box, name)[worker:].ctypes.data // 64 for name in names}
        assert len(lines) == 1
        for name in names:
            getattr(box, name)[worker] = worker + 1
    for name in names:
        assert getattr(box, name).tolist() == [1, 2, 3, 4], name
    assert box.command.sum() == box.next_episode.sum() == box.stop[0] == 0


def test_numbers_are_the_arrays_under_another_name() -> None:
    box = Mailbox(3, 2, 4)
    for name in ("command", "done", "slot", "row", "stop", "wanted", "main_sleeping"):
        numbers, array = box.numbers(name), getattr(box, name)
        assert len(numbers) == len(array)
        numbers[len(numbers) - 1] = -7
        assert array[-1] == -7
        array[0] = 11
        assert numbers[0] == 11
    box.block.close_fd()


def test_main_listens_until_it_says_otherwise() -> None:
    """A worker that joins (or a new one in its place) does not change that."""
    box = Mailbox(3, 2, 4)
    assert box.main_sleeping[0] == 1
    box.main_sleeping[0] = 0
    assert Mailbox(3, 2, 4, SharedBlock(box.block.fd, box.block.nbytes)).main_sleeping[0] == 0
    box.block.close_fd()


def test_a_wakeup_wakes_once_however_often_it_was_rung() -> None:
    wakeup = Wakeup.create()
    assert not wakeup.wait(0)
    wakeup.notify()
    wakeup.notify()
    assert wakeup.wait(0)
    assert wakeup.wait(None), "it stays notified until it is cleared"
    wakeup.clear()
    assert not wakeup.wait(0)
    wakeup.clear()
    wakeup.close()


def test_a_wakeup_that_is_rung_for_ever_does_not_block() -> None:
    wakeup = Wakeup.create()
    for _ in range(70_000):  # more than a pipe holds
        wakeup.notify()
    assert wakeup.wait(0)
    wakeup.close()


def test_a_wakeup_of_two_descriptors() -> None:
    """Where there is no eventfd, a wakeup is a pipe."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    wakeup = Wakeup(read, write)
    assert wakeup.fds == (read, write)
    for _ in range(70_000):
        wakeup.notify()
    assert wakeup.wait(0)
    wakeup.close()


def test_waiting_in_vain_ends() -> None:
    wakeup = Wakeup.create()
    assert not wakeup.wait(0.01)
    wakeup.close()


def test_a_ring_between_clear_and_wait_is_not_lost() -> None:
    """The order of a sleeper: clear, look at the numbers, wait. Whoever notifies it in between wakes it."""
    wakeup = Wakeup.create()
    wakeup.notify()
    wakeup.clear()
    wakeup.notify()
    assert wakeup.wait(0)
    wakeup.close()


CHILD = """
import sys
from rollmill.core.slots import SharedBlock
from rollmill.sampling.mailbox import Wakeup, Mailbox

box_fd, nbytes, own, main = map(int, sys.argv[1:])
box, own, main = Mailbox(3, 1, 3, SharedBlock(box_fd, nbytes)), Wakeup(own), Wakeup(main)
while not box.stop[0]:
    own.clear()
    waiting = box.command != box.done
    if waiting.any():
        box.row[waiting] += 10
        box.done[waiting] = box.command[waiting]
        main.notify()
    else:
        own.wait(60)
"""


def test_commands_and_wakeups_between_two_processes() -> None:
    """Every command is answered once, whatever the two do at the same time; the wakeups wake, they do not count."""
    box, own, main = Mailbox(3, 1, 3), Wakeup.create(), Wakeup.create()
    fds = (box.block.fd, own.fd, main.fd)
    words = [str(word) for word in (box.block.fd, box.block.nbytes, own.fd, main.fd)]
    with subprocess.Popen([sys.executable, "-c", CHILD, *words], pass_fds=fds) as child:
        for turn in range(1, 201):
            groups = [0, 2] if turn % 2 else [0, 1, 2]
            box.command[groups] += 1
            own.notify()
            while box.ready().size < 3:
                assert main.wait(60), "the other process does not answer"
                main.clear()
        box.stop[0] = 1
        own.notify()
        assert child.wait(60) == 0
    assert box.row.tolist() == [2000, 1000, 2000]
    for wakeup in (own, main):
        wakeup.close()
    box.block.close_fd()
