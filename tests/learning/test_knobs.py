"""Every knob of APPO has an effect: the same segments, one setting changed, other weights (or another rate)."""

import os
from dataclasses import fields
from pathlib import Path

import pytest
from running import config_of

from rollmill.envs.probe import probe_here
from rollmill.learning.appo import Appo
from rollmill.learning.settings import LearningSettings
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
    *("algorithm", "device", "threads", "ranks", "rank_timeout", "precision", "batch_size", "micro_batch"),
    *("recurrence", "exploration", "max_policy_lag", "collapse_patience", "custom", "custom_args", "frozen"),
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


def learnt(rig, *overrides: str) -> tuple:
    """Weights and the next rate after two batches, in the middle of a run."""
    spec, weights, segments = rig
    config = config_of(Path(), *BASE, *overrides)
    model = build_model(spec, config.model)
    model.load_state_dict(weights)
    learner = Appo(model, WeightBoard(model), config.learning, seed=0)
    for _ in range(2):
        learner.train(segments, progress=0.4)
    return learner.state()["rate"], [x.tolist() for x in model.parameters()]


def test_the_same_settings_learn_the_same(rig) -> None:
    assert learnt(rig) == learnt(rig)


@pytest.mark.parametrize("name", KNOBS)
def test_a_knob_changes_what_is_learnt(rig, name: str) -> None:
    value, needs = KNOBS[name]
    assert learnt(rig, *needs, f"learning.{name}={value}") != learnt(rig, *needs)
