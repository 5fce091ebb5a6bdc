"""The turn-over of segments and the bookkeeping of slots, without envs or workers."""

import numpy as np
import pytest

from rollmill.core.fields import ActionSpec, EnvSpec, Field
from rollmill.core.protocols import ActRequest, Policy, PolicyOutput, Seats
from rollmill.core.slots import CARRIED_FIELDS, OBS, Arena, SegmentLayout
from rollmill.sampling.inference import Inference
from rollmill.sampling.mailbox import Mailbox

SPEC = EnvSpec("x", (Field("a", "float32", (2,)), Field("b", "uint8", (3,))), ActionSpec("discrete", nvec=(5,)))
STEPS, LANES, GROUPS, SLOTS = 4, 3, 2, 6


def output(lanes: int, base: float, size: int) -> PolicyOutput:
    return PolicyOutput(
        np.arange(lanes) % 5,
        np.full(lanes, -base, np.float32),
        np.arange(lanes, dtype=np.float32) + base,
        np.full((lanes, size), base, np.float32),
    )


class Scripted(Policy):
    """Answers the n-th question with n; remembers what it was asked."""

    state_size = 2
    version = 0

    def __init__(self) -> None:
        self.asked: list[ActRequest] = []
        self.obs: list[dict] = []

    def act(self, request: ActRequest) -> PolicyOutput:
        self.version += 1
        self.asked.append(request)
        self.obs.append({name: array.copy() for name, array in request.obs.items()})
        return output(len(request.lanes), 10.0 * self.version, 2)


class Table:
    """An arena, its mailbox, one scripted policy, and a worker made of random numbers."""

    def __init__(self, every: int = 0, policies: int = 1) -> None:
        self.arena = Arena(SegmentLayout(SPEC, STEPS, LANES, 2, every), SLOTS)
        for slot in range(SLOTS):
            self.arena.poison(slot)
        self.box = Mailbox(GROUPS, 1, GROUPS * LANES)
        self.policies = [Scripted() for _ in range(policies)]
        self.inference = Inference(self.arena, self.box, self.policies)
        self.box.row[:] = -1
        self.rng = np.random.default_rng(0)

    def work(self, group: int) -> None:
        """What a worker does: fill the row after the commanded one."""
        slot, row = int(self.box.slot[group]), int(self.box.row[group]) + 1
        for array in self.arena.obs.values():
            array[slot, row] = self.rng.integers(100, size=array.shape[2:])
        self.arena["first"][slot, row] = self.rng.integers(2, size=LANES)
        self.arena["step"][slot, row] = self.rng.integers(99, size=LANES)
        self.arena["episode"][slot, row] = self.rng.integers(99, size=LANES)

    def turn(self, groups: list[int]) -> list[int]:
        for group in groups:
            self.work(group)
        return self.inference.infer(np.array(groups))


def test_groups_begin_in_slots_of_their_own() -> None:
    table = Table()
    assert table.box.slot.tolist() == [0, 1]
    assert list(table.inference.free) == [2, 3, 4, 5]


@pytest.mark.parametrize("groups", [[0], [1], [0, 1], [1, 0]])
def test_a_request_holds_the_newest_rows(groups: list[int]) -> None:
    table = Table()
    table.turn(groups)
    request, obs = table.policies[0].asked[0], table.policies[0].obs[0]
    assert request.lanes.tolist() == [g * LANES + lane for g in groups for lane in range(LANES)]
    for name, array in table.arena.obs.items():
        wanted = np.concatenate([array[g, 0] for g in groups])
        np.testing.assert_array_equal(obs[name], wanted)
    np.testing.assert_array_equal(request.first, np.concatenate([table.arena["first"][g, 0] for g in groups]))
    value = np.concatenate([table.arena["value"][g, 0] for g in groups])
    np.testing.assert_array_equal(value, np.arange(len(groups) * LANES) + 10)
    assert table.box.row[groups].tolist() == [0] * len(groups)


def test_a_full_segment_turns_over_into_a_fresh_slot() -> None:
    table = Table()
    for _ in range(STEPS):
        assert table.turn([0, 1]) == []
    assert table.turn([1]) == [1]
    old, new = table.arena.segment(1), table.arena.segment(2)
    assert table.box.slot.tolist() == [0, 2]
    assert table.box.row.tolist() == [STEPS - 1, 0]
    assert table.inference.group_of_slot[[1, 2]].tolist() == [1, 1]
    for name in (*CARRIED_FIELDS, OBS + "a", OBS + "b", "value", "version", "policy_id", "frames"):
        np.testing.assert_array_equal(old[name][STEPS], new[name][0], name)
    assert (old["value"][STEPS] == np.arange(LANES) + 10 * (STEPS + 1)).all(), "one decision serves both rows"
    assert np.isnan(old["reward"][STEPS]).all(), "the bootstrap row has no outcome"
    assert (old["action"][STEPS] < 0).all(), "and no action"
    closing = table.policies[0].asked[-1].closing
    assert closing.tolist() == [1]


def test_two_groups_that_fill_up_together() -> None:
    table = Table()
    for _ in range(STEPS):
        table.turn([0, 1])
    assert table.turn([0, 1]) == [0, 1]
    assert table.box.slot.tolist() == [2, 3]
    assert table.inference.group_of_slot[[0, 1, 2, 3]].tolist() == [0, 1, 0, 1]


def test_without_a_free_slot_only_the_others_can_go_on() -> None:
    table = Table()
    for _ in range(STEPS):
        table.turn([0])
    table.inference.free.clear()
    assert table.inference.servable(np.array([0, 1])).tolist() == [1]
    table.inference.free.append(5)
    assert table.inference.servable(np.array([0, 1])).tolist() == [0, 1]
    for _ in range(STEPS):
        table.turn([1])
    assert table.inference.servable(np.array([0, 1])).tolist() == [0], "one slot is enough for one of them"


@pytest.mark.parametrize("every", [0, 1, 2, 4])
def test_states_are_kept_where_pieces_begin(every: int) -> None:
    table = Table(every)
    for _ in range(STEPS):
        table.turn([0, 1])
    versions = table.arena["version"][0, :STEPS, 0]
    kept = table.arena["state"][0, :, 0, 0]
    np.testing.assert_array_equal(kept, 10 * versions[:: every or STEPS])


def test_every_row_is_stamped_with_its_frames() -> None:
    table = Table()
    for _ in range(3):
        table.turn([0, 1])
    table.turn([0])
    assert table.arena["frames"][0, :4, 0].tolist() == [6, 12, 18, 21]
    assert table.inference.frames == 21


def test_several_policies_answer_for_their_own_lanes_only() -> None:
    table = Table(policies=2)
    table.inference.policy_of_lane[:] = [[0, 1, 1], [1, 1, 1]]
    table.turn([0, 1])
    one, two = table.policies
    assert one.asked[0].lanes.tolist() == [0]
    assert two.asked[0].lanes.tolist() == [1, 2, 3, 4, 5]
    np.testing.assert_array_equal(one.obs[0]["a"], table.arena.obs["a"][0, 0, :1])
    assert table.arena["policy_id"][:2, 0].tolist() == [[0, 1, 1], [1, 1, 1]]
    assert table.arena["value"][0, 0].tolist() == [10, 10, 11]
    assert table.arena["value"][1, 0].tolist() == [12, 13, 14]
    assert not np.isnan(table.arena["state"][:2, 0]).any()


def test_a_policy_without_lanes_is_not_asked() -> None:
    table = Table(policies=2)
    table.turn([0, 1])
    assert table.policies[1].asked == []


def test_states_are_kept_for_the_groups_that_begin_a_piece_only() -> None:
    """Groups at different rows are answered together."""
    table = Table(every=2)
    table.turn([0])
    table.turn([0, 1])  # row 1 of group 0, row 0 of group 1
    assert table.arena["state"][0, 0, :, 0].tolist() == [10] * LANES
    assert table.arena["state"][1, 0, :, 0].tolist() == [20] * LANES
    table.turn([0, 1])  # rows 2 and 1
    assert table.arena["state"][0, :, 0, 0].tolist() == [10, 30]
    assert table.arena["state"][1, 0, :, 0].tolist() == [20] * LANES
    assert np.isnan(table.arena["state"][1, 1]).all()


class Tagged(Scripted):
    """Every answer is a function of the observation asked about and of who answers."""

    def __init__(self, tag: int) -> None:
        super().__init__()
        self.tag = tag

    def act(self, request: ActRequest) -> PolicyOutput:
        answer = super().act(request)
        answer.value = request.obs["a"][:, 0] + 1000 * self.tag
        answer.log_prob = -answer.value
        answer.action = (request.obs["b"][:, 0] + self.tag) % 5
        answer.state = np.stack([answer.value, request.lanes], axis=1).astype(np.float32)
        return answer


def test_answers_of_many_policies_land_where_they_were_asked_for() -> None:
    table = Table(every=2)
    table.policies = [Tagged(tag) for tag in range(3)]
    inference = table.inference = Inference(table.arena, table.box, table.policies)
    inference.policy_of_lane[:] = [[2, 0, 1], [1, 1, 2]]
    orders = [[[1, 0]], [[0], [1]], [[1], [0]]]  # together, or one after the other
    finished = [slot for turn in range(2 * STEPS + 1) for groups in orders[turn % 3] for slot in table.turn(groups)]
    assert finished == [0, 1, 3, 2]
    for slot in finished:
        group = int(inference.group_of_slot[slot])
        owner, segment = inference.policy_of_lane[group], table.arena.segment(slot)
        np.testing.assert_array_equal(segment["value"], segment[OBS + "a"][..., 0] + 1000 * owner)
        np.testing.assert_array_equal(segment["policy_id"], np.broadcast_to(owner, (STEPS + 1, LANES)))
        np.testing.assert_array_equal(segment["log_prob"][:-1], -segment["value"][:-1])
        np.testing.assert_array_equal(segment["action"][:-1], (segment[OBS + "b"][:-1, :, 0] + owner) % 5)
        np.testing.assert_array_equal(segment["state"][..., 0], segment["value"][:-1:2])
        np.testing.assert_array_equal(segment["state"][..., 1], np.tile(group * LANES + np.arange(LANES), (2, 1)))


class InOnePass:
    """Answers for all policies at once, with a function of the observation and of the policy."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    def act_for(self, owners: np.ndarray, request: ActRequest) -> PolicyOutput:
        self.asked.append(owners.tolist())
        assert len(request.lanes) == len(owners) * LANES
        value = request.obs["a"][:, 0] + 1000 * np.repeat(owners, LANES)
        state = np.stack([value, request.lanes], axis=1).astype(np.float32)
        return PolicyOutput(request.obs["b"][:, 0] % 5, -value, value, state)


@pytest.mark.parametrize("together", [True, False])
def test_whole_groups_of_policies_are_asked_in_one_pass_or_one_after_the_other(together: bool) -> None:
    table = Table(every=2)
    table.policies = [Tagged(0), Tagged(1)]
    table.policies[0].version, table.policies[1].version = 30, 70
    ensemble = InOnePass() if together else None
    inference = table.inference = Inference(table.arena, table.box, table.policies, None, [1, 0], ensemble)
    assert inference.policy_of_lane.tolist() == [[1] * LANES, [0] * LANES]
    orders = [[[1, 0]], [[0], [1]], [[0, 1]]]
    finished = [slot for turn in range(2 * STEPS + 1) for groups in orders[turn % 3] for slot in table.turn(groups)]
    assert sorted(finished[:2]) == [0, 1]
    for slot in finished:
        group = int(inference.group_of_slot[slot])
        owner, segment = 1 - group, table.arena.segment(slot)
        np.testing.assert_array_equal(segment["value"], segment[OBS + "a"][..., 0] + 1000 * owner)
        np.testing.assert_array_equal(segment["log_prob"][:-1], -segment["value"][:-1])
        assert (segment["policy_id"] == owner).all()
        assert (segment["version"] == [30, 70][owner]).all() if together else (segment["version"] > 0).all()
        np.testing.assert_array_equal(segment["state"][..., 1], np.tile(group * LANES + np.arange(LANES), (2, 1)))
    if ensemble is not None:
        assert all(owners == sorted(owners) for owners in ensemble.asked)
        assert [0, 1] in ensemble.asked
        assert not table.policies[0].asked
    else:
        assert all(request.groups.size == 1 for policy in table.policies for request in policy.asked)


def test_a_part_of_a_request_gathers_only_when_asked() -> None:
    """A policy that reads the arena itself must not pay for a gather."""
    gathered = []

    def gather() -> dict[str, np.ndarray]:
        gathered.append(1)
        return {"a": np.arange(6.0)}

    none = np.zeros(0, np.int64)
    request = ActRequest(np.arange(6) % 2 == 0, np.arange(6) + 10, none, none, none, none, gather)
    one, two = request.part(np.array([4, 1])), request.part(np.array([0]))
    assert one.lanes.tolist() == [14, 11]
    assert one.first.tolist() == [True, False]
    assert one.groups.size == one.slots.size == one.rows.size == one.closing.size == 0
    assert not gathered
    assert one.obs["a"].tolist() == [4, 1]
    assert two.obs["a"].tolist() == [0]
    assert len(gathered) == 1, "all parts share one gather"


def test_the_last_reward_is_found_wherever_the_row_lies() -> None:
    table = Table()
    rewards = table.arena["reward"]
    rewards[...] = np.arange(rewards.size).reshape(rewards.shape)  # slot, row, lane
    # group 0: slot 1, row 3; group 1 has just been carried over from slot 3, whose last decision was in row 3
    table.inference.decide(np.array([0, 1]), np.array([1, 2]), np.array([3, 0]), np.array([-1, 3]))
    (asked,) = table.policies[0].asked
    np.testing.assert_array_equal(asked.reward, np.concatenate([rewards[1, 2], rewards[3, 3]]))
    assert asked.part(slice(2)).reward.tolist() == rewards[1, 2, :2].tolist()


def test_episodes_are_those_of_the_rows() -> None:
    table = Table()
    episodes = table.arena["episode"]
    episodes[...] = np.arange(episodes.size).reshape(episodes.shape)
    table.inference.decide(np.array([0, 1]), np.array([1, 2]), np.array([3, 0]), None)
    (asked,) = table.policies[0].asked
    assert asked.episode.tolist() == [*episodes[1, 3], *episodes[2, 0]]


def test_a_policy_that_is_not_told_of_rewards_says_so() -> None:
    none = np.zeros(0, np.int64)
    request = ActRequest(np.ones(1, bool), np.zeros(1, np.int64), none, none, none, none, dict)
    with pytest.raises(RuntimeError, match="must tell it the episodes and the last rewards"):
        request.part(np.array([0])).reward  # noqa: B018


class DrawsLots:
    """Seats lanes by lot, opponents among them, and remembers; opponents answer with their number."""

    def __init__(self, rng: np.random.Generator, plays_all: bool) -> None:
        self.rng, self.plays_all = rng, plays_all
        self.seated: dict[tuple[int, int], tuple[int, int, int]] = {}

    def seat(self, lanes: np.ndarray, episodes: np.ndarray) -> Seats:
        drawn = self.rng.integers(0, 9, (3, len(lanes)))
        for lane, episode, own in zip(lanes.tolist(), episodes.tolist(), drawn.T.tolist(), strict=True):
            assert (lane, episode) not in self.seated, "asked once for every episode"
            self.seated[lane, episode] = tuple(own)
        return Seats(drawn[0].astype(np.int16), 100 + drawn[1], drawn[2].astype(np.int16))

    def act_for(self, policy_ids: np.ndarray, request: ActRequest) -> PolicyOutput:
        assert self.plays_all or (policy_ids >= 2).all()
        value = np.where(policy_ids >= 2, policy_ids + 1000.0, -1)
        return PolicyOutput(np.zeros(len(policy_ids)), -policy_ids, value, np.zeros((len(policy_ids), 2)))


@pytest.mark.parametrize("seed", range(25))
def test_players_change_at_first_rows_only(seed: int) -> None:
    """Random deaths, ends and orders of groups; some rows are decided twice, as sync mode does for new weights.

    With odd seeds, who plays the opponents plays everybody.
    """
    rng = np.random.default_rng(seed)
    table = Table(policies=2)
    lots = DrawsLots(rng, plays_all=seed % 2 == 1)
    table.arena = Arena(SegmentLayout(SPEC, STEPS, LANES, 2, opponents=True), SLOTS)
    inference = table.inference = Inference(table.arena, table.box, table.policies, lots)
    table.box.row[:] = -1
    episode, first = np.zeros((GROUPS, LANES), int), np.ones((GROUPS, LANES), bool)
    told: dict[tuple[int, int], set[tuple[int, ...]]] = {}
    for _ in range(60):
        groups = rng.permutation(GROUPS)[: rng.integers(1, GROUPS + 1)]
        for group in groups.tolist():
            if rng.random() < 0.1:  # its worker has died: all its episodes begin anew, in row 0
                table.box.row[group] = -1
                episode[group] += 1
                first[group] = True
            slot, row = int(table.box.slot[group]), int(table.box.row[group]) + 1
            table.arena["first"][slot, row], table.arena["episode"][slot, row] = first[group], episode[group]
            for array in table.arena.obs.values():
                array[slot, row] = 1
        for slot in inference.infer(groups):
            inference.free.append(slot)
        if rng.random() < 0.3:
            inference.infer_again(groups)
        for group in groups.tolist():
            slot, row = int(table.box.slot[group]), int(table.box.row[group])
            for lane in range(LANES):
                who, version, against = (
                    int(table.arena[name][slot, row, lane]) for name in ("policy_id", "version", "opponent")
                )
                number = group * LANES + lane, int(episode[group, lane])
                drawn = lots.seated[number]
                assert (who, against) == (drawn[0], drawn[2])
                assert version == 100 + drawn[1] if who >= 2 else version < 200
                told.setdefault(number, set()).add((who, against, version if who >= 2 else 0))
                assert (table.arena["value"][slot, row, lane] == who + 1000) == (who >= 2)
            first[group] = rng.random(LANES) < 0.2
            episode[group] += first[group]
    assert max(map(len, told.values())) == 1
    assert len(told) > 30
