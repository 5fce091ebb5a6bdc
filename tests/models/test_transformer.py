import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmill.models.transformer import Trunk, chunk_order


def trunk(**options: object) -> Trunk:
    torch.manual_seed(0)
    defaults = {"size": 16, "layers": 3, "heads": 2, "tokens": 3, "context": 4, "width": 5}
    made = Trunk(**{**defaults, **options}).eval()  # type: ignore[arg-type]
    for parameter in made.parameters():  # the small initial weights would hide mistakes
        torch.nn.init.normal_(parameter, std=0.3)
    return made


def acted(model: Trunk, x: torch.Tensor, lane: int = 0, lanes: int = 1) -> torch.Tensor:
    """The tokens of one episode ``[L, S, D]`` through ``act``, step by step."""
    memory = model.memory(lanes)
    where = torch.tensor([lane])
    rows = []
    for t in range(len(x)):
        before = x[t - 1, -1] if t else torch.full_like(x[0, 0], 7.0)  # whatever stands there must not count
        chunk = torch.cat([before[None], x[t, :-1]])[None]
        rows.append(model.act(chunk, memory, where, torch.tensor([t == 0]))[0])
    return torch.stack(rows)


@settings(max_examples=15)
@given(
    mixer=st.sampled_from(["attention", "convolution"]),
    tokens=st.integers(2, 4),
    context=st.integers(1, 7),
    length=st.integers(1, 20),
    width=st.integers(1, 9),
)
@torch.no_grad()
def test_acting_step_by_step_gives_the_numbers_of_the_whole_episode(
    mixer: str, tokens: int, context: int, length: int, width: int
) -> None:
    model = trunk(mixer=mixer, tokens=tokens, context=context, width=width)
    x = torch.randn(length, tokens, 16)
    whole = model(x[None], torch.ones(1, length, dtype=torch.bool))[0]
    steps = acted(model, x)
    torch.testing.assert_close(steps[:, 1:], whole[:, :-1], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(steps[1:, 0], whole[:-1, -1], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("mixer", ["attention", "convolution"])
@torch.no_grad()
def test_padding_on_the_left_changes_nothing(mixer: str) -> None:
    model = trunk(mixer=mixer)
    x = torch.randn(1, 5, 3, 16)
    plain = model(x, torch.ones(1, 5, dtype=torch.bool))
    padded = torch.cat([torch.randn(1, 3, 3, 16), x], 1)
    mask = torch.tensor([[False] * 3 + [True] * 5])
    found = model(padded, mask)
    torch.testing.assert_close(found[:, 3:], plain, atol=1e-5, rtol=1e-5)
    assert torch.isfinite(found).all()


@pytest.mark.parametrize("mixer", ["attention", "convolution"])
@torch.no_grad()
def test_no_token_sees_a_later_one(mixer: str) -> None:
    model = trunk(mixer=mixer)
    x, mask = torch.randn(1, 6, 3, 16), torch.ones(1, 6, dtype=torch.bool)
    before = model(x, mask).flatten(1, 2)
    for token in range(18):
        changed = x.flatten(1, 2).clone()
        changed[0, token] += torch.randn(16)
        after = model(changed.reshape(x.shape), mask).flatten(1, 2)
        assert torch.equal(after[0, :token], before[0, :token])
        assert not torch.allclose(after[0, token], before[0, token])


@torch.no_grad()
def test_attention_sees_context_steps_and_not_one_more() -> None:
    model = trunk(layers=1, context=3)
    x, mask = torch.randn(1, 8, 3, 16), torch.ones(1, 8, dtype=torch.bool)
    before = model(x, mask)
    for step in range(8):
        changed = x.clone()
        changed[0, step] += torch.randn(3, 16)
        same = torch.isclose(model(changed, mask)[0, 7], before[0, 7], atol=1e-6).all(-1)
        assert same.all() == (step < 5)


@pytest.mark.parametrize("mixer", ["attention", "convolution"])
@torch.no_grad()
def test_lanes_restart_one_by_one_and_do_not_disturb_each_other(mixer: str) -> None:
    model = trunk(mixer=mixer)
    episodes = [torch.randn(7, 3, 16), torch.randn(3, 3, 16), torch.randn(4, 3, 16)]
    alone = [acted(model, x) for x in episodes]
    memory = model.memory(2)
    streams = [[(0, t) for t in range(7)], [(1, t) for t in range(3)] + [(2, t) for t in range(4)]]
    found: dict[int, list[torch.Tensor]] = {0: [], 1: [], 2: []}
    for turn in range(7):
        chunks, first = [], []
        for stream in streams:
            k, t = stream[turn]
            before = episodes[k][t - 1, -1] if t else torch.zeros(16)
            chunks.append(torch.cat([before[None], episodes[k][t, :-1]]))
            first.append(t == 0)
        out = model.act(torch.stack(chunks), memory, torch.tensor([0, 1]), torch.tensor(first))
        for lane, stream in enumerate(streams):
            found[stream[turn][0]].append(out[lane])
    for k, rows in found.items():
        torch.testing.assert_close(torch.stack(rows)[:, 1:], alone[k][:, 1:], atol=1e-5, rtol=1e-5)


def test_a_chunk_is_the_last_action_and_what_is_new() -> None:
    steps, kinds = chunk_order(torch.tensor([0, 5]), 3)
    assert steps.tolist() == [[-1, 0, 0], [4, 5, 5]]
    assert kinds.tolist() == [[2, 0, 1], [2, 0, 1]]
