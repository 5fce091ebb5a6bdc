"""Weights in shared memory: never half of an update, never back to an older one, the same tensors on the other side."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pytest
import torch
from clustering import node_plan
from torch import nn

from rollmill.distributed import acting
from rollmill.distributed.acting import BufferBoard, weight_bytes, weight_views
from rollmill.distributed.weight_buffer import WeightBuffer
from rollmill.models.acting.policy import TorchPolicy
from rollmill.models.acting.weights import tensors_of


def test_readers_see_whole_publications_in_order() -> None:
    size, last, usual = 1 << 18, 400, sys.getswitchinterval()
    buffer = WeightBuffer(size, variables=2)
    assert buffer.version == -1

    def write() -> None:
        for version in range(last + 1):
            buffer.write(version, 10 * version, (version, -version), np.full(size, version % 251, np.uint8))

    writer = threading.Thread(target=write)
    sys.setswitchinterval(1e-5)
    try:
        writer.start()
        before = -1
        while before < last:
            found = buffer.read()
            if found.version < 0:
                continue
            assert found.weights is not None
            assert (found.weights == found.version % 251).all()
            assert (found.frames, found.variables) == (10 * found.version, (found.version, -found.version))
            assert found.version >= before
            before = found.version
    finally:
        sys.setswitchinterval(usual)
        writer.join()


def test_weights_stay_where_only_the_rest_changes() -> None:
    buffer = WeightBuffer(4, variables=1)
    buffer.write(3, 0, (0.0,), np.arange(4, dtype=np.uint8))
    before = buffer.sequence
    buffer.write(3, 7, (2.0,))
    found = buffer.read()
    assert buffer.sequence != before
    assert (found.version, found.frames, found.variables) == (3, 7, (2.0,))
    assert found.weights is not None
    assert found.weights.tolist() == [0, 1, 2, 3]
    assert found.without_weights.weights is None
    assert found.without_weights is found.without_weights  # made once for all nodes


def test_a_board_over_a_buffer_gives_every_tensor_of_any_type() -> None:
    def model(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        made = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5))  # floats, and a counter of int64
        made[1].num_batches_tracked += seed
        return made

    ours, theirs = model(1), model(2)
    buffer = WeightBuffer(weight_bytes(tensors_of(ours)), variables=0)
    with buffer.writing():
        for view, tensor in zip(weight_views(tensors_of(ours), buffer.weights), tensors_of(ours), strict=True):
            view.copy_(tensor.detach())
        buffer.tell(9, 0, ())
    board = BufferBoard(buffer)
    assert board.version == 9
    assert board.load_into(theirs) == 9
    assert all(torch.equal(a, b) for a, b in zip(tensors_of(ours), tensors_of(theirs), strict=True))


@pytest.mark.parametrize("units", [True, False])
def test_a_node_computes_with_bfloat16_only_where_its_processor_has_units_for_it(
    monkeypatch: pytest.MonkeyPatch, units: bool
) -> None:
    """Whatever the learner's GPU has."""
    monkeypatch.setattr(acting, "has_fast_bfloat16", lambda: units)
    for asked in (True, False):
        plan = node_plan(bfloat16=asked)
        weights = WeightBuffer(plan.weight_bytes, 0)
        policy = acting.build_actor(plan, weights, lanes=4, seed=1)
        assert isinstance(policy, TorchPolicy)
        assert policy._dtype == (torch.bfloat16 if units and asked else None)
        weights.block.close_fd()
