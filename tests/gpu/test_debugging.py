"""Looking inside on the device: without graphs Python runs at every step; a NaN is named by its place either way."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from gpu_device import DEVICE, ON_GPU, WORDS
from running import SAC, SERIAL, SMALL, train_here
from sac_rig import MODEL, SPEC, segments_of

from rollmill.core.errors import NonFiniteError
from rollmill.learning.sac import Sac, build_sac
from rollmill.learning.sac_settings import SacSettings
from rollmill.learning.sac_step import GraphSacStep
from rollmill.learning.settings import LearningSettings
from rollmill.learning.step import GraphStep
from rollmill.models.acting.policy import TorchPolicy
from rollmill.models.acting.weights import WeightBoard
from rollmill.models.actor_critic import build_model
from rollmill.models.settings import ModelSettings
from rollmill.runs.train.loop import OnlineRun
from rollmill.runs.train.observers import Observer

EAGER = ("learning.eager=true",)


class Look(Observer):
    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        learner = run.parts.learners[0]
        step = learner.step if isinstance(learner, Sac) else learner._step  # type: ignore[attr-defined]
        self.learns_by_graphs = isinstance(step, GraphStep | GraphSacStep)
        self.acts_plainly = isinstance(run.parts.policies[0], TorchPolicy)
        self.device = next(learner.model.parameters()).device.type  # type: ignore[attr-defined]


@pytest.mark.parametrize("words", [("env=toy_target",), ("env=toy_memory", "model.memory=gru")], ids=["mlp", "gru"])
def test_eager_runs_python_at_every_step(tmp_path: Path, words: tuple[str, ...]) -> None:
    look = Look()
    train_here(tmp_path, *WORDS, *EAGER, *words, "stop.batches=6", observers=[look])
    assert look.device == DEVICE.type
    assert look.acts_plainly
    assert not look.learns_by_graphs


@pytest.mark.parametrize("eager", [True, False])
def test_sac_learns_by_graphs_unless_it_is_eager(tmp_path: Path, eager: bool) -> None:
    look = Look()
    train_here(tmp_path, *SAC, *WORDS, f"learning.eager={eager}".lower(), "stop.frames=512", observers=[look])
    assert look.learns_by_graphs == (ON_GPU and not eager)


def test_breakpoints_in_the_learner_stop(tmp_path: Path) -> None:
    words = [*SMALL, *SERIAL, *WORDS, *EAGER, "env=toy_target", "stop.batches=8", f"run.dir={tmp_path}"]
    places = ("rollmill.learning.step.Step.losses", "rollmill.models.actor_critic.ActorCritic.step")
    asked = "".join(f"import {place.rsplit('.', 2)[0]}\nb {place}\n" for place in places)
    done = subprocess.run(
        [sys.executable, "-m", "pdb", "-m", "rollmill.cli.main", "train", *words],
        input=f"{asked}c\nc\nc\ncl 1\ncl 2\nc\nq\n",
        capture_output=True,
        text=True,
    )
    assert re.search(r"^> \S+\(\d+\)step\(\)", done.stdout, re.MULTILINE), done.stdout
    assert "finished: reached stop.batches=8" in done.stdout, done.stdout + done.stderr


class Spoil(Observer):
    """A weight becomes NaN after graphs were recorded."""

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        if iteration == 8:
            with torch.no_grad():
                run.parts.learners[0].model.head.linear.weight[0, 3] = float("nan")  # type: ignore[attr-defined]


@pytest.mark.parametrize("words", [(), EAGER], ids=["graphs", "eager"])
@pytest.mark.parametrize("algorithm", [("env=toy_target",), (*SAC, "sac.warmup=20")], ids=["appo", "sac"])
def test_a_nan_is_named_by_its_place(tmp_path: Path, words: tuple[str, ...], algorithm: tuple[str, ...]) -> None:
    options = (*algorithm, *WORDS, *words, "sampling.mode=sync", "stop.batches=20")
    with pytest.raises(NonFiniteError, match=r"head\.linear\.weight at index \[0, 3\]"):
        train_here(tmp_path, *options, observers=[Spoil()])


def test_sac_by_graphs_learns_what_it_learns_without(tmp_path: Path) -> None:
    """The same draws and the same noise on one device: ten updates, the last ones of them graphs."""
    learners = []
    for eager in (False, True):
        torch.manual_seed(0)
        network = ModelSettings(**MODEL)  # type: ignore[arg-type]
        model = build_model(SPEC, network).to(DEVICE)
        blocks = (
            LearningSettings(algorithm="sac", eager=eager),
            SacSettings(warmup=0, minibatch=32, capacity=1000),
            network,
        )
        learners.append(build_sac(SPEC, model, WeightBoard(model), blocks, 0))
    for k in range(3):
        one, two = (learner.train(segments_of(seed=k)) for learner in learners)
        for name in ("critic_loss", "policy_loss", "temperature"):
            assert one[name] == pytest.approx(two[name], rel=1e-3, abs=1e-4), name
    for one, two in zip(learners[0].critics.parameters(), learners[1].critics.parameters()):
        np.testing.assert_allclose(one.detach().cpu(), two.detach().cpu(), rtol=1e-3, atol=1e-4)
