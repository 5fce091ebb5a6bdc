"""The trial behind a forecast."""

import os
from pathlib import Path

import pytest

from rollmill.envs.make import make_env
from rollmill.envs.settings import EnvSettings
from rollmill.recording.forecast import Sample
from rollmill.runs.train.size_sample import STEPS, SizeSample, sample_here
from rollmill.store.format.schema import Column, StoreSchema

ZOO = EnvSettings(id="faulty_envs:Zoo", args={"length": 50})
IMAGE = 36 * 36 * 3


def schema_of(env: EnvSettings, *extra: Column) -> StoreSchema:
    made = make_env(env)
    made.close()
    return StoreSchema.for_env(made.spec, extra=extra)


def test_what_a_step_takes() -> None:
    found = sample_here(ZOO, schema_of(ZOO))
    assert found.episode_length == 50
    assert 50 <= found.steps <= STEPS
    assert found.bytes_per_step == pytest.approx(IMAGE * 51 / 50, rel=0.05), "noise, and one more per episode"


def test_pieces_cost_an_image_each() -> None:
    found = sample_here(ZOO, schema_of(ZOO), piece=5)
    assert found.bytes_per_step == pytest.approx(IMAGE * 6 / 5, rel=0.05)
    assert found.episode_length == 50


def test_what_a_policy_says_is_counted() -> None:
    env = EnvSettings(id="toy_target", max_episode_steps=7)
    extra = (Column("log_prob", "float32"), Column("value", "float32", per="obs"))
    plain, more = sample_here(env, schema_of(env)), sample_here(env, schema_of(env, *extra))
    assert plain.episode_length <= 7
    assert 6 <= more.bytes_per_step - plain.bytes_per_step <= 12


def test_agents_count_once() -> None:
    env = EnvSettings(id="recordable_env:Recordable", args={"agents": 3})
    assert sample_here(env, schema_of(env)).steps > 100


def test_an_env_that_cannot_be_closed_has_answered(caplog: pytest.LogCaptureFixture) -> None:
    env = EnvSettings(id="faulty_envs:Misbehave", args={"where": "close"})
    assert sample_here(env, schema_of(EnvSettings(id=env.id, args={"where": "nowhere"}))).steps > 0
    assert f"{env.id}: close() failed with RuntimeError" in caplog.text


def test_in_a_process_of_its_own(tmp_path: Path) -> None:
    trial = SizeSample(ZOO, schema_of(ZOO), 0, 0, os.environ | {"ROLLMILL_SCRATCH": str(tmp_path)})
    found = trial.result(300)
    assert isinstance(found, Sample)
    assert found.bytes_per_step == pytest.approx(IMAGE * 51 / 50, rel=0.05)
    assert not list(tmp_path.iterdir())


def test_why_there_is_none(tmp_path: Path) -> None:
    scratch = os.environ | {"ROLLMILL_SCRATCH": str(tmp_path)}  # what a trial leaves when it is ended goes with its run
    raising = EnvSettings(id="faulty_envs:Misbehave", args={"what": "raise", "at_step": 3})
    found = SizeSample(raising, schema_of(raising), 0, 0, scratch).result(300)
    assert isinstance(found, str)
    assert "told to raise" in found
    hanging = EnvSettings(id="faulty_envs:Misbehave", args={"what": "hang", "at_step": 3})
    assert SizeSample(hanging, schema_of(hanging), 0, 0, scratch).result(2.0) == "it took more than 2 s"
