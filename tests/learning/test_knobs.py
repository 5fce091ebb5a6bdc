"""Every knob of APPO has an effect: the same segments, one setting changed, other weights (or another rate)."""

import os
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from running import config_of

from rollmill.envs.probe import probe_here
from rollmill.learning.appo import Appo
from rollmill.learning.knobs import DeviceKnobs
from rollmill.learning.settings import IN_STEP, LIVE, LearningSettings
from rollmill.models.acting.weights import WeightBoard
from rollmill.models.actor_critic import build_model
from rollmill.runs.train.build import build_parts

BASE = (
    "env=Pendulum-v1",
    "sampling.mode=serial",
    "learning.batch_size=64",
    "learning.minibatches=2",
    "learning.epochs=2",
    "learning.learning_rate=0.01",
)
VTRACE = ("learning.targets=vtrace",)
LINEAR = ("learning.lr_schedule=linear",)
KNOBS = {
    # name: (another value, settings it needs)
    "targets": ("vtrace", ()),
    "gamma": (0.5, ()),
    "gae_lambda": (0.5, ()),
    "rho_bar": (0.5, VTRACE),
    "c_bar": (0.5, VTRACE),
    "minibatches": (4, ()),
    "epochs": (3, ()),
    "learning_rate": (0.001, ()),
    "lr_schedule": ("cosine", LINEAR),
    "lr_end": (0.005, LINEAR),
    "kl_target": (1e-6, ("learning.lr_schedule=kl_adaptive",)),
    "adam_eps": (0.01, ()),
    "max_grad_norm": (0.01, ()),
    "clip": (0.01, ()),
    "value_clip": (0.001, ()),
    "value_coefficient": (2.0, ()),
    "entropy_coefficient": (0.3, ()),
    "entropy_end": (0.3, ()),
    "normalize_advantages": (False, ()),
    "normalize_returns": (False, ()),
    "reward_scale": (0.1, ()),
    "reward_clip": (0.5, ()),
    "target_kl": (1e-9, ()),
}
ELSEWHERE = {
    # They change how the same is computed, or who may be learnt from; tests beside what they steer.
    *("algorithm", "device", "threads", "ranks", "precision", "batch_size", "micro_batch"),
    *("recurrence", "exploration", "max_policy_lag", "collapse_patience", "custom", "custom_args", "frozen", "eager"),
    *("meet", "rank_timeout", "rank_silence"),
}


def test_no_knob_is_forgotten() -> None:
    assert KNOBS.keys() | ELSEWHERE == {field.name for field in fields(LearningSettings)}
    assert not KNOBS.keys() & ELSEWHERE


@pytest.fixture(scope="module")
def rig():
    """Segments of one batch, and the spec they belong to."""
    config = config_of(Path(), *BASE)
    spec = probe_here(config.env)
    parts = build_parts(config, spec, os.environ)
    parts.sampler.start()
    while (slots := parts.sampler.take(parts.segments_per_batch, timeout=0)) is None:
        parts.sampler.round()
    segments = {name: array.copy() for name, array in parts.sampler.arena.gather(slots).items()}
    return spec, parts.learners[0].model.state_dict(), segments


def learner_of(rig, *overrides: str) -> Appo:
    """A learner with the same weights as others."""
    config = config_of(Path(), *BASE, *overrides)
    model = build_model(rig[0], config.model)
    model.load_state_dict(rig[1])
    return Appo(model, WeightBoard(model), config.learning, seed=0)


def learnt(rig, *overrides: str) -> tuple:
    """Weights and the next rate after two batches, in the middle of a run."""
    learner = learner_of(rig, *overrides)
    for _ in range(2):
        learner.train(rig[2], progress=0.4)
    return learner.state()["rate"], [x.tolist() for x in learner.model.parameters()]


def test_the_same_settings_learn_the_same(rig) -> None:
    assert learnt(rig) == learnt(rig)


@pytest.mark.parametrize("name", KNOBS)
def test_a_knob_changes_what_is_learnt(rig, name: str) -> None:
    value, needs = KNOBS[name]
    assert learnt(rig, *needs, f"learning.{name}={value}") != learnt(rig, *needs)


LIVE_WORDS = ("learning.value_clip=0.3", "learning.reward_clip=5", "learning.target_kl=10", *VTRACE)


@pytest.mark.parametrize("targets", ["gae", "vtrace"])
def test_what_graphs_read_is_what_the_numbers_say(rig, targets: str) -> None:
    """As tensors, in the way a CUDA graph has them, and as numbers: the same gradients and metrics."""
    learners = [
        learner_of(rig, "learning.value_clip=0.3", f"learning.targets={targets}", "learning.max_grad_norm=0.05")
        for _ in range(2)
    ]
    on_device = DeviceKnobs(learners[1].settings, learners[1].device)
    on_device.take(learners[1].settings)
    learners[1]._step.knobs = on_device
    metrics = [learner.train(rig[2]) for learner in learners]
    assert metrics[0] == pytest.approx(metrics[1], rel=1e-4, abs=1e-6)
    for one, two in zip(*(learner.model.parameters() for learner in learners), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", LIVE)
def test_a_number_that_is_changed_in_a_run_is_as_if_it_had_been_set(rig, name: str) -> None:
    value = {
        "gamma": 0.5,
        "gae_lambda": 0.5,
        "learning_rate": 0.001,
        "value_coefficient": 2.0,
        "target_kl": 1e-9,
        "epochs": 3,
    }.get(name, 0.02)
    changed, begun = learner_of(rig, *LIVE_WORDS), learner_of(rig, *LIVE_WORDS, f"learning.{name}={value}")
    plain = learner_of(rig, *LIVE_WORDS)
    changed.set_knobs({name: value})
    results = [learner.train(rig[2]) for learner in (changed, begun, plain)]
    assert results[0] == results[1]
    assert results[0] != results[2]
    on_device = DeviceKnobs(plain.settings, plain.device)
    on_device.take(begun.settings)
    if name in IN_STEP:
        assert float(getattr(on_device, name)) == value
