"""Who takes part: every decision with a clock of its own, and thousands of orders of events."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from rollmill.core.seeds import INCARNATION_EPISODES
from rollmill.distributed.membership import INCARNATIONS_EACH, LONGEST_REST, End, Membership, Start
from rollmill.distributed.settings import MOST_NODES


def make(seats: int = 4) -> Membership:
    return Membership(seats, first_incarnation=100, start_timeout=30.0, node_timeout=10.0)


def test_a_node_gets_a_seat_and_starts_at_once() -> None:
    members = make()
    assert members.look({"b", "a"}, 0.0) == [Start("a", 0, 100), Start("b", 1, 101)]
    assert members.look({"a", "b"}, 1.0) == []
    assert members.samples("a", 100, 1.0)
    assert not members.samples("a", 100, 2.0)  # no news
    assert [member.node for member in members.sampling()] == ["a"]


def test_a_node_that_leaves_frees_its_seat_and_comes_back_as_another_incarnation() -> None:
    members = make(seats=1)
    members.look({"a"}, 0.0)
    assert members.look({"b"}, 1.0) == [End("a", 0, 100, "it has left the cluster"), Start("b", 0, 101)]
    assert members.look({"a", "b"}, 2.0) == []  # there are more nodes than seats
    assert members.look({"a"}, 3.0)[-1] == Start("a", 0, 102)


def test_a_silent_node_is_given_up_after_node_timeout_and_tried_again_after_a_rest() -> None:
    members = make()
    members.look({"a"}, 0.0)
    members.samples("a", 100, 5.0)
    assert members.look({"a"}, 14.9) == []
    (end,) = members.look({"a"}, 15.0)
    assert end == End("a", 0, 100, "nothing was heard of it for 10 s")
    assert members.look({"a"}, 15.9) == []
    assert members.look({"a"}, 16.0) == [Start("a", 0, 101)]


def test_a_node_that_starts_may_be_silent_for_start_timeout() -> None:
    members = make()
    members.look({"a"}, 0.0)
    assert members.look({"a"}, 29.9) == []
    (end,) = members.look({"a"}, 30.0)
    assert "within 30 s, and nothing was heard of it" in end.reason  # type: ignore[union-attr]
    members = make()
    members.look({"a"}, 0.0)
    members.hears("a", 100, 5.0)
    assert members.look({"a"}, 15.0) == [End("a", 0, 100, "nothing was heard of it for 10 s")]


def test_a_node_that_talks_but_never_samples_is_given_up_after_start_timeout() -> None:
    members = make()
    members.look({"a"}, 0.0)
    for second in range(1, 30):
        members.hears("a", 100, float(second))
        assert members.look({"a"}, float(second)) == []
    assert "begun to sample within 30 s" in members.look({"a"}, 30.0)[0].reason  # type: ignore[union-attr]


def test_rests_double_up_to_a_limit_and_begin_anew_once_the_node_has_proven_itself() -> None:
    members, now, rests = make(), 0.0, []
    members.look({"a"}, now)
    for _ in range(9):
        incarnation = members.members["a"].incarnation
        members.fails("a", incarnation, "broken", now)
        begun = now
        while not members.look({"a"}, now):
            now += 0.5
        rests.append(now - begun)
    assert rests == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, LONGEST_REST, LONGEST_REST, LONGEST_REST]
    incarnation = members.members["a"].incarnation
    members.samples("a", incarnation, now)
    members.hears("a", incarnation, now + 60)
    members.fails("a", incarnation, "broken", now + 60)
    assert members.members["a"].rest == 1.0


def test_a_node_that_does_not_fit_is_refused_with_the_reason_until_it_comes_back() -> None:
    members = make()
    members.look({"a"}, 0.0)
    (end,) = members.refuse("a", 100, "it has rollmill 0.1, the learner has 0.2", 1.0)
    assert isinstance(end, End)
    assert members.look({"a"}, 1000.0) == []
    assert members.members["a"].reason == "it has rollmill 0.1, the learner has 0.2"
    members.look(set(), 1001.0)
    assert members.look({"a"}, 1002.0) == [Start("a", 0, 101)]


def test_an_earlier_incarnation_is_not_listened_to() -> None:
    members = make()
    members.look({"a"}, 0.0)
    members.fails("a", 100, "it ended", 1.0)
    members.look({"a"}, 2.0)
    assert members.hears("a", 100, 3.0) is None
    assert members.fails("a", 100, "it ended again", 3.0) == []
    assert members.hears("a", 101, 3.0) is members.members["a"]


def test_a_gateway_has_numbers_for_many_starts_on_every_seat_there_can_be() -> None:
    """Without any left it ends, and with it all nodes: for ever, if the first start of all takes too many."""
    members, now = Membership(MOST_NODES, INCARNATIONS_EACH, start_timeout=30.0, node_timeout=10.0), 0.0
    nodes = {f"node{number}" for number in range(MOST_NODES)}
    for _ in range(100):
        assert len([step for step in members.look(nodes, now) if isinstance(step, Start)]) == MOST_NODES
        assert not members.used_up
        for member in list(members.members.values()):
            members.fails(member.node, member.incarnation, "broken", now)
        now += LONGEST_REST
    assert 10_000 * INCARNATIONS_EACH * INCARNATION_EPISODES < 2**63, "gateways of a run whose head has gone for days"


EVENT = st.tuples(
    st.sampled_from(["join", "leave", "sample", "hear", "fail", "refuse", "old", "wait"]),
    st.sampled_from("abcde"),
    st.floats(0.0, 20.0),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(EVENT, max_size=60), st.integers(1, 4))
def test_whatever_happens_seats_and_incarnations_are_unique(events: list[tuple[str, str, float]], seats: int) -> None:
    members, now, there = make(seats), 0.0, set[str]()
    running: dict[int, str] = {}  # incarnation -> node
    started: list[int] = []

    def follow(steps: list[Start | End]) -> None:
        for step in steps:
            if isinstance(step, Start):
                assert step.node not in running.values(), "two incarnations at a time on a node"
                running[step.incarnation] = step.node
                started.append(step.incarnation)
            else:
                assert running.pop(step.incarnation) == step.node, "what is ended was running"
                assert step.reason

    for kind, node, passed in events:
        now += passed
        member = members.members.get(node)
        incarnation = member.incarnation if member else 0
        if kind == "join":
            there.add(node)
        elif kind == "leave":
            there.discard(node)
        elif kind == "sample":
            members.samples(node, incarnation, now)
        elif kind == "hear":
            members.hears(node, incarnation, now)
        elif kind == "fail":
            follow(members.fails(node, incarnation, "it broke", now))
        elif kind == "refuse":
            follow(members.refuse(node, incarnation, "it does not fit", now))
        elif kind == "old":
            assert not members.fails(node, incarnation - 1, "old", now)
        follow(members.look(there, now))
        at = [member.seat for member in members.members.values()]
        assert len(set(at)) == len(at) <= seats
        assert set(members.members) <= there
        active = {m.incarnation for m in members.members.values() if m.stage in ("starting", "sampling")}
        assert active == set(running)
    assert started == sorted(set(started)), "incarnations only go up"
