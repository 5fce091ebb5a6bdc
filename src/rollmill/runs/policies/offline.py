"""The policy that a checkpoint of an offline training holds.

There are two in it: the last weights, with which the fit goes on, and those with the lowest held-out loss, which act.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rollmill.core.checkpoints import (
    Loaded,
    load_checkpoint,
    restoring,
    saved_settings,
    saved_spec,
)
from rollmill.core.fields import SPEC_SHAPE, EnvSpec
from rollmill.core.protocols import Policy
from rollmill.core.run_kind import UNITS
from rollmill.core.shapes import MAPPING, Shape
from rollmill.core.steps import place
from rollmill.models.acting.policy import TorchPolicy
from rollmill.models.acting.weights import WeightBoard
from rollmill.models.saving import WEIGHTS_SHAPE, load_weights
from rollmill.offline.acting import TargetPolicy
from rollmill.offline.actor_critic import ValuePolicy, build_value_policy, value_precision
from rollmill.offline.data import check_spec
from rollmill.offline.held_out import HELD_OUT_SHAPE
from rollmill.offline.model import Scales, SequencePolicy
from rollmill.offline.settings import VALUE_BASED, FitSettings
from rollmill.optim.device import choose_device, matmul_dtype
from rollmill.runs.policies.base import LoadedPolicy, LoadOptions
from rollmill.runs.policies.find import checkpoint_name
from rollmill.runs.resume import Shapes, refuse_other_network, require_kind
from rollmill.runs.settings.offline import OfflineConfig
from rollmill.sampling.schedule import EpisodeSchedule

Network = SequencePolicy | ValuePolicy
PLAYABLE_SHAPE: Shape = {
    "format": int,
    "config": MAPPING,
    "env": MAPPING,
    "spec": SPEC_SHAPE,
    "scales": {"return_mean": float, "return_scale": float, "timesteps": int},
    "targets": [(float, None)],
    "fit": {"step": int, "model": WEIGHTS_SHAPE},
    "held_out?": (HELD_OUT_SHAPE, None),
}
"""What a policy needs to play; going on needs more, which the run itself declares."""


def build_network(config: OfflineConfig, spec: EnvSpec, scales: Scales) -> Network:
    """Build a new network. Raises ConfigError if the algorithm does not fit the environment."""
    if config.algorithm in VALUE_BASED:
        return build_value_policy(config.algorithm, spec, config.model, config.value)
    return SequencePolicy(spec, config.model, scales, config.algorithm == "dt")


@dataclass(frozen=True)
class Choice:
    """Which weights act: those after ``step`` of ``steps`` updates."""

    step: int
    steps: int
    best: bool
    """Whether they were chosen by held-out loss; else they are the last ones."""

    @staticmethod
    def of(state: Mapping[str, Any], last: bool = False) -> Choice:
        steps, held_out = int(state["fit"]["step"]), state.get("held_out") or {}
        if last or not held_out.get("weights"):
            return Choice(steps, steps, False)
        return Choice(int(held_out["step"]), steps, True)

    def __str__(self) -> str:
        why = "where held-out loss was lowest" if self.best else "the last"
        return f"weights of update {self.step:,} of {self.steps:,}, {why}"


def require_offline(loaded: Loaded) -> Loaded:
    """Return the checkpoint itself. Raises CheckpointError unless an offline training has written it."""
    require_kind(loaded, "offline", PLAYABLE_SHAPE)
    saved_spec(loaded.path, loaded.state["spec"])
    return loaded


def require_same_network(loaded: Loaded, config: OfflineConfig) -> Loaded:
    """Return the checkpoint itself, of an offline run.

    Raises ConfigError if a run with these settings has another network.
    """
    state = require_offline(loaded).state
    spec, scales = EnvSpec.from_dict(state["spec"]), Scales(**state["scales"])

    def shapes(config: OfflineConfig) -> Shapes:
        with torch.random.fork_rng(devices=()):
            network = build_network(config, spec, scales)
        return {name: tuple(x.shape) for name, x in network.state_dict().items()}

    saved = {name: tuple(x.shape) for name, x in state["fit"]["model"].items()}
    refuse_other_network(loaded, saved, config, ("algorithm", "model", "value"), shapes)
    return loaded


def playable_part(loaded: Loaded) -> dict[str, Any]:
    """Return what is in a checkpoint, with nothing but what playing needs: of the weights those that act."""
    state = require_offline(loaded).state
    choice = Choice.of(state)
    chosen = state["held_out"]["weights"] if choice.best else state["fit"]["model"]
    kept = {name: state[name] for name in ("format", "kind", "config", "env", "spec", "scales", "targets")}
    fit = {"step": choice.step, "model": chosen}
    return {**place(loaded.step, UNITS["offline"]), "metric": loaded.metric, "state": {**kept, "fit": fit}}


def load_network(loaded: Loaded, config: OfflineConfig, device: torch.device, last: bool = False) -> Network:
    """Load the network of a checkpoint, with the weights of the lowest held-out loss (``last``: the last ones)."""
    state = loaded.state
    spec, scales = EnvSpec.from_dict(state["spec"]), Scales(**state["scales"])
    model = build_network(config, spec, scales)
    chosen = state["held_out"]["weights"] if Choice.of(state, last).best else state["fit"]["model"]
    with restoring(loaded.path, "weights"):
        load_weights(model, chosen)
    return model.to(device)


@dataclass(kw_only=True, eq=False, repr=False)
class OfflinePolicy(LoadedPolicy):
    """A Decision Transformer, which is asked for returns, or another policy, which is not.

    The network is given, or read from ``path`` when it is needed. A given one must not be trained while it acts.
    """

    network: Network | None = None
    dtype: torch.dtype | None = None
    config: OfflineConfig | None = None
    device: str = "auto"
    last: bool = False
    """Act with the last weights instead of those with the lowest held-out loss."""

    def check(self, spec: EnvSpec) -> None:
        assert self.spec is not None
        check_spec(self.spec, spec, str(self.path or self.name))

    def build(self, spec: EnvSpec, schedule: EpisodeSchedule, seed: int, targets: Sequence[float] = ()) -> Policy:
        network, dtype = self.network, self.dtype
        if network is None:
            network, dtype = self._read()
        lanes = targets or [0.0] * (schedule.envs * spec.agents)
        if isinstance(network, ValuePolicy):
            still = self.deterministic or network.deterministic
            return TorchPolicy(network.policy, WeightBoard(network.policy), len(lanes), seed, still, dtype)
        return TargetPolicy(network, lanes, seed, self.deterministic, dtype)

    def _read(self) -> tuple[Network, torch.dtype | None]:
        assert self.config is not None
        assert self.path is not None
        device = choose_device(self.device, "--device")
        if device.type == "cpu":
            torch.set_num_threads(1)
        network = load_network(require_offline(load_checkpoint(self.path)), self.config, device, self.last)
        return network, _precision(self.config.fit, network, device)


def _precision(fit: FitSettings, network: Network, device: torch.device) -> torch.dtype | None:
    """Return the precision of the fit; float32 where that was bfloat16 and this machine has none."""
    wished = value_precision(fit.precision) if isinstance(network, ValuePolicy) else fit.precision
    return matmul_dtype("auto" if wished == "bfloat16" else wished, device)


def load_offline(loaded: Loaded, how: LoadOptions) -> OfflinePolicy:
    """Return the policy of a checkpoint that an offline training has written; nothing is built yet."""
    state, path = require_offline(loaded).state, loaded.path
    config = saved_settings(OfflineConfig, state["config"], path)
    asked = config.algorithm == "dt"
    place = how.settings({"env": state["env"]}, path)  # not from the store, which may be elsewhere
    choice = Choice.of(state, how.last)
    note = f"{choice}" + (" (--last plays those of the end)" if choice.step < choice.steps else "")
    return OfflinePolicy(
        name=checkpoint_name(path),
        env=place.env,
        sampling=place.sampling,
        spec=EnvSpec.from_dict(state["spec"]),
        path=path,
        frames=loaded.step,
        unit="updates",
        version=choice.step,
        targets=(how.targets or tuple(t for t in state["targets"] if t is not None)) if asked else (),
        asked=asked,
        deterministic=config.evaluation.deterministic if how.deterministic is None else how.deterministic,
        variant="last weights" if how.last and choice != Choice.of(state) else "",
        note=note,
        seed=how.seed,
        config=config,
        device=how.device or "auto",
        last=how.last,
    )
