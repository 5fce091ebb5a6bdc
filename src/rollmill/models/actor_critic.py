"""Builds the whole network: observations in, action distribution and value out.

Two forms that agree: ``step`` decides for n lanes at once, ``unroll`` reads T steps of B lanes when
learning. ``build_model`` makes the network the settings ask for, the user's own included.

A network of your own (``model.custom``) is a class with the constructor
``(spec: EnvSpec, settings: ModelSettings, **custom_args)`` and is one of two things:

- a subclass of ``ActorCritic``: used whole. Overriding parts is fine as long as ``step`` and ``unroll``
  keep their shapes and ``state_size`` tells the truth.
- any other ``nn.Module`` with an int attribute ``output_size`` (see ``encoders.CustomEncoder``): used as
  the encoder; memory and heads follow it. It maps observations ``[n, *shape]`` to ``[n, output_size]``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MappingProxyType
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from rollmill.core.errors import ConfigError
from rollmill.core.fields import MASK_FIELD, TASK_FIELD, EnvSpec
from rollmill.core.imports import check_arguments, import_object
from rollmill.models.encoders import (
    ObservationNormaliser,
    Observations,
    build_encoder,
    initialise,
)
from rollmill.models.heads.make import build_head
from rollmill.models.memory import build_memory
from rollmill.models.moments import RunningMoments, TaskMoments
from rollmill.models.settings import ModelSettings

NO_OBSERVATIONS: Observations = MappingProxyType({})
"""Enough for what depends on no task."""


class Output(NamedTuple):
    """What the network says. Leading axes are ``[n]`` for ``step`` and ``[T, B]`` for ``unroll``."""

    params: Tensor  # [..., P] parameters of the action distribution; see ActorCritic.head
    value: Tensor  # [...] normalised; ActorCritic.denormalise gives units of the return
    state: Tensor  # [n, S] or [B, S]: the recurrent state after the (last) step


class Trunk(nn.Module):
    """An encoder and the memory behind it; with ``memory_skip`` the features also pass by the memory."""

    def __init__(self, encoder: nn.Module, settings: ModelSettings) -> None:
        super().__init__()
        self.encoder = encoder
        self.memory = build_memory(cast(int, encoder.output_size), settings)
        self.output_size = self.memory.output_size
        self.state_size = self.memory.state_size
        self.skip = settings.memory_skip and self.state_size > 0
        if self.skip:
            self.output_size += cast(int, encoder.output_size)

    def step(self, obs: Observations, first: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        features = self.encoder(obs)
        remembered, state = self.memory.step(features, state, first)
        return self._join(remembered, features), state

    def unroll(self, obs: Observations, first: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        rows = {name: x.flatten(0, 1) for name, x in obs.items()}
        features = self.encoder(rows).unflatten(0, first.shape)
        remembered, state = self.memory.unroll(features, state, first)
        return self._join(remembered, features), state

    def _join(self, remembered: Tensor, features: Tensor) -> Tensor:
        return torch.cat([remembered, features], dim=-1) if self.skip else remembered


_Form = Callable[[Trunk, Observations, Tensor, Tensor], tuple[Tensor, Tensor]]
"""``Trunk.step`` or ``Trunk.unroll``."""


class ActorCritic(nn.Module):
    """Policy and value function, with a shared trunk or one each.

    ``make_encoder`` replaces the built-in encoder; it is called once per trunk.
    """

    state_size: int
    """Floats of recurrent state per lane; 0 without memory. Two trunks: the policy's, then the critic's."""

    def __init__(
        self, spec: EnvSpec, settings: ModelSettings, make_encoder: Callable[[], nn.Module] | None = None
    ) -> None:
        super().__init__()
        _check_mask_field(spec)
        own = make_encoder is not None
        if make_encoder is None:

            def make_encoder() -> nn.Module:
                return build_encoder(spec.inputs, settings)

        scaled = spec.inputs if settings.normalize_observations else ()
        self.observation_moments = ObservationNormaliser(scaled, images=not own)
        by_task = spec.tasks > 0 and settings.returns_by_task
        self.return_moments = TaskMoments(spec.tasks) if by_task else RunningMoments()
        self.trunk = Trunk(make_encoder(), settings)
        self.critic_trunk = Trunk(make_encoder(), settings) if settings.separate_critic else None
        self.state_size = self.trunk.state_size
        value_input = self.trunk.output_size
        if self.critic_trunk is not None:
            self.state_size += self.critic_trunk.state_size
            value_input = self.critic_trunk.output_size
        self.head = build_head(spec.action, self.trunk.output_size, settings)
        self.value_head = initialise(nn.Linear(value_input, 1), settings.value_gain)

    def initial_state(self, n: int) -> Tensor:
        """Return the state of ``n`` lanes at the start of an episode: zeros ``[n, S]``."""
        return torch.zeros(n, self.state_size, device=self.return_moments.shift.device)

    def step(self, obs: Observations, first: Tensor, state: Tensor) -> Output:
        """Return one decision for n lanes.

        ``obs``: ``[n, *shape]`` by field name (an action mask among them is not read); ``first``: ``[n]``
        bool, the row begins an episode, so its state counts as zero; ``state``: ``[n, S]``.
        """
        return self._both(Trunk.step, obs, first, state)

    def unroll(self, obs: Observations, first: Tensor, state: Tensor) -> Output:
        """Return the outputs for T steps of B lanes.

        ``obs``: ``[T, B, *shape]`` by field name; ``first``: ``[T, B]`` bool; ``state``: ``[B, S]``, as it
        was before row 0.
        """
        return self._both(Trunk.unroll, obs, first, state)

    def _both(self, form: _Form, obs: Observations, first: Tensor, state: Tensor) -> Output:
        """Apply ``form`` to the one trunk of actor and critic, or to both side by side."""
        obs = self.observation_moments(obs)
        if self.critic_trunk is None:
            features, state = form(self.trunk, obs, first, state)
            return self._output(features, features, state)
        own, other = self._split_state(state)
        features, own = form(self.trunk, obs, first, own)
        value_features, other = form(self.critic_trunk, obs, first, other)
        return self._output(features, value_features, torch.cat([own, other], dim=1))

    def _split_state(self, state: Tensor) -> tuple[Tensor, Tensor]:
        size = self.trunk.state_size
        return state[:, :size], state[:, size:]

    def _output(self, features: Tensor, value_features: Tensor, state: Tensor) -> Output:
        return Output(self.head(features), self.value_head(value_features).squeeze(-1), state)

    def update_normalizer(self, obs: Observations, valid: Tensor | None = None) -> None:
        """Take observations ``[..., *shape]`` into the moments; ``valid`` ``[...]``: the rows that count.

        It does nothing where the settings or the fields leave nothing to normalise, and never happens by itself: acting
        and learning on the same data must see the same scaling.
        """
        self.observation_moments.update(obs, valid)

    def normalise(self, returns: Tensor, obs: Observations = NO_OBSERVATIONS) -> Tensor:
        """Return returns in the units the value output uses; ``obs`` of the same rows say which task it is."""
        moments = self.return_moments
        if isinstance(moments, TaskMoments):
            return (returns - moments.shift_of(obs[TASK_FIELD])) / moments.std_of(obs[TASK_FIELD])
        return moments.normalise(returns)

    def denormalise(self, value: Tensor, obs: Observations = NO_OBSERVATIONS) -> Tensor:
        """Return the value output in units of the return; ``obs`` of the same rows say which task it is."""
        moments = self.return_moments
        if isinstance(moments, TaskMoments):
            return value * moments.std_of(obs[TASK_FIELD]) + moments.shift_of(obs[TASK_FIELD])
        return moments.denormalise(value)

    def update_returns(self, returns: Tensor, valid: Tensor, obs: Observations) -> None:
        """Take returns ``[...]`` into their moments; ``valid`` ``[...]``: the rows that count."""
        moments = self.return_moments
        if isinstance(moments, TaskMoments):
            moments.update_tasks(returns, obs[TASK_FIELD], valid)
        else:
            moments.update(returns, valid)

    def advantages_by_task(self, advantages: Tensor, obs: Observations) -> Tensor:
        """Divide advantages by the deviation of their tasks' returns; without tasks they stay as they are."""
        moments = self.return_moments
        return advantages / moments.std_of(obs[TASK_FIELD]) if isinstance(moments, TaskMoments) else advantages


def build_model(spec: EnvSpec, settings: ModelSettings) -> ActorCritic:
    """Build the network for this environment; raises ConfigError where the settings do not fit it."""
    if settings.custom is None:
        return ActorCritic(spec, settings)
    found = import_object(settings.custom, "model.custom", lambda v: isinstance(v, type) and issubclass(v, nn.Module))
    given = {"spec": spec, "settings": settings}
    check_arguments(found, f"model.custom={settings.custom}", given, settings.custom_args)
    if issubclass(found, ActorCritic):
        model: ActorCritic = found(spec, settings, **settings.custom_args)
    else:
        model = _with_custom_encoder(found, spec, settings)
    _check_output_shapes(model, spec, settings)
    return model


def _with_custom_encoder(found: type[nn.Module], spec: EnvSpec, settings: ModelSettings) -> ActorCritic:
    if settings.encoder != "auto":
        raise ConfigError(
            f"model.encoder={settings.encoder} contradicts model.custom={settings.custom}, "
            "which is an encoder itself; leave encoder=auto"
        )

    def make_encoder() -> nn.Module:
        encoder = found(spec, settings, **settings.custom_args)
        size = getattr(encoder, "output_size", None)
        if not isinstance(size, int):
            raise ConfigError(
                f"model.custom={settings.custom}: an encoder needs an int attribute output_size; "
                "a whole network must derive from rollmill.models.actor_critic.ActorCritic"
            )
        with _evaluating(encoder):
            shape = tuple(encoder(_blank_observations(spec, 2)).shape)
        if shape != (2, size):
            raise ConfigError(
                f"model.custom={settings.custom} gives features of shape {shape} for 2 rows, "
                f"but its output_size says {size}"
            )
        return encoder

    return ActorCritic(spec, settings, make_encoder)


def _check_output_shapes(model: ActorCritic, spec: EnvSpec, settings: ModelSettings) -> None:
    """Run both forms on blank observations, so that a wrong shape is found before anything starts."""
    steps, lanes = 3, 2
    first = torch.zeros(steps, lanes, dtype=torch.bool)
    state = model.initial_state(lanes)
    with _evaluating(model):
        stepped = model.step(_blank_observations(spec, lanes), first[0], state)
        unrolled = model.unroll(_blank_observations(spec, steps, lanes), first, state)
    for form, output, lead in (("step", stepped, (lanes,)), ("unroll", unrolled, (steps, lanes))):
        wanted = ((*lead, model.head.param_size), lead, (lanes, model.state_size))
        for name, tensor, shape in zip(Output._fields, output, wanted):
            if tuple(tensor.shape) != shape:
                raise ConfigError(
                    f"model.custom={settings.custom}: {form} gives {name} of shape {tuple(tensor.shape)}, "
                    f"expected {shape} (leading axes {lead})"
                )


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """Let a module run without gradients and without side effects of training (batch statistics, dropout)."""
    training = module.training
    module.eval()
    with torch.no_grad():
        yield
    module.train(training)


def _blank_observations(spec: EnvSpec, *lead: int) -> dict[str, Tensor]:
    blank = {f.name: np.zeros((*lead, *f.shape), f.dtype) for f in spec.observation}
    return {name: torch.from_numpy(array) for name, array in blank.items()}


def _check_mask_field(spec: EnvSpec) -> None:
    mask = next((f for f in spec.observation if f.name == MASK_FIELD), None)
    if mask is None:
        return
    if spec.action.kind == "continuous":
        raise ConfigError(f"{spec.name} has an action mask, but continuous actions cannot be masked")
    if mask.shape != (spec.action.mask_size,):
        raise ConfigError(f"{spec.name}: action mask has shape {mask.shape}, not ({spec.action.mask_size},)")
