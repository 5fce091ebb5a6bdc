"""The device that the tests of this folder run on, and how near its numbers come to a CPU's."""

from __future__ import annotations

import os

import torch

DEVICE = torch.device(os.environ["ROLLMILL_TEST_GPU"])
ON_GPU = DEVICE.type == "cuda"
WORDS = (f"learning.device={DEVICE}", "learning.precision=float32")


def exact() -> None:
    """Products in full float32: TensorFloat32 would hide errors behind its own."""
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
