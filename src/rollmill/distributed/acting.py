"""Who decides on a node: the network of the run, on the CPU, with the weights of the buffer."""

from __future__ import annotations

import torch

from rollmill.core.protocols import Policy
from rollmill.distributed.board import BufferBoard, weight_bytes
from rollmill.distributed.messages import NodePlan
from rollmill.distributed.weight_buffer import WeightBuffer
from rollmill.models.acting.policy import TorchPolicy
from rollmill.models.acting.weights import tensors_of
from rollmill.models.actor_critic import build_model


def build_actor(plan: NodePlan, weights: WeightBuffer, lanes: int, seed: int) -> Policy:
    """The policy of a node's sampler; ``lanes``: of this node."""
    torch.set_num_threads(1)  # threads inside an operator wait for each other
    model = build_model(plan.spec, plan.model)
    found = weight_bytes(tensors_of(model))
    if found != plan.weight_bytes:
        raise ValueError(f"the network has {found:,} bytes here, and {plan.weight_bytes:,} at the learner")
    autocast = torch.bfloat16 if plan.bfloat16 else None
    return TorchPolicy(model, BufferBoard(weights), lanes, seed, autocast=autocast)
