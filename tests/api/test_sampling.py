"""Segments for a learner of one's own, single environments, and collected episodes."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from own_envs import corridor_class

import rollmill
from rollmill.core.errors import ConfigError, PolicyError
from rollmill.core.fields import EnvSpec

SMALL = {"rollout": 8, "workers": 2, "envs_per_worker": 4, "groups": 2, "affinity": False}
SERIAL = {**SMALL, "mode": "serial"}


@pytest.mark.parametrize("mode", ["async", "serial"])
def test_segments_come_until_the_loop_is_left(mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    seen, workers = set(), 0
    before = set(psutil.Process().children(recursive=True))  # of other tests: Python's resource tracker, for instance
    for segment in rollmill.sample("toy_target", sampling={**SMALL, "mode": mode}):
        assert segment.actions.shape == segment.rewards.shape == (8, 2)
        assert segment.obs["obs"].shape[:2] == (9, 2)
        seen.add((segment.worker, segment.lanes))
        workers = max(workers, len(set(psutil.Process().children()) - before))
        if len(seen) == 4:  # two groups of each worker
            break
    assert {worker for worker, _ in seen} == {0, 1}
    assert workers >= (3 if mode == "async" else 1), "two workers, and the janitor"
    assert set(psutil.Process().children(recursive=True)) <= before
    assert not list(tmp_path.iterdir())


def test_the_policy_decides_and_what_it_says_is_kept() -> None:
    asked: list[tuple[int, ...]] = []

    def policy(obs: np.ndarray) -> tuple[Any, Any, Any]:
        asked.append(obs.shape)
        return torch.ones(len(obs), dtype=torch.int64), np.full(len(obs), -0.5), obs[:, 0]

    for segment in itertools.islice(rollmill.sample(corridor_class(), policy, sampling=SERIAL), 4):
        assert (segment.actions == 1).all()
        assert (segment.log_probs == -0.5).all()
        np.testing.assert_array_equal(segment.values, segment.obs["obs"][..., 0])
        assert set(segment.rewards[segment.terminated].tolist()) <= {1.0}
    assert {shape[1:] for shape in asked} == {(1,)}


def test_segments_are_the_callers_own() -> None:
    segments = rollmill.sample("toy_target", sampling=SERIAL)
    first = next(segments)
    kept = first.rewards.copy()
    for _ in range(10):
        next(segments)
    np.testing.assert_array_equal(first.rewards, kept)
    segments.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (lambda obs: 1 / 0, "the policy failed: ZeroDivisionError"),
        (lambda obs: np.zeros(3), r"returned actions of float64 \(3,\), expected int"),
        (lambda obs: np.zeros(len(obs)), r"returned actions of float64 .*, expected int"),
        (lambda obs: (np.zeros(len(obs), int), np.zeros((len(obs), 1))), "returned log_probs of float64"),
        (lambda obs: (np.zeros(len(obs), int), 0, 0, 0), "returned 4 arrays"),
    ],
)
def test_a_policy_that_is_wrong_is_told(policy: Any, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        next(rollmill.sample(corridor_class(), policy, sampling=SERIAL))


def test_settings_that_are_wrong_are_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="which environment"):
        rollmill.sample()
    with pytest.raises(ConfigError, match="clever: expected random, "):
        rollmill.sample("toy_target", "clever")
    with pytest.raises(ConfigError, match="policy: expected a policy, or a callable"):
        rollmill.sample("toy_target", 3)  # type: ignore[arg-type]


def test_one_environment() -> None:
    env = rollmill.make_env(corridor_class(), length=4)
    assert isinstance(env.spec, EnvSpec)
    obs = {"obs": np.zeros((1, 1), np.float32)}
    env.reset(0, obs)
    env.step(np.array([1]), obs)
    assert obs["obs"][0, 0] == 0.25
    env.close()
    with pytest.raises(ConfigError, match=r"env.args.lenth: .* did you mean 'length'"):
        rollmill.make_env(corridor_class(), lenth=4)


@pytest.mark.parametrize("mode", ["async", "serial"])
def test_collecting_with_an_own_environment_and_an_own_policy(tmp_path: Path, mode: str) -> None:
    def make(spec: EnvSpec) -> Any:
        return lambda obs: 1

    store = rollmill.collect(
        corridor_class(), make, out=tmp_path / "data", episodes=6, seed=1, sampling={"mode": mode, "workers": 1}
    )
    assert store.table.length.tolist() == [3] * 6
    assert store.table.return_.tolist() == [1.0] * 6


def test_collecting_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="how much is to be collected"):
        rollmill.collect("toy_target", out=tmp_path / "data")
