"""The learner on real segments of small environments."""

import math

import numpy as np
import pytest
import torch
from appo_rig import KINDS, Rig, Segments
from running import assert_same

from rollmill.core.errors import NonFiniteError
from rollmill.core.fields import MASK_FIELD
from rollmill.learning.appo import Appo
from rollmill.learning.batch import load_batch
from rollmill.learning.guards import Alarms, ValueCollapseError
from rollmill.learning.losses import masked_mean, ppo_policy_loss, value_loss
from rollmill.learning.normalise import normalise_advantages
from rollmill.learning.step import METRICS
from rollmill.learning.targets import gae
from rollmill.models.acting.weights import WeightBoard
from rollmill.models.actor_critic import build_model


def gradients(learner: Appo) -> dict[str, torch.Tensor]:
    """Gradients of the last optimizer step, as they were applied."""
    return {n: p.grad.clone() for n, p in learner.model.named_parameters() if p.grad is not None}


def assert_close(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor], tolerance: float = 1e-5) -> None:
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(
            one[name], two[name], rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n} {m}"
        )


# -- acting and learning agree -----------------------------------------------------------------------------


IN_PIECES = [kind for kind in KINDS if "learning.recurrence=4" in KINDS[kind]]
"""V-trace reads whole segments."""


@pytest.mark.parametrize(
    ("kind", "targets"), [(k, t) for k in KINDS for t in ("gae", "vtrace") if t == "gae" or k not in IN_PIECES]
)
def test_on_fresh_data_the_learner_agrees_with_the_policy(kind: str, targets: str) -> None:
    """The probability ratio is 1 before the first step: same weights, same scaling, same recurrent states."""
    rig = Rig(*KINDS[kind], f"learning.targets={targets}")
    for _ in range(3):  # later segments begin with recurrent states that are not zero
        segments = rig.collect()
    metrics = rig.learner.train(segments)
    assert metrics["policy_lag_max"] == 0
    assert metrics["ratio_deviation"] < 2e-6
    assert metrics["kl"] < 1e-6
    assert metrics["clip_fraction"] == 0
    assert metrics["grad_norm"] > 0


@pytest.mark.parametrize("kind", ["mlp", "masked", "gaussian", "gaussian, bounded", "image"])
def test_they_still_agree_when_weights_and_scaling_have_changed(kind: str) -> None:
    rig = Rig(*KINDS[kind])
    for version in range(4):
        segments = rig.collect()
        # The first row of a segment was decided while the batch before it was still being collected.
        segments["policy_id"][segments["version"] < version] = 1
        metrics = rig.learner.train(segments)
        rig.learner.publish()
        assert metrics["policy_lag_max"] == 0
        assert metrics["ratio_deviation"] < 2e-6


def test_old_data_has_another_ratio_and_its_age_is_told() -> None:
    rig = Rig(*KINDS["mlp"])
    old = rig.collect()
    for _ in range(3):
        rig.learner.train(rig.collect())
        rig.learner.publish()
    metrics = rig.learner.train(old)
    assert metrics["policy_lag"] == metrics["policy_lag_max"] == 3, "three batches were learnt since"
    assert metrics["ratio_deviation"] > 1e-4


# -- gradients ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["mlp", "gru", "gru in pieces", "lstm", "masked", "gaussian", "two trunks"])
@pytest.mark.parametrize("rows", [0, 1, 24, 40])
def test_threads_give_the_gradients_of_one_pass(kind: str, rows: int) -> None:
    """Also after the weights have moved: the threads' networks share them, and their gradients start afresh."""
    rig = Rig(*KINDS[kind], "learning.max_grad_norm=0")
    words = (*KINDS[kind], "learning.max_grad_norm=0", f"learning.micro_batch={rows}")
    threaded = rig.twin(*words, "learning.threads=3")
    for _ in range(3):
        segments = rig.collect()
        whole, parts = rig.learner.train(segments), threaded.train(segments)
        assert_close(gradients(rig.learner), gradients(threaded), 1e-4)
        for name in whole:
            assert parts[name] == pytest.approx(whole[name], rel=1e-3, abs=1e-4), name


def test_threads_learn_with_vtrace_too() -> None:
    """Scaling of returns is updated by whoever is first, so only the size of things can be compared."""
    rig = Rig(*KINDS["gru"], "learning.targets=vtrace")
    threaded = rig.twin(*KINDS["gru"], "learning.targets=vtrace", "learning.threads=2", "learning.micro_batch=16")
    for _ in range(4):
        segments = rig.collect()
        whole, parts = rig.learner.train(segments), threaded.train(segments)
        assert parts["entropy"] == pytest.approx(whole["entropy"], rel=0.05)
    counts = [float(learner.model.return_moments.count) for learner in (rig.learner, threaded)]
    assert counts[0] == counts[1] > 0, "every row is counted once, whichever thread read it"


def test_a_failure_in_a_thread_comes_home(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(*KINDS["mlp"])
    threaded = rig.twin(*KINDS["mlp"], "learning.threads=2", "learning.micro_batch=1")

    def fail(*_: object) -> None:
        raise ArithmeticError("told to fail")

    monkeypatch.setattr(threaded._step._replicas.networks[1], "unroll", fail)
    with pytest.raises(ArithmeticError, match="told to fail"):
        threaded.train(rig.collect())


@pytest.mark.parametrize("kind", ["mlp", "gru", "gru in pieces", "masked", "gaussian"])
@pytest.mark.parametrize("rows", [1, 24, 40])
def test_micro_batches_give_the_gradients_of_one_pass(kind: str, rows: int) -> None:
    rig = Rig(*KINDS[kind], "learning.max_grad_norm=0")
    segments = rig.collect()
    small = rig.twin(*KINDS[kind], "learning.max_grad_norm=0", f"learning.micro_batch={rows}")
    whole = rig.learner.train(segments)
    parts = small.train(segments)
    assert_close(gradients(rig.learner), gradients(small))
    for name in whole:
        assert parts[name] == pytest.approx(whole[name], rel=1e-4, abs=1e-5), name


def test_short_recurrence_is_truncated_back_propagation() -> None:
    """Against a plain loop over steps that starts from the stored state every four rows."""
    words = (*KINDS["gru in pieces"], "learning.max_grad_norm=0", "learning.normalize_returns=false")
    rig = Rig(*words)
    for _ in range(3):  # states that are not zero, and values that matter
        rig.learner.train(rig.collect())
        rig.learner.publish()
    segments = rig.collect()
    plain = rig.twin(*words)
    rig.learner.train(segments)
    gradients_of_a_plain_loop(plain, segments, every=4)
    assert_close(gradients(rig.learner), gradients(plain), 1e-5)


def gradients_of_a_plain_loop(learner: Appo, segments: Segments, every: int) -> None:
    s, model = learner.settings, learner.model
    data = {name: torch.from_numpy(array) for name, array in segments.items()}
    steps = data["reward"].shape[0] - 1
    valid = data["valid"][:-1]
    advantage, target = gae(data["reward"][:-1], data["value"], data["terminated"][:-1], valid, s.gamma, s.gae_lambda)
    advantage = normalise_advantages(advantage, valid)
    log_probs, values, entropies = [], [], []
    for t in range(steps):
        if t % every == 0:
            state = data["state"][t // every]
        output = model.step({"obs": data["obs:obs"][t]}, data["first"][t], state)
        state = output.state
        log_probs.append(model.head.log_prob(output.params, data["action"][t]))
        entropies.append(model.head.entropy(output.params))
        values.append(output.value)
    ratio = torch.stack(log_probs) - data["log_prob"][:-1]
    policy = masked_mean(ppo_policy_loss(ratio, advantage, s.clip), valid)
    value = masked_mean(value_loss(torch.stack(values), data["value"][:-1], target), valid)
    loss = policy + s.value_coefficient * value - s.entropy_coefficient * masked_mean(torch.stack(entropies), valid)
    torch.autograd.backward(loss)


@pytest.mark.parametrize("targets", ["gae", "vtrace"])
@pytest.mark.parametrize("kind", ["mlp", "gru"])
def test_rows_of_another_policy_have_no_influence(kind: str, targets: str) -> None:
    """The same gradients as from the own lanes alone, whatever the others hold."""
    words = (*KINDS[kind], "learning.max_grad_norm=0", f"learning.targets={targets}")
    rig = Rig(*words)
    segments = rig.collect()
    own = {name: array[:, ::2] for name, array in segments.items()}
    mixed = {name: array.copy() for name, array in segments.items()}
    mixed["policy_id"][:, 1::2] = 1
    for name in ("reward", "value", "log_prob", "obs:obs"):
        mixed[name][:, 1::2] = np.random.default_rng(0).normal(size=mixed[name][:, 1::2].shape) * 50
    alone = rig.twin(*words)
    metrics, metrics_alone = rig.learner.train(mixed), alone.train(own)
    assert_close(gradients(rig.learner), gradients(alone))
    assert metrics["rows"] == metrics_alone["rows"]
    assert_close(dict(rig.learner.model.named_buffers()), dict(alone.model.named_buffers()), 1e-6)


def test_rows_that_do_not_count_have_no_influence() -> None:
    rig = Rig(*KINDS["mlp"], "learning.max_grad_norm=0")
    rig.collect()
    segments = rig.collect()  # episodes of ten steps end in the second batch
    twin = rig.twin(*KINDS["mlp"], "learning.max_grad_norm=0")
    rig.learner.train(segments)
    blind = ~segments["valid"]
    blind[-1] = False
    assert blind.any()
    for name in ("reward", "log_prob"):
        segments[name][blind] = 1e3
    segments["action"][blind] = 3
    twin.train(segments)
    assert_close(gradients(rig.learner), gradients(twin), 1e-6)


@pytest.mark.parametrize("targets", ["gae", "vtrace"])
def test_a_batch_in_which_nothing_counts_changes_nothing(targets: str) -> None:
    """Not by the momentum of earlier steps, either, and it is no new version."""
    rig = Rig(*KINDS["mlp"], f"learning.targets={targets}", "learning.lr_schedule=kl_adaptive")
    rig.learner.train(rig.collect())
    segments = rig.collect()
    segments["policy_id"][:] = 1
    before = rig.learner.state()
    metrics = rig.learner.train(segments)
    assert metrics == {"rows": 0, "stale_rows": 0}
    assert_same(before, rig.learner.state())


def test_rows_that_are_too_old_are_left_out_one_by_one() -> None:
    words = (*KINDS["mlp"], "learning.max_grad_norm=0", "learning.max_policy_lag=3")
    rig = Rig(*words)
    segments = rig.collect()
    masked = {name: array.copy() for name, array in segments.items()}
    masked["valid"][:3] = False
    alone = rig.twin(*words)
    rig.learner.version = alone.version = 10
    segments["version"][:] = 7
    segments["version"][:3] = 6
    masked["version"][:] = 7
    metrics, metrics_alone = rig.learner.train(segments), alone.train(masked)
    assert_close(gradients(rig.learner), gradients(alone))
    assert metrics["rows"] == metrics_alone["rows"] > 0
    assert (metrics["policy_lag_max"], metrics["stale_rows"]) == (3, 3 * segments["valid"].shape[1])


def test_gradients_are_scaled_down_to_the_limit_or_left_alone() -> None:
    rig = Rig(*KINDS["mlp"], "learning.max_grad_norm=0")
    segments = rig.collect()
    limited = rig.twin(*KINDS["mlp"], "learning.max_grad_norm=0.01")

    def norm(learner: Appo) -> float:
        return math.sqrt(sum(float(g.square().sum()) for g in gradients(learner).values()))

    free, clipped = rig.learner.train(segments), limited.train(segments)
    assert free["grad_norm"] == pytest.approx(norm(rig.learner), rel=1e-4)
    assert clipped["grad_norm"] == pytest.approx(free["grad_norm"], rel=1e-4), "told is the norm before the limit"
    assert norm(limited) == pytest.approx(0.01, rel=1e-3)


# -- epochs, rates, schedules -------------------------------------------------------------------------------


def test_target_kl_ends_the_epochs() -> None:
    rig = Rig(*KINDS["mlp"], "learning.epochs=10", "learning.learning_rate=0.05")
    segments = rig.collect()
    careful = rig.twin(*KINDS["mlp"], "learning.epochs=10", "learning.learning_rate=0.05", "learning.target_kl=0.0001")
    assert rig.learner.train(segments)["epochs"] == 10
    metrics = careful.train(segments)
    assert 1 < metrics["epochs"] < 10
    assert careful.optimizer_steps == metrics["epochs"]


def test_target_kl_is_judged_by_the_minibatches_there_were() -> None:
    """More minibatches asked for than there are pieces: the mean KL is taken over those that ran."""
    words = (*KINDS["gru"], "learning.epochs=10", "learning.learning_rate=0.05", "learning.target_kl=0.0001")
    rig = Rig(*words)
    many = rig.twin(*words, "learning.minibatches=1000")
    metrics = many.train(rig.collect())
    assert many.optimizer_steps == 8 * metrics["epochs"], "one per lane"
    assert metrics["epochs"] <= 2


def test_epochs_and_minibatches_count_optimizer_steps() -> None:
    rig = Rig(*KINDS["mlp"], "learning.epochs=3", "learning.minibatches=4")
    rig.learner.train(rig.collect())
    assert rig.learner.optimizer_steps == 12
    assert rig.learner.version == 1


@pytest.mark.parametrize(("schedule", "rate"), [("constant", 0.01), ("linear", 0.0055), ("cosine", 0.0055)])
def test_the_rate_follows_progress(schedule: str, rate: float) -> None:
    rig = Rig(*KINDS["mlp"], f"learning.lr_schedule={schedule}", "learning.lr_end=0.001")
    metrics = rig.learner.train(rig.collect(), progress=0.5)
    assert metrics["learning_rate"] == pytest.approx(rate)
    assert rig.learner._optimizer.param_groups[0]["lr"] == pytest.approx(rate)


def test_the_adaptive_rate_moves_and_is_saved() -> None:
    rig = Rig(*KINDS["mlp"], "learning.lr_schedule=kl_adaptive", "learning.kl_target=1")
    assert rig.learner.train(rig.collect())["learning_rate"] == 0.01
    rig.learner.publish()
    state = rig.learner.state()
    assert state["rate"] == pytest.approx(0.01)  # at its upper bound
    rig = Rig(*KINDS["mlp"], "learning.lr_schedule=kl_adaptive", "learning.kl_target=1e-12", "learning.epochs=2")
    rig.learner.train(rig.collect())
    state = rig.learner.state()
    assert state["rate"] == pytest.approx(0.01 / 1.5)
    other = rig.twin(*KINDS["mlp"], "learning.lr_schedule=kl_adaptive")
    other.load_state(state)
    assert other.train(rig.collect())["learning_rate"] == pytest.approx(0.01 / 1.5)


def test_the_weight_of_exploration_falls_to_its_end() -> None:
    rig = Rig(*KINDS["mlp"], "learning.entropy_coefficient=0.1", "learning.entropy_end=0")
    twin = rig.twin(*KINDS["mlp"], "learning.entropy_coefficient=0")
    segments = rig.collect()
    rig.learner.train(segments, progress=1.0)
    twin.train(segments)
    assert_close(gradients(rig.learner), gradients(twin), 0)


@pytest.mark.parametrize("kind", ["masked", "nested, multi-discrete, masked"])
def test_symmetric_kl_as_exploration(kind: str) -> None:
    rig = Rig(*KINDS[kind], "learning.exploration=symmetric_kl", "learning.entropy_coefficient=0.1")
    metrics = rig.learner.train(rig.collect())
    assert all(math.isfinite(value) for value in metrics.values())


def test_only_allowed_actions_are_ever_sampled() -> None:
    rig = Rig(*KINDS["nested, multi-discrete, masked"])
    segments = rig.collect()
    mask, action = segments[f"obs:{MASK_FIELD}"][:-1], segments["action"][:-1]
    chosen = np.take_along_axis(mask, action + np.array([0, 2]), axis=-1)
    assert (chosen == 1).all()
    assert (mask == 0).any()


def test_scaling_of_observations_changes_after_the_step_only() -> None:
    rig = Rig(*KINDS["gaussian"])
    segments = rig.collect()
    moments = rig.learner.model.observation_moments
    before = {name: x.clone() for name, x in moments.state_dict().items()}
    rig.learner.train(segments)
    assert any(not torch.equal(before[name], x) for name, x in moments.state_dict().items())


# -- checkpoints --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["mlp", "lstm", "gaussian"])
def test_state_and_back_again_is_exact(kind: str) -> None:
    words = (*KINDS[kind], "learning.minibatches=2", "learning.epochs=2")
    rig = Rig(*words)
    batches = [rig.collect() for _ in range(3)]
    for batch in batches[:2]:
        rig.learner.train(batch)
    state = rig.learner.state()
    twin = Appo(build_model(rig.spec, rig.config.model), WeightBoard(rig.learner.model), rig.config.learning, seed=99)
    twin.load_state(state)
    assert_same(state, twin.state())
    assert_same(rig.learner.train(batches[2]), twin.train(batches[2]))
    assert_same(rig.learner.state(), twin.state())


def test_an_alarm_lasts_over_a_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Alarms, "COLLAPSED", -1.0)
    rig = Rig(*KINDS["mlp"], "learning.collapse_patience=3")
    for _ in range(2):
        rig.learner.train(rig.collect())
    state, batch = rig.learner.state(), rig.collect()
    twin, old = (rig.twin(*KINDS["mlp"], "learning.collapse_patience=3") for _ in range(2))
    twin.load_state(state)
    with pytest.raises(ValueCollapseError, match="for 3 batches"):
        twin.train(batch)
    old.load_state({name: x for name, x in state.items() if name != "alarms"})
    assert old.train(batch)["rows"] > 0, "what 0.1 has saved is read"


# -- setbacks -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["collapse", "nan"])
def test_after_a_setback_the_learner_has_what_acts(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = (*KINDS["mlp"], "learning.minibatches=2", "learning.collapse_patience=2")
    rig = Rig(*words)
    rig.learner.train(rig.collect())
    rig.learner.publish()
    acting, version = rig.learner.state()["model"], rig.learner.version
    with monkeypatch.context() as broken:
        if kind == "collapse":
            broken.setattr(Alarms, "COLLAPSED", -1.0)
            rig.learner._alarms._collapsed = 1
        else:
            norms = iter([1.0, math.nan])
            broken.setattr(rig.learner._step, "grad_norm", lambda metrics: next(norms))
        with pytest.raises((ValueCollapseError, NonFiniteError)):
            rig.learner.train(rig.collect())
    assert not np.array_equal(acting["value_head.bias"], rig.learner.state()["model"]["value_head.bias"])
    rig.learner.set_back()
    state = rig.learner.state()
    assert_same(acting, state["model"])
    assert state["version"] == version
    assert state["alarms"] == {"collapsed": 0, "steep": 0}
    fresh = Appo(build_model(rig.spec, rig.config.model), WeightBoard(rig.learner.model), rig.config.learning, seed=0)
    fresh.load_state({**state, "optimizer": {}})
    batch = rig.collect()
    assert_same(fresh.train(batch), rig.learner.train(batch))
    assert_same(fresh.state()["optimizer"], rig.learner.state()["optimizer"])
    assert rig.learner.version == version + 1


# -- guards -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("targets", ["gae", "vtrace"])
@pytest.mark.parametrize("field", ["obs:obs", "reward", "log_prob"])
def test_nan_in_the_data_is_found_and_named(field: str, targets: str) -> None:
    rig = Rig(*KINDS["gru"], f"learning.targets={targets}")
    segments = rig.collect()
    row, lane = np.argwhere(segments["valid"][:-1])[5]
    segments[field][row, lane] = np.nan
    weights = [p.clone() for p in rig.learner.model.parameters()]
    with pytest.raises(NonFiniteError, match="batch 1, optimizer step 1") as failure:
        rig.learner.train(segments)
    name = {"obs:obs": "observation 'obs'"}.get(field, field)
    assert f"first seen in the batch itself: {name} at index [{row}, {lane}" in str(failure.value)
    assert all(torch.equal(a, b) for a, b in zip(weights, rig.learner.model.parameters()))


@pytest.mark.parametrize("targets", ["gae", "vtrace"])
def test_nan_in_the_weights_is_found_and_named(targets: str) -> None:
    rig = Rig(*KINDS["mlp"], f"learning.targets={targets}")
    segments = rig.collect()
    with torch.no_grad():
        rig.learner.model.trunk.encoder.mlp.layers[0].weight[1, 2] = math.nan  # type: ignore[union-attr,index]
    with pytest.raises(NonFiniteError, match=r"the weights: trunk\.encoder.*weight at index \[1, 2\]"):
        rig.learner.train(segments)


def test_an_overflow_inside_a_layer_is_named() -> None:
    rig = Rig(*KINDS["mlp"])
    segments = rig.collect()
    with torch.no_grad():
        for parameter in rig.learner.model.trunk.parameters():
            parameter.fill_(3e38)
    with pytest.raises(NonFiniteError, match=r"the output of layer trunk\.encoder"):
        rig.learner.train(segments)


def test_an_overflow_of_a_loss_term_is_named() -> None:
    rig = Rig(*KINDS["mlp"], "learning.value_coefficient=3e38", "learning.normalize_returns=false")
    segments = rig.collect()
    segments["reward"][:] = 100
    with pytest.raises(NonFiniteError, match=r"the loss term loss \(inf\)"):
        rig.learner.train(segments)


def test_lasting_value_collapse_stops_the_run() -> None:
    """Values are pushed away from their targets by a negative weight of the value loss."""
    words = ("learning.value_coefficient=-5", "learning.collapse_patience=5", "learning.learning_rate=0.1")
    rig = Rig(*KINDS["mlp"], *words, "learning.normalize_returns=false", "learning.entropy_coefficient=0")

    def learn() -> None:
        for _ in range(200):
            rig.learner.train(rig.collect())
            rig.learner.publish()

    with pytest.raises(ValueCollapseError, match=r"for 5 batches .*collapse_patience=5 stops the run"):
        learn()


@pytest.mark.parametrize("kind", ["buttons", "choices and numbers"])
def test_buttons_and_mixed_actions_are_learnt(kind: str) -> None:
    rig = Rig(*KINDS[kind], "learning.epochs=4", "learning.gamma=0", "learning.minibatches=2")
    means = []
    for _ in range(40):
        segments = rig.collect()
        means.append(segments["reward"][:-1][segments["valid"][:-1]].mean())
        rig.learner.train(segments)
        rig.learner.publish()
    assert np.mean(means[-5:]) > np.mean(means[:5]) + 0.4, "of 2 at best; both begin near 1"


def test_a_metric_of_rows_is_the_mean_of_its_name() -> None:
    """Not the column at another's place: all of them would be numbers, too."""
    rig = Rig(*KINDS["mlp"])
    learner = rig.learner
    batch = load_batch(rig.collect(), learner.settings, learner.policy_id, learner.version, learner.device)
    pieces = learner._prepare(batch)
    learner._step.entropy_weight.fill_(0.5)
    loss, sums = learner._step.losses(pieces, learner.model)
    found = dict(zip(METRICS[:-1], sums.tolist(), strict=True))
    s = learner.settings
    assert found["loss"] == pytest.approx(loss.item())
    parts = found["policy_loss"] + s.value_coefficient * found["value_loss"] - 0.5 * found["entropy"]
    assert found["loss"] == pytest.approx(parts, rel=1e-4, abs=1e-4)
    assert len(set(found.values())) > 6, "columns that can be told apart"
