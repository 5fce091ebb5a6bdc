"""What graphs on a GPU compute is what a CPU computes without them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from appo_rig import KINDS, Rig
from gpu_device import DEVICE, ON_GPU
from graph_acting import SPECS, run
from running import config_of

from rollmill.core.slots import OBS
from rollmill.learning.appo import Appo
from rollmill.learning.step import GraphStep
from rollmill.models.acting.weights import WeightBoard
from rollmill.models.actor_critic import build_model


@pytest.mark.parametrize("memory", ["none", "gru", "lstm"])
@pytest.mark.parametrize("name", SPECS)
def test_acting_by_graphs(name: str, memory: str) -> None:
    plain, _ = run(SPECS[name], memory, "plain")
    mirrored, policy = run(SPECS[name], memory, "graph", DEVICE)
    for field in ("action", "log_prob", "value", "version"):
        np.testing.assert_allclose(mirrored[field], plain[field], rtol=1e-3, atol=1e-4, err_msg=field)
    segments = policy.mirror.segments([0, 2])  # type: ignore[attr-defined]
    expected = plain.gather([0, 2])
    for field in (f for f in expected if f.startswith(OBS) or f == "state"):
        found = segments[field].cpu().numpy()
        np.testing.assert_allclose(found, expected[field], rtol=1e-3, atol=1e-4, err_msg=field)
    policy.detach()  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", KINDS)
def test_graphs_learn_what_eager_steps_learn_on_the_same_device(kind: str) -> None:
    """The same kernels on the same numbers: ten steps by graphs and ten kernel by kernel, nearer than a CPU is."""
    rig = Rig(*KINDS[kind], "learning.device=cpu")
    learners = []
    for eager in ("false", "true"):
        words = ("learning.learning_rate=0.001", "learning.batch_size=64", f"learning.eager={eager}")
        config = config_of(Path(), *KINDS[kind], *words)
        model = build_model(rig.spec, rig.config.model)
        model.load_state_dict(rig.learner.model.state_dict())
        learners.append(Appo(model.to(DEVICE), WeightBoard(model), config.learning, seed=0))
    assert [isinstance(learner._step, GraphStep) for learner in learners] == [ON_GPU, False]
    for _ in range(10):
        segments = rig.collect()
        graphs, eager = (
            learner.train({name: array.copy() for name, array in segments.items()}) for learner in learners
        )
        assert graphs.keys() == eager.keys()
        for name in ("loss", "policy_loss", "entropy", "value_loss", "grad_norm", "explained_variance"):
            assert graphs[name] == pytest.approx(eager[name], rel=1e-3, abs=1e-4), name
    for (name, one), two in zip(learners[0].model.named_parameters(), learners[1].model.parameters()):
        np.testing.assert_allclose(one.detach().cpu(), two.detach().cpu(), rtol=2e-3, atol=2e-4, err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_learning_by_graphs(kind: str) -> None:
    """The same segments, the same weights: ten steps on the device (the last ones are graphs) and ten on the CPU."""
    rig = Rig(*KINDS[kind], "learning.device=cpu")
    config = config_of(Path(), *KINDS[kind], "learning.learning_rate=0.001", "learning.batch_size=64")
    learners = []
    for device in (torch.device("cpu"), DEVICE):
        model = build_model(rig.spec, rig.config.model)
        model.load_state_dict(rig.learner.model.state_dict())
        model.to(device)
        learners.append(Appo(model, WeightBoard(model), config.learning, seed=0))
    for _ in range(10):
        segments = rig.collect()
        metrics = [learner.train({name: array.copy() for name, array in segments.items()}) for learner in learners]
        for name in ("loss", "entropy", "value_loss", "grad_norm"):
            assert metrics[1][name] == pytest.approx(metrics[0][name], rel=0.02, abs=2e-3), name
    for (name, one), two in zip(learners[0].model.named_parameters(), learners[1].model.parameters()):
        np.testing.assert_allclose(two.detach().cpu().numpy(), one.detach().numpy(), rtol=0.02, atol=2e-3, err_msg=name)
