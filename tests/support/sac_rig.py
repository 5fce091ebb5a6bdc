"""Segments as SAC learns from, without an environment."""

from __future__ import annotations

from typing import Any

import numpy as np

from rollmill.core.fields import ActionSpec, Array, EnvSpec, Field

ACTION = ActionSpec("continuous", shape=(2,), low=(-1.0, 0.0), high=(1.0, 4.0))
SPEC = EnvSpec("e", (Field("x", "float32", (3,)),), ACTION)
MODEL = {"mlp": (16,), "action_distribution": "tanh_gaussian", "log_std": "state"}


def segments_of(
    lanes: int = 4, steps: int = 4, seed: int = 0, spec: EnvSpec = SPEC, **columns: Array
) -> dict[str, Array]:
    """``[steps + 1, lanes, ...]``, all rows of one episode in its midst."""
    rng = np.random.default_rng(seed)
    shape = (steps + 1, lanes)
    low, high = (np.array(bound, np.float32) for bound in (spec.action.low, spec.action.high))
    segments: dict[str, Any] = {
        "action": rng.uniform(low, high, (*shape, *spec.action.shape)).astype(np.float32),
        "reward": rng.normal(size=shape).astype(np.float32),
        "valid": np.ones(shape, bool),
        "terminated": np.zeros(shape, bool),
        "truncated": np.zeros(shape, bool),
        "policy_id": np.zeros(shape, np.int16),
        "version": np.zeros(shape, np.int64),
        "frames": np.zeros(shape, np.int64),
        "step": np.zeros(shape, np.int32),
        "obs:x": rng.normal(size=(*shape, 3)).astype(np.float32),
    }
    return {**segments, **columns}
