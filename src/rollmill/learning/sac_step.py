"""One update of soft actor-critic: critics, policy, temperature and target networks, without a look at any number.

``SacStep.update`` is all of it. Whether something became NaN is decided on the device: ``bad`` is raised, and from then
on no optimizer moves a weight; the learner looks at it once for many updates. So an update can be recorded: on a GPU
``GraphSacStep`` replays it as one CUDA graph.

Critics see numbers of an action scaled to -1..1, and entropies are of those: the units of an action do not matter.
Of choices every one is judged, so nothing is drawn: expectations are sums over them.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from rollmill.core.fields import MASK_FIELD
from rollmill.learning.experience import Transitions
from rollmill.learning.sac_settings import SacSettings
from rollmill.learning.settings import LearningSettings
from rollmill.models.actor_critic import ActorCritic
from rollmill.models.critics import Critics, TrunkCritics
from rollmill.models.heads.choices import CategoricalHead
from rollmill.models.heads.numbers import TanhGaussianHead
from rollmill.models.memory import RecurrentMemory
from rollmill.optim.adam import Adam

METRICS = ("critic_loss", "q_mean", "critic_grad_norm", "policy_loss", "entropy", "grad_norm", "temperature")
"""What one update reports, in this order."""
NORMS = {"critics": METRICS.index("critic_grad_norm"), "policy": METRICS.index("grad_norm")}
"""Where the gradient norm of what is optimized stands among them, in the order of the update."""
CHOICE_ENTROPY = 0.5
"""Of the entropy of uniform choices: what a policy over choices keeps, where nothing else is asked for."""


class SacStep:
    """The networks that learn, their optimizers, and one update of all of them."""

    def __init__(
        self,
        model: ActorCritic,
        critics: Critics | TrunkCritics,
        settings: tuple[LearningSettings, SacSettings],
        generator: torch.Generator,
    ) -> None:
        learning, self.sac = settings
        self.model, self.critics = model, critics
        self.head = model.head
        self.device = next(model.parameters()).device
        self.targets = copy.deepcopy(critics).requires_grad_(False)
        others = [model.value_head, *([model.critic_trunk] if model.critic_trunk is not None else [])]
        unused = {id(p) for part in others for p in part.parameters()}
        self.policy_parameters = [p for p in model.parameters() if id(p) not in unused]
        self.log_temperature = torch.tensor(math.log(self.sac.temperature), device=self.device, requires_grad=True)
        self.optimizers = {
            "policy": Adam(self.policy_parameters, learning.learning_rate, learning.adam_eps),
            "critics": Adam(critics.parameters(), learning.learning_rate, learning.adam_eps),
            "temperature": Adam([self.log_temperature], learning.learning_rate, learning.adam_eps),
        }
        self.target_entropy = self._usual_entropy() if self.sac.target_entropy is None else self.sac.target_entropy
        self.bad = torch.zeros((), device=self.device)
        """1 from the first gradient on that is NaN or infinite: nothing moves any more."""
        self._generator = generator
        self._critic_parameters = list(critics.parameters())
        self._all_targets: list[Tensor] = list(self.targets.parameters())
        self._all_critics: list[Tensor] = list(self._critic_parameters)

    def _usual_entropy(self) -> float:
        if isinstance(self.head, TanhGaussianHead):
            return -float(math.prod(self.head.shape))
        assert isinstance(self.head, CategoricalHead)
        return CHOICE_ENTROPY * math.log(self.head.choices)

    def set_rate(self, rate: float) -> None:
        for optimizer in self.optimizers.values():
            for group in optimizer.param_groups:
                group["lr"] = rate

    def update(self, batch: Transitions) -> Tensor:
        """Take one step of critics, policy, temperature and target networks; returns ``METRICS`` ``[7]``."""
        critic = self.critic_step(batch)
        policy, entropy = self.policy_step(batch)
        temperature = self._temperature_step(entropy)
        self.follow()
        return torch.stack([*critic, *policy, temperature]).double()

    # -- critics -------------------------------------------------------------------------------

    def critic_step(self, batch: Transitions) -> tuple[Tensor, Tensor, Tensor]:
        """Returns loss, mean value and gradient norm."""
        target = self.target(batch)
        value = self._of_taken(self._now(self.critics, batch), batch)
        loss = 0.5 * _mean((value - target).square().sum(dim=0), batch.weight)
        norm = self._apply("critics", loss, self._critic_parameters)
        return loss.detach(), _mean(value.detach().mean(dim=0), batch.weight), norm

    @torch.no_grad()
    def target(self, batch: Transitions) -> Tensor:
        """Return ``[...]``, reward and the discounted value of what the policy would do next.

        The value is the smaller of those of the target networks.
        """
        seen = self._next(self.targets, batch)
        params, mask = self._params_next(batch)
        temperature = self.log_temperature.exp()
        if isinstance(self.head, TanhGaussianHead):
            action, log_prob = self.head.unit_rsample(params, self._generator)
            value = self.targets.judge(seen, action).amin(dim=0) - temperature * log_prob
        else:
            log_p = self._log_p(params, mask)
            value = (log_p.exp() * (self.targets.judge(seen).amin(dim=0) - temperature * log_p)).sum(-1)
        return batch.reward + batch.discount * value

    def _of_taken(self, seen: Any, batch: Transitions) -> Tensor:
        """Return ``[count, ...]``, what the critics say of the actions that were taken."""
        if isinstance(self.head, TanhGaussianHead):
            return self.critics.judge(seen, self.head.to_unit(batch.action))
        values = self.critics.judge(seen)
        taken = batch.action.expand(len(values), *batch.action.shape).unsqueeze(-1)
        return values.gather(-1, taken).squeeze(-1)

    # -- policy and temperature ----------------------------------------------------------------

    def policy_step(self, batch: Transitions) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
        """Returns (loss, entropy, gradient norm), and the mean entropy once more, for the temperature."""
        params, mask = self._params_now(batch)
        with torch.no_grad():
            seen = self._now(self.critics, batch)
        temperature = self.log_temperature.detach().exp()
        if isinstance(self.head, TanhGaussianHead):
            action, log_prob = self.head.unit_rsample(params, self._generator)
            rows, entropy = temperature * log_prob - self.critics.judge(seen, action).amin(dim=0), -log_prob
        else:
            log_p = self._log_p(params, mask)
            with torch.no_grad():
                value = self.critics.judge(seen).amin(dim=0)
            p = log_p.exp()
            rows, entropy = (p * (temperature * log_p - value)).sum(-1), -(p * log_p).sum(-1)
        loss = _mean(rows, batch.weight)
        norm = self._apply("policy", loss, self.policy_parameters)
        mean = _mean(entropy.detach(), batch.weight)
        return (loss.detach(), mean, norm), mean

    def _temperature_step(self, entropy: Tensor) -> Tensor:
        """Returns the temperature of this step."""
        before = self.log_temperature.detach().exp()
        if self.sac.learn_temperature:
            # The gradient of log(temperature) * (entropy - target entropy), written down.
            self.log_temperature.grad = entropy - self.target_entropy
            self.optimizers["temperature"].step(self.bad)
        return before

    @torch.no_grad()
    def follow(self) -> None:
        """Move the target networks a little towards the critics."""
        torch._foreach_lerp_(self._all_targets, self._all_critics, self.sac.tau)

    # -- what the networks say -----------------------------------------------------------------

    def _params_now(self, batch: Transitions) -> tuple[Tensor, Tensor | None]:
        """Return the parameters of the policy's action distribution, and the action mask."""
        if batch.is_sequence:
            params, mask = self._unrolled(batch)
            return params[:-1], None if mask is None else mask[:-1]
        return self._stepped(batch.obs)

    def _params_next(self, batch: Transitions) -> tuple[Tensor, Tensor | None]:
        if batch.is_sequence:
            params, mask = self._unrolled(batch)
            return params[1:], None if mask is None else mask[1:]
        return self._stepped(batch.next_obs)

    def _unrolled(self, batch: Transitions) -> tuple[Tensor, Tensor | None]:
        assert batch.state is not None, "sequences have one"
        first = torch.zeros((len(batch.reward) + 1, *batch.reward.shape[1:]), dtype=torch.bool, device=self.device)
        return self.model.unroll(batch.obs, first, batch.state).params, batch.obs.get(MASK_FIELD)

    def _stepped(self, obs: dict[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        rows = len(next(iter(obs.values())))
        first = torch.zeros(rows, dtype=torch.bool, device=self.device)
        return self.model.step(obs, first, self.model.initial_state(rows)).params, obs.get(MASK_FIELD)

    def _log_p(self, params: Tensor, mask: Tensor | None) -> Tensor:
        assert isinstance(self.head, CategoricalHead)
        return self.head.log_p(params, mask)

    def _now(self, critics: Critics | TrunkCritics, batch: Transitions) -> Any:
        return self._sequence(critics, batch)[:, :-1] if batch.is_sequence else self._read(critics, batch.obs)

    def _next(self, critics: Critics | TrunkCritics, batch: Transitions) -> Any:
        return self._sequence(critics, batch)[:, 1:] if batch.is_sequence else self._read(critics, batch.next_obs)

    def _read(self, critics: Critics | TrunkCritics, obs: dict[str, Tensor]) -> Any:
        return critics.read(self.model.observation_moments(obs))

    def _sequence(self, critics: Critics | TrunkCritics, batch: Transitions) -> Tensor:
        assert isinstance(critics, TrunkCritics), "memory is the critics' own"
        return critics.read_sequences(self.model.observation_moments(batch.obs))

    # -- optimizers ----------------------------------------------------------------------------

    def _apply(self, name: str, loss: Tensor, parameters: list[nn.Parameter]) -> Tensor:
        """Step one optimizer by the gradients of ``loss``, unless they are none; returns their norm."""
        # Only with respect to its own parameters: the critics' weights need no gradient of the policy's loss.
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters, allow_unused=True)):
            parameter.grad = gradient
        norm = _clip(parameters, self.sac.max_grad_norm)
        self.bad.copy_(torch.maximum(self.bad, 1.0 - norm.isfinite().float()))
        self.optimizers[name].step(self.bad)
        return norm


class GraphSacStep(SacStep):
    """The same as one CUDA graph. Batches must keep their shapes; the first ones run plainly."""

    WARM_UP = 3
    """Plain updates before recording: optimizers build their state, libraries choose their algorithms."""

    def __init__(
        self,
        model: ActorCritic,
        critics: Critics | TrunkCritics,
        settings: tuple[LearningSettings, SacSettings],
        generator: torch.Generator,
    ) -> None:
        for part in (model, critics):
            for module in part.modules():
                if isinstance(module, RecurrentMemory):
                    module.by_steps = True  # packing fragments needs the host to look at the data
        super().__init__(model, critics, settings, generator)
        self._rate = torch.tensor(settings[0].learning_rate, device=self.device)
        for optimizer in self.optimizers.values():
            optimizer.param_groups[0]["lr"] = self._rate
        self._plain = 0
        self._inputs: Transitions | None = None
        self._metrics: Tensor | None = None
        self._graph = torch.cuda.CUDAGraph()

    def set_rate(self, rate: float) -> None:
        self._rate.fill_(rate)

    def update(self, batch: Transitions) -> Tensor:
        if self._plain < self.WARM_UP:
            self._plain += 1
            return super().update(batch)
        if self._inputs is None:
            self._record(batch)
        assert self._inputs is not None
        assert self._metrics is not None
        self._inputs.copy_(batch)
        self._graph.replay()
        return self._metrics.clone()

    def _record(self, example: Transitions) -> None:
        """Record the graph, which runs nothing: weights and optimizers stay as they are."""
        self._inputs = example.clone()
        torch.cuda.synchronize(self.device)
        self._graph.register_generator_state(self._generator)
        # thread_local: the sampler's thread goes on acting on this GPU meanwhile.
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._metrics = super().update(self._inputs)


def _mean(rows: Tensor, weight: Tensor | None) -> Tensor:
    """Return the mean over the rows that count."""
    return rows.mean() if weight is None else (rows * weight).sum() / weight.sum().clamp(min=1.0)


@torch.no_grad()
def _clip(parameters: Iterable[nn.Parameter], limit: float) -> Tensor:
    """Scale gradients down to the norm ``limit`` (0: not at all); returns the norm they had."""
    gradients = [x.grad for x in parameters if x.grad is not None]
    norm = nn.utils.get_total_norm(gradients)
    if limit:
        torch._foreach_mul_(gradients, (limit / (norm + 1e-6)).clamp(max=1.0))
    return norm
