"""Memory: the step form and the unrolled form agree, forwards and backwards, whatever the resets."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmill.models.memory import Memory, NoMemory, _Fragments, build_memory
from rollmill.models.settings import ModelSettings

FEATURES, HIDDEN = 3, 4
KINDS = [("gru", 1), ("gru", 2), ("lstm", 1), ("lstm", 2)]


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def make(kind, layers):
    torch.manual_seed(0)
    memory = build_memory(FEATURES, ModelSettings(memory=kind, hidden_size=HIDDEN, memory_layers=layers))
    for parameter in memory.parameters():  # biases start at zero, which would hide a mix-up
        torch.nn.init.normal_(parameter, std=0.5)
    return memory.double()  # float64: tolerances that only the same computation meets


def step_by_step(memory, x, state, first):
    outputs = []
    for t in range(len(x)):
        y, state = memory.step(x[t], state, first[t])
        outputs.append(y)
    return torch.stack(outputs), state


def run_and_differentiate(memory, form, x, state, first):
    """Outputs, last state, and the gradients of a weighted sum of both with respect to everything."""
    x, state = x.clone().requires_grad_(), state.clone().requires_grad_()
    y, last = form(x, state, first)
    weight = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
    loss = (y * weight).sum() + (last * torch.linspace(0, 2, last.numel(), dtype=y.dtype).view_as(last)).sum()
    return y, last, *torch.autograd.grad(loss, [x, state, *memory.parameters()])


def check_agreement(kind, layers, first, seed):
    steps, lanes = first.shape
    memory = make(kind, layers)
    torch.manual_seed(seed)
    x = torch.randn(steps, lanes, FEATURES, dtype=torch.float64)
    state = torch.randn(lanes, memory.state_size, dtype=torch.float64)
    stepped = run_and_differentiate(memory, lambda *a: step_by_step(memory, *a), x, state, first)
    unrolled = run_and_differentiate(memory, memory.unroll, x, state, first)
    memory.by_steps = True
    looped = run_and_differentiate(memory, memory.unroll, x, state, first)
    for a, b, c in zip(stepped, unrolled, looped, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(a, c, rtol=1e-9, atol=1e-10)


resets = st.integers(1, 7).flatmap(
    lambda steps: st.integers(1, 5).flatmap(
        lambda lanes: st.lists(st.lists(st.booleans(), min_size=lanes, max_size=lanes), min_size=steps, max_size=steps)
    )
)


@pytest.mark.parametrize(("kind", "layers"), KINDS)
@settings(max_examples=40, deadline=None)
@given(first=resets, seed=st.integers(0, 1000))
def test_unroll_agrees_with_steps_for_any_resets(kind, layers, first, seed):
    check_agreement(kind, layers, torch.tensor(first), seed)


@pytest.mark.parametrize(("kind", "layers"), KINDS)
@pytest.mark.parametrize("first_row", [False, True])
def test_unroll_agrees_with_steps_without_resets_inside(kind, layers, first_row):
    first = torch.zeros(6, 3, dtype=torch.bool)
    first[0, 1] = first_row
    check_agreement(kind, layers, first, seed=1)


@pytest.mark.parametrize(("kind", "layers"), KINDS)
def test_nothing_leaks_through_a_reset(kind, layers):
    memory = make(kind, layers)
    x = torch.randn(5, 1, FEATURES, dtype=torch.float64)
    first = torch.tensor([False, False, True, False, False]).unsqueeze(1)
    other = x.clone()
    other[:2] += 1
    y, last = memory.unroll(x, torch.zeros(1, memory.state_size, dtype=torch.float64), first)
    y2, last2 = memory.unroll(other, torch.ones(1, memory.state_size, dtype=torch.float64), first)
    assert torch.equal(y[2:], y2[2:])
    assert torch.equal(last, last2)
    assert not torch.allclose(y[:2], y2[:2])


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_a_reset_clears_even_a_broken_state(kind):
    memory = make(kind, 1)
    x = torch.randn(1, 2, FEATURES, dtype=torch.float64)
    state = torch.full((2, memory.state_size), float("nan"), dtype=torch.float64)
    first = torch.ones(1, 2, dtype=torch.bool)
    for y, last in (memory.step(x[0], state, first[0]), memory.unroll(x, state, first)):
        assert y.isfinite().all()
        assert last.isfinite().all()


def test_the_callers_state_is_not_changed():
    memory = make("gru", 1)
    state = torch.ones(2, memory.state_size, dtype=torch.float64)
    first = torch.ones(3, 2, dtype=torch.bool)
    memory.step(torch.zeros(2, FEATURES, dtype=torch.float64), state, first[0])
    memory.unroll(torch.zeros(3, 2, FEATURES, dtype=torch.float64), state, first)
    assert (state == 1).all()


@pytest.mark.parametrize(("kind", "layers"), KINDS)
def test_state_size_counts_floats_per_lane(kind, layers):
    assert make(kind, layers).state_size == HIDDEN * layers * (2 if kind == "lstm" else 1)


@given(first=resets)
@settings(max_examples=60, deadline=None)
def test_fragments_cover_every_row_once(first):
    first = torch.tensor(first)
    steps, lanes = first.shape
    pack = _Fragments(first)
    assert sorted(pack.source.tolist()) == list(range(steps * lanes))
    assert torch.equal(pack.source[pack.position], torch.arange(steps * lanes))
    assert pack.batch_sizes.sum() == steps * lanes
    assert (pack.batch_sizes[1:] <= pack.batch_sizes[:-1]).all()
    assert int(pack.batch_sizes[0]) == len(pack.lane) == lanes + int(first[1:].sum())
    assert pack.lane[pack.last_of_lane].tolist() == list(range(lanes))
    assert int(pack.opens_segment.sum()) == lanes


def test_no_memory_passes_everything_on():
    memory = build_memory(FEATURES, ModelSettings())
    assert isinstance(memory, NoMemory)
    assert (memory.output_size, memory.state_size) == (FEATURES, 0)
    x, state, first = torch.randn(4, 2, FEATURES), torch.zeros(2, 0), torch.zeros(4, 2, dtype=torch.bool)
    assert memory.unroll(x, state, first)[0] is x
    assert memory.step(x[0], state, first[0])[1] is state


def test_the_base_class_does_nothing_by_itself():
    with pytest.raises(NotImplementedError):
        Memory().step(*[torch.zeros(1)] * 3)
    with pytest.raises(NotImplementedError):
        Memory().unroll(*[torch.zeros(1)] * 3)
