"""In which numbers matrices are multiplied: float32, or another type where a network is asked for it."""

from __future__ import annotations

import contextlib

import torch


def autocast(
    device: torch.device, dtype: torch.dtype | None, cache: bool = True
) -> contextlib.AbstractContextManager[object]:
    """Multiply matrices in ``dtype`` as long as it is entered; None changes nothing.

    ``cache``: keep converted weights until it is left, which no CUDA graph can record.
    """
    return contextlib.nullcontext() if dtype is None else torch.autocast(device.type, dtype, cache_enabled=cache)
