"""What the value function should have said and how much better each action was than expected.

Pure functions on tensors ``[T, B]`` (T steps of B lanes). What a row means:

- ``rewards[t]`` and ``terminated[t]`` belong to the action taken at row t.
- ``values`` has T + 1 rows; the last one only bootstraps.
- ``terminated[t]``: the episode ended for good, nothing after row t counts for row t.
- ``valid[t]`` False: the action at row t did not count (the row holds an episode's final
  observation, or a fault). There the target is the value itself, the advantage is 0, and nothing
  flows through. Whatever such a row holds as reward or ratio is never read.

Truncation needs no flag: the row after a truncated one holds the true final observation and is not
valid, so the trace ends there and its value is the bootstrap.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rollmill.learning.losses import Number


@torch.no_grad()
def gae(
    rewards: Tensor, values: Tensor, terminated: Tensor, valid: Tensor, gamma: float, gae_lambda: float
) -> tuple[Tensor, Tensor]:
    """Compute advantages and value targets by generalised advantage estimation (GAE).

    ``rewards``, ``terminated``, ``valid``: ``[T, B]``; ``values``: ``[T + 1, B]``.
    Returns advantages and value targets, ``[T, B]`` each.
    """
    _check_shapes(rewards, values, terminated, valid)
    discount = _discount(terminated, valid, gamma)
    delta = rewards + discount * values[1:] - values[:-1]
    advantages = _backward_sum(torch.where(valid, delta, 0.0), discount * gae_lambda)
    return advantages, advantages + values[:-1]


@torch.no_grad()
def vtrace(
    log_ratio: Tensor,
    rewards: Tensor,
    values: Tensor,
    terminated: Tensor,
    valid: Tensor,
    gamma: Number,
    gae_lambda: Number = 1.0,
    rho_bar: Number = 1.0,
    c_bar: Number = 1.0,
) -> tuple[Tensor, Tensor]:
    """Compute V-trace (Espeholt et al. 2018): targets for experience of a slightly older policy.

    ``log_ratio``: ``[T, B]``, log of current over behaviour probability of the action taken; the other
    arguments as for ``gae``. Returns policy-gradient advantages and value targets, ``[T, B]`` each.
    """
    _check_shapes(rewards, values, terminated, valid, log_ratio)
    discount = _discount(terminated, valid, gamma)
    ratio = torch.where(valid, log_ratio, 0.0).exp()
    rho = ratio.clamp(max=rho_bar)
    delta = rho * (rewards + discount * values[1:] - values[:-1])
    correction = _backward_sum(torch.where(valid, delta, 0.0), discount * gae_lambda * ratio.clamp(max=c_bar))
    targets = values[:-1] + correction
    next_targets = torch.cat([targets[1:], values[-1:]])
    advantages = rho * (rewards + discount * next_targets - values[:-1])
    return torch.where(valid, advantages, 0.0), targets


def _discount(terminated: Tensor, valid: Tensor, gamma: Number) -> Tensor:
    """Return ``gamma`` where row t + 1 continues row t, else 0; ``[T, B]`` float32."""
    return (valid & ~terminated).float() * gamma


def _backward_sum(first: Tensor, factor: Tensor) -> Tensor:
    """Compute ``s[t] = first[t] + factor[t] * s[t + 1]`` with ``s[T] = 0``; everything ``[T, B]``."""
    total = torch.empty_like(first)
    last = torch.zeros_like(first[0])
    for t in range(len(first) - 1, -1, -1):
        last = torch.addcmul(first[t], factor[t], last, out=total[t])
    return total


def _check_shapes(rewards: Tensor, values: Tensor, *others: Tensor) -> None:
    steps, lanes = rewards.shape
    if values.shape != (steps + 1, lanes):
        raise ValueError(f"values must be [T + 1, B] = {[steps + 1, lanes]}, not {list(values.shape)}")
    for other in others:
        if other.shape != rewards.shape:
            raise ValueError(f"all inputs but values must be [T, B] = {[steps, lanes]}, not {list(other.shape)}")
