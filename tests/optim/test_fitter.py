"""The loop that all fits share, on a straight line: pieces, threads, limits, NaNs, metrics, checkpoints."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from running import assert_same
from torch import Tensor, nn

from rollmill.core.errors import CheckpointError, NonFiniteError
from rollmill.optim.fitter import FitPlan, Fitter, StepMetrics
from rollmill.optim.replicas import Replicas
from rollmill.optim.schedules import WarmupCosine

PLAN = FitPlan(WarmupCosine(0.05, 0.1, 3), steps=40, max_grad_norm=1.0)


class LineFitter(Fitter[nn.Linear, Tensor]):
    """y = 2 a - b + 1 of rows ``[n, 3]``: a, b, y."""

    def __init__(self, plan: FitPlan = PLAN, threads: int = 1, piece: int = 16) -> None:
        torch.manual_seed(0)
        model = nn.Linear(2, 1)
        super().__init__(Replicas.on_threads(model, threads), torch.optim.Adam(model.parameters()), plan)
        self.piece = piece
        self.spoilt: Tensor | None = None
        self.factor = 1.0

    def next_batch(self) -> Tensor:
        if self.spoilt is not None:
            return self.spoilt
        inputs = torch.from_numpy(np.random.default_rng(self.step).normal(size=(16, 2)).astype(np.float32))
        return torch.cat([inputs, (2 * inputs[:, :1] - inputs[:, 1:] + 1)], 1)

    def samples(self, batch: Tensor) -> int:
        return len(batch)

    def pieces(self, batch: Tensor) -> tuple[Tensor, ...]:
        return batch.split(self.piece)

    def piece_loss(
        self, network: nn.Linear, piece: Tensor, number: int, samples: int
    ) -> tuple[Tensor, dict[str, Tensor]]:
        loss = (network(piece[:, :2]) - piece[:, 2:]).square().sum() / samples
        return loss, {"loss": self.factor * loss.detach(), "last_piece": torch.tensor(float(number))}

    def inputs(self, batch: Tensor) -> dict[str, Tensor]:
        return {"rows": batch}

    def validate(self) -> dict[str, float]:
        return {}


def fitted(steps: int, **options: object) -> LineFitter:
    fitter = LineFitter(**options)  # type: ignore[arg-type]
    for _ in range(steps):
        fitter.train_step()
    fitter.close()
    return fitter


def test_the_loss_falls_and_metrics_are_means_since_the_last_look() -> None:
    fitter = LineFitter(FitPlan(WarmupCosine(0.2, 0.1, 3), steps=40), piece=6)
    assert not fitter.fresh
    assert fitter.metrics() == {}
    for _ in range(20):
        fitter.train_step()
    first = fitter.metrics()
    for _ in range(20):
        fitter.train_step()
    assert fitter.fresh
    metrics = fitter.metrics()
    assert metrics["learn/loss"] < 0.5 * first["learn/loss"]
    assert metrics["learn/last_piece"] == 0 + 1 + 2
    assert metrics["time/samples_per_s"] == pytest.approx(16 * metrics["time/updates_per_s"])
    assert 0 < metrics["data/wait_share"] < 1
    assert metrics["time/seconds"] == fitter.seconds > 0
    assert 0.02 < metrics["learn/learning_rate"] < first["learn/learning_rate"] < 0.2
    fitter.close()


def test_pieces_and_threads_change_nothing_but_last_digits() -> None:
    whole = fitted(5)
    for options in ({"piece": 5}, {"piece": 3, "threads": 3}, {"piece": 16, "threads": 2}):
        other = fitted(5, **options)
        torch.testing.assert_close(other.model.weight, whole.model.weight)
        assert_same(fitted(5, **options).state()["model"], other.state()["model"])  # and nothing at all by chance


def test_a_resumed_fit_is_the_same_bit_for_bit() -> None:
    whole, half, rest = fitted(9), fitted(4), LineFitter()
    rest.load_state(half.state())
    for _ in range(5):
        rest.train_step()
    one, two = whole.state(), rest.state()
    assert set(one) == {"step", "seconds", "model", "optimizer"}
    assert one.pop("seconds") != two.pop("seconds")
    assert_same(one, two)
    rest.close()


def test_weights_that_do_not_fit_are_refused() -> None:
    state = fitted(1).state()
    state["model"].pop("bias")
    with pytest.raises(CheckpointError, match="the saved weights do not fit"):
        LineFitter().load_state(state)


def test_the_nearest_limit_is_progress() -> None:
    fitter = LineFitter(FitPlan(WarmupCosine(1.0, 0.0), steps=10, seconds=20.0))
    fitter.step, fitter.seconds = 2, 10.0
    assert fitter.progress == 0.5
    assert fitter._set_rate() == fitter.optimizer.param_groups[0]["lr"] == pytest.approx(0.5)
    fitter.step = 11
    assert fitter.progress == 1.0
    assert LineFitter(FitPlan(WarmupCosine(1.0, 0.0), steps=0)).progress == 0.0


def test_gradients_are_clipped_only_where_asked() -> None:
    fitter = LineFitter(FitPlan(WarmupCosine(0.01, 0.1), steps=9, max_grad_norm=0.5))
    free = LineFitter(FitPlan(WarmupCosine(0.01, 0.1), steps=9))
    for each in (fitter, free):
        each.train_step()
    norms = [float(torch.cat([p.grad.flatten() for p in each.model.parameters()]).norm()) for each in (fitter, free)]  # type: ignore[union-attr]
    assert norms[0] == pytest.approx(0.5, rel=1e-4)
    assert norms[1] == pytest.approx(free.metrics()["learn/grad_norm"], rel=1e-4)
    assert norms[1] > 0.5


@pytest.mark.parametrize("threads", [1, 2])
def test_a_nan_changes_nothing_and_is_named(threads: int) -> None:
    fitter = LineFitter(threads=threads, piece=4)
    fitter.train_step()
    before = fitter.state()
    batch = fitter.next_batch()
    batch[7, 1] = torch.nan
    fitter.spoilt = batch
    with pytest.raises(
        NonFiniteError,
        match=r"at optimizer step 2: first seen in the batch itself: rows at index \[7, 1\]\. The weights",
    ):
        fitter.train_step()
    assert_same(fitter.state(), before)
    fitter.close()


def test_an_infinite_loss_stops_even_where_its_gradient_is_finite() -> None:
    fitter = LineFitter()
    fitter.factor = torch.inf
    with pytest.raises(NonFiniteError, match="no single place"):
        fitter.train_step()
    assert fitter.step == 0


def test_metrics_of_steps_add_up_and_are_taken_once() -> None:
    metrics = StepMetrics()
    metrics.add({"loss": 1.0, "wait": 0.5})
    metrics.add({"loss": 3.0})
    assert metrics.steps == 2
    taken = metrics.take()
    metrics.add({"loss": 5.0})
    assert taken == ({"loss": 4.0, "wait": 0.5}, 2)
    assert metrics.take() == ({"loss": 5.0}, 1)
    assert metrics.take() == ({}, 0)
