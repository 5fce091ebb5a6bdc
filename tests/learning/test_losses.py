"""Loss terms and metrics on numbers worked out by hand, and the signs of their gradients."""

import math

import pytest
import torch

from rollmill.learning.losses import (
    masked_mean,
    ppo_policy_loss,
    ratio_metrics,
    value_loss,
)

ALL = torch.tensor([True, True, True, True])
NAN = float("nan")


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def test_policy_loss_on_hand_worked_numbers():
    ratio = torch.tensor([1.0, 1.5, 1.5, 0.5, 0.5])
    advantages = torch.tensor([2.0, 1.0, -1.0, 1.0, -1.0])
    loss = ppo_policy_loss(ratio.log(), advantages, clip=0.2)
    torch.testing.assert_close(loss, torch.tensor([-2.0, -1.2, 1.5, -0.5, 0.8]))


def test_policy_gradient_follows_the_advantage_until_clipped():
    # inside the range; beyond it the way the advantage asks for; beyond it the other way
    ratio = torch.tensor([1.0, 1.0, 1.5, 0.5, 1.5, 0.5])
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0, -1.0, 1.0])
    log_ratio = ratio.log().requires_grad_()
    ppo_policy_loss(log_ratio, advantages, clip=0.2).sum().backward()
    assert log_ratio.grad.sign().tolist() == [-1, 1, 0, 0, 1, -1]


def test_value_loss_on_hand_worked_numbers():
    values, old, targets = (
        torch.tensor([1.0, 3.0, 0.1]),
        torch.tensor([0.0, 0.0, 0.0]),
        torch.tensor([2.0, 2.0, 2.0]),
    )
    torch.testing.assert_close(value_loss(values, old, targets), torch.tensor([0.5, 0.5, 0.5 * 1.9**2]))
    # kept within 0.2 of the old value 0, the first two would still be 1.8 away from the target
    clipped = value_loss(values, old, targets, clip=0.2)
    torch.testing.assert_close(clipped, 0.5 * torch.tensor([1.8**2, 1.8**2, 1.9**2]))


def test_a_value_that_moved_far_towards_its_target_gets_no_gradient():
    values = torch.tensor([1.0, 0.1, -1.0], requires_grad=True)
    value_loss(values, torch.zeros(3), torch.full((3,), 2.0), clip=0.2).sum().backward()
    assert values.grad.sign().tolist() == [0, -1, -1]


def test_masked_mean_reads_only_what_counts():
    x = torch.tensor([1.0, NAN, 3.0, math.inf], requires_grad=True)
    mean = masked_mean(x, torch.tensor([True, False, True, False]))
    mean.backward()
    assert mean.item() == 2.0
    assert x.grad.tolist() == [0.5, 0.0, 0.5, 0.0]


def test_masked_mean_of_nothing_is_zero_with_zero_gradient():
    x = torch.ones(3, requires_grad=True)
    mean = masked_mean(x, torch.zeros(3, dtype=torch.bool))
    mean.backward()
    assert mean.item() == 0
    assert not x.grad.any()


def test_approximate_kl_on_hand_worked_numbers():
    log_ratio = torch.tensor([0.0, math.log(2), math.log(0.5), NAN])
    mask = torch.tensor([True, True, True, False])
    expected = (0 + (1 - math.log(2)) + (-0.5 + math.log(2))) / 3
    assert masked_mean(ratio_metrics(log_ratio, 0.2)[0], mask).item() == pytest.approx(expected)


def test_approximate_kl_estimates_the_kl_without_bias():
    generator = torch.Generator().manual_seed(0)
    old, new = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.4, 0.4, 0.2])
    draws = torch.multinomial(old, 200_000, replacement=True, generator=generator)
    estimate = ratio_metrics((new / old).log()[draws], 0.2)[0].mean()
    assert estimate.item() == pytest.approx(float((old * (old / new).log()).sum()), rel=0.02)


def test_clip_fraction():
    log_ratio = torch.tensor([1.0, 1.5, 0.5, 1.1]).log()
    assert ratio_metrics(log_ratio, 0.2)[1].tolist() == [0, 1, 1, 0]
    assert ratio_metrics(log_ratio, 0.6)[1].tolist() == [0, 0, 0, 0]
    assert ratio_metrics(log_ratio, 0.2)[2].tolist() == pytest.approx([0, 0.5, 0.5, 0.1])
