"""Settings of learning that may change while a run goes on: by a population, or along a schedule.

On a CPU they are the numbers of ``LearningSettings`` themselves. A CUDA graph has numbers for ever as they were when it
was recorded, so there they are tensors that it reads (``DeviceKnobs``); expressions take either.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from rollmill.learning.losses import Number
from rollmill.learning.settings import IN_STEP, LearningSettings


class Knobs(Protocol):
    """What a step reads; ``LearningSettings`` is one."""

    @property
    def clip(self) -> Number: ...
    @property
    def value_clip(self) -> Number: ...
    @property
    def value_coefficient(self) -> Number: ...
    @property
    def gamma(self) -> Number: ...
    @property
    def gae_lambda(self) -> Number: ...
    @property
    def rho_bar(self) -> Number: ...
    @property
    def c_bar(self) -> Number: ...
    @property
    def max_grad_norm(self) -> Number: ...


class DeviceKnobs:
    """The same numbers as tensors ``[]`` on the device, in place of which nothing is ever put."""

    clip: Tensor
    value_clip: Tensor
    value_coefficient: Tensor
    gamma: Tensor
    gae_lambda: Tensor
    rho_bar: Tensor
    c_bar: Tensor
    max_grad_norm: Tensor

    def __init__(self, settings: LearningSettings, device: torch.device) -> None:
        for name in IN_STEP:  # float64: as exact as the numbers of Python that they stand for
            setattr(self, name, torch.tensor(float(getattr(settings, name)), dtype=torch.float64, device=device))

    def take(self, settings: LearningSettings) -> None:
        """Have the numbers of ``settings`` from now on."""
        for name in IN_STEP:
            getattr(self, name).fill_(getattr(settings, name))
