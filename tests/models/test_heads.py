"""Action heads against torch.distributions, and masks that never let a forbidden action through."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Categorical, Independent, Normal, kl_divergence

from rollmill.core.errors import ConfigError
from rollmill.core.fields import ActionSpec
from rollmill.models.heads import ActionHead, build_head
from rollmill.models.settings import ModelSettings

DISCRETE = ActionSpec("discrete", nvec=(4,), start=(0,))
EQUAL = ActionSpec("multi_discrete", nvec=(3, 3), start=(0, 0))
UNEQUAL = ActionSpec("multi_discrete", nvec=(2, 5, 3), start=(0, 0, 0))
CONTINUOUS = ActionSpec("continuous", shape=(3,), low=(-1.0,) * 3, high=(1.0,) * 3)
CHOICES = [DISCRETE, EQUAL, UNEQUAL]
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
