"""One policy that decides made-up rows, with graphs and without."""

from __future__ import annotations

import numpy as np
import torch

from rollmill.core.fields import MASK_FIELD, ActionSpec, EnvSpec, Field
from rollmill.core.slots import Arena, SegmentLayout
from rollmill.models.acting.graph import GraphPolicy
from rollmill.models.acting.policy import TorchPolicy
from rollmill.models.acting.weights import WeightBoard
from rollmill.models.actor_critic import build_model
from rollmill.models.settings import ModelSettings
from rollmill.sampling.inference import Inference
from rollmill.sampling.mailbox import Mailbox

GROUPS, LANES, STEPS = 5, 2, 4
DISCRETE = ActionSpec("discrete", nvec=(5,), start=(0,))
SPECS = {
    "vector": EnvSpec("vector", (Field("obs", "float32", (3,)),), DISCRETE),
    "masked": EnvSpec("masked", (Field("obs", "float32", (3,)), Field(MASK_FIELD, "int8", (5,))), DISCRETE),
    "continuous": EnvSpec(
        "continuous",
        (Field("obs", "float32", (3,)),),
        ActionSpec("continuous", shape=(2,), low=(-1.0, -1.0), high=(1.0, 1.0)),
    ),
    "image": EnvSpec(
        "image", (Field("obs", "uint8", (36, 36, 3)),), ActionSpec("multi_discrete", nvec=(2, 3), start=(0, 0))
    ),
}


CPU = torch.device("cpu")


def run(spec: EnvSpec, memory: str, kind: str, device: torch.device = CPU) -> tuple[Arena, object]:
    """Let one policy decide the same made-up rows over two segments; returns the filled arena."""
    settings = ModelSettings(mlp=(8,), fc=(8,), memory=memory, hidden_size=4)
    torch.manual_seed(0)
    model = build_model(spec, settings).to(device)
    board = WeightBoard(model)
    acting = build_model(spec, settings).to(device)
    policy: TorchPolicy | GraphPolicy
    if kind == "graph":
        policy = GraphPolicy(acting, board, GROUPS, seed=1, deterministic=True)
    else:
        policy = TorchPolicy(acting, board, GROUPS * LANES, seed=1, deterministic=True)
    arena = Arena(SegmentLayout(spec, STEPS, LANES, model.state_size, 2 if memory != "none" else 0), slots=12)
    box = Mailbox(GROUPS, 1, GROUPS * LANES)
    policy.attach(arena)
    inference = Inference(arena, box, [policy])
    rng = np.random.default_rng(3)
    box.row[:] = -1
    for step in range(STEPS + 3):
        groups = np.array([[0, 1, 2], [1], [0, 2, 3, 4, 1]][step % 3])
        for group in groups:
            fill_row(arena, int(box.slot[group]), int(box.row[group]) + 1, rng)
        inference.infer(groups)
    return arena, policy


def fill_row(arena: Arena, slot: int, row: int, rng: np.random.Generator) -> None:
    arena["first"][slot, row] = rng.random(LANES) < 0.3
    for name, array in arena.obs.items():
        shape = array[slot, row].shape
        if name == MASK_FIELD:
            array[slot, row] = 1
            array[slot, row, :, 0] = 0
        elif array.dtype == np.uint8:
            array[slot, row] = rng.integers(0, 255, shape)
        else:
            array[slot, row] = rng.normal(size=shape)
