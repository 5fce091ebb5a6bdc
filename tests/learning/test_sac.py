"""Soft actor-critic: each part of an update against its formula, and a problem whose answer is known."""

import math

import numpy as np
import pytest
import torch
from running import assert_same
from sac_rig import ACTION, MODEL, SPEC, segments_of

from rollmill.core.errors import CheckpointError, ConfigError, NonFiniteError
from rollmill.core.fields import ActionSpec, EnvSpec, Field
from rollmill.learning.experience import Experience, Sequences
from rollmill.learning.metrics import Sums
from rollmill.learning.sac import Sac, build_sac
from rollmill.learning.sac_settings import SacSettings
from rollmill.learning.sac_step import METRICS
from rollmill.learning.settings import LearningSettings
from rollmill.models.acting.weights import WeightBoard
from rollmill.models.actor_critic import build_model
from rollmill.models.critics import Critics
from rollmill.models.settings import ModelSettings


def learner_of(seed=0, spec=SPEC, learning=None, model=None, **values) -> Sac:
    torch.manual_seed(seed)
    network = ModelSettings(**{**MODEL, **(model or {})})
    policy = build_model(spec, network)
    sac = SacSettings(**{"warmup": 0, "minibatch": 32, "capacity": 1000, **values})
    shared = LearningSettings(**{"algorithm": "sac", "learning_rate": 1e-3, **(learning or {})})
    return build_sac(spec, policy, WeightBoard(policy), (shared, sac, network), seed)


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
    batch = learner.experience.draw(1, 64, 1, learner.device)[0]
    assert set(batch.discount.tolist()) == {0.0, np.float32(0.9)}
    generator = learner._generator.get_state()
    target = learner.step.target(batch)
    learner._generator.set_state(generator)
    params, _ = learner.step._params_next(batch)
    action, log_prob = learner.model.head.unit_rsample(params, learner._generator)
    value = torch.minimum(*learner.critics.judge(batch.next_obs, action))  # the targets begin as copies
    torch.testing.assert_close(target, batch.reward + batch.discount * (value - 0.5 * log_prob))
    assert not target.requires_grad


def test_each_step_moves_its_own_part_only():
    learner = learner_of()
    learner.experience.add(segments_of(), 0)
    batch = learner.experience.draw(1, 32, 1, learner.device)[0]
    policy, critics, targets = weights(learner.model), weights(learner.critics), weights(learner.step.targets)
    learner.step.critic_step(batch)
    assert changed(learner.critics, critics)
    assert not changed(learner.model, policy)
    critics = weights(learner.critics)
    learner.step.policy_step(batch)
    moved = changed(learner.model, policy)
    assert moved
    assert all(name.startswith(("trunk.", "head.")) for name in moved)
    assert not changed(learner.critics, critics)
    assert not changed(learner.step.targets, targets)
    learner.step.follow()
    for name, x in learner.step.targets.state_dict().items():
        torch.testing.assert_close(x, targets[name] + 0.005 * (critics[name] - targets[name]))


def test_the_policy_climbs_what_the_critics_value():
    learner = learner_of(learning={"learning_rate": 0.01}, temperature=1e-6, learn_temperature=False)
    learner.experience.add(segments_of(), 0)
    batch = learner.experience.draw(1, 64, 1, learner.device)[0]
    losses = [float(learner.step.policy_step(batch)[0][0]) for _ in range(60)]
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
    assert learner_of().step.target_entropy == -2
    assert learner_of(target_entropy=0.5).step.target_entropy == 0.5


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
    values = critics.judge(obs, action)
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


# ------------------------------------------------------------------------------------- choices

CHOICES = EnvSpec("e", (*SPEC.observation, Field("action_mask", "int8", (3,))), ActionSpec("discrete", nvec=(3,)))


def choices_of(seed=0, **columns):
    rng = np.random.default_rng(seed)
    own = {
        "action": rng.integers(0, 2, (5, 4)),
        "obs:action_mask": np.broadcast_to(np.array([1, 1, 0], np.int8), (5, 4, 3)).copy(),
    }
    return segments_of(seed=seed, **{**own, **columns})


def test_the_target_of_choices_is_a_sum_over_all_of_them():
    learner = learner_of(spec=CHOICES, temperature=0.5, learning={"gamma": 0.9})
    learner.experience.add(choices_of(), 0)
    (batch,) = learner.experience.draw(1, 64, 1, learner.device)
    params, mask = learner.step._params_next(batch)
    p = torch.where(mask != 0, params, -torch.inf).softmax(-1)
    assert (p[:, 2] == 0).all()
    value = torch.minimum(*learner.critics.judge(batch.next_obs))
    soft = sum(p[:, k] * (value[:, k] - 0.5 * p[:, k].log()) for k in range(2))
    torch.testing.assert_close(learner.step.target(batch), batch.reward + batch.discount * soft)


def test_the_policy_over_choices_takes_the_better_one_and_never_a_forbidden_one():
    learner = learner_of(spec=CHOICES, learning={"learning_rate": 1e-2, "gamma": 0.0}, target_entropy=0.1)
    for k in range(30):
        segments = choices_of(seed=k)
        learner.train({**segments, "reward": (segments["action"] == 1).astype(np.float32)})
    segments = choices_of(seed=99)
    obs = {name.removeprefix("obs:"): torch.from_numpy(x[0]) for name, x in segments.items() if name.startswith("obs:")}
    params = learner.model.step(obs, torch.zeros(4, dtype=torch.bool), learner.model.initial_state(4)).params
    p = learner.model.head.log_p(params, obs["action_mask"]).exp()
    assert (p[:, 1] > 0.7).all()
    assert (p[:, 2] == 0).all()


def test_the_usual_entropy_of_choices_is_half_of_a_uniform_one():
    assert learner_of(spec=CHOICES).step.target_entropy == pytest.approx(0.5 * math.log(3))


# ------------------------------------------------------------------------------------- memory


def memory_learner(**values):
    return learner_of(model={"memory": "gru", "hidden_size": 6, **values.pop("model", {})}, **values)


def with_state(segments, size=6, seed=0):
    lanes = segments["reward"].shape[1]
    state = np.random.default_rng(seed).normal(size=(1, lanes, size)).astype(np.float32)
    return {**segments, "state": state, "step": segments["step"] + 5}  # in the middle of an episode


def test_a_sequence_is_judged_as_if_it_were_read_step_by_step():
    """The formula, with the networks asked row by row, for a lane whose episode ends in the middle."""
    learner = memory_learner(temperature=0.5, learning={"gamma": 0.9})
    segments = with_state(segments_of(lanes=2, steps=4))
    segments["valid"][2, 0], segments["terminated"][1, 0] = False, True  # rows 0, 1 | final | row 3 of the next episode
    segments["step"][3, 0] = 0
    learner.experience = build_experience(4)
    assert learner.experience.add(segments, 0) == 7
    (batch,) = learner.experience.draw(1, 4 * 32, 1, learner.device)
    assert batch.weight.shape == (4, 32)
    assert set(batch.weight.sum(0).tolist()) == {1.0, 2.0, 4.0}, "whole segments"
    state, policy = learner._generator.get_state(), learner.model
    target = learner.step.target(batch)
    learner._generator.set_state(state)
    now, params = batch.state, []
    none = torch.zeros(32, dtype=torch.bool)
    for t in range(5):
        output = policy.step({"x": batch.obs["x"][t]}, none, now)
        params.append(output.params)
        now = output.state
    action, log_prob = learner.model.head.unit_rsample(torch.stack(params)[1:], learner._generator)
    features = []
    for trunk in learner.step.targets.trunks:
        now, rows = torch.zeros(32, 6), []
        for t in range(5):
            row, now = trunk.step({"x": batch.obs["x"][t]}, none, now)
            rows.append(row)
        features.append(torch.stack(rows)[1:])
    value = torch.minimum(*learner.step.targets.judge(torch.stack(features), action))
    torch.testing.assert_close(target, batch.reward + batch.discount * (value - 0.5 * log_prob))


def build_experience(rollout, burn_in=0):
    return Experience(SPEC, 100, LearningSettings(), 0, Sequences(rollout, 6, burn_in))


def test_a_sequence_begins_with_the_state_that_the_policy_had():
    experience = build_experience(4)
    segments = with_state(segments_of(lanes=1))
    segments["valid"][1], segments["step"][2:] = False, np.arange(3)[:, None]
    experience.add(segments, 0)
    (batch,) = experience.draw(1, 4 * 50, 1, torch.device("cpu"))
    lengths = batch.weight.sum(0)
    assert torch.equal(batch.state[lengths == 1][0], torch.from_numpy(segments["state"][0, 0]))
    assert not batch.state[lengths == 2].any(), "an episode begins there"
    final = batch.obs["x"][1, lengths == 1][0]
    assert torch.equal(final, torch.from_numpy(segments["obs:x"][1, 0])), "what was seen after the last step"


def test_steps_that_fill_the_memory_are_not_learnt_from():
    experience = build_experience(4, burn_in=3)
    experience.add(with_state(segments_of(lanes=1)), 0)
    opening = with_state(segments_of(lanes=1))
    opening["step"][:, 0] = np.arange(5)
    experience.add(opening, 0)
    (batch,) = experience.draw(1, 4 * 50, 1, torch.device("cpu"))
    assert {tuple(column) for column in batch.weight.T.tolist()} == {(0, 0, 0, 1), (1, 1, 1, 1)}


def test_rows_behind_a_sequence_do_not_count():
    learner = memory_learner()
    learner.experience = build_experience(4)
    segments = with_state(segments_of(lanes=2))
    segments["valid"][2:] = False
    learner.experience.add(segments, 0)
    (batch,) = learner.experience.draw(1, 32, 1, learner.device)
    before = learner.step.critic_step(batch)[0]
    other = memory_learner()
    batch.reward[2:] = 1e3
    assert other.step.critic_step(batch)[0] == before


# ------------------------------------------------------------------------------------- many updates at a time


def test_a_nan_in_the_midst_of_many_updates_stops_all_that_follow():
    """Drawn in one go; the third is spoilt on the way: two have moved weights, and nothing after them has."""
    learner, same = learner_of(), learner_of()
    learner.experience.add(segments_of(), 0)
    same.experience.add(segments_of(), 0)
    drawn = learner.experience.draw(6, 32, 1, learner.device)
    for batch in same.experience.draw(6, 32, 1, same.device)[:2]:
        same.step.update(batch)
    drawn[2].reward[4] = math.nan
    learner.experience.draw = lambda *_: drawn
    with pytest.raises(NonFiniteError, match=r"step 3\): first seen in the replayed rows: reward at index \[4\]"):
        learner._learn(6, Sums(METRICS))
    for one, two in ((learner.critics, same.critics), (learner.model, same.model)):
        assert not changed(one, weights(two))
    assert learner.step.log_temperature == same.step.log_temperature


def test_rows_of_large_observations_are_drawn_in_parts():
    learner = learner_of()
    assert learner.experience.updates_at_once(32) > 1000
    assert learner.experience.updates_at_once(10**9) == 1


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
    action = learner.model.head.sample(params, deterministic=True)[0]
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
