"""Acting through the mirror gives the same decisions as acting on gathered arrays (on a CPU: without the graph)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from graph_acting import GROUPS, LANES, SPECS, STEPS, fill_row, run

from rollmill.core.slots import OBS, Arena, SegmentLayout
from rollmill.models.acting.graph import GraphPolicy
from rollmill.models.acting.weights import WeightBoard
from rollmill.models.actor_critic import build_model
from rollmill.models.settings import ModelSettings
from rollmill.sampling.inference import Inference
from rollmill.sampling.mailbox import Mailbox


@pytest.mark.parametrize("memory", ["none", "gru", "lstm"])
@pytest.mark.parametrize("name", SPECS)
def test_the_same_decisions_as_without_a_mirror(name, memory):
    plain, _ = run(SPECS[name], memory, "plain")
    mirrored, policy = run(SPECS[name], memory, "graph")
    for field in ("action", "log_prob", "value", "version"):
        np.testing.assert_allclose(mirrored[field], plain[field], rtol=1e-4, atol=1e-5, err_msg=field)
    segments = policy.mirror.segments([0, 2])
    expected = plain.gather([0, 2])
    for field in (f for f in expected if f.startswith(OBS) or f == "state"):
        np.testing.assert_allclose(segments[field].numpy(), expected[field], rtol=1e-5, atol=1e-6, err_msg=field)


def test_batches_are_padded_to_the_next_size_with_lanes_of_their_own():
    """Three groups run as four: the fourth must not write into a slot or a lane of the run."""
    _, policy = run(SPECS["vector"], "gru", "graph")
    assert [r.groups for r in policy._recordings] == [1, 2, 4, 5]
    assert policy._states.shape[0] == (GROUPS + 1) * LANES
    assert policy.mirror.state.shape[0] == policy.mirror.spare + 1


def test_padding_writes_nothing_of_its_own():
    """Decisions of padding would land in some slot: all rows that were not asked about stay as they were."""
    spec = SPECS["vector"]
    torch.manual_seed(0)
    model = build_model(spec, ModelSettings(mlp=(8,), fc=(8,)))
    policy = GraphPolicy(build_model(spec, ModelSettings(mlp=(8,), fc=(8,))), WeightBoard(model), GROUPS, seed=1)
    arena = Arena(SegmentLayout(spec, STEPS, LANES), slots=7)
    for slot in range(7):
        arena.poison(slot)
    policy.attach(arena)
    inference = Inference(arena, Mailbox(GROUPS, 1, GROUPS * LANES), [policy])
    rng = np.random.default_rng(3)
    for asked in ([0, 1, 2], [4, 1, 0], [3], [2, 0, 1, 4, 3]):
        places = (np.array(asked), np.array([k % STEPS for k in asked]))
        for slot, row in zip(*places):
            fill_row(arena, int(slot), int(row), rng)
        before = {name: arena[name].copy() for name in ("action", "log_prob", "value")}
        inference.decide(np.array(asked), *places, None)
        untouched = np.ones(arena["value"].shape[:2], bool)
        untouched[places] = False
        for name, old in before.items():
            np.testing.assert_array_equal(arena[name][untouched], old[untouched])
            assert np.isfinite(arena[name][places]).all()
            assert (arena["action"][places] < 5).all()


@pytest.mark.parametrize("memory", ["none", "gru", "lstm"])
@pytest.mark.parametrize("name", SPECS)
def test_segments_that_others_have_decided_are_taken_over_from_host_memory(name, memory):
    """As those of nodes are: nothing of them went through the mirror when it was decided."""
    arena, policy = run(SPECS[name], memory, "graph")
    own = {field: x.clone() for field, x in policy.mirror.segments([0, 2]).items()}
    rng = np.random.default_rng(5)
    for slot in (9, 10):
        for row in range(STEPS + 1):
            fill_row(arena, slot, row, rng)
        if memory != "none":
            arena["state"][slot] = rng.normal(size=arena["state"][slot].shape)
    policy.mirror.load([9, 10])
    expected = arena.gather([10, 9])
    segments = policy.mirror.segments([10, 9])
    fields = {field for field in expected if field.startswith(OBS)}
    assert set(segments) == fields | ({"state"} if memory != "none" else set())
    for field, x in segments.items():
        np.testing.assert_array_equal(x.numpy(), expected[field], err_msg=field)
    for field, x in policy.mirror.segments([0, 2]).items():
        assert x.equal(own[field]), f"{field} of segments that were decided here"


class Done:
    """A CUDA event that is over at the third look; counts how it is waited for."""

    def __init__(self) -> None:
        self.looks = self.waits = 0

    def query(self) -> bool:
        self.looks += 1
        return self.looks == 3

    def synchronize(self) -> None:
        self.waits += 1


@pytest.mark.parametrize(("pause", "looks", "waits"), [(None, 0, 1), (0.0, 0, 1), (1e-6, 3, 0)])
def test_it_looks_now_and_then_where_others_need_the_core(pause, looks, waits):
    model = build_model(SPECS["vector"], ModelSettings(mlp=(8,)))
    done = Done()
    GraphPolicy(model, WeightBoard(model), GROUPS, seed=1, pause=pause)._wait(done)
    assert (done.looks, done.waits) == (looks, waits)
