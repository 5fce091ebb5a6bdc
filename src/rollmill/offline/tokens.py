"""From windows of a store to what a sequence policy reads: which number belongs to which token.

Step t of an episode becomes the tokens::

    R_t    the return-to-go: r_t + r_(t+1) + ... up to the end, so *before* the action of step t is taken (dt only)
    o_t    what was seen before the action
    a_t    the action (unless action_tokens=false)

The action of step t is predicted from what the trunk makes of o_t, which sees R_t and everything before it, and not
a_t. When acting, R_0 is the target and R_t = R_(t-1) - r_(t-1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rollmill.core.errors import StoreError
from rollmill.core.fields import ActionSpec, EnvSpec
from rollmill.core.slots import OBS
from rollmill.store.views import MASK, RETURNS, Source, Windows


@dataclass(frozen=True)
class Inputs:
    """B windows of L steps; padding comes first (``mask`` False) and counts for nothing."""

    obs: dict[str, Tensor]
    """``[B, L, *shape]`` by field name, the action mask included."""
    action: Tensor
    """``[B, L, ...]`` as the action's field."""
    returns: Tensor
    """``[B, L]`` float32, in units of the return; zeros where the store's are not known (bc)."""
    step: Tensor
    """``[B, L]`` int64, numbers of the steps in their episodes."""
    mask: Tensor
    """``[B, L]`` bool."""

    def rows(self, part: slice) -> Inputs:
        """Return some of the windows."""
        return replace(
            self,
            obs={name: x[part] for name, x in self.obs.items()},
            **{name: getattr(self, name)[part] for name in ("action", "returns", "step", "mask")},
        )

    def to(self, device: torch.device) -> Inputs:
        def move(x: Tensor) -> Tensor:
            return x.to(device, non_blocking=True)

        return Inputs(
            {name: move(x) for name, x in self.obs.items()},
            *map(move, (self.action, self.returns, self.step, self.mask)),
        )


def columns_for(spec: EnvSpec) -> list[str]:
    """Return the columns a sequence policy reads of a store."""
    return [*(OBS + field.name for field in spec.observation), "action", "step"]


def make_windows(source: Source, length: int, episodes: object, spec: EnvSpec, *, overhang: bool) -> Windows:
    """Make windows as ``inputs`` expects them: padded on the left, undiscounted returns-to-go."""
    columns = columns_for(spec)
    return Windows(
        source,
        length,
        episodes=episodes,  # type: ignore[arg-type]
        columns=columns,
        pad="left",
        gamma=1.0,
        overhang=overhang,
    )


def inputs(batch: Mapping[str, Tensor], spec: EnvSpec) -> Inputs:
    """Return a batch of ``make_windows`` as tensors; raises StoreError where an action is none of the environment's."""
    obs = {field.name: batch[OBS + field.name] for field in spec.observation}
    made = Inputs(obs, batch["action"], batch[RETURNS], batch["step"], batch[MASK])
    check_actions(made.action, made.mask, spec.action)
    return made


def check_actions(action: Tensor, mask: Tensor, spec: ActionSpec) -> None:
    """Refuse choices that do not exist: an index out of range would crash far from here."""
    if spec.kind == "continuous":
        return
    choices = action[mask][..., : len(spec.nvec)] if spec.kind != "discrete" else action[mask][..., None]
    limits = torch.tensor(spec.nvec, device=action.device)
    bad = ((choices < 0) | (choices >= limits)).nonzero()
    if len(bad):
        row, component = bad[0].tolist()
        raise StoreError(
            f"the store holds the action {choices[row].tolist()}: component {component} must lie below "
            f"{spec.nvec[component]}; find the episode with `rollmill data verify`"
        )
