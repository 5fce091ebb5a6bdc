"""The policy that a checkpoint of an offline training holds.

There are two in it: the last weights, with which the fit goes on, and those with the lowest held-out loss, which act.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from rollmill.core.checkpoints import Loaded, require_version, restoring, saved_spec
from rollmill.core.errors import CheckpointError
from rollmill.core.fields import SPEC_SHAPE, EnvSpec
from rollmill.core.shapes import MAPPING, Shape, check_shape
from rollmill.models.saving import load_weights
from rollmill.offline.fit import FIT_SHAPE
from rollmill.offline.held_out import HELD_OUT_SHAPE
from rollmill.offline.model import Scales, SequencePolicy
from rollmill.runs.offline.settings import OfflineConfig

KIND = "offline"
CHECKPOINT_FORMAT = 1
STATE_SHAPE: Shape = {
    "config": MAPPING,
    "env": MAPPING,
    "spec": SPEC_SHAPE,
    "scales": {"return_mean": float, "return_scale": float, "timesteps": int},
    "targets": [(float, None)],
    "fit": FIT_SHAPE,
    "held_out?": (HELD_OUT_SHAPE, None),
    "evaluations": [MAPPING],
}


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
    """The checkpoint itself; CheckpointError unless an offline training has written it."""
    kind = loaded.state.get("kind") if isinstance(loaded.state, Mapping) else None
    if kind != KIND:
        hint = f"; `rollmill eval {loaded.path}` plays it" if kind == "online" else ""
        raise CheckpointError(f"{loaded.path}: not a checkpoint of an offline training{hint}")
    require_version(loaded.path, loaded.state, CHECKPOINT_FORMAT, "format")
    with restoring(loaded.path):
        check_shape(loaded.state, STATE_SHAPE)
    saved_spec(loaded.path, loaded.state["spec"])
    return loaded


def load_policy(loaded: Loaded, config: OfflineConfig, device: torch.device, last: bool = False) -> SequencePolicy:
    """The network a checkpoint holds, with the weights of the lowest held-out loss (``last``: with the last ones)."""
    state = loaded.state
    spec, scales = EnvSpec.from_dict(state["spec"]), Scales(**state["scales"])
    model = SequencePolicy(spec, config.model, scales, config.algorithm == "dt")
    chosen = state["held_out"]["weights"] if Choice.of(state, last).best else state["fit"]["model"]
    with restoring(loaded.path, "weights"):
        load_weights(model, chosen)
    return model.to(device)
