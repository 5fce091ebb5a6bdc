"""Distributions over choices: categorical ones, and those of two as Bernoulli variables."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from rollmill.core.fields import ActionSpec
from rollmill.models.encoders import initialise
from rollmill.models.heads.base import ActionHead, Randomness, draw
from rollmill.models.settings import ModelSettings

FORBIDDEN = -1e30
"""Logit of a forbidden action: its probability underflows to 0, yet differences and products stay finite."""


class CategoricalHead(ActionHead):
    """One or several independent choices. Parameters are the logits of all components side by side.

    Components are handled at once as a table ``[..., k, m]`` of ``k`` components by ``m`` choices,
    padded with forbidden choices where components differ in size.
    """

    discrete = True
    index: Tensor | None
    padding: Tensor | None

    def __init__(self, spec: ActionSpec, input_size: int, settings: ModelSettings) -> None:
        super().__init__()
        self.single = spec.kind == "discrete"
        self.param_size = spec.mask_size
        self.components, self.choices = len(spec.nvec), max(spec.nvec)
        self.linear = initialise(nn.Linear(input_size, self.param_size), settings.policy_gain)
        index = padding = None
        if len(set(spec.nvec)) > 1:
            size = torch.tensor(spec.nvec)
            offset = (size.cumsum(0) - size).unsqueeze(1)
            choice = torch.arange(self.choices).unsqueeze(0)
            padding = choice >= size.unsqueeze(1)
            index = (offset + choice).masked_fill(padding, 0)
        # Derived from the spec, so not part of a checkpoint.
        self.register_buffer("index", index, persistent=False)
        self.register_buffer("padding", padding, persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        logits: Tensor = self.linear(features)
        return logits

    def sample(
        self,
        params: Tensor,
        mask: Tensor | None = None,
        generator: Randomness = None,
        deterministic: bool = False,
    ) -> Tensor:
        return self.decide(params, mask, generator, deterministic)[0]

    def decide(
        self,
        params: Tensor,
        mask: Tensor | None = None,
        generator: Randomness = None,
        deterministic: bool = False,
    ) -> tuple[Tensor, Tensor]:
        log_p = self._logits(params, mask).log_softmax(-1)
        if deterministic:
            choice = log_p.argmax(-1, keepdim=True)
        else:
            # A race: with E ~ Exp(1), argmax(p / E) follows p. The floor keeps 0 / 0 out of it.
            noise = draw(Tensor.exponential_, log_p, generator).clamp_(min=1e-30)
            choice = log_p.exp().div_(noise).argmax(-1, keepdim=True)
        chosen = log_p.gather(-1, choice).squeeze(-1)  # [..., k]
        if self.single:
            return choice.squeeze(-1).squeeze(-1), chosen.squeeze(-1)
        return choice.squeeze(-1), chosen.sum(-1)

    def log_prob(self, params: Tensor, action: Tensor, mask: Tensor | None = None) -> Tensor:
        choice = action.unsqueeze(-1) if self.single else action
        log_p = self._logits(params, mask).log_softmax(-1)
        return log_p.gather(-1, choice.unsqueeze(-1)).squeeze(-1).sum(-1)

    def log_p(self, params: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return log-probabilities ``[..., choices]`` of all choices of a single component."""
        return self._logits(params, mask).log_softmax(-1).squeeze(-2)

    def entropy(self, params: Tensor, mask: Tensor | None = None) -> Tensor:
        log_p = self._logits(params, mask).log_softmax(-1)
        return -(log_p.exp() * log_p).sum((-2, -1))

    def kl(self, params_old: Tensor, params_new: Tensor, mask: Tensor | None = None) -> Tensor:
        old = self._logits(params_old, mask).log_softmax(-1)
        new = self._logits(params_new, mask).log_softmax(-1)
        return (old.exp() * (old - new)).sum((-2, -1))

    def kl_to_uniform(self, params: Tensor, mask: Tensor | None = None) -> Tensor:
        # KL(p || u) = log(allowed choices) - H(p)
        return self._allowed(params, mask).sum(-1).log().sum(-1) - self.entropy(params, mask)

    def symmetric_kl_uniform(self, params: Tensor, mask: Tensor | None = None) -> Tensor:
        allowed = self._allowed(params, mask)
        count = allowed.sum(-1)
        log_p = self._logits(params, mask).log_softmax(-1)
        # KL(u || p) = -log(allowed choices) - mean of log p over them
        reverse = -count.log() - torch.where(allowed, log_p, 0.0).sum(-1) / count
        return 0.5 * (self.kl_to_uniform(params, mask) + reverse.sum(-1))

    def _logits(self, params: Tensor, mask: Tensor | None) -> Tensor:
        """Return logits ``[..., k, m]`` in float32, forbidden and padding choices at ``FORBIDDEN``."""
        logits = params.float()
        if mask is not None:
            logits = logits.masked_fill(mask == 0, FORBIDDEN)
        table = self._table(logits)
        return table if self.padding is None else table.masked_fill(self.padding, FORBIDDEN)

    def _allowed(self, params: Tensor, mask: Tensor | None) -> Tensor:
        """Return which choices ``[..., k, m]`` exist and are allowed."""
        table = self._table(torch.ones_like(params, dtype=torch.bool) if mask is None else mask != 0)
        return table if self.padding is None else table & ~self.padding

    def _table(self, flat: Tensor) -> Tensor:
        """Turn ``[..., sum(nvec)]`` into ``[..., k, m]``; what the padding holds does not matter."""
        if self.index is None:
            return flat.reshape(*flat.shape[:-1], self.components, self.choices)
        return flat[..., self.index]


class BernoulliHead(ActionHead):
    """Independent choices of two. Parameters are the logits of 1; a mask has two entries for each, of 0 and of 1."""

    discrete = True

    def __init__(self, spec: ActionSpec, input_size: int, settings: ModelSettings) -> None:
        super().__init__()
        self.param_size = len(spec.nvec)
        self.linear = initialise(nn.Linear(input_size, self.param_size), settings.policy_gain)

    def forward(self, features: Tensor) -> Tensor:
        logits: Tensor = self.linear(features)
        return logits

    def sample(
        self,
        params: Tensor,
        mask: Tensor | None = None,
        generator: Randomness = None,
        deterministic: bool = False,
    ) -> Tensor:
        logits = self._logits(params, mask)
        if deterministic:
            return (logits > 0).long()
        return (draw(Tensor.uniform_, logits, generator) < logits.sigmoid()).long()

    def log_prob(self, params: Tensor, action: Tensor, mask: Tensor | None = None) -> Tensor:
        log_p = self._log_p(params, mask)
        return log_p.gather(-1, action.unsqueeze(-1)).squeeze(-1).sum(-1)

    def entropy(self, params: Tensor, mask: Tensor | None = None) -> Tensor:
        log_p = self._log_p(params, mask)
        return -(log_p.exp() * log_p).sum((-2, -1))

    def kl(self, params_old: Tensor, params_new: Tensor, mask: Tensor | None = None) -> Tensor:
        old, new = self._log_p(params_old, mask), self._log_p(params_new, mask)
        return (old.exp() * (old - new)).sum((-2, -1))

    def kl_to_uniform(self, params: Tensor, mask: Tensor | None = None) -> Tensor:
        return self._allowed(params, mask).sum(-1).log().sum(-1) - self.entropy(params, mask)

    def symmetric_kl_uniform(self, params: Tensor, mask: Tensor | None = None) -> Tensor:
        allowed = self._allowed(params, mask)
        count = allowed.sum(-1)
        reverse = -count.log() - torch.where(allowed, self._log_p(params, mask), 0.0).sum(-1) / count
        return 0.5 * (self.kl_to_uniform(params, mask) + reverse.sum(-1))

    def _logits(self, params: Tensor, mask: Tensor | None) -> Tensor:
        """Return logits ``[..., k]`` in float32, at plus or minus ``FORBIDDEN`` where there is no choice."""
        logits = params.float()
        if mask is None:
            return logits
        zero, one = self._allowed(params, mask).unbind(-1)
        return logits.masked_fill(~zero, -FORBIDDEN).masked_fill(~one, FORBIDDEN)

    def _log_p(self, params: Tensor, mask: Tensor | None) -> Tensor:
        """Return log-probabilities ``[..., k, 2]`` of 0 and of 1."""
        logits = self._logits(params, mask)
        return torch.stack([functional.logsigmoid(-logits), functional.logsigmoid(logits)], dim=-1)

    def _allowed(self, params: Tensor, mask: Tensor | None) -> Tensor:
        """Return which of 0 and 1 ``[..., k, 2]`` are allowed."""
        if mask is None:
            return torch.ones(*params.shape, 2, dtype=torch.bool, device=params.device)
        return mask.reshape(*params.shape, 2) != 0
