"""Fitting: batches follow from the step, shares of a batch add up, losses fall, NaNs are found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from dreaming import STD, line_model, open_line, poison_store
from storing import small_schema, write_episodes

from rollmill.core.errors import NonFiniteError, StoreError
from rollmill.store.reader import Store
from rollmill.worldmodel.dynamics.fit import DynamicsFitter, LatentData, Sequences, check_latents, principal_axes
from rollmill.worldmodel.dynamics.model import Dynamics
from rollmill.worldmodel.dynamics.settings import DynamicsSettings

SMALL = DynamicsSettings(
    size=16, mixtures=2, sequence_length=6, batch_size=16, steps=60, learning_rate=1e-2, threads=1, validation=0.2
)
CPU = [torch.device("cpu")]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with open_line(tmp_path_factory.mktemp("line") / "store") as opened:
        yield opened


def make(store: Store, settings: DynamicsSettings = SMALL, devices: list[torch.device] = CPU) -> DynamicsFitter:
    data = LatentData(store, settings)
    torch.manual_seed(1)
    return DynamicsFitter(Dynamics(settings, data.origin()), data, devices)


def test_batches_follow_from_the_step_alone_and_latents_are_drawn_anew(store: Store) -> None:
    data, again = LatentData(store, SMALL), LatentData(store, SMALL)
    assert torch.equal(data.batch(4).latents, again.batch(4).latents)
    assert not torch.equal(data.batch(4).latents, data.batch(5).latents)
    plain = LatentData(store, DynamicsSettings(**{**SMALL.__dict__, "sample_latents": False})).batch(4)
    noise = (data.batch(4).latents - plain.latents)[:, :-1][plain.mask]
    assert noise.std().item() == pytest.approx(STD, rel=0.2)
    # What a step led to is the next step's latent: the position has moved by the action.
    moved = plain.latents[:, 1:, 0] - plain.latents[:, :-1, 0]
    assert torch.allclose(moved[plain.mask], 0.25 * (plain.action[plain.mask] - 1.0), atol=1e-5)


def test_held_out_episodes_are_never_trained_on(store: Store) -> None:
    data = LatentData(store, SMALL)
    assert data.held_out is not None
    assert not set(data.windows.episodes.tolist()) & set(data.held_out.episodes.tolist())


def test_the_loss_falls_on_held_out_episodes(store: Store) -> None:
    fitter = make(store)
    before = fitter.validate()
    for _ in range(60):
        fitter.train_step()
    after = fitter.validate()
    assert after["validation/latent"] < before["validation/latent"] - 1.0
    assert after["validation/done"] < before["validation/done"]
    assert set(fitter.metrics()) >= {"learn/loss", "time/samples_per_s", "data/wait_share"}
    assert not fitter.fresh
    fitter.close()


@pytest.mark.parametrize("other", [{"threads": 3}, {"devices": [torch.device("cpu")] * 2}])
def test_shares_of_a_batch_add_up_to_the_whole(store: Store, other: dict[str, object]) -> None:
    settings = DynamicsSettings(**{**SMALL.__dict__, "threads": other.get("threads", 1)})
    one, several = make(store), make(store, settings, other.get("devices", CPU))  # type: ignore[arg-type]
    for _ in range(3):
        one.train_step()
        several.train_step()
    for mine, theirs in zip(one.model.parameters(), several.model.parameters(), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-4)
    one.close()
    several.close()


def test_a_resumed_fit_goes_on_exactly(store: Store) -> None:
    whole, first, second = make(store), make(store), make(store)
    for _ in range(6):
        whole.train_step()
    for _ in range(3):
        first.train_step()
    state = first.state()
    assert set(state) == {"step", "seconds", "model", "optimizer"}  # as in files of version 0.1
    second.load_state(state)
    for _ in range(3):
        second.train_step()
    assert second.step == 6
    for mine, theirs in zip(whole.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    for fitter in (whole, first, second):
        fitter.close()


def test_reading_ahead_changes_nothing(store: Store) -> None:
    plain, ahead = make(store), make(store)
    ahead.close()
    ahead = DynamicsFitter(ahead.model, LatentData(store, SMALL), CPU, read_ahead=True)
    for fitter in (plain, ahead):
        for _ in range(3):
            fitter.train_step()
    back = plain.state()
    for fitter in (plain, ahead):
        fitter.train_step()
        fitter.load_state(back)  # the batch that was read ahead is not the next one any more
        for _ in range(2):
            fitter.train_step()
    for mine, theirs in zip(plain.model.parameters(), ahead.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    for fitter in (plain, ahead):
        fitter.close()


def test_what_fails_while_reading_ahead_is_raised_when_it_is_wanted(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = LatentData(store, SMALL)
    fitter = DynamicsFitter(Dynamics(SMALL, data.origin()), data, CPU, read_ahead=True)
    batch = data.batch

    def fail(number: int) -> Sequences:
        if number == 2:
            raise StoreError("damaged")
        return batch(number)

    monkeypatch.setattr(data, "batch", fail)
    fitter.train_step()
    fitter.train_step()
    with pytest.raises(StoreError, match="damaged"):
        fitter.train_step()
    assert fitter.step == 2
    fitter.close()


def test_differences_are_what_latents_change_by(store: Store) -> None:
    batch = LatentData(store, SMALL).batch(0)
    shifted = replace(batch, latents=batch.latents + 5.0)
    memory = {"memory": "none"}
    model = line_model(differences=True, **memory)
    with torch.no_grad():
        model.core.layers[0].weight[:, :2] = 0  # type: ignore[index,operator,union-attr]  # deaf to where it is
    assert torch.allclose(model.losses(batch)["latent"], model.losses(shifted)["latent"], rtol=1e-3)


def test_padding_does_not_count(store: Store) -> None:
    batch = LatentData(store, DynamicsSettings(**{**SMALL.__dict__, "sequence_length": 18})).batch(0)
    model = line_model()
    spoilt = batch.latents.clone()
    padding = ~torch.cat([torch.ones_like(batch.mask[:, :1]), batch.mask], 1)
    assert padding.any()
    spoilt[padding] = 77.0
    other = replace(batch, latents=spoilt)
    assert torch.allclose(model.losses(batch)["loss"], model.losses(other)["loss"])


def test_a_planted_nan_stops_at_once_and_is_named(tmp_path: Path) -> None:
    with Store(poison_store(tmp_path / "store")) as store:
        fitter = make(store, DynamicsSettings(**{**SMALL.__dict__, "validation": 0.0}))
        before = [x.clone() for x in fitter.model.parameters()]
        with pytest.raises(
            NonFiniteError, match=r"optimizer step 1: .* the batch itself: latents at index \[\d+, 2, 1\]"
        ):
            fitter.train_step()
        assert all(torch.equal(a, b) for a, b in zip(before, fitter.model.parameters(), strict=True))
        fitter.close()


def test_a_store_of_images_is_refused(tmp_path: Path) -> None:
    write_episodes(tmp_path / "raw", small_schema(), [3])
    with Store(tmp_path / "raw") as store, pytest.raises(StoreError, match=r"no obs:mean, obs:std .*world encode"):
        LatentData(store, SMALL)


def test_axes_are_where_memories_vary_most() -> None:
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.normal(size=(4, 4)))[0]
    memories = (rng.normal(size=(20_000, 4)) * [0.1, 3.0, 1.0, 0.0]) @ turn.T + 5.0
    axes = principal_axes(memories.astype(np.float32))
    along = (memories - axes.mean) @ axes.directions
    assert np.allclose(np.cov(along[:, :3].T), np.eye(3), atol=0.02)
    assert np.abs(along[:, 3]).max() < 0.01, "what does not vary is not blown up"
    assert np.allclose(np.abs(axes.directions[:, 0] * 3), np.abs(turn[:, 1]), atol=0.02), "the strongest first"


def test_a_fitted_model_knows_its_axes(store: Store) -> None:
    fitter = make(store)
    axes = fitter.axes()
    assert axes is not None
    batch = fitter.data.batch(3)
    with torch.inference_mode():
        h = fitter.model(batch.latents[:, :-1], batch.action, batch.step, batch.mask)[batch.mask].numpy()
    along = (h - axes.mean) @ axes.directions
    assert np.abs(along[:, 0].std() - 1) < 0.5
    assert make(store, replace(SMALL, memory="none")).axes() is None


def test_starts_are_first_latents(store: Store) -> None:
    starts = LatentData(store, SMALL).starts()
    assert not starts.mean[:, 1].any()  # nothing has moved yet
    assert np.all(np.abs(starts.mean[:, 0]) <= 0.5)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"sequence_length": 1}, "sequence_length"),
        ({"memory": "transformer", "size": 10, "heads": 3}, "heads"),
        ({"validation": 1.0}, "validation"),
        ({"steps": -1}, "steps"),
        ({"mixtures": 0}, "mixtures"),
        ({"learning_rate": 0.0}, "learning_rate"),
    ],
)
def test_impossible_settings_are_refused(values: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        DynamicsSettings(**values)  # type: ignore[arg-type]


class OnlyRewards(Dynamics):
    """Of one's own: what is lowered is the error of rewards, and another term is told."""

    def losses(self, batch: Sequences) -> dict[str, torch.Tensor]:
        sums = super().losses(batch)
        return {"loss": sums["reward"], "twice": 2 * sums["reward"]}


def test_a_class_of_ones_own_has_a_loss_of_its_own(store: Store) -> None:
    data = LatentData(store, SMALL)
    fitter = DynamicsFitter(OnlyRewards(SMALL, data.origin()), data, CPU)
    before = fitter.model.latent_head.weight.clone()
    fitter.train_step()
    assert torch.equal(fitter.model.latent_head.weight, before), "no term of the loss reads latents"
    found = fitter.metrics()
    assert found["learn/twice"] == pytest.approx(2 * found["learn/loss"])
    assert fitter.validate().keys() == {"validation/loss", "validation/twice"}
    fitter.close()


class Forgetful(Dynamics):
    """Of one's own: memories lose half of their numbers while it learns."""

    def forward(self, *given: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(super().forward(*given), 0.5, self.training)


def test_what_is_dropped_while_learning_is_there_when_the_model_is_judged(store: Store) -> None:
    data = LatentData(store, SMALL)
    fitter = DynamicsFitter(Forgetful(SMALL, data.origin()), data, CPU)
    fitter.train_step()
    plain = make(store)
    plain.load_state(fitter.state())
    assert fitter.validate() == plain.validate()
    fitter.train_step()
    plain.load_state(fitter.state())
    axes, same = fitter.axes(), plain.axes()
    assert axes is not None
    assert same is not None
    assert np.array_equal(axes.directions, same.directions)
    for each in (fitter, plain):
        each.close()


def test_latents_of_several_images_are_refused_with_what_to_do(store: Store) -> None:
    column = store.schema["obs:mean"]
    sides = [replace(column, name=f"obs:{side}_{kind}") for side in ("left", "right") for kind in ("mean", "std")]
    rest = [c for c in store.schema.columns if c.name not in ("obs:mean", "obs:std")]
    source = SimpleNamespace(schema=replace(store.schema, columns=(*sides, *rest)))
    with pytest.raises(StoreError, match=r"several images \(left, right\).*encode --field left` makes"):
        check_latents(source)  # type: ignore[arg-type]
