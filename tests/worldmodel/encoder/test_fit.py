import math
import threading

import numpy as np
import pytest
import torch
from image_stores import SHAPE, TINY, image_store
from running import assert_same

from rollmill.core.errors import NonFiniteError
from rollmill.models.saving import weights_of
from rollmill.store.reader import Store
from rollmill.worldmodel.encoder.file import build_encoder
from rollmill.worldmodel.encoder.fit import EncoderFitter
from rollmill.worldmodel.encoder.images import ImageBatches, held_out_images
from rollmill.worldmodel.encoder.settings import EncoderFitSettings, EncoderSettings, ImageSettings

IMAGES = ImageSettings(per_rollout=6, shuffle_buffer=64)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(image_store(tmp_path_factory.mktemp("fit") / "store", 20, steps=8))


def make_fitter(store: Store, kind: str = "vae", **options: object) -> EncoderFitter:
    settings = EncoderFitSettings(**{"steps": 60, "batch_size": 32, "precision": "float32", "device": "cpu", **options})
    torch.manual_seed(0)
    encoder = build_encoder(kind, SHAPE, **TINY)
    batches = ImageBatches(store, "obs:image", np.arange(18), IMAGES, settings.batch_size, seed=1)
    held_out = held_out_images(store, "obs:image", np.arange(18, 20), 16, seed=1)
    return EncoderFitter(encoder, batches, held_out, settings, seed=5)


@pytest.mark.parametrize("kind", ["vae", "autoencoder"])
def test_images_get_nearer(store: Store, kind: str) -> None:
    fitter = make_fitter(store, kind, learning_rate=1e-2)
    before = fitter.validate()
    for _ in range(60):
        fitter.train_step()
    after = fitter.validate()
    assert after["validation/loss"] < 0.7 * before["validation/loss"]
    assert after["validation/pixel_error"] < before["validation/pixel_error"]
    metrics = fitter.metrics()
    assert {"learn/loss", "learn/grad_norm", "time/updates_per_s", "data/wait_share"} <= metrics.keys()
    assert not fitter.fresh
    assert fitter.metrics() == {}
    assert fitter.reconstructions(np.zeros((3, *SHAPE), np.uint8)).shape == (3, *SHAPE)
    fitter.close()


def test_a_fit_that_goes_on_is_the_one_that_was_never_stopped(store: Store) -> None:
    whole, first = make_fitter(store), make_fitter(store)
    for _ in range(9):
        whole.train_step()
    for _ in range(4):
        first.train_step()
    second = make_fitter(store)
    second.load_state(first.state())
    for _ in range(5):
        second.train_step()
    one, two = whole.state(), second.state()
    assert set(one) == {"step", "seconds", "position", "encoder", "optimizer"}  # as in files of version 0.1
    one.pop("seconds"), two.pop("seconds")
    assert_same(one, two)
    for fitter in (whole, first, second):
        fitter.close()


def test_threads_share_a_batch_and_give_the_same_gradient(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    # Each piece has noise of its own; without it they must add up to the whole.
    monkeypatch.setattr(torch, "randn", lambda shape, **_: torch.zeros(shape))
    shared, single = make_fitter(store, threads=2), make_fitter(store, threads=1)
    assert [len(fitter.replicas.networks) for fitter in (shared, single)] == [2, 1]
    images = torch.from_numpy(single.batches.pool(0)[:31])  # uneven pieces
    losses = [fitter.gradients(images)["loss"] for fitter in (shared, single)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for one, two in zip(shared.model.parameters(), single.model.parameters()):
        torch.testing.assert_close(one.grad, two.grad, rtol=1e-3, atol=1e-4)
    alone = make_fitter(store, "autoencoder", threads=2)
    assert len(alone.replicas.networks) == 1  # it measures its scale over the whole batch
    for fitter in (shared, single, alone):
        fitter.close()


def test_noise_is_of_the_step_and_the_piece(store: Store) -> None:
    fitter = make_fitter(store)
    seen = set()
    for step in (0, 1, 0):
        fitter.step = step
        seen |= {float(torch.randn(1, generator=fitter._noise(piece))) for piece in (0, 1)}
    assert len(seen) == 4
    fitter.close()


def test_nan_stops_at_once_and_names_the_place(store: Store) -> None:
    fitter = make_fitter(store)
    fitter.train_step()
    with torch.no_grad():
        fitter.model.moments.bias[1] = torch.nan
    before = weights_of(fitter.model)
    with pytest.raises(NonFiniteError, match=r"at optimizer step 2: .* the weights: moments.bias at index \[1\]"):
        fitter.train_step()
    assert_same(weights_of(fitter.model), before)  # nothing was spoilt by a step
    fitter.close()


def test_nan_that_begins_in_a_layer_is_found_there(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fitter = make_fitter(store)
    layer = fitter.model.painter.begin
    forward = layer.forward
    monkeypatch.setattr(layer, "forward", lambda x: forward(x) / 0.0)
    with pytest.raises(NonFiniteError, match=r"the output of layer painter.begin \(Linear\)"):
        fitter.train_step()
    fitter.close()


def test_the_cosine_of_the_learning_rate_begins_after_the_warm_up(store: Store) -> None:
    fitter = make_fitter(store, steps=100, warmup_steps=10, end_rate=0.1, learning_rate=1.0)
    rates = []
    for step in range(101):
        fitter.step = step
        rates.append(fitter._set_rate())
    assert rates[:11] == pytest.approx([(step + 1) / 11 for step in range(11)])
    assert max(rates) == rates[10] == 1.0
    assert rates[55] == pytest.approx(0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi / 2)))
    assert rates[100] == pytest.approx(0.1)
    fitter.close()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EncoderSettings(size=0), "size and every number"),
        (lambda: EncoderSettings(beta=-1.0), "must not be negative"),
        (lambda: ImageSettings(per_rollout=0), "at least 1"),
        (lambda: ImageSettings(validation=1.0), "validation must be"),
        (lambda: EncoderFitSettings(steps=0), "steps must be at least 1"),
        (lambda: EncoderFitSettings(threads=-1), "threads must not be negative"),
        (lambda: EncoderFitSettings(learning_rate=0.0), "learning_rate must be positive"),
    ],
)
def test_settings_that_make_no_sense_are_refused(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]


def test_closing_ends_all_threads(store: Store) -> None:
    before = set(threading.enumerate())
    fitter = make_fitter(store, threads=2)
    fitter.train_step()
    assert {thread.name[:3] for thread in set(threading.enumerate()) - before} == {"ima", "fit"}
    fitter.close()
    assert set(threading.enumerate()) <= before
