"""The dynamics model: a memory over (latent, action) steps, and heads that say what comes next.

Words
-----
h_t      the memory before step t: all that was read of steps 0 .. t - 1; zero at the first step of an episode. A
         controller that decides at step t sees the latent z_t and h_t.
reading  step t's latent and action go into the memory and give h_{t+1}; the heads predict z_{t+1}, the reward of step
         t and whether the episode ends with it from h_{t+1}.
lane     one stream of steps; lanes are read together and restart one by one.

``forward`` reads whole sequences, for learning; ``Dynamics.read`` reads one step of some lanes. Both give the same
numbers. A model file holds the architecture too: a path is all one needs to load it.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from rollmill.core.checkpoints import restoring, saved_spec
from rollmill.core.config.load import load_config
from rollmill.core.config.plain import to_dict
from rollmill.core.errors import ConfigError
from rollmill.core.fields import SPEC_SHAPE, Array, EnvSpec
from rollmill.core.imports import check_arguments, import_object
from rollmill.core.shapes import MAPPING, ArrayOf, Shape
from rollmill.models.saving import WEIGHTS_SHAPE, load_weights, weights_of
from rollmill.models.transformer import Memory as TrunkMemory
from rollmill.models.transformer import Trunk
from rollmill.worldmodel.actions import ActionCode
from rollmill.worldmodel.dynamics.mixture import Mixture, log_likelihood, split_mixture
from rollmill.worldmodel.dynamics.objectives import Adversary, Infilling, draw_through, fill_nats
from rollmill.worldmodel.dynamics.recall import Recall
from rollmill.worldmodel.dynamics.settings import DynamicsSettings
from rollmill.worldmodel.files import DYNAMICS
from rollmill.worldmodel.own import NOBODY, Trust

if TYPE_CHECKING:
    from rollmill.worldmodel.dynamics.fit import Sequences

STATE_SHAPE: Shape = {
    "settings": MAPPING,
    "origin": {
        "spec": SPEC_SHAPE,
        "env_id": str,
        "env_kwargs": MAPPING,
        "env_settings?": (MAPPING, None),
        "latent_size": int,
        "reward_mean?": float,
        "reward_std?": float,
        "remembered?": int,
    },
    "starts": {"mean": ArrayOf("f", 2), "std": ArrayOf("f", 2)},
    "axes?": ({"mean": ArrayOf("f", 1), "directions": ArrayOf("f", 2)}, None),
    "metadata": MAPPING,
    "weights": WEIGHTS_SHAPE,
}
LONGEST_WAVE = 1_000.0
"""Of the sines that tell a transformer which step it is at, in steps."""


class Prediction(NamedTuple):
    """What follows a step. Latents as a mixture ``[..., Z, K]``; reward and logit of an end ``[...]``."""

    latent: Mixture
    reward: Tensor
    done: Tensor


@dataclass
class LaneMemory:
    """The memories of all lanes."""

    h: Tensor
    """``[lanes, size]``: h_t of every lane."""
    cell: Tensor
    """``[lanes, ...]``: what else the core keeps of every lane, such as the LSTM's cells; may be empty."""
    trunk: TrunkMemory | None = None

    @property
    def flat(self) -> Tensor:
        """All numbers of it, ``[lanes, numbers]``; ``Dynamics.unpack`` makes a memory of them again."""
        return torch.cat([self.h, self.cell, *([] if self.trunk is None else [self.trunk.flat])], 1)


class Core(nn.Module):
    """The memory: steps in, memories of ``settings.size`` numbers out, in two forms that give the same numbers.

    One of your own derives from this and answers ``forward`` and ``read``, where it keeps more than h also ``begin``
    and ``forget``; ``dynamics.custom`` names it. It is called with ``(inputs, settings, **custom_args)``.
    """

    def __init__(self, inputs: int, settings: DynamicsSettings) -> None:
        super().__init__()
        self.inputs, self.size = inputs, settings.size

    def forward(self, x: Tensor, step: Tensor, mask: Tensor) -> Tensor:
        """Return the memories after every step ``[B, L, size]``, of whole sequences ``[B, L, inputs]``.

        ``step`` ``[B, L]``: numbers of the steps in their episodes; ``mask`` ``[B, L]``: True where a step is real.
        """
        raise NotImplementedError

    def read(self, x: Tensor, memory: LaneMemory, lanes: Tensor) -> Tensor:
        """Return the memory ``[n, size]`` after one more step ``[n, inputs]`` of lanes ``[n]``."""
        raise NotImplementedError

    def begin(self, lanes: int) -> LaneMemory:
        """Return the memory of so many lanes at the first step of an episode; h is zero."""
        blank = next(self.parameters()).new_zeros((lanes, self.size))
        return LaneMemory(blank, blank[:, :0])

    def forget(self, memory: LaneMemory, lanes: Tensor) -> None:
        """Begin an episode in lanes ``[n]``; their h is zero already."""


class LstmCore(Core):
    """One layer of LSTM."""

    def __init__(self, inputs: int, s: DynamicsSettings) -> None:
        super().__init__(inputs, s)
        self.lstm = nn.LSTM(inputs, s.size, batch_first=True)

    def forward(self, x: Tensor, step: Tensor, mask: Tensor) -> Tensor:
        out: Tensor = self.lstm(x)[0]
        return out

    def begin(self, lanes: int) -> LaneMemory:
        blank = super().begin(lanes).h
        return LaneMemory(blank, blank.clone())

    def read(self, x: Tensor, memory: LaneMemory, lanes: Tensor) -> Tensor:
        state = (memory.h[lanes][None], memory.cell[lanes][None])
        out, (_, cell) = self.lstm(x[:, None], state)
        memory.cell[lanes] = cell[0]
        h: Tensor = out[:, 0]
        return h

    def forget(self, memory: LaneMemory, lanes: Tensor) -> None:
        memory.cell[lanes] = 0


class TransformerCore(Core):
    """A causal transformer with one token per step, which sees the last ``context`` of them."""

    def __init__(self, inputs: int, s: DynamicsSettings) -> None:
        super().__init__(inputs, s)
        self.embed = nn.Linear(inputs, s.size)
        self.trunk = Trunk(size=s.size, layers=s.layers, heads=s.heads, tokens=1, context=s.context)

    def forward(self, x: Tensor, step: Tensor, mask: Tensor) -> Tensor:
        tokens = self.embed(x) + step_waves(step, self.size)
        out: Tensor = self.trunk(tokens[:, :, None], mask)[:, :, 0]
        return out

    def begin(self, lanes: int) -> LaneMemory:
        trunk = self.trunk.memory(lanes)
        # The trunk counts a step when the one after it begins; its lanes stand before step 0 from the start.
        trunk.age += 1
        return replace(super().begin(lanes), trunk=trunk)

    def read(self, x: Tensor, memory: LaneMemory, lanes: Tensor) -> Tensor:
        assert memory.trunk is not None
        step = memory.trunk.age[lanes] - 1
        token = self.embed(x) + step_waves(step, self.size)
        out: Tensor = self.trunk.act(token[:, None], memory.trunk, lanes, torch.zeros_like(lanes, dtype=torch.bool))
        return out[:, 0]

    def forget(self, memory: LaneMemory, lanes: Tensor) -> None:
        assert memory.trunk is not None
        memory.trunk.age[lanes] = 1


class PresentCore(Core):
    """No memory: an MLP on the present step."""

    def __init__(self, inputs: int, s: DynamicsSettings) -> None:
        super().__init__(inputs, s)
        sizes = [inputs, *[s.size] * s.layers]
        self.layers = nn.Sequential(
            *(part for a, b in itertools.pairwise(sizes) for part in (nn.Linear(a, b), nn.SiLU()))
        )

    def forward(self, x: Tensor, step: Tensor, mask: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out

    def read(self, x: Tensor, memory: LaneMemory, lanes: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out


MakeCore = Callable[[int, DynamicsSettings], Core]
"""Inputs and settings to a memory."""
CORES: Mapping[str, MakeCore] = {"lstm": LstmCore, "transformer": TransformerCore, "none": PresentCore}


def step_waves(step: Tensor, size: int) -> Tensor:
    """Return ``[..., size]``, sines and cosines of a step's number, of wavelengths up to ``LONGEST_WAVE``."""
    half = (size + 1) // 2
    rates = torch.exp(torch.arange(half, device=step.device) * (-math.log(LONGEST_WAVE) / max(1, half - 1)))
    angle = step[..., None].float() * rates
    return torch.cat([angle.sin(), angle.cos()], -1)[..., :size]


@dataclass(frozen=True)
class Origin:
    """What a model was fitted to."""

    spec: EnvSpec
    """Of the store of latents; its action is what matters."""
    env_id: str
    env_kwargs: dict[str, Any]
    latent_size: int
    reward_mean: float = 0.0
    reward_std: float = 1.0
    remembered: int = 0
    """Steps of the data that are part of the model (``recall``)."""
    env_settings: dict[str, Any] | None = None
    """See ``StoreSchema``."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "spec": self.spec.to_dict(),
            "env_id": self.env_id,
            "env_kwargs": dict(self.env_kwargs),
            "latent_size": self.latent_size,
            "reward_mean": self.reward_mean,
            "reward_std": self.reward_std,
            "remembered": self.remembered,
            "env_settings": self.env_settings,
        }


@dataclass
class Starts:
    """First latents of real episodes, where dreams begin: means and standard deviations ``[N, Z]``."""

    mean: Array
    std: Array


@dataclass
class Axes:
    """Directions in which the memory varies over the data, the strongest first: h in few, comparable numbers."""

    mean: Array
    """``[size]``"""
    directions: Array
    """``[size, size]``: ``(h - mean) @ directions`` has variance 1 in every column, and no two columns go together."""


class Dynamics(nn.Module):
    """See the top of this module."""

    def __init__(self, settings: DynamicsSettings, origin: Origin, make_core: MakeCore | None = None) -> None:
        """Build the model; ``make_core``: a memory of the user's own instead of ``settings.memory``."""
        super().__init__()
        self.settings, self.origin = settings, origin
        self.latent_size = origin.latent_size
        self.code = ActionCode(origin.spec.action)
        self.recall: Recall | None = None
        inputs = self.latent_size + self.code.size
        if settings.recall:
            kept = origin.remembered, settings.recall
            self.recall = Recall(self.latent_size, self.code.size, *kept)
            inputs += self.recall.width
        self.core = (make_core or CORES[settings.memory])(inputs, settings)
        self.latent_head = nn.Linear(settings.size, 3 * self.latent_size * settings.mixtures)
        self.outcome_head = nn.Linear(settings.size, 2)
        # Components that begin alike learn alike: spread their means over where latents lie.
        with torch.no_grad():
            _, means, _ = self.latent_head.bias.view(3, self.latent_size, settings.mixtures)
            means.uniform_(-1.0, 1.0)
        # Built last: the other weights of a seed are the same with and without it.
        self.infilling = (
            Infilling(self.latent_size, self.code.size, settings) if settings.objective == "infilling" else None
        )
        self.adversary = Adversary(self.latent_size, settings) if settings.objective == "adversarial" else None
        self.starts = Starts(*(torch.zeros(0, self.latent_size).numpy() for _ in range(2)))
        self.axes: Axes | None = None
        """Known after the fit; None too for files of older versions."""
        self.metadata: dict[str, Any] = {}

    @property
    def memory_size(self) -> int:
        """Numbers of h that a controller may read; 0 for a model without memory."""
        return 0 if isinstance(self.core, PresentCore) else self.settings.size

    @property
    def device(self) -> torch.device:
        return self.latent_head.weight.device

    # -- learning ------------------------------------------------------------------------------

    def forward(
        self, latents: Tensor, actions: Tensor, step: Tensor, mask: Tensor, owner: Tensor | None = None
    ) -> Tensor:
        """Return the memories after every step, ``[B, L, size]``, of latents ``[B, L, Z]`` and actions ``[B, L, ...]``.

        ``step`` ``[B, L]``: numbers of the steps in their episodes; ``mask`` ``[B, L]``: True where a step is real;
        ``owner`` ``[B]``: episodes whose own stored steps must not be recalled.
        """
        h: Tensor = self.core(self.inputs(latents, self.code(actions), owner), step, mask)
        return h

    def inputs(self, latents: Tensor, actions: Tensor, owner: Tensor | None = None) -> Tensor:
        """Return what the memory reads of latents ``[..., Z]`` and actions as numbers ``[..., A]``."""
        parts = [latents, actions]
        if self.recall is not None:
            parts.append(self.recall(latents, actions, owner))
        return torch.cat(parts, -1)

    def predict(self, h: Tensor) -> Prediction:
        """Predict what follows, by the memory after a step ``[..., size]``; rewards in their own units."""
        mixture = split_mixture(self.latent_head(h), self.latent_size, self.settings.mixtures)
        reward, done = self.outcome_head(h).unbind(-1)
        return Prediction(mixture, reward * self.origin.reward_std + self.origin.reward_mean, done)

    def losses(self, batch: Sequences) -> dict[str, Tensor]:
        """Return sums over a batch's real steps: ``latent`` (nats per latent number), ``reward``, ``done``, ``loss``.

        ``loss`` is what the fit lowers; a class of one's own may have another, and other terms beside it, which are
        metrics of the fit.
        """
        s = self.settings
        before, after = batch.latents[:, :-1], batch.latents[:, 1:]
        seen = before if self.infilling is None else self.infilling.hide(before, batch.hidden)
        h = self(seen, batch.action, batch.step, batch.mask, batch.owner)
        said = self.predict(h)
        real = batch.mask.float()
        target = after - before if s.differences else after
        latent = -(log_likelihood(target, said.latent).mean(-1) * real).sum()
        reward = (((said.reward - batch.reward) / self.origin.reward_std).square() * real).sum()
        weight = real * (1 + (s.done_factor - 1) * batch.done)
        done = (functional.binary_cross_entropy_with_logits(said.done, batch.done, reduction="none") * weight).sum()
        loss = latent + s.reward_weight * reward + s.done_weight * done
        sums = {"latent": latent, "reward": reward, "done": done}
        if self.infilling is not None:
            filled = self.infilling(h, seen, self.code(batch.action), batch.mask)
            sums["infilling"] = fill_nats(before, filled, batch.hidden, batch.mask)
            loss = loss + s.objective_weight * sums["infilling"]
        if self.adversary is not None:
            drawn = draw_through(said.latent, batch.noise)
            sums["adversary"] = (self.adversary(h, target, drawn, s.objective_weight) * real).sum()
            loss = loss + sums["adversary"]  # which weighs what it turns around
        return {**sums, "loss": loss}

    # -- acting --------------------------------------------------------------------------------

    def begin(self, lanes: int) -> LaneMemory:
        """Return empty memory for so many lanes."""
        return self.core.begin(lanes)

    def unpack(self, step: Tensor, flat: Tensor) -> LaneMemory:
        """Return the memory of ``[n]`` lanes before their steps ``[n]`` from ``LaneMemory.flat``; a copy."""
        empty = self.begin(1)
        sizes = empty.h.shape[1], empty.cell.shape[1]
        h, cell, rest = torch.split(flat.clone(), [*sizes, flat.shape[1] - sum(sizes)], 1)
        core = self.core
        trunk = core.trunk.unpack(step + 1, rest) if isinstance(core, TransformerCore) else None
        return LaneMemory(h, cell, trunk)

    def forget(self, memory: LaneMemory, lanes: Tensor) -> None:
        """Begin an episode in these lanes."""
        memory.h[lanes] = 0
        self.core.forget(memory, lanes)

    def read(self, latents: Tensor, actions: Tensor, memory: LaneMemory, lanes: Tensor) -> Tensor:
        """Take in one step of lanes ``[n]``: latents ``[n, Z]``, actions ``[n, ...]``; returns the memory after it."""
        h = self.core.read(self.inputs(latents, self.code(actions)), memory, lanes)
        memory.h[lanes] = h
        return h


def build_dynamics(settings: DynamicsSettings, origin: Origin) -> Dynamics:
    """Build a model; raises ConfigError where ``settings.custom`` is none, or does not take its arguments."""
    if settings.custom is None:
        return Dynamics(settings, origin)
    label, args = f"dynamics.custom={settings.custom}", settings.custom_args
    found = import_object(settings.custom, "dynamics.custom", _is_model)
    if issubclass(found, Dynamics):
        check_arguments(found, label, {"settings": settings, "origin": origin}, args)
        model: Dynamics = found(settings, origin, **args)
    else:
        check_arguments(found, label, {"inputs": 0, "settings": settings}, args)
        model = Dynamics(settings, origin, lambda inputs, s: found(inputs, s, **args))
    _try(model, label)
    return model


def _is_model(found: object) -> bool:
    return inspect.isclass(found) and issubclass(found, Dynamics | Core)


@torch.no_grad()
def _try(model: Dynamics, label: str) -> None:
    """Raise ConfigError unless both forms of reading give memories of the right shape."""
    lanes, steps = 2, 3
    training = model.training
    model.eval()
    latents = torch.zeros(lanes, steps, model.latent_size)
    action = model.origin.spec.action.field
    actions = torch.from_numpy(np.zeros((lanes, steps, *action.shape), action.dtype))
    number = torch.arange(steps).expand(lanes, steps)
    inputs = model.inputs(latents, model.code(actions))
    forms = {
        "forward": model(latents, actions, number, torch.ones_like(number, dtype=torch.bool))[:, 0],
        "read": model.core.read(inputs[:, 0], model.begin(lanes), torch.arange(lanes)),
    }
    model.train(training)
    for form, h in forms.items():
        if tuple(h.shape) != (lanes, model.settings.size):
            raise ConfigError(
                f"{label}: {form} gives memories of shape {tuple(h.shape)}, expected {(lanes, model.settings.size)}"
            )


def save_dynamics(path: Path, model: Dynamics, metadata: Mapping[str, Any]) -> None:
    """Write the model atomically; ``metadata``: plain JSON values."""
    content = {
        "settings": to_dict(model.settings),
        "origin": model.origin.to_dict(),
        "starts": {"mean": model.starts.mean, "std": model.starts.std},
        "axes": {"mean": model.axes.mean, "directions": model.axes.directions} if model.axes is not None else None,
        "metadata": dict(metadata),
        "weights": weights_of(model),
    }
    DYNAMICS.save(path, content)


def load_dynamics(path: Path | str, device: torch.device | str = "cpu", trust: Trust = NOBODY) -> Dynamics:
    """Load the model in a file, ready to act (no gradients). A folder stands for the ``dynamics.bin`` in it.

    Raises UntrustedCodeError where it is of a class of somebody's own that ``trust`` does not name.
    """
    file, tree = DYNAMICS.load(path, STATE_SHAPE)
    with restoring(file):
        settings = load_config(DynamicsSettings, (), (), base=tree["settings"])
        origin = _read_origin(file, tree)
    own = trust.settle("dynamics", settings.custom, settings.custom_args, file)
    settings = replace(settings, custom=own.custom, custom_args=own.custom_args)
    with restoring(file) if own.custom is None else contextlib.nullcontext():
        model = build_dynamics(settings, origin)
    with restoring(file):
        load_weights(model, tree["weights"])
        model.starts = Starts(**tree["starts"])
        model.axes = Axes(**tree["axes"]) if tree.get("axes") is not None else None
    model.metadata = tree["metadata"]
    return model.to(device).eval().requires_grad_(False)


def load_origin(path: Path | str) -> Origin:
    """Read what the model in a file was fitted to; nothing is built."""
    file, tree = DYNAMICS.load(path, STATE_SHAPE)
    with restoring(file):
        return _read_origin(file, tree)


def _read_origin(file: Path, tree: Mapping[str, Any]) -> Origin:
    return Origin(**{**tree["origin"], "spec": saved_spec(file, tree["origin"]["spec"])})
