"""Soft actor-critic: each part of an update against its formula, and a problem whose answer is known."""

import math

import numpy as np
import pytest
import torch
from running import assert_same

from rollmill.core.errors import CheckpointError, ConfigError, NonFiniteError
from rollmill.core.fields import ActionSpec, EnvSpec, Field
from rollmill.learning.sac import Sac, build_sac
from rollmill.learning.sac_settings import SacSettings
from rollmill.learning.settings import LearningSettings
from rollmill.models.acting.weights import WeightBoard
from rollmill.models.actor_critic import build_model
from rollmill.models.critics import Critics
from rollmill.models.settings import ModelSettings

ACTION = ActionSpec("continuous", shape=(2,), low=(-1.0, 0.0), high=(1.0, 4.0))
SPEC = EnvSpec("e", (Field("x", "float32", (3,)),), ACTION)
MODEL = {"mlp": (16,), "action_distribution": "tanh_gaussian", "log_std": "state"}


def learner_of(seed=0, spec=SPEC, learning=None, model=None, **values) -> Sac:
    torch.manual_seed(seed)
    network = ModelSettings(**{**MODEL, **(model or {})})
    policy = build_model(spec, network)
    sac = SacSettings(**{"warmup": 0, "minibatch": 32, "capacity": 1000, **values})
    shared = LearningSettings(**{"algorithm": "sac", "learning_rate": 1e-3, **(learning or {})})
    return build_sac(spec, policy, WeightBoard(policy), (shared, sac, network), seed)


def segments_of(lanes=4, steps=4, seed=0, spec=SPEC, **columns):
    rng = np.random.default_rng(seed)
    shape = (steps + 1, lanes)
    low, high = (np.array(bound, np.float32) for bound in (spec.action.low, spec.action.high))
    segments = {
        "action": rng.uniform(low, high, (*shape, *spec.action.shape)).astype(np.float32),
        "reward": rng.normal(size=shape).astype(np.float32),
        "valid": np.ones(shape, bool),
        "terminated": np.zeros(shape, bool),
        "truncated": np.zeros(shape, bool),
        "policy_id": np.zeros(shape, np.int16),
        "version": np.zeros(shape, np.int64),
        "frames": np.zeros(shape, np.int64),
        "step": np.zeros(shape, np.int32),
        "obs:x": rng.normal(size=(*shape, 3)).astype(np.float32),
    }
    return {**segments, **columns}


def weights(module):
    return {name: x.clone() for name, x in module.state_dict().items()}


def changed(module, before):
    return {name for name, x in module.state_dict().items() if not torch.equal(x, before[name])}


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


# ------------------------------------------------------------------------------------- when it learns


def test_it_warms_up_and_then_learns_once_per_row():
    learner = learner_of(warmup=40)
    for batch in range(2):
        metrics = learner.train(segments_of(seed=batch))
        assert learner.version == metrics["updates"] == 0, "16 and 32 rows are not enough"
        assert "critic_loss" not in metrics
    metrics = learner.train(segments_of(seed=2))
    assert metrics["updates"] == 16
    assert metrics["replay_rows"] == 48
    assert learner.version == 1
    assert learner.optimizer_steps == 16


@pytest.mark.parametrize(("ratio", "updates"), [(2.0, [32, 32]), (0.1, [1, 2])])
def test_updates_follow_the_new_rows(ratio, updates):
    learner = learner_of(updates_per_step=ratio)
    assert [learner.train(segments_of(seed=k))["updates"] for k in range(2)] == updates


def test_rows_that_do_not_count_earn_no_updates():
    learner = learner_of()
    segments = segments_of()
    segments["valid"][1] = False
    assert learner.train(segments)["rows"] == 12


def test_lag_is_counted_before_learning_over_rows_that_count():
    learner = learner_of()
    learner.version = 5
    segments = segments_of()
    segments["version"][:] = 3
    segments["valid"][1], segments["version"][1] = False, -1
    assert learner.train(segments)["policy_lag"] == 2.0
    segments["valid"][:] = False
    assert learner.train(segments)["policy_lag"] == 0.0


def test_experience_never_gets_too_old():
    assert learner_of().oldest_useful == 0


# -------------------------------------------------------------------------------- the parts of an update


def test_the_target_is_reward_and_the_smaller_value_of_the_next_action_less_its_log_probability():
    learner = learner_of(temperature=0.5, learning={"gamma": 0.9})
    segments = segments_of()
    segments["terminated"][-2] = True
    learner.experience.add(segments, 0)
    batch = learner.experience.sample(64, 1, learner.device)
    assert set(batch.discount.tolist()) == {0.0, np.float32(0.9)}
    generator = learner._generator.get_state()
    target = learner._target(batch)
    learner._generator.set_state(generator)
    action, log_prob = learner._act(batch.next_obs)
    value = torch.minimum(*learner.critics(batch.next_obs, action))  # the targets begin as copies
    torch.testing.assert_close(target, batch.reward + batch.discount * (value - 0.5 * log_prob))
    assert not target.requires_grad


def test_each_step_moves_its_own_part_only():
    learner = learner_of()
    learner.experience.add(segments_of(), 0)
    batch = learner.experience.sample(32, 1, learner.device)
    policy, critics, targets = weights(learner.model), weights(learner.critics), weights(learner._targets)
    learner._critic_step(batch, batch.obs)
    assert changed(learner.critics, critics)
    assert not changed(learner.model, policy)
    critics = weights(learner.critics)
    learner._policy_step(batch, batch.obs)
    moved = changed(learner.model, policy)
    assert moved
    assert all(name.startswith(("trunk.", "head.")) for name in moved)
    assert not changed(learner.critics, critics)
    assert not changed(learner._targets, targets)
    learner._follow()
    for name, x in learner._targets.state_dict().items():
        torch.testing.assert_close(x, targets[name] + 0.005 * (critics[name] - targets[name]))


def test_the_policy_climbs_what_the_critics_value():
    learner = learner_of(learning={"learning_rate": 0.01}, temperature=1e-6, learn_temperature=False)
    learner.experience.add(segments_of(), 0)
    batch = learner.experience.sample(64, 1, learner.device)
    losses = [float(learner._policy_step(batch, batch.obs)[0][0]) for _ in range(60)]
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.1


@pytest.mark.parametrize(("entropy", "direction"), [(-50.0, -1), (50.0, 1)])
def test_the_temperature_keeps_the_entropy(entropy, direction):
    learner = learner_of(target_entropy=entropy)
    first = learner.train(segments_of())["temperature"]
    second = learner.train(segments_of(seed=1))["temperature"]
    assert (second - first) * direction > 0
    fixed = learner_of(target_entropy=entropy, learn_temperature=False, temperature=0.3)
    assert fixed.train(segments_of())["temperature"] == pytest.approx(0.3)


def test_the_usual_target_entropy_is_minus_the_number_of_components():
    assert learner_of()._target_entropy == -2
    assert learner_of(target_entropy=0.5)._target_entropy == 0.5


def test_the_units_of_an_action_do_not_matter():
    wide = EnvSpec("e", SPEC.observation, ActionSpec("continuous", shape=(2,), low=(-100.0, 0.0), high=(100.0, 4e3)))
    one, two = learner_of(), learner_of(spec=wide)
    segments = segments_of()
    scaled = {**segments, "action": segments["action"] * np.array([100, 1000], np.float32)}
    metrics, same = one.train(segments), two.train(scaled)
    assert {name: pytest.approx(x, rel=1e-3, abs=1e-4) for name, x in metrics.items()} == same


def test_gradients_are_clipped():
    learner = learner_of(max_grad_norm=1e-3)
    metrics = learner.train(segments_of())
    assert metrics["critic_grad_norm"] > 1e-3
    norms = [p.grad.norm() for p in learner.critics.parameters()]
    assert torch.stack(norms).norm() <= 1.001e-3


def test_the_rate_follows_its_schedule():
    learner = learner_of(learning={"lr_schedule": "linear", "lr_end": 0.0})
    assert learner.train(segments_of(), progress=0.5)["learning_rate"] == pytest.approx(5e-4)
    before = weights(learner.model.trunk), weights(learner.critics)
    learner.train(segments_of(seed=1), progress=1.0)
    assert not changed(learner.model.trunk, before[0])
    assert not changed(learner.critics, before[1])


def test_observations_are_normalised_for_policy_and_critics_after_they_were_learnt_from():
    learner = learner_of()
    segments = segments_of()
    segments["obs:x"] += 100
    learner.train(segments)
    moments = learner.model.observation_moments.moments[0]
    torch.testing.assert_close(moments.shift, torch.from_numpy(segments["obs:x"][:-1].mean((0, 1))))


def test_critics_share_nothing_and_read_images_and_actions():
    spec = EnvSpec("e", (Field("image", "uint8", (40, 40, 3)), *SPEC.observation), ACTION)
    critics = Critics(spec, ModelSettings(mlp=(8,), fc=(8,)))
    obs = {"image": torch.zeros(5, 40, 40, 3, dtype=torch.uint8), "x": torch.randn(5, 3)}
    action = torch.randn(5, 2, requires_grad=True)
    values = critics(obs, action)
    assert values.shape == (2, 5)
    assert not torch.allclose(values[0], values[1])
    (grad,) = torch.autograd.grad(values.sum(), action)
    assert (grad != 0).any(dim=0).all()


def test_recorded_values_read_zero():
    learner = learner_of()
    learner.train(segments_of())
    obs = {"x": torch.randn(5, 3)}
    output = learner.model.step(obs, torch.zeros(5, dtype=torch.bool), learner.model.initial_state(5))
    assert (learner.model.denormalise(output.value) == 0).all()


# ------------------------------------------------------------------------------------- a known answer


def test_it_finds_the_best_action():
    """One state, and a reward that falls off around the action (0.5, 1)."""
    learner = learner_of(learning={"learning_rate": 1e-2, "gamma": 0.3}, model={"mlp": (32, 32)}, target_entropy=-6.0)
    for k in range(20):
        segments = segments_of(seed=k)
        segments["obs:x"][:] = 1
        distance = (segments["action"] - np.array([0.5, 1])) / np.array([1, 2])
        segments["reward"] = -4 * np.square(distance).sum(-1).astype(np.float32)
        learner.train(segments)
    obs, first = {"x": torch.ones(1, 3)}, torch.zeros(1, dtype=torch.bool)
    params = learner.model.step(obs, first, learner.model.initial_state(1)).params
    action = learner.head.sample(params, deterministic=True)[0]
    assert action[0].item() == pytest.approx(0.5, abs=0.3)
    assert action[1].item() == pytest.approx(1.0, abs=0.6)


# ------------------------------------------------------------------------------------------- guards


def test_a_nan_in_the_data_is_named_and_changes_nothing():
    learner = learner_of()
    segments = segments_of(reward=np.full((5, 4), math.nan, np.float32))
    before = weights(learner.model), weights(learner.critics)
    with pytest.raises(NonFiniteError, match=r"the replayed rows: reward at index \[0\].*critics was not changed"):
        learner.train(segments)
    assert not changed(learner.critics, before[1])
    assert not changed(learner.model, before[0])


def test_a_nan_in_the_weights_is_named():
    learner = learner_of()
    with torch.no_grad():
        learner.critics.outputs[1].weight[0, 3] = math.nan
    with pytest.raises(NonFiniteError, match=r"the weights of the critics: outputs.1.weight at index \[0, 3\]"):
        learner.train(segments_of())


def test_values_that_explode_are_noticed():
    learner = learner_of()
    with torch.no_grad():
        learner.critics.outputs[0].bias.fill_(1e30)
    with pytest.raises(NonFiniteError, match="the loss or the gradient of the critics"):
        learner.train(segments_of())


def test_it_refuses_an_unsquashed_policy():
    with pytest.raises(ConfigError, match=r"needs model\.action_distribution=tanh_gaussian"):
        learner_of(model={"action_distribution": "gaussian"})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"minibatch": 0}, "minibatch must be at least 1"),
        ({"capacity": 0}, "capacity must be at least 1"),
        ({"n_step": 0}, "n_step must be at least 1"),
        ({"updates_per_step": 0.0}, "updates_per_step must be positive"),
        ({"temperature": 0.0}, "temperature must be positive"),
        ({"warmup": -1}, "warmup must not be negative"),
        ({"max_grad_norm": -1.0}, "max_grad_norm must not be negative"),
        ({"tau": 0.0}, "tau must lie above 0"),
        ({"minibatch": 20, "capacity": 10}, "minibatch=20 is more than capacity=10"),
        ({"warmup": 20, "capacity": 10, "minibatch": 1}, "warmup=20 rows do not fit into capacity=10"),
    ],
)
def test_settings_refuse_nonsense(values, message):
    with pytest.raises(ValueError, match=message):
        SacSettings(**values)


# -------------------------------------------------------------------------------------- checkpoints


@pytest.mark.parametrize("save_replay", [True, False])
def test_a_restored_learner_goes_on_alike(save_replay):
    one = learner_of(updates_per_step=0.3, save_replay=save_replay)
    one.train(segments_of())
    state = one.state()
    assert (state["replay"] is not None) == save_replay
    two = learner_of(seed=9, updates_per_step=0.3, save_replay=save_replay)
    two.load_state(state)
    assert two.version == 1
    assert len(two.experience) == (16 if save_replay else 0)
    if save_replay:
        assert one.train(segments_of(seed=1)) == two.train(segments_of(seed=1))
        assert_same(one.state(), two.state())
    other = learner_of(model={"mlp": (8,)})
    with pytest.raises(CheckpointError, match="do not fit this network"):
        other.load_state(state)
