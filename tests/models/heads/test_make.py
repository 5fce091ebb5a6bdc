"""Action heads against torch.distributions and numeric integrals, and masks that let no forbidden action through."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Categorical, Independent, Normal, kl_divergence
from torch.nn import functional

from rollmill.core.errors import ConfigError
from rollmill.core.fields import ActionSpec
from rollmill.models.heads.base import ActionHead
from rollmill.models.heads.choices import CategoricalHead
from rollmill.models.heads.make import build_head
from rollmill.models.settings import ModelSettings

DISCRETE = ActionSpec("discrete", nvec=(4,), start=(0,))
EQUAL = ActionSpec("multi_discrete", nvec=(3, 3), start=(0, 0))
UNEQUAL = ActionSpec("multi_discrete", nvec=(2, 5, 3), start=(0, 0, 0))
CONTINUOUS = ActionSpec("continuous", shape=(3,), low=(-1.0,) * 3, high=(1.0,) * 3)
BINARY = ActionSpec("multi_discrete", nvec=(2, 2, 2), start=(0, 0, 0))
MIXED = ActionSpec("mixed", nvec=(3, 2), start=(0, 0), shape=(2,), low=(-1.0, 0.0), high=(1.0, 4.0))
MIXED_BINARY = ActionSpec("mixed", nvec=(2, 2), start=(0, 0), shape=(1,), low=(-1.0,), high=(1.0,))
CHOICES = [DISCRETE, EQUAL, UNEQUAL]
TANH = {"action_distribution": "tanh_gaussian"}
BOUNDED = {"action_distribution": "bounded_gaussian"}
ALL = [
    *((spec, {}) for spec in (*CHOICES, BINARY, CONTINUOUS, MIXED, MIXED_BINARY)),
    *((spec, words) for spec in (CONTINUOUS, MIXED) for words in (TANH, BOUNDED)),
]
"""Every head: its action space and its settings."""
LEAD = (2, 5)  # leading axes, as in [T, B]


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def head_for(spec, **values):
    return build_head(spec, 6, ModelSettings(**values))


def random_mask(spec, lead, seed):
    """A mask with at least one allowed choice in every component."""
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for n in spec.nvec:
        part = torch.rand(*lead, n, generator=generator) < 0.5
        keep = torch.randint(n, (*lead, 1), generator=generator)
        parts.append(part.scatter(-1, keep, True))
    return torch.cat(parts, -1).to(torch.int8)


def components(spec, params, mask=None):
    """One torch distribution per component; forbidden choices get no probability."""
    if mask is not None:
        params = params.masked_fill(mask == 0, -math.inf)
    return [Categorical(logits=part) for part in params.split(spec.nvec, -1)]


def columns(spec, action):
    return [action] if spec.kind == "discrete" else list(action.unbind(-1))


def finite_sum(x):
    return x.nan_to_num(0.0).sum(-1)  # 0 * -inf of forbidden choices


# ------------------------------------------------------------------------------------------ choices


@pytest.mark.parametrize("spec", CHOICES)
@pytest.mark.parametrize("masked", [False, True])
def test_choices_agree_with_torch_distributions(spec, masked):
    head = head_for(spec)
    params, other = torch.randn(2, *LEAD, head.param_size)
    mask = random_mask(spec, LEAD, 3) if masked else None
    action = head.sample(params, mask)
    assert action.shape == (*LEAD, *spec.field.shape)
    assert action.dtype == torch.int64
    dists, others = components(spec, params, mask), components(spec, other, mask)

    log_prob = sum(d.log_prob(a) for d, a in zip(dists, columns(spec, action)))
    torch.testing.assert_close(head.log_prob(params, action, mask), log_prob)
    entropy = sum(-finite_sum(d.probs * d.logits) for d in dists)
    torch.testing.assert_close(head.entropy(params, mask), entropy)
    kl = sum(finite_sum(d.probs * (d.logits - o.logits)) for d, o in zip(dists, others))
    torch.testing.assert_close(head.kl(params, other, mask), kl)


@pytest.mark.parametrize("spec", CHOICES)
def test_distance_from_uniform_agrees_with_torch_distributions(spec):
    head = head_for(spec)
    params = torch.randn(*LEAD, head.param_size)
    forward = sum(kl_divergence(d, Categorical(torch.ones_like(d.probs))) for d in components(spec, params))
    backward = sum(kl_divergence(Categorical(torch.ones_like(d.probs)), d) for d in components(spec, params))
    torch.testing.assert_close(head.kl_to_uniform(params), forward)
    torch.testing.assert_close(head.symmetric_kl_uniform(params), 0.5 * (forward + backward))


def test_distance_from_uniform_counts_only_allowed_choices():
    head = head_for(UNEQUAL)
    params = torch.randn(1, head.param_size)
    mask = torch.tensor([[1, 1, 0, 1, 0, 1, 1, 1, 0, 1]])
    dists = [Categorical(logits=part[part_mask != 0]) for part, part_mask in
             zip(params[0].split(UNEQUAL.nvec), mask[0].split(UNEQUAL.nvec))]  # fmt: skip
    forward = sum(kl_divergence(d, Categorical(torch.ones_like(d.probs))) for d in dists)
    backward = sum(kl_divergence(Categorical(torch.ones_like(d.probs)), d) for d in dists)
    torch.testing.assert_close(head.kl_to_uniform(params, mask)[0], forward)
    torch.testing.assert_close(head.symmetric_kl_uniform(params, mask)[0], 0.5 * (forward + backward))


def test_a_uniform_policy_is_at_distance_zero():
    head = head_for(UNEQUAL)
    params = torch.zeros(2, head.param_size)
    mask = random_mask(UNEQUAL, (2,), 1)
    torch.testing.assert_close(head.symmetric_kl_uniform(params, mask), torch.zeros(2))
    torch.testing.assert_close(head.kl_to_uniform(params), torch.zeros(2))


def chi_square(counts, probs):
    expected = counts.sum() * probs
    return float(((counts - expected).square() / expected).sum())


@pytest.mark.parametrize("spec", CHOICES)
@pytest.mark.parametrize("masked", [False, True])
def test_sampling_follows_the_probabilities(spec, masked):
    draws = 20_000
    head = head_for(spec)
    generator = torch.Generator().manual_seed(0)
    params = torch.randn(head.param_size, generator=generator)
    mask = random_mask(spec, (), 5) if masked else None
    action = head.sample(
        params.expand(draws, -1), None if mask is None else mask.expand(draws, -1), generator=generator
    )
    for dist, column in zip(components(spec, params, mask), columns(spec, action)):
        counts = torch.bincount(column, minlength=len(dist.probs)).double()
        allowed = dist.probs > 0
        assert counts[~allowed].sum() == 0
        freedom = int(allowed.sum()) - 1
        # six deviations of a chi-square variable above its mean
        assert chi_square(counts[allowed], dist.probs[allowed].double()) < freedom + 6 * math.sqrt(2 * freedom) + 1


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), spec=st.sampled_from(CHOICES), scale=st.sampled_from([0.0, 1.0, 50.0, 1e4]))
def test_forbidden_actions_are_never_taken_and_break_nothing(seed, spec, scale):
    head = head_for(spec)
    generator = torch.Generator().manual_seed(seed)
    params, other = torch.randn(2, 300, head.param_size, generator=generator) * scale
    mask = random_mask(spec, (300,), seed)
    params.requires_grad_()
    for deterministic in (False, True):
        action = head.sample(params.detach(), mask, generator, deterministic)
        for column, part in zip(columns(spec, action), mask.split(spec.nvec, -1)):
            assert (part.gather(-1, column.unsqueeze(-1)) == 1).all()
        terms = [
            head.log_prob(params, action, mask),
            head.entropy(params, mask),
            head.kl(params, other, mask),
            head.symmetric_kl_uniform(params, mask),
        ]
        assert all(term.isfinite().all() for term in terms)
        (grad,) = torch.autograd.grad(sum(term.sum() for term in terms), params)
        assert grad.isfinite().all()
        assert (grad[mask == 0] == 0).all(), "a forbidden action must not be learned about"


def test_a_vanishing_race_variable_does_not_choose_a_forbidden_action(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "exponential_", lambda self, generator=None: self.zero_())
    head = head_for(DISCRETE)
    mask = torch.tensor([[0, 0, 1, 0]])
    assert head.sample(torch.zeros(1, 4), mask).tolist() == [2]


def test_the_probability_of_a_forbidden_action_is_zero():
    head = head_for(DISCRETE)
    log_prob = head.log_prob(torch.zeros(1, 4), torch.tensor([0]), torch.tensor([[0, 1, 1, 0]]))
    assert log_prob.exp().item() == 0
    assert log_prob.isfinite().all()


def test_the_mode_is_the_best_allowed_choice():
    head = head_for(UNEQUAL)
    params = torch.tensor([[0.0, 9.0, 1, 2, 3, 4, 5, 7, 8, 6]])
    mask = torch.tensor([[1, 0, 1, 1, 1, 1, 0, 1, 1, 1]])
    assert head.sample(params, deterministic=True).tolist() == [[1, 4, 1]]
    assert head.sample(params, mask, deterministic=True).tolist() == [[0, 3, 1]]


@pytest.mark.parametrize("spec", [*CHOICES, CONTINUOUS])
def test_the_same_generator_state_gives_the_same_actions(spec):
    head = head_for(spec)
    params = torch.randn(50, head.param_size)
    draws = [head.sample(params, generator=torch.Generator().manual_seed(s)) for s in (1, 1, 2)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_half_precision_parameters_are_computed_in_float32():
    head = head_for(DISCRETE)
    assert head.entropy(torch.zeros(2, 4, dtype=torch.bfloat16)).dtype == torch.float32


def test_first_actions_are_nearly_uniform():
    head = head_for(DISCRETE)
    entropy = head.entropy(head(torch.randn(20, 6)))
    assert (entropy > 0.999 * math.log(4)).all()


# -------------------------------------------------------------------------------------------- masks


# ----------------------------------------------------------------------------------------- gaussian


def gaussian(params):
    mean, log_std = params.chunk(2, -1)
    return Independent(Normal(mean, log_std.exp()), 1)


@pytest.mark.parametrize("log_std", ["free", "state"])
def test_gaussian_agrees_with_torch_distributions(log_std):
    head = head_for(CONTINUOUS, log_std=log_std, policy_gain=1.0, initial_log_std=-0.7)
    params, other = head(torch.randn(2, *LEAD, 6))
    if log_std == "free":
        torch.testing.assert_close(params[..., 3:], torch.full((*LEAD, 3), -0.7))
    action = head.sample(params)
    assert action.shape == (*LEAD, 3)
    torch.testing.assert_close(head.log_prob(params, action), gaussian(params).log_prob(action))
    torch.testing.assert_close(head.entropy(params), gaussian(params).entropy())
    torch.testing.assert_close(head.kl(params, other), kl_divergence(gaussian(params), gaussian(other)))


def test_gaussian_samples_have_the_mean_and_deviation_asked_for():
    head = head_for(CONTINUOUS)
    params = torch.tensor([2.0, -1.0, 0.0, 0.0, -1.0, 1.0]).expand(40_000, -1)
    action = head.sample(params, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(action.mean(0), params[0, :3], rtol=0, atol=0.07)
    torch.testing.assert_close(action.std(0), params[0, 3:].exp(), rtol=0.03, atol=0)
    assert torch.equal(head.sample(params, deterministic=True), params[:, :3])


def test_gaussian_actions_keep_the_shape_of_the_space():
    spec = ActionSpec("continuous", shape=(2, 2), low=(-1.0,) * 4, high=(1.0,) * 4)
    head = head_for(spec)
    params = head(torch.randn(5, 6))
    action = head.sample(params)
    assert action.shape == (5, 2, 2)
    assert head.log_prob(params, action).shape == (5,)


@pytest.mark.parametrize("log_std", ["free", "state"])
def test_the_deviation_stays_in_bounds_and_learns(log_std):
    head = head_for(CONTINUOUS, log_std=log_std)
    head.entropy(head(torch.randn(4, 6))).sum().backward()
    assert all(p.grad is not None for p in head.parameters())
    with torch.no_grad():
        (head.log_std if log_std == "free" else head.linear.bias[3:]).fill_(50.0)
    assert (head(torch.zeros(1, 6))[:, 3:] == 2.0).all()


def test_continuous_actions_refuse_masks_and_uniform_distances():
    head = head_for(CONTINUOUS)
    params = torch.zeros(1, 6)
    with pytest.raises(ConfigError, match="cannot be masked"):
        head.entropy(params, torch.ones(1, 3))
    with pytest.raises(ConfigError, match="entropy bonus"):
        head.kl_to_uniform(params)
    with pytest.raises(ConfigError, match="entropy bonus"):
        head.symmetric_kl_uniform(params)


def test_the_base_class_does_nothing_by_itself():
    head, x = ActionHead(), torch.zeros(1)
    for call in (
        lambda: head(x),
        lambda: head.sample(x),
        lambda: head.log_prob(x, x),
        lambda: head.entropy(x),
        lambda: head.kl(x, x),
    ):
        with pytest.raises(NotImplementedError):
            call()


# ------------------------------------------------------------------------------- contract of all heads


@pytest.mark.parametrize(("spec", "values"), ALL)
def test_every_head_keeps_the_contract(spec, values):
    head = head_for(spec, policy_gain=1.0, **values)
    params, other = head(torch.randn(2, *LEAD, 6))
    assert params.shape == (*LEAD, head.param_size)
    mask = random_mask(spec, LEAD, 2) if spec.nvec else None
    for deterministic in (False, True):
        action = head.sample(params, mask, deterministic=deterministic)
        assert action.shape == (*LEAD, *spec.field.shape)
        assert action.dtype == getattr(torch, spec.field.dtype)
        assert head.log_prob(params, action, mask).shape == LEAD
    torch.manual_seed(3)
    action, log_prob = head.decide(params, mask)
    torch.manual_seed(3)
    torch.testing.assert_close(head.sample(params, mask), action)
    torch.testing.assert_close(log_prob, head.log_prob(params, action, mask))
    torch.testing.assert_close(head.kl(params, params, mask), torch.zeros(LEAD), rtol=0, atol=1e-6)
    assert (head.kl(params, other) > 0).all()
    assert head.discrete == spec.discrete
    if not head.discrete:
        with pytest.raises(ConfigError, match="uniform"):
            head.symmetric_kl_uniform(params)


@pytest.mark.parametrize(("spec", "values"), ALL)
@pytest.mark.parametrize("masked", [False, True])
def test_the_entropy_and_the_divergence_are_those_of_the_samples(spec, values, masked):
    head = head_for(spec, **values)
    generator = torch.Generator().manual_seed(1)
    params, other = torch.randn(2, head.param_size, generator=generator) * 0.5
    mask = random_mask(spec, (), 4) if masked and spec.nvec else None
    many = None if mask is None else mask.expand(40_000, -1)
    action, log_prob = head.decide(params.expand(40_000, -1), many, generator)
    error = 6 * log_prob.std() / 200
    assert abs(head.entropy(params, mask) + log_prob.mean()) < error + 1e-3
    ratio = log_prob - head.log_prob(other.expand(40_000, -1), action, many)
    assert abs(head.kl(params, other, mask) - ratio.mean()) < 6 * ratio.std() / 200 + 1e-3


# ----------------------------------------------------------------------------------------- bernoulli


def as_categories(params):
    """The same distribution as one of two choices each: logits 0 and l."""
    return torch.stack([torch.zeros_like(params), params], -1).flatten(-2)


@pytest.mark.parametrize("masked", [False, True])
def test_choices_of_two_agree_with_categorical_ones(masked):
    head = head_for(BINARY)
    assert head.param_size == 3
    categorical = CategoricalHead(BINARY, 6, ModelSettings())
    params, other = torch.randn(2, *LEAD, 3)
    mask = random_mask(BINARY, LEAD, 1) if masked else None
    action = head.sample(params, mask)
    torch.testing.assert_close(
        head.log_prob(params, action, mask), categorical.log_prob(as_categories(params), action, mask)
    )
    for name in ("entropy", "kl_to_uniform", "symmetric_kl_uniform"):
        mine, theirs = getattr(head, name)(params, mask), getattr(categorical, name)(as_categories(params), mask)
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
    mine, theirs = head.kl(params, other, mask), categorical.kl(as_categories(params), as_categories(other), mask)
    torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
    best = head.sample(params, mask, deterministic=True)
    assert torch.equal(best, categorical.sample(as_categories(params), mask, deterministic=True))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), scale=st.sampled_from([0.0, 1.0, 50.0, 1e4]))
def test_forbidden_buttons_are_never_pressed_and_break_nothing(seed, scale):
    head = head_for(BINARY)
    generator = torch.Generator().manual_seed(seed)
    params, other = torch.randn(2, 300, 3, generator=generator) * scale
    mask = random_mask(BINARY, (300,), seed)
    params.requires_grad_()
    action = head.sample(params.detach(), mask, generator)
    assert (mask.reshape(300, 3, 2).gather(-1, action.unsqueeze(-1)) == 1).all()
    terms = [head.log_prob(params, action, mask), head.entropy(params, mask), head.kl(params, other, mask)]
    terms.append(head.symmetric_kl_uniform(params, mask))
    assert all(term.isfinite().all() for term in terms)
    (grad,) = torch.autograd.grad(sum(term.sum() for term in terms), params)
    assert grad.isfinite().all()
    decided = (mask.reshape(300, 3, 2) == 0).any(-1)
    assert (grad[decided] == 0).all(), "where there is no choice there is nothing to learn"


# ---------------------------------------------------------------------------------- bounded gaussian


def test_means_stay_within_the_bounds_and_samples_need_not():
    head = head_for(NARROW, **BOUNDED)
    params = head(torch.randn(500, 6) * 1e3)
    mean, log_std = params.chunk(2, dim=-1)
    assert mean.min() >= -3
    assert mean.max() <= 1
    assert mean.min() < -2.9
    assert mean.max() > 0.9
    torch.testing.assert_close(head.sample(params, deterministic=True), mean)
    action = head.sample(params)
    assert (action > 1).any(), "the environment clips what it executes"
    torch.testing.assert_close(head.log_prob(params, action), Normal(mean, log_std.exp()).log_prob(action).squeeze(-1))


# -------------------------------------------------------------------------------------- tanh-gaussian


NARROW = ActionSpec("continuous", shape=(1,), low=(-3.0,), high=(1.0,))


@pytest.mark.parametrize(("mean", "log_std"), [(0.0, 0.0), (1.2, -0.5), (-1.0, 0.5), (0.3, -2.0)])
def test_the_squashed_density_integrates_to_one_and_gives_the_entropy(mean, log_std):
    head = head_for(NARROW, **TANH)
    params = torch.tensor([mean, log_std])
    # Integrated over tanh's argument, where nothing is steep: da = 2 (1 - tanh^2) du.
    u = torch.linspace(-7, 7, 200_001, dtype=torch.float64)
    action = (-1 + 2 * u.tanh()).float().unsqueeze(-1)
    log_p = head.log_prob(params.expand(len(u), -1), action).double()
    slope = 2 * (1 - u.tanh().square())
    assert float(torch.trapezoid(log_p.exp() * slope, u)) == pytest.approx(1, abs=1e-3)
    entropy = float(torch.trapezoid(-log_p * log_p.exp() * slope, u))
    assert float(head.entropy(params)) == pytest.approx(entropy, abs=5e-3)


def test_squashed_actions_stay_within_their_bounds_and_the_log_probability_stays_finite():
    head = head_for(NARROW, **TANH)
    params = torch.tensor([[50.0, 2.0], [-50.0, 2.0], [0.0, 2.0]]).repeat(500, 1).requires_grad_()
    action, log_prob = head.decide(params)
    assert action.min() >= -3
    assert action.max() <= 1
    assert log_prob.isfinite().all()
    (grad,) = torch.autograd.grad(log_prob.sum() + head.entropy(params).sum(), params)
    assert grad.isfinite().all()
    deterministic = head.sample(torch.tensor([[0.0, 1.0]]), deterministic=True)
    torch.testing.assert_close(deterministic, torch.tensor([[-1.0]]))


def test_unit_samples_are_the_actions_in_other_units_and_let_gradients_through():
    head = head_for(NARROW, **TANH)
    params = (torch.randn(500, 2) * 0.5).requires_grad_()
    unit, log_prob = head.unit_rsample(params, torch.Generator().manual_seed(0))
    action = head.sample(params, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(head.to_unit(action), unit, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(log_prob, head.log_prob(params, action) + math.log(2), rtol=1e-3, atol=1e-3)
    (grad,) = torch.autograd.grad(unit.sum(), params)
    assert (grad[:, 0] > 0).all(), "a larger mean is a larger action"


def test_the_slope_of_tanh_is_exact_far_out():
    head = head_for(NARROW, **TANH)
    params = torch.tensor([[12.0, -5.0]])
    _, log_prob = head.unit_rsample(params, torch.Generator().manual_seed(0))
    noise = torch.empty(1, 1).normal_(generator=torch.Generator().manual_seed(0))
    raw = 12 + math.exp(-5) * noise
    plain = Normal(12.0, math.exp(-5)).log_prob(raw) - 2 * (math.log(2) - raw - functional.softplus(-2 * raw))
    torch.testing.assert_close(log_prob, plain.squeeze(-1), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("low", "high"), [(-math.inf, 1.0), (0.0, math.inf), (1.0, 1.0)])
@pytest.mark.parametrize("name", ["tanh_gaussian", "bounded_gaussian"])
def test_squashing_needs_bounds(low, high, name):
    with pytest.raises(ConfigError, match=f"{name} needs actions with finite bounds"):
        head_for(ActionSpec("continuous", shape=(1,), low=(low,), high=(high,)), action_distribution=name)


# --------------------------------------------------------------------------------------------- mixed


def test_a_mixed_action_is_choices_then_numbers():
    head = head_for(MIXED)
    params = head(torch.randn(*LEAD, 6))
    action = head.sample(params)
    choice, number = action[..., :2], action[..., 2:]
    assert torch.equal(choice, choice.round())
    assert (choice < torch.tensor([3, 2])).all()
    logits, normal = params.split([5, 4], -1)
    parts = components(ActionSpec("multi_discrete", nvec=(3, 2)), logits)
    expected = sum(d.log_prob(c) for d, c in zip(parts, choice.long().unbind(-1))) + gaussian(normal).log_prob(number)
    torch.testing.assert_close(head.log_prob(params, action), expected)
    mask = torch.tensor([0, 1, 0, 1, 0]).expand(*LEAD, -1)
    assert (head.sample(params, mask)[..., :2] == torch.tensor([1.0, 0.0])).all()


def test_the_parts_of_a_mixed_head_are_those_of_their_spaces():
    assert head_for(MIXED_BINARY).param_size == 2 + 2
    squashed = head_for(MIXED, **TANH).sample(torch.full((1, 9), 30.0), deterministic=True)
    torch.testing.assert_close(squashed[0, 2:], torch.tensor([1.0, 4.0]))
