"""The acting copy of a network."""

import copy
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from rollmill.core.fields import MASK_FIELD, ActionSpec, Array, EnvSpec, Field
from rollmill.core.protocols import PolicyOutput
from rollmill.models.acting.policy import TorchPolicy
from rollmill.models.acting.weights import WeightBoard
from rollmill.models.actor_critic import ActorCritic, build_model
from rollmill.models.settings import ModelSettings

SPEC = EnvSpec("x", (Field("obs", "float32", (3,)),), ActionSpec("discrete", nvec=(4,), start=(0,)))
MASKED = EnvSpec("x", (*SPEC.observation, Field(MASK_FIELD, "int8", (4,))), SPEC.action)
LANES = 6


@dataclass
class Request:
    obs: dict[str, Array]
    first: Array
    lanes: Array


def request_of(lanes: list[int], seed: int = 0, first: bool = False, mask: Array | None = None) -> Request:
    rng = np.random.default_rng(seed)
    obs = {"obs": rng.normal(size=(len(lanes), 3)).astype(np.float32)}
    if mask is not None:
        obs[MASK_FIELD] = mask
    return Request(obs, np.full(len(lanes), first), np.array(lanes))


def network(spec: EnvSpec = SPEC, seed: int = 0, **settings: object) -> ActorCritic:
    torch.manual_seed(seed)
    return build_model(spec, ModelSettings(mlp=(8,), hidden_size=5, policy_gain=1.0, **settings))  # type: ignore[arg-type]


def policy_of(model: ActorCritic, seed: int = 0, **options: bool) -> TorchPolicy:
    return TorchPolicy(copy.deepcopy(model), WeightBoard(model), LANES, seed, **options)


def assert_same_output(one: PolicyOutput, two: PolicyOutput) -> None:
    for name in ("action", "log_prob", "value", "state"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name), name)


def test_an_answer_has_the_documented_shapes() -> None:
    answer = policy_of(network(memory="gru")).act(request_of([0, 3, 5]))
    assert answer.action.dtype == np.int64
    assert answer.action.shape == answer.log_prob.shape == answer.value.shape == (3,)
    assert answer.state is not None
    assert answer.state.shape == (3, 5)
    assert answer.log_prob.dtype == answer.value.dtype == answer.state.dtype == np.float32


def test_the_same_seed_decides_the_same() -> None:
    model = network()
    one, two, other = policy_of(model, 1), policy_of(model, 1), policy_of(model, 2)
    actions = []
    for step in range(20):
        request = request_of(list(range(LANES)), step)
        first, second = one.act(request), two.act(request)
        assert_same_output(first, second)
        actions.append((first.action == other.act(request).action).all())
    assert not all(actions)


def test_the_network_s_own_words_stand_in_the_answer() -> None:
    model = network(memory="lstm")
    model.return_moments.update(torch.tensor([[3.0, 8.0]]), torch.ones(1, 2, dtype=torch.bool))
    policy, request = policy_of(model), request_of([2, 4])
    answer = policy.act(request)
    with torch.no_grad():
        output = model.step(
            {"obs": torch.from_numpy(request.obs["obs"])}, torch.zeros(2, dtype=torch.bool), torch.zeros(2, 10)
        )
    log_prob = model.head.log_prob(output.params, torch.from_numpy(answer.action))
    np.testing.assert_allclose(answer.log_prob, log_prob.numpy(), rtol=1e-6)
    np.testing.assert_allclose(answer.value, model.denormalise(output.value).detach().numpy(), rtol=1e-6)


def test_states_are_kept_by_lane_and_told_as_they_were_before() -> None:
    policy = policy_of(network(memory="gru"))
    both = policy.act(request_of([1, 4], 0))
    assert not both.state.any()  # type: ignore[union-attr]
    after = policy.act(request_of([4, 0, 1], 1))
    assert after.state[0].any()  # type: ignore[index]
    assert after.state[2].any()  # type: ignore[index]
    assert not after.state[1].any(), "lane 0 has not acted yet"  # type: ignore[index]
    again = policy.act(request_of([1, 4], 2))
    assert (again.state[0] != after.state[2]).any()  # type: ignore[index]


def test_the_first_row_of_an_episode_forgets() -> None:
    model = network(memory="gru")
    warm, cold = policy_of(model), policy_of(model)
    warm.act(request_of([0], 5))
    request = request_of([0], 6, first=True)
    np.testing.assert_array_equal(warm.act(request).value, cold.act(request).value)


def test_the_likeliest_action_is_always_the_same() -> None:
    model = network()
    policies = [policy_of(model, seed, deterministic=True) for seed in (1, 2)]
    request = request_of(list(range(LANES)))
    one, two = (policy.act(request) for policy in policies)
    assert_same_output(one, two)
    with torch.no_grad():
        output = model.step(
            {"obs": torch.from_numpy(request.obs["obs"])}, torch.zeros(LANES, dtype=torch.bool), torch.zeros(LANES, 0)
        )
    np.testing.assert_array_equal(one.action, output.params.argmax(-1).numpy())


def test_forbidden_actions_are_never_taken() -> None:
    policy = policy_of(network(MASKED))
    mask = np.tile(np.array([0, 1, 0, 1], np.int8), (LANES, 1))
    taken = {int(a) for step in range(50) for a in policy.act(request_of(list(range(LANES)), step, mask=mask)).action}
    assert taken == {1, 3}


def test_published_weights_are_taken_over_at_the_next_decision() -> None:
    model = network(seed=0)
    board = WeightBoard(model)
    policy = TorchPolicy(copy.deepcopy(model), board, LANES, 0, deterministic=True)
    request = request_of([0, 1])
    before = policy.act(request)
    assert policy.version == 0
    newer = network(seed=1)
    board.publish(newer, 3)
    after = policy.act(request)
    assert policy.version == 3
    assert (before.value != after.value).all()
    assert policy.refresh() == 3


def test_weights_published_before_the_first_decision_count_whatever_their_version() -> None:
    """A checkpoint of an untrained network is version 0, as is the fresh network it replaces."""
    fresh, restored = network(seed=0), network(seed=1)
    board = WeightBoard(fresh)
    policy = TorchPolicy(copy.deepcopy(fresh), board, LANES, 0)
    board.publish(restored, 0)
    request = request_of([0])
    np.testing.assert_array_equal(policy.act(request).value, policy_of(restored).act(request).value)


@pytest.mark.parametrize("memory", ["none", "gru"])
def test_state_and_back_again_decides_the_same(memory: str) -> None:
    model = network(memory=memory)
    one, two = policy_of(model, 1), policy_of(model, 99)
    for step in range(3):
        one.act(request_of(list(range(LANES)), step))
    two.load_state(one.state())
    request = request_of(list(range(LANES)), 7)
    assert_same_output(one.act(request), two.act(request))


def test_a_saved_state_does_not_change_afterwards() -> None:
    policy = policy_of(network(memory="gru"))
    policy.act(request_of([0, 1], 0))
    state = policy.state()
    kept = {name: array.copy() for name, array in state.items()}
    policy.act(request_of([0, 1], 1))
    for name, array in kept.items():
        np.testing.assert_array_equal(state[name], array, name)
        assert (policy.state()[name] != array).any()


@pytest.mark.parametrize("memory", ["gru", "lstm"])
def test_lanes_in_any_company_act_as_if_alone(memory: str) -> None:
    """Against a plain loop that steps the network lane by lane; lanes come and go, and their episodes end."""
    model = network(memory=memory)
    policy = policy_of(model)
    states = torch.zeros(LANES, model.state_size)
    rng = np.random.default_rng(4)
    for step in range(12):
        request = request_of(rng.permutation(LANES)[: rng.integers(1, LANES + 1)].tolist(), step)
        request.first[:] = rng.random(len(request.lanes)) < 0.3
        answer = policy.act(request)
        np.testing.assert_allclose(answer.state, states[request.lanes].numpy(), atol=1e-6)
        for i, lane in enumerate(request.lanes):
            with torch.no_grad():
                obs = {"obs": torch.from_numpy(request.obs["obs"][i : i + 1])}
                output = model.step(obs, torch.from_numpy(request.first[i : i + 1]), states[lane : lane + 1])
            states[lane] = output.state
            np.testing.assert_allclose(answer.value[i], model.denormalise(output.value).item(), atol=1e-5)


def test_every_row_has_a_mask_of_its_own() -> None:
    policy = policy_of(network(MASKED))
    rng = np.random.default_rng(0)
    lanes = np.arange(LANES)
    for step in range(50):
        mask = (rng.random((LANES, 4)) < 0.5).astype(np.int8)
        mask[lanes, rng.integers(4, size=LANES)] = 1
        answer = policy.act(request_of(lanes.tolist(), step, mask=mask))
        assert mask[lanes, answer.action].all()
        assert np.isfinite(answer.log_prob).all()


def test_the_likeliest_continuous_action_is_the_mean() -> None:
    action = ActionSpec("continuous", shape=(2,), low=(-1.0, -1.0), high=(1.0, 1.0))
    model = network(EnvSpec("x", SPEC.observation, action))
    request = request_of([0, 1, 2])
    answer = policy_of(model, deterministic=True).act(request)
    with torch.no_grad():
        obs = {"obs": torch.from_numpy(request.obs["obs"])}
        params = model.step(obs, torch.zeros(3, dtype=torch.bool), torch.zeros(3, 0)).params
    np.testing.assert_array_equal(answer.action, params[:, :2].numpy())
    assert (policy_of(model).act(request).action != answer.action).all()


def test_bfloat16_stays_inside_the_network() -> None:
    model = network(memory="gru")
    policy = TorchPolicy(copy.deepcopy(model), WeightBoard(model), LANES, 0, dtype=torch.bfloat16)
    plain = policy_of(model)
    for step in range(3):
        answer, exact = policy.act(request_of([0, 1], step)), plain.act(request_of([0, 1], step))
        assert answer.log_prob.dtype == answer.value.dtype == np.float32
        np.testing.assert_allclose(answer.value, exact.value, atol=0.05)
    assert policy.state()["states"].dtype == np.float32
