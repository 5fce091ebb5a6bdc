"""Where tensors live, and in which numbers matrices are multiplied there: float32, or bfloat16 where that is fast."""

from __future__ import annotations

import gc
from typing import Literal

import torch

from rollmill.core.errors import ConfigError
from rollmill.core.machine import has_fast_bfloat16

Precision = Literal["auto", "float32", "bfloat16"]


def choose_device(name: str, key: str = "learning.device") -> torch.device:
    """Return the device a name means; a ConfigError, which names the ``key``, says when it is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"{key}={name}: {error}") from error
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"{key}={name}: only cpu, cuda and cuda:N are supported")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"{key}={name}: this machine has {torch.cuda.device_count()} usable GPUs; use {key}=cpu")
    return device


def matmul_dtype(precision: Precision, device: torch.device) -> torch.dtype | None:
    """Choose the type that matrices are multiplied in; None: float32. Raises ConfigError if the one asked for would be
    slow.
    """
    fast = has_fast_bfloat16() if device.type == "cpu" else torch.cuda.is_bf16_supported()
    if precision == "bfloat16" and not fast:
        raise ConfigError("fit.precision=bfloat16: this machine is slower with it; use auto or float32")
    return torch.bfloat16 if fast and precision != "float32" else None


def free_memory() -> None:
    """Give back what nothing refers to any more. On a GPU, products keep 32 MB for every stream that has made one."""
    gc.collect()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        torch._C._cuda_clearCublasWorkspaces()  # what torch calls around its own graphs
        torch.cuda.empty_cache()
