"""Who is there: the leader and its followers in one process, each with a thread of its own."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psutil
import pytest
from running import wait_until

from rollmill.core.errors import ConfigError, EnvError, LostRankError, RankError
from rollmill.learning.roll_call import Follower, find_store, in_background, knock, own_address, read_run
from rollmill.learning.roll_call_leader import MOST_VAIN, Leader, Silence

LIMIT = 60.0


class Roll:
    """A leader of some ranks, and threads in which followers act."""

    def __init__(self, count: int, silence: float = 30.0) -> None:
        self.leader = Leader("127.0.0.1", 0, count, silence)
        self.leader.open({"env": "any"})
        self.followers = [self.follower(rank) for rank in range(1, count)]
        self._threads = ThreadPoolExecutor(8)

    def follower(self, rank: int, patience: float = 30.0) -> Follower:
        return Follower(find_store("127.0.0.1", self.leader.port), rank, patience)

    def later(self, call: Callable[..., Any], *args: Any) -> Future[Any]:
        return self._threads.submit(call, *args)

    def meet(self, *absent: int) -> tuple[list[Any], tuple[int, ...]]:
        """All but the absent ones come: what each follower says of the group, and what the leader says."""
        told = [self.later(f.assemble, LIMIT) for f in self.followers if f.rank not in absent]
        present = self.leader.assemble(LIMIT)
        return [one.result() for one in told], present

    def close(self) -> None:
        for follower in self.followers:
            follower.leave()
        self.leader.end("", 0.0)
        self._threads.shutdown()


@pytest.fixture
def roll() -> Iterator[Callable[..., Roll]]:
    made: list[Roll] = []

    def make(*args: Any) -> Roll:
        made.append(Roll(*args))
        return made[-1]

    yield make
    for one in made:
        one.close()


def raised_by(call: Callable[[], object]) -> BaseException | None:
    try:
        call()
    except Exception as error:  # noqa: BLE001 - looked at by the test
        return error
    return None


# -- groups --------------------------------------------------------------------------------------------------


def test_all_meet_and_those_who_are_left_meet_again(roll: Callable[..., Roll]) -> None:
    three = roll(3)
    assert three.meet() == ([(0, 1, 2)] * 2, (0, 1, 2))
    three.leader.check()
    three.leader.lose(1, "was killed by signal 9")
    with pytest.raises(LostRankError, match=r"^rank 1 was killed by signal 9$"):
        three.leader.check()
    assert three.meet(1) == ([(0, 2)], (0, 2))
    three.leader.check()
    assert three.leader.lost == {1: "rank 1 was killed by signal 9"}


def test_whoever_was_given_up_hears_that_the_others_have_gone_on(roll: Callable[..., Roll]) -> None:
    three = roll(3)
    three.meet()
    three.leader.lose(1, "was silent")
    late = three.later(three.followers[0].assemble, LIMIT)
    three.meet(1)
    with pytest.raises(RankError, match=r"gone on without this rank \(1\)"):
        late.result()


def test_a_group_that_one_has_left_is_closed_for_all(roll: Callable[..., Roll]) -> None:
    """One has lost its connection: the others must not wait in theirs."""
    three = roll(3)
    three.meet()
    one, two = three.followers
    comes_back = three.later(one.assemble, LIMIT)
    for other in (two, three.leader):
        error = wait_until(lambda other=other: raised_by(other.check), what="the group to be closed")  # type: ignore[misc]
        assert isinstance(error, LostRankError)
    told = three.later(two.assemble, LIMIT)
    assert three.leader.assemble(LIMIT) == comes_back.result() == told.result() == (0, 1, 2)


def test_who_is_late_is_given_up_and_at_the_start_ends_the_run(roll: Callable[..., Roll]) -> None:
    three = roll(3)
    three.meet()
    told = three.later(three.followers[0].assemble, LIMIT)
    assert three.leader.assemble(0.3) == told.result() == (0, 1)
    assert "rank 2 has not come within 0.3 s" in three.leader.lost[2]
    with pytest.raises(RankError, match=r"^rank 1 has not come within 0\.1 s$"):
        roll(2).leader.assemble(0.1)


def test_one_that_dies_before_the_first_group_ends_the_run(roll: Callable[..., Roll]) -> None:
    two = roll(2)
    two.leader.watch = lambda: two.leader.lose(1, "ended with exit code 3")
    with pytest.raises(RankError, match=r"^rank 1 ended with exit code 3$"):
        two.leader.assemble(LIMIT)


def test_ranks_that_live_and_cannot_talk_do_not_try_for_ever(roll: Callable[..., Roll]) -> None:
    two = roll(2)
    for _ in range(1 + MOST_VAIN):
        two.meet()
    with pytest.raises(RankError, match="2 ranks live, but have lost the connection to each other"):
        two.leader.assemble(LIMIT)


# -- signs of life -------------------------------------------------------------------------------------------


def test_silence_is_measured_from_the_last_new_beat() -> None:
    silence = Silence()
    assert silence.look({1: 0, 2: 5}, now=10.0) == {2: 0.0}, "rank 1 has not begun"
    assert silence.look({1: 1, 2: 6}, now=11.0) == {1: 0.0, 2: 0.0}
    assert silence.look({1: 1, 2: 7}, now=12.0) == {1: 1.0, 2: 0.0}
    assert silence.look({1: 1}, now=13.0) == {1: 2.0}, "the other one is not asked for any more"
    assert silence.look({1: 2}, now=14.0) == {1: 0.0}


def test_time_in_which_nobody_looked_is_no_silence() -> None:
    """The leader's machine stood still, or its interpreter was held: it cannot know who has been silent."""
    silence = Silence()
    silence.look({1: 1}, now=10.0)
    silence.look({1: 1}, now=11.0)
    assert silence.look({1: 1}, now=500.0)[1] == pytest.approx(2.0)
    assert silence.look({1: 1}, now=501.0)[1] == pytest.approx(3.0)


def test_a_rank_that_falls_silent_is_lost(roll: Callable[..., Roll]) -> None:
    two = roll(2, 2.5)
    two.meet()
    two.followers[0]._pulse.end()
    error = wait_until(lambda: raised_by(two.leader.check), what="the silence to be noticed")
    assert str(error) == "rank 1 has given no sign of life for 2.5 s (learning.rank_silence)"


def test_a_process_that_is_gone_is_found_before_its_silence_is_too_long(roll: Callable[..., Roll]) -> None:
    two = roll(2, 600.0)
    two.meet()
    two.followers[0].leave()
    error = wait_until(lambda: raised_by(two.leader.check), what="the shut door to be found")
    assert str(error) == "rank 1 has ended without a word"


def test_rank_0_that_is_gone_is_noticed_at_once() -> None:
    leader = Leader("127.0.0.1", 0, 2, 30.0)
    leader.open({})
    follower = Follower(find_store("127.0.0.1", leader.port), 1, patience=600.0)
    leader.end("", 0.0)
    error = wait_until(lambda: raised_by(follower.check), what="the end of the store to be noticed")
    assert str(error).startswith("rank 0 has gone; its log may say why (")
    follower.leave()


def test_without_rank_0_the_others_end() -> None:
    """A store that accepts connections and never answers is a leader that stands still, or is cut off."""
    leader = Leader("127.0.0.1", 0, 2, 30.0)
    leader.open({})
    follower = Follower(find_store("127.0.0.1", leader.port), 1, patience=2.0)
    follower.check()
    hold = threading.Event()
    follower._pulse._act = lambda _store: (hold.wait(LIMIT), None)[1]
    try:
        error = wait_until(lambda: raised_by(follower.check), what="the silence to be noticed")
        assert isinstance(error, RankError)
        assert "rank 0 has given no sign of life for 2 s" in str(error)
    finally:
        hold.set()
        follower.leave()
        leader.end("", 0.0)


def test_what_ends_the_run_is_told_to_the_others() -> None:
    leader = Leader("127.0.0.1", 0, 2, 30.0)
    leader.open({})
    follower = Follower(find_store("127.0.0.1", leader.port), 1, patience=30.0)
    with ThreadPoolExecutor(1) as threads:
        ending = threads.submit(leader.end, "EnvError: not today", LIMIT)
        error = wait_until(lambda: raised_by(follower.check), what="the end to be heard of")
        assert str(error) == "rank 0 has ended the run: EnvError: not today"
        follower.leave()
        ending.result()


# -- failures ------------------------------------------------------------------------------------------------


def test_an_error_that_a_user_can_meet_ends_the_run_and_any_other_is_a_lost_machine(
    roll: Callable[..., Roll], caplog: pytest.LogCaptureFixture
) -> None:
    three = roll(3)
    three.meet()
    three.followers[0].leave({"type": "OSError", "error": "OSError: no space left", "trace": "where it was"})
    error = wait_until(lambda: raised_by(three.leader.check), what="the failure to be heard of")
    assert isinstance(error, LostRankError)
    assert str(error) == "rank 1 failed: OSError: no space left"
    assert "where it was" in caplog.text
    three.followers[1].leave({"type": "EnvError", "error": "env 5 raises", "trace": ""})
    error = wait_until(
        lambda: isinstance(raised := raised_by(three.leader.check), EnvError) and raised, what="the failure"
    )
    assert str(error) == "rank 2 failed: env 5 raises"


def test_a_rank_that_was_interrupted_says_so_at_once(roll: Callable[..., Roll]) -> None:
    two = roll(2)
    two.meet()
    two.followers[0].leave("was interrupted")
    error = wait_until(lambda: raised_by(two.leader.check), what="the word to be heard")
    assert str(error) == "rank 1 was interrupted"


# -- who may join --------------------------------------------------------------------------------------------


def test_those_who_come_get_a_rank_each_and_then_there_is_none(roll: Callable[..., Roll]) -> None:
    leader = roll(1).leader
    leader.seats = [1, 2]
    leader.refuse = lambda card: "other versions" if card["versions"] else ""
    store = find_store("127.0.0.1", leader.port)
    assert read_run(store) == {"env": "any"}
    assert knock(store, {"name": "alpha", "versions": ""}) == 1
    with pytest.raises(ConfigError, match="cannot learn with the run: other versions"):
        knock(store, {"name": "beta", "versions": "1"})
    with pytest.raises(ConfigError, match="a card that makes no sense"):
        knock(store, {"name": "gamma"})
    assert knock(store, {"name": "delta", "versions": ""}) == 2
    with pytest.raises(ConfigError, match="all its ranks are taken"):
        knock(store, {"name": "epsilon", "versions": ""})


def test_one_that_dies_while_it_knocks_is_in_nobodys_way(roll: Callable[..., Roll]) -> None:
    leader = roll(1).leader
    leader.seats = [1]
    store = find_store("127.0.0.1", leader.port)
    assert store.add("knocks", 1) == 1
    assert knock(store, {"name": "alpha"}) == 1


def test_the_store_listens_on_its_own_address_only(roll: Callable[..., Roll]) -> None:
    leader = roll(1).leader
    listening = {c.laddr for c in psutil.Process().net_connections("tcp") if c.status == psutil.CONN_LISTEN}
    assert [address.ip for address in listening if address.port == leader.port] == ["127.0.0.1"]


def test_an_address_that_is_not_this_machines_or_a_port_that_is_taken_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"learning\.meet=192\.0\.2\.1:29500: this machine cannot listen there"):
        Leader("192.0.2.1", 29500, 2, 10.0)
    taken = socket.create_server(("127.0.0.1", 0))
    with contextlib.closing(taken), pytest.raises(ConfigError, match="already in use"):
        Leader("127.0.0.1", taken.getsockname()[1], 2, 10.0)


def test_the_own_address_is_the_one_towards_the_other() -> None:
    assert own_address("127.0.0.1", 29500) == "127.0.0.1"


# -- waiting -------------------------------------------------------------------------------------------------


def test_what_runs_in_the_background_gives_its_value_or_its_error() -> None:
    assert in_background(lambda: 3, LIMIT) == 3
    with pytest.raises(KeyError):
        in_background(lambda: json.loads("{}")["missing"], LIMIT)


def test_what_never_ends_is_left_to_itself() -> None:
    never = threading.Event()
    try:
        with pytest.raises(RuntimeError, match=r"no answer within 0\.1 s"):
            in_background(never.wait, 0.1)

        def lost() -> None:
            raise LostRankError("rank 1")

        with pytest.raises(LostRankError):
            in_background(never.wait, LIMIT, lost)
    finally:
        never.set()
