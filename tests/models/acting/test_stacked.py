"""Several small networks in one pass: they decide as each would by itself."""

import copy

import numpy as np
import pytest
import torch

from rollmill.core.fields import MASK_FIELD, TASK_FIELD, ActionSpec, Array, EnvSpec, Field
from rollmill.core.protocols import ActRequest
from rollmill.models.acting.frozen import FrozenNetworks
from rollmill.models.acting.policy import TorchPolicy
from rollmill.models.acting.stacked import StackedPlayers, StackedPolicies, can_be_stacked, in_blocks
from rollmill.models.acting.weights import WeightBoard
from rollmill.models.actor_critic import ActorCritic, build_model
from rollmill.models.saving import weights_of
from rollmill.models.settings import ModelSettings

LANES, GROUPS, POLICIES = 3, 6, 4
OBS = (Field("speed", "float32", (2, 2)), Field("kind", "uint8", (3,)), Field("place", "float32", (2,)))
LINES = {"shape": (2,), "low": (-1.0, -2.0), "high": (1.0, 3.0)}
ACTIONS = {
    "discrete": ActionSpec("discrete", nvec=(4,), start=(0,)),
    "multi": ActionSpec("multi_discrete", nvec=(2, 3)),
    "binary": ActionSpec("multi_discrete", nvec=(2, 2, 2)),
    "continuous": ActionSpec("continuous", **LINES),  # type: ignore[arg-type]
}


def network(spec: EnvSpec, seed: int, **settings: object) -> ActorCritic:
    """One whose moments, too, are its own."""
    torch.manual_seed(seed)
    model = build_model(spec, ModelSettings(mlp=(8, 8), hidden_size=4, policy_gain=1.0, **settings))  # type: ignore[arg-type]
    obs = {f.name: torch.randn(20, *f.shape) * (seed + 1) + seed for f in spec.observation if f.is_float}
    model.update_normalizer(obs)
    if not model.state_size:
        model.update_returns(torch.randn(20) * 5 + seed, torch.ones(20, dtype=torch.bool), {})
    for x in model.parameters():
        x.data += 0.1 * torch.randn_like(x)
    return model


def spec_of(action: str, mask: bool = False) -> EnvSpec:
    own = ACTIONS[action]
    return EnvSpec("x", (*OBS, *([Field(MASK_FIELD, "int8", (own.mask_size,))] if mask else [])), own)


def request_of(spec: EnvSpec, lanes: Array, seed: int) -> ActRequest:
    rng = np.random.default_rng(seed)
    obs = {f.name: (4 * rng.normal(size=(len(lanes), *f.shape))).astype(f.dtype) for f in spec.observation}
    obs["kind"] = rng.integers(0, 30, (len(lanes), 3)).astype(np.uint8)
    if spec.masked:
        obs[MASK_FIELD] = (rng.random((len(lanes), spec.action.mask_size)) < 0.5).astype(np.int8)
        obs[MASK_FIELD][:, 0] = 1
    request = ActRequest.outside(np.zeros(len(lanes), bool), obs, lanes, np.zeros(len(lanes)))
    request.lanes = lanes
    return request


def policies_of(models: list[ActorCritic]) -> list[TorchPolicy]:
    boards = [WeightBoard(model) for model in models]
    return [
        TorchPolicy(copy.deepcopy(model), board, LANES * GROUPS, seed)
        for seed, (model, board) in enumerate(zip(models, boards, strict=True))
    ]


def lanes_of(groups: list[int]) -> Array:
    return (np.array(groups)[:, None] * LANES + np.arange(LANES)).ravel()


@pytest.mark.parametrize(
    ("action", "mask", "settings"),
    [
        ("discrete", False, {}),
        ("discrete", True, {"nonlinearity": "tanh", "normalize_observations": False}),
        ("multi", True, {}),
        ("binary", False, {}),
        ("continuous", False, {}),
        ("continuous", False, {"log_std": "state", "action_distribution": "tanh_gaussian"}),
    ],
)
def test_members_decide_as_each_would_by_itself(action: str, mask: bool, settings: dict[str, object]) -> None:
    """Whole populations and parts of it, members with several groups and with none."""
    spec = spec_of(action, mask)
    models = [network(spec, seed, **settings) for seed in range(POLICIES)]
    one, many = policies_of(models), policies_of(models)
    stacked = StackedPolicies(many)
    cases = [[0, 1, 2, 3], [1], [0, 0, 2], [3, 3, 3], [0, 1, 1, 2, 2, 3]]
    for step, owners in enumerate(cases * 3):
        request = request_of(spec, lanes_of(list(range(len(owners)))), step)
        answer = stacked.act_for(np.array(owners), request)
        owner = np.repeat(owners, LANES)
        for k in sorted(set(owners)):
            mine = np.flatnonzero(owner == k)
            wanted = one[k].act(request.part(mine))
            np.testing.assert_allclose(answer.action[mine], wanted.action, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(answer.log_prob[mine], wanted.log_prob, rtol=1e-3, atol=1e-4)
            np.testing.assert_allclose(answer.value[mine], wanted.value, rtol=1e-4, atol=1e-4)
        assert answer.action.dtype == spec.action.field.dtype
        assert answer.state is None
    for own, other in zip(one, many, strict=True):
        np.testing.assert_array_equal(own.state()["generator"], other.state()["generator"])


def test_the_newest_weights_of_one_member_are_taken_over() -> None:
    spec = spec_of("discrete")
    models = [network(spec, seed) for seed in range(POLICIES)]
    boards = [WeightBoard(model) for model in models]
    many = [TorchPolicy(copy.deepcopy(model), board, 99, 0) for model, board in zip(models, boards, strict=True)]
    stacked, owners = StackedPolicies(many), np.arange(POLICIES)
    request = request_of(spec, lanes_of([0, 1, 2, 3]), 0)
    before = stacked.act_for(owners, request).value.reshape(POLICIES, LANES)
    boards[2].publish(network(spec, 77), 5)
    after = stacked.act_for(owners, request).value.reshape(POLICIES, LANES)
    assert [policy.version for policy in many] == [0, 0, 5, 0]
    assert (before[2] != after[2]).all()
    np.testing.assert_array_equal(np.delete(before, 2, 0), np.delete(after, 2, 0))
    many[1].refresh()  # as sync mode does, between two decisions
    boards[1].publish(network(spec, 78), 6)
    many[1].refresh()
    assert (stacked.act_for(owners, request).value.reshape(POLICIES, LANES)[1] != after[1]).all()


class Own(ActorCritic):
    """A whole network of the user's own: nobody knows what it does."""


def test_what_is_not_a_small_mlp_is_asked_by_itself() -> None:
    spec = spec_of("discrete")
    image = EnvSpec("x", (Field("image", "uint8", (36, 36, 3)),), spec.action)
    suite = EnvSpec("x", (*OBS, Field(TASK_FIELD, "float32", (2,))), spec.action)
    mixed = EnvSpec("x", OBS, ActionSpec("mixed", nvec=(2,), **LINES))  # type: ignore[arg-type]
    assert can_be_stacked(build_model(spec, ModelSettings()))
    for own, settings in (
        (spec, ModelSettings(memory="gru", hidden_size=4)),
        (spec, ModelSettings(separate_critic=True)),
        (spec, ModelSettings(mlp=(512, 512))),
        (image, ModelSettings(encoder="convnet_grid", mlp=(4,), fc=(4,))),
        (image, ModelSettings(encoder="mlp", mlp=(4,))),
        (suite, ModelSettings()),
        (mixed, ModelSettings()),
    ):
        assert not can_be_stacked(build_model(own, settings)), settings
    assert not can_be_stacked(Own(spec, ModelSettings()))


@pytest.mark.parametrize("seed", range(20))
def test_blocks_hold_lanes_that_ask_the_same(seed: int) -> None:
    rng = np.random.default_rng(seed)
    numbers = rng.choice(rng.integers(0, 99, 7), rng.integers(1, 40), p=rng.dirichlet(np.ones(7)))
    asked, places, height = in_blocks(numbers)
    assert len(set(places.tolist())) == len(numbers), "every lane has a place of its own"
    np.testing.assert_array_equal(asked[places // height], numbers)
    assert len(asked) * height <= 2 * len(numbers) + len(set(numbers.tolist()))


def test_players_decide_by_their_numbers_whoever_they_are() -> None:
    """Two policies of the run and three models, whose numbers are anything; models come and go."""
    spec = spec_of("discrete", mask=True)
    models = [network(spec, seed) for seed in range(2)]
    policies = policies_of(models)
    frozen = {number: network(spec, number) for number in (4, 7, 30)}
    plain, players = FrozenNetworks(network(spec, 0), 99, 0), StackedPlayers(network(spec, 0), 99, 0, policies)
    assert players.with_own
    assert not plain.with_own
    everybody = {0: models[0], 1: models[1], **frozen}
    plain.keep({number: weights_of(model) for number, model in everybody.items()})
    rng = np.random.default_rng(0)
    for step, there in enumerate(([], [4, 7, 30], [7, 30], [4, 7, 30])):
        players.keep({number: weights_of(frozen[number]) for number in there})
        assert players.checksums().keys() == set(there)
        for draw in range(5):
            numbers = rng.choice([0, 1, *there], 11)
            request = request_of(spec, np.arange(11), 10 * step + draw)
            one, two = plain.act(numbers, request), players.act(numbers, request)
            np.testing.assert_array_equal(one.action, two.action)
            np.testing.assert_allclose(one.log_prob, two.log_prob, rtol=1e-3, atol=1e-4)
            np.testing.assert_allclose(one.value, two.value, rtol=1e-4, atol=1e-4)
    assert [policy.version for policy in policies] == [0, 0]
    np.testing.assert_array_equal(plain.state()["generator"], players.state()["generator"])
