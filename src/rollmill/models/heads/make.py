"""Action distributions: what the network's numbers mean, and the maths on them.

A head turns features into one flat vector of distribution parameters ``params`` ``[..., P]``, which
can be stored and compared later; all other methods are functions of such parameters. Leading axes
``...`` are free: ``[n]`` when acting, ``[T, B]`` when learning.

Masks ``[..., sum(nvec)]`` (non-zero = allowed) apply to choices in every method: a
forbidden action has probability exactly 0, and no NaN comes of it. A row that forbids everything
has no distribution; an environment that gives one is at fault (``envs.batch``).

================  =============================================================================
head              actions
================  =============================================================================
Categorical       choices among any number
Bernoulli         choices of two only (MultiBinary): one logit each
Gaussian          numbers; unbounded, the environment clips what it executes
BoundedGaussian   numbers; only the means are squashed into the bounds
TanhGaussian      numbers, squashed into their bounds
Mixed             choices and numbers: one of the first two beside one of the last three
================  =============================================================================
"""

from __future__ import annotations

import torch
from torch import Tensor

from rollmill.core.fields import ActionSpec
from rollmill.models.heads.base import ActionHead, Randomness
from rollmill.models.heads.choices import BernoulliHead, CategoricalHead
from rollmill.models.heads.numbers import BoundedGaussianHead, GaussianHead, TanhGaussianHead
from rollmill.models.settings import ModelSettings

GAUSSIANS = {"gaussian": GaussianHead, "bounded_gaussian": BoundedGaussianHead, "tanh_gaussian": TanhGaussianHead}
"""``model.action_distribution``."""


def build_head(spec: ActionSpec, input_size: int, settings: ModelSettings) -> ActionHead:
    """Return the head for this action space, reading features ``[..., input_size]``."""
    if spec.kind == "mixed":
        return MixedHead(spec, input_size, settings)
    if spec.kind == "continuous":
        return GAUSSIANS[settings.action_distribution](spec, input_size, settings)
    if spec.kind == "multi_discrete" and set(spec.nvec) == {2}:
        return BernoulliHead(spec, input_size, settings)
    return CategoricalHead(spec, input_size, settings)


class MixedHead(ActionHead):
    """Choices and numbers in one action, independent of each other given the features.

    Parameters are the logits of the choices, then means and log standard deviations. Actions are float32: the
    choices, then the numbers (``ActionSpec``). Masks are for the choices.
    """

    discrete = False

    def __init__(self, spec: ActionSpec, input_size: int, settings: ModelSettings) -> None:
        super().__init__()
        self.components = len(spec.nvec)
        self.choices = build_head(ActionSpec("multi_discrete", nvec=spec.nvec), input_size, settings)
        numbers = ActionSpec("continuous", shape=spec.shape, low=spec.low, high=spec.high)
        self.numbers = build_head(numbers, input_size, settings)
        self.param_size = self.choices.param_size + self.numbers.param_size

    def forward(self, features: Tensor) -> Tensor:
        return torch.cat([self.choices(features), self.numbers(features)], dim=-1)

    def sample(
        self,
        params: Tensor,
        mask: Tensor | None = None,
        generator: Randomness = None,
        deterministic: bool = False,
    ) -> Tensor:
        logits, normal = self._parts(params)
        choice = self.choices.sample(logits, mask, generator, deterministic)
        number = self.numbers.sample(normal, None, generator, deterministic)
        return torch.cat([choice.to(number.dtype), number], dim=-1)

    def log_prob(self, params: Tensor, action: Tensor, mask: Tensor | None = None) -> Tensor:
        logits, normal = self._parts(params)
        choice, number = action[..., : self.components].long(), action[..., self.components :]
        return self.choices.log_prob(logits, choice, mask) + self.numbers.log_prob(normal, number)

    def entropy(self, params: Tensor, mask: Tensor | None = None) -> Tensor:
        logits, normal = self._parts(params)
        return self.choices.entropy(logits, mask) + self.numbers.entropy(normal)

    def kl(self, params_old: Tensor, params_new: Tensor, mask: Tensor | None = None) -> Tensor:
        (logits_old, normal_old), (logits_new, normal_new) = self._parts(params_old), self._parts(params_new)
        return self.choices.kl(logits_old, logits_new, mask) + self.numbers.kl(normal_old, normal_new)

    def _parts(self, params: Tensor) -> tuple[Tensor, Tensor]:
        return params[..., : self.choices.param_size], params[..., self.choices.param_size :]
