"""The worker process as its envs see it, and what the crew does with its pipes."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from faulty_envs import Marker
from marking import MarkPolicy
from rollmill.core.errors import EnvError
from rollmill.core.seeds import Seeds
from rollmill.envs.make import EnvInstance, make_env
from rollmill.envs.settings import EnvSettings
from rollmill.sampling.crew import ProcessCrew
from rollmill.sampling.random_policy import RandomPolicy
from rollmill.sampling.sampler import Sampler, SamplerPlan
from rollmill.sampling.settings import SamplingSettings
from rollmill.sampling.worker import WorkerPlan
from running import wait_until


def sampler_of(env: EnvSettings, **settings: object) -> Sampler:
    values = {"mode": "sync", "workers": 2, "envs_per_worker": 2, "groups": 1, "rollout": 4, **settings}
    spec = Marker(EnvInstance()).spec
    plan = SamplerPlan(SamplingSettings(**values), env, spec, Seeds(0), 1, environment=os.environ)  # type: ignore[arg-type]
    return Sampler(plan, [MarkPolicy(spec)])


def rounds_until(sampler: Sampler, done: object) -> None:
    """Run rounds until ``done()``; a sampler that fails is stopped."""
    sampler.start()
    try:
        wait_until(lambda: sampler.round() >= 0 and done())  # type: ignore[operator]
    finally:
        sampler.stop()


def test_what_an_env_sees_in_its_worker(tmp_path: Path) -> None:
    """No torch, one core, Ctrl-C ignored, and the variables it was given."""
    sampler = sampler_of(EnvSettings(id="faulty_envs:Inspector", args={"folder": str(tmp_path)}), affinity=True)
    rounds_until(sampler, lambda: sampler.finished)
    reports = {int(path.name): ast.literal_eval(path.read_text()) for path in tmp_path.iterdir()}
    assert sorted(reports) == [0, 1, 2, 3]
    cores = sorted(os.sched_getaffinity(0))
    for env, report in reports.items():
        assert report["torch"] is False
        assert report["sigint_ignored"] is True
        assert report["cores"] == [cores[env // 2 % len(cores)]]
        assert report["pid"] != os.getpid()
    assert len({report["pid"] for report in reports.values()}) == 2


def test_without_affinity_the_worker_may_use_every_core(tmp_path: Path) -> None:
    sampler = sampler_of(EnvSettings(id="faulty_envs:Inspector", args={"folder": str(tmp_path)}), affinity=False)
    rounds_until(sampler, lambda: sampler.finished)
    report = ast.literal_eval((tmp_path / "0").read_text())
    assert report["cores"] == sorted(os.sched_getaffinity(0))


@pytest.mark.parametrize("module", ["rollmill.sampling.worker", "rollmill.envs.probe", "rollmill.monitor.console"])
def test_importing_it_does_not_bring_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_envs_are_numbered_over_the_whole_run() -> None:
    sampler = sampler_of(EnvSettings(id="faulty_envs:Marker"), groups=2, envs_per_worker=4, workers=3)
    plans = sampler.crew._plans  # type: ignore[attr-defined]
    numbers = [list(plan.envs_of(group)) for plan in plans for group in range(plan.groups)]
    assert numbers == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11]]
    assert isinstance(plans[0], WorkerPlan)
    sampler.stop()


def test_workers_end_with_the_sampler() -> None:
    sampler = sampler_of(EnvSettings(id="faulty_envs:Marker"))
    assert isinstance(sampler.crew, ProcessCrew)
    sampler.start()
    pids = sampler.crew.pids()
    assert len(pids) == 2
    sampler.stop()
    assert sampler.crew.pids() == []
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_no_descriptor_is_left_open() -> None:
    """A process that runs many samplers must not collect their pipes and memory."""

    def once() -> int:
        sampler = sampler_of(EnvSettings(id="faulty_envs:Marker"))
        rounds_until(sampler, lambda: sampler.finished)
        return len(os.listdir("/proc/self/fd"))

    assert once() == once()


def test_a_dead_worker_s_pipes_do_not_keep_the_sampler_busy() -> None:
    """A closed pipe is always "readable": polling it would burn a core until the worker is replaced."""
    sampler = sampler_of(EnvSettings(id="faulty_envs:Marker"), worker_restarts=0, workers=1)
    crew = sampler.crew
    assert isinstance(crew, ProcessCrew)
    sampler.start()
    try:
        wait_until(lambda: sampler.round(0.1) and sampler.finished)
        handle = crew._handles[0]
        assert handle is not None
        handle.process.kill()
        handle.process.wait()
        for _ in range(5):
            crew.wait(0)  # hears the end of both pipes
        assert crew._poll.poll(0) == []
    finally:
        sampler.stop()


def test_failures_that_arrive_while_stopping_do_not_keep_the_others_alive(caplog: pytest.LogCaptureFixture) -> None:
    """Both workers report the end of their envs at once: the first is raised, the second only logged."""
    env = EnvSettings(id="faulty_envs:Misbehave", args={"where": "step"}, fault_limit=0)
    settings = SamplingSettings(mode="sync", workers=2, envs_per_worker=1, groups=1, rollout=4)
    spec = make_env(env).spec
    plan = SamplerPlan(settings, env, spec, Seeds(0), 1, environment=os.environ, lockstep=True)
    sampler = Sampler(plan, [RandomPolicy(spec, 0)])
    crew = sampler.crew
    assert isinstance(crew, ProcessCrew)
    sampler.start()
    try:
        wait_until(lambda: sampler.round(0.1))  # both are told to step
        for handle in crew._handles:
            assert handle is not None
            handle.process.wait()  # both have sent their last words
        with pytest.raises(EnvError, match="told to raise"):
            wait_until(lambda: crew.check().size)
    finally:
        sampler.stop()
    assert crew.pids() == []
    assert "while stopping: env" in caplog.text


def test_the_worker_counts_its_time() -> None:
    sampler = sampler_of(EnvSettings(id="faulty_envs:Marker"), workers=1)
    rounds_until(sampler, lambda: sampler.finished)
    assert sampler.box.seconds_env[0] > 0
    assert sampler.box.seconds_wait[0] > 0
    assert np.isfinite(sampler.box.seconds_env).all()
