"""Runs with several tasks: what is learnt, how frames are shared out, what rows and recordings say."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from running import SERIAL, rows_of, train_here

from rollmill.core.checkpoints import Checkpoints, load_checkpoint
from rollmill.core.config.load import load_config
from rollmill.core.errors import ConfigError
from rollmill.core.fields import TASK_FIELD
from rollmill.core.run_folder import RunFolder
from rollmill.core.seeds import Seeds
from rollmill.core.slots import OBS
from rollmill.envs.make import make_env
from rollmill.envs.settings import EnvSettings
from rollmill.runs.checkpoints.saved import list_saved
from rollmill.runs.lifecycle import Request
from rollmill.runs.settings.sizing import Machine, resolve
from rollmill.runs.settings.train import TrainConfig, check
from rollmill.runs.train.build import must_wait
from rollmill.runs.train.run import train
from rollmill.sampling.policies.random import RandomPolicy
from rollmill.sampling.sampler import Sampler, SamplerPlan, SamplerThread
from rollmill.sampling.settings import SamplingSettings
from rollmill.store.filters import Filter
from rollmill.store.reader import Store

PAIR = ("env=toy_pair", "sampling.mode=serial", "learning.learning_rate=1e-3", "stop.frames=130_000")
PAIR += ("learning.batch_size=1024", "model.mlp=[64,64]", "report.page=false", "report.tensorboard=false")
PACED = tuple(
    {"name": name, "id": "paced_envs:Paced", "args": {"seconds": seconds}}
    for name, seconds in (("slow", 0.004), ("middle", 0.001), ("fast", 0.0))
)


@pytest.mark.parametrize("by_task", [True, False])
def test_a_task_of_small_rewards_is_learnt_beside_one_of_large_ones(tmp_path: Path, by_task: bool) -> None:
    words = (*PAIR, f"model.returns_by_task={by_task}".lower(), f"run.dir={tmp_path}")
    config = load_config(TrainConfig, [], words)
    train(config, Request(console="off"))
    row = rows_of(RunFolder(config.folder))[-1]
    assert row["task/large/score"] >= 95
    assert row["task/small/score"] >= 95 if by_task else row["task/small/score"] < 60
    assert row["task/small/frames"] == pytest.approx(row["task/large/frames"], rel=0.01)
    scores = [min(100, row[f"task/{name}/score"]) for name in ("small", "large")]
    assert row["suite/score"] == pytest.approx(np.mean(scores))


def sample(spread: str, segments: int) -> dict[str, int]:
    """Steps of each task in so many segments of an async sampler whose groups cannot hold every task.

    Whether groups wait for each other is decided as in a training.
    """
    env = EnvSettings(tasks=PACED, task_spread=spread)  # type: ignore[arg-type]
    spec = make_env(env).spec
    settings = SamplingSettings(mode="async", workers=3, envs_per_worker=2, groups=2, rollout=10, affinity=False)
    even = must_wait(TrainConfig(env=env, sampling=settings), spec)
    plan = SamplerPlan(settings, env, spec, Seeds(1), 3, environment=os.environ, even=even)
    sampler = Sampler(plan, [RandomPolicy(spec, 0)])
    steps = np.zeros(3, np.int64)
    sampler.start()
    thread = SamplerThread(sampler)
    thread.start()
    try:
        for _ in range(segments):
            slots = None
            while slots is None:
                slots = sampler.take(1, timeout=1.0)
            segment = sampler.arena.segment(slots[0])
            valid = segment["valid"][:-1]
            steps += (segment[OBS + TASK_FIELD][:-1] * valid[..., None]).sum((0, 1)).astype(np.int64)
            sampler.release(slots)
    finally:
        thread.stop()
        sampler.stop()
    return dict(zip(("slow", "middle", "fast"), steps.tolist(), strict=True))


def test_mixed_tasks_get_equal_shares_however_fast_they_are() -> None:
    steps = sample("mixed", 120)
    assert max(steps.values()) <= 1.05 * min(steps.values())


def test_a_fast_task_with_a_worker_of_its_own_waits_for_nobody() -> None:
    """Groups that wait are at most one segment ahead: 5 % of these, whatever the machine is like."""
    steps = sample("worker", 120)
    assert steps["fast"] > 1.5 * steps["slow"]


# -- what a run leaves ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A short run with everything that tells its tasks apart."""
    words = ("env=toy_pair", "stop.frames=600", "recording.keep=all", "evaluation.final=true", "evaluation.episodes=3")
    saved = ("checkpoints.every_seconds=0", "checkpoints.keep_last=0", "report.every_frames=1")
    return train_here(tmp_path_factory.mktemp("pair"), *SERIAL, *words, *saved)[1]


def test_recorded_episodes_say_which_task_they_are_of(pair: RunFolder) -> None:
    with Store(pair.data) as store:
        assert store.schema.env_id == "toy_pair"
        tasks = {"small": [1, 0], "large": [0, 1]}
        for name, hot in tasks.items():
            chosen = Filter.parse([f"env={name}"]).select(store.table)
            assert len(chosen) > 3
            for i in chosen:
                assert (store.episode(int(i)).obs["task"] == hot).all()


def test_evaluations_beside_a_training_have_figures_of_every_task(pair: RunFolder) -> None:
    row = rows_of(pair)[-1]
    assert {"eval/task/small/return", "eval/task/large/score", "eval/suite_score"} <= set(row)


def test_the_best_checkpoint_of_a_suite_is_the_one_with_the_highest_score(pair: RunFolder) -> None:
    rows = {row["frames"]: row for row in rows_of(pair)}
    best = Checkpoints(pair.checkpoints).best()
    assert best is not None
    scores = [row["suite/score"] for row in rows.values() if "suite/score" in row]
    assert load_checkpoint(best.path).metric == rows[best.step]["suite/score"] == max(scores)
    assert max(rows.values(), key=lambda row: row.get("episode/return", -np.inf))["frames"] != best.step
    (listed,) = (saved for saved in list_saved(pair.path) if "best" in saved.roles)
    assert (listed.by, listed.metric) == ("suite/score", max(scores))


def test_the_page_of_a_run_has_a_line_and_a_curve_for_every_task(pair: RunFolder) -> None:
    text = (pair.path / "report.html").read_text(encoding="utf-8")
    own = text[text.index("<h2>Tasks</h2>") :].partition("<h2>")[2].partition("<h2>")[0]
    for title in ("Suite", "small", "large"):
        assert re.search(rf'<h3>{title}</h3><svg [^>]*aria-label="{title}">.*?class="line"', own, re.DOTALL), title
    last = rows_of(pair)[-1]
    for name in ("small", "large"):
        assert re.search(rf">{name}</td><td[^>]*>{last[f'task/{name}/frames']:,.0f}</td>", own), name
    assert "task/small/length" not in re.findall("<h3>(.*?)</h3>", text), "no curve comes twice"


# -- numbers ---------------------------------------------------------------------------------------------


def config(*words: str) -> TrainConfig:
    return load_config(TrainConfig, [], words)


@pytest.mark.parametrize("machine", [Machine(cores=2), Machine(cores=16, gpu=True)])
@pytest.mark.parametrize("mode", ["async", "sync", "serial"])
@pytest.mark.parametrize("env", ["toy_pair", "minigrid_five", "atari_five"])
def test_automatic_numbers_can_be_shared_by_the_tasks(env: str, mode: str, machine: Machine) -> None:
    pytest.importorskip({"minigrid_five": "minigrid", "atari_five": "ale_py"}.get(env, "numpy"))
    found = resolve(config(f"env={env}", f"sampling.mode={mode}"), machine, make_env(EnvSettings(id=env)).spec)
    check(found)
    tasks = {"toy_pair": 2}.get(env, 5)
    assert found.sampling.workers * found.sampling.envs_per_worker % tasks == 0
    by_worker = replace(found.env, task_spread="worker")
    spread = resolve(config(f"env={env}", "env.task_spread=worker", f"sampling.mode={mode}"), machine)
    assert spread.sampling.workers % tasks == 0
    check(replace(spread, env=by_worker))


def test_numbers_that_tasks_cannot_share_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"2 tasks cannot share 3 environments .* near: 2, 4"):
        check(config("env=toy_pair", "sampling.workers=1", "sampling.envs_per_worker=3"))
    with pytest.raises(ConfigError, match=r"2 tasks cannot share 3 sampling.workers"):
        check(config("env=toy_pair", "env.task_spread=worker", "sampling.workers=3"))
    check(config("env=toy_pair", "env.task=small", "sampling.workers=1", "sampling.envs_per_worker=3"))
