import itertools

import numpy as np
import pytest
import torch
from offlining import skilled_store

from rollmill.core.errors import NonFiniteError
from rollmill.models.saving import weights_of
from rollmill.offline.data import WindowLoader, scales_of, select
from rollmill.offline.fit import PolicyFitter
from rollmill.offline.model import SequencePolicy
from rollmill.offline.settings import DataSettings, FitSettings, SequenceSettings
from rollmill.store.reader import Store

CPU = torch.device("cpu")
SEQUENCE = SequenceSettings(context=4, size=16, layers=1, mlp=(16,), dropout=0.1)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return skilled_store(tmp_path_factory.mktemp("fit") / "store", 60, worst=0.9)


def fitter_for(store: Store, **options: object) -> PolicyFitter:
    settings = FitSettings(
        **{"steps": 100, "batch_size": 8, "warmup_steps": 4, "threads": 1, "precision": "float32", **options}
    )  # type: ignore[arg-type]
    data = DataSettings(validation=0.2)
    chosen = select(store, data, "dt", 0)
    torch.manual_seed(3)
    model = SequencePolicy(store.schema.env, SEQUENCE, scales_of(store, chosen), True)
    loader = WindowLoader(store, chosen, store.schema.env, data, SEQUENCE, settings.batch_size, 5, CPU)
    return PolicyFitter(model, loader, settings, seed=7)


def test_the_loss_falls_and_metrics_are_means(store: Store) -> None:
    fitter = fitter_for(store, learning_rate=3e-3)
    begun = fitter.validate()["validation/loss"]
    for _ in range(40):
        fitter.train_step()
    found = fitter.validate()
    assert found["validation/loss"] < begun - 0.3
    assert 0 < found["validation/accuracy"] <= 1
    metrics = fitter.metrics()
    assert {"learn/loss", "learn/grad_norm", "data/wait_share", "time/samples_per_s"} <= metrics.keys()
    assert all(np.isfinite(value) for value in metrics.values())
    assert fitter.metrics() == {}  # nothing has happened since
    fitter.close()


def test_a_resumed_fit_is_the_same_bit_for_bit(store: Store) -> None:
    straight = fitter_for(store)
    for _ in range(6):
        straight.train_step()
    halfway = fitter_for(store)
    for _ in range(3):
        halfway.train_step()
    state = halfway.state()
    # The layout that files of version 0.1 have.
    assert set(state) == {"step", "seconds", "position", "model", "optimizer", "rng", "cuda_rng"}
    resumed = fitter_for(store)
    resumed.load_state(state)
    assert (resumed.step, resumed.loader.position) == (3, 3)
    for _ in range(3):
        resumed.train_step()
    for name, weights in weights_of(straight.model).items():
        assert np.array_equal(weights_of(resumed.model)[name], weights), name


def test_pieces_and_threads_add_up_to_the_same_gradients(store: Store) -> None:
    gradients = []
    for options in ({"micro_batch": 8}, {"micro_batch": 3}, {"micro_batch": 2, "threads": 2}):
        fitter = fitter_for(store, **options)
        for network in fitter.replicas.networks:
            network.eval()  # dropout draws differ between pieces
        fitter.gradients(next(iter(fitter.loader)))
        gradients.append({n: p.grad.clone() for n, p in fitter.model.named_parameters() if p.grad is not None})
        fitter.close()
    for other in gradients[1:]:
        for name, gradient in gradients[0].items():
            torch.testing.assert_close(other[name], gradient, atol=1e-5, rtol=1e-3)


def test_the_rate_warms_up_and_falls_like_a_cosine(store: Store) -> None:
    fitter = fitter_for(store, learning_rate=1.0, end_rate=0.1, warmup_steps=10)
    rates = []
    for step in range(101):
        fitter.step = step
        rates.append(fitter._set_rate())
    assert rates[0] == pytest.approx(0.1, rel=0.01)
    assert max(rates) == rates[9]
    assert rates[100] == pytest.approx(0.1)
    assert all(a > b for a, b in itertools.pairwise(rates[9:]))


def test_seconds_are_progress_too(store: Store) -> None:
    fitter = fitter_for(store, seconds=10.0)
    fitter.seconds = 5.0
    assert fitter.progress == 0.5


@pytest.mark.parametrize("where", ["data", "weights"])
def test_a_nan_is_named_and_changes_nothing(store: Store, where: str) -> None:
    fitter = fitter_for(store)
    batch = next(iter(fitter.loader))
    if where == "data":
        batch.obs["obs"][2, -1] = np.nan
        fitter._batches = iter([batch])
        expected = r"the batch itself: observation 'obs' at index \[2, \d+, 0\]"
    else:
        with torch.no_grad():
            fitter.model.observation.weight[0, 0] = np.nan
        expected = r"the weights: observation\.weight at index \[0, 0\]"
    before = weights_of(fitter.model)
    with pytest.raises(NonFiniteError, match=rf"optimizer step 1: first seen in {expected}"):
        fitter.train_step()
    after = weights_of(fitter.model)
    assert all(np.array_equal(before[name], after[name], equal_nan=True) for name in before)


def test_only_matrices_decay(store: Store) -> None:
    fitter = fitter_for(store)
    decayed, plain = (group["params"] for group in fitter.optimizer.param_groups)
    assert fitter.model.trunk.norm.weight in set(plain)
    assert fitter.model.observation.weight in set(decayed)
    assert len(decayed) + len(plain) == len(list(fitter.model.parameters()))
