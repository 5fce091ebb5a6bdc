"""Infilling, the adversary, and experience inside the model: what each term sees, teaches and keeps to itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from dreaming import open_line

from rollmill.store.reader import Store
from rollmill.worldmodel.dynamics.fit import DynamicsFitter, LatentData, spans
from rollmill.worldmodel.dynamics.mixture import Mixture, draw
from rollmill.worldmodel.dynamics.model import Dynamics, load_dynamics, save_dynamics
from rollmill.worldmodel.dynamics.objectives import Adversary, draw_through
from rollmill.worldmodel.dynamics.recall import Recall, recalled
from rollmill.worldmodel.dynamics.settings import DynamicsSettings

SMALL = DynamicsSettings(
    size=16, mixtures=2, sequence_length=8, batch_size=16, steps=80, learning_rate=1e-2, threads=1, validation=0.2
)
KINDS = {
    "infilling": replace(SMALL, objective="infilling"),
    "adversarial": replace(SMALL, objective="adversarial"),
    "recall": replace(SMALL, recall=3, recall_size=64),
}
CPU = [torch.device("cpu")]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with open_line(tmp_path_factory.mktemp("line") / "store") as opened:
        yield opened


def make(store: Store, settings: DynamicsSettings) -> DynamicsFitter:
    data = LatentData(store, settings)
    torch.manual_seed(1)
    model = Dynamics(settings, data.origin())
    if model.recall is not None:
        data.remember(model.recall, model.code)
    return DynamicsFitter(model, data, CPU)


@pytest.mark.parametrize("kind", KINDS)
def test_it_learns_goes_on_to_the_bit_and_is_saved(store: Store, kind: str, tmp_path: Path) -> None:
    whole, first, second = (make(store, KINDS[kind]) for _ in range(3))
    before = whole.validate()
    for _ in range(60):
        whole.train_step()
    after = whole.validate()
    assert after["validation/latent"] < before["validation/latent"] - 0.5
    if kind == "infilling":
        assert after["validation/infilling"] < before["validation/infilling"] - 0.5
    for _ in range(20):
        first.train_step()
    second.load_state(first.state())
    for _ in range(40):
        second.train_step()
    for mine, theirs in zip(whole.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)

    save_dynamics(tmp_path / "dynamics.bin", whole.model, {})
    loaded = load_dynamics(tmp_path)
    z, a, lanes = torch.zeros(2, 2), torch.tensor([0, 2]), torch.arange(2)
    with torch.no_grad():
        mine = whole.model.read(z, a, whole.model.begin(2), lanes)
        assert torch.equal(loaded.read(z, a, loaded.begin(2), lanes), mine)
        # One step at a time is what whole sequences are.
        mask = torch.ones(2, 1, dtype=torch.bool)
        assert torch.allclose(whole.model(z[:, None], a[:, None], torch.zeros(2, 1), mask)[:, 0], mine, atol=1e-6)
    for fitter in (whole, first, second):
        fitter.close()


def test_hidden_latents_are_hidden(store: Store) -> None:
    """Nothing of a hidden latent reaches the memories; only the targets know it."""
    fitter = make(store, KINDS["infilling"])
    batch = fitter.data.batch(0)
    part = fitter.model.infilling
    assert part is not None
    changed = batch.latents.clone()
    changed[:, :-1][batch.hidden] += 100.0
    seen, again = (part.hide(x[:, :-1], batch.hidden) for x in (batch.latents, changed))
    assert torch.equal(seen, again)
    assert not torch.equal(batch.latents, changed)
    h = fitter.model(seen, batch.action, batch.step, batch.mask)
    filled = part(h, seen, fitter.model.code(batch.action), batch.mask).mean
    # What fills step t in comes from both of its sides: it changes with the neighbours, not with step t itself.
    for neighbour, moves in ((3, True), (4, False), (5, True)):
        moved = seen.clone()
        moved[:, neighbour] += 1.0
        other = fitter.model(moved, batch.action, batch.step, batch.mask)
        found = part(other, moved, fitter.model.code(batch.action), batch.mask).mean[:, 4]
        real = batch.mask[:, neighbour] & batch.mask[:, 4]
        assert real.any()
        assert torch.equal(found[real], filled[real, 4]) is not moves
    fitter.close()


@pytest.mark.parametrize(("share", "length"), [(0.3, 4), (0.5, 1), (0.1, 3)])
def test_spans_hide_their_share(share: float, length: int) -> None:
    hidden = spans((400, 200), share, length, np.random.default_rng(0))
    assert hidden[:, length:].mean() == pytest.approx(share, abs=0.01)
    runs = np.diff(np.flatnonzero(np.diff(np.pad(hidden, ((0, 0), (1, 1))).astype(int).ravel())))[::2]
    assert np.median(runs) >= length


def test_draws_through_which_gradients_go_are_draws() -> None:
    mixture = Mixture(torch.tensor([[0.0, 1.0]]), torch.tensor([[-1.0, 2.0]]), torch.tensor([[-1.0, 0.0]]))
    many = Mixture(*(x.expand(20_000, 1, 2).clone().requires_grad_() for x in mixture))
    rng = np.random.default_rng(0)
    noise = torch.from_numpy(
        np.concatenate([rng.random((20_000, 1, 2)), rng.standard_normal((20_000, 1, 1))], -1).astype(np.float32)
    )
    drawn = draw_through(many, noise)
    usual = draw(Mixture(*(x.detach() for x in many)), 1.0, torch.Generator().manual_seed(0))
    assert drawn.mean().item() == pytest.approx(usual.mean().item(), abs=0.05)
    assert drawn.std().item() == pytest.approx(usual.std().item(), abs=0.05)
    drawn.sum().backward()
    assert all(bool(x.grad.abs().sum() > 0) for x in many if x.grad is not None)


def test_the_adversary_gives_its_gradient_turned_around() -> None:
    torch.manual_seed(0)
    judge = Adversary(3, SMALL)
    h, real = torch.randn(5, 16, requires_grad=True), torch.randn(5, 3)
    drawn = torch.randn(5, 3, requires_grad=True)
    judge(h, real, drawn, 0.5).sum().backward()
    assert h.grad is None
    assert drawn.grad is not None
    straight = drawn.detach().clone().requires_grad_()
    judge(h, real, straight, -1.0).sum().backward()  # not turned: what the judge itself would want of the draw
    assert straight.grad is not None
    assert torch.allclose(drawn.grad, -0.5 * straight.grad)


def test_a_sequence_does_not_recall_its_own_episode(store: Store) -> None:
    fitter = make(store, replace(SMALL, recall=1, recall_size=512))
    recall, batch = fitter.model.recall, fitter.data.batch(0)
    assert recall is not None
    assert len(set(recall.owner.tolist())) > 20
    steps = batch.latents[:, :-1]
    # With one neighbour, what is recalled is that neighbour's value: whose is it?
    free = recall(steps, fitter.model.code(batch.action))
    barred = recall(steps, fitter.model.code(batch.action), batch.owner)
    assert not torch.equal(free, barred)
    for row in range(len(steps)):
        others = recall.values[recall.owner != batch.owner[row]]
        for value in barred[row]:
            assert bool((others == value).all(-1).any())
    assert torch.isfinite(fitter.model.losses(batch)["loss"])
    fitter.close()


def test_nothing_to_recall_is_nothing() -> None:
    found = recalled(torch.zeros(1, 2), torch.zeros(3, 2), torch.ones(3, 4), 2, torch.ones(1, 3, dtype=torch.bool))
    assert torch.equal(found, torch.zeros(1, 4))
    near = recalled(torch.zeros(1, 1), torch.tensor([[0.0], [9.0]]), torch.tensor([[1.0], [5.0]]), 1)
    assert near.item() == 1.0


def test_what_is_recalled_is_what_followed(store: Store) -> None:
    """On the line, the same place and action have the same outcome: the nearest steps of others tell it."""
    fitter = make(store, replace(SMALL, recall=1, recall_size=512))
    recall, batch = fitter.model.recall, fitter.data.batch(1)
    assert isinstance(recall, Recall)
    found = recall(batch.latents[:, :-1], fitter.model.code(batch.action), batch.owner)[..., 0]
    true = (batch.latents[:, 1:] - batch.latents[:, :-1])[..., 0]
    assert np.corrcoef(found[batch.mask].numpy(), true[batch.mask].numpy())[0, 1] > 0.9
    fitter.close()


@pytest.mark.parametrize(
    ("words", "message"),
    [({"hidden": 1.0}, "between 0 and 1"), ({"recall": 9, "recall_size": 4}, "recall=9 of recall_size=4")],
)
def test_settings_that_make_no_sense(words: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DynamicsSettings(**words)  # type: ignore[arg-type]
