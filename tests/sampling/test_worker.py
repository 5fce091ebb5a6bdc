"""The worker process as its envs see it, and what the pool does with its pipes."""

import ast
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
from faulty_envs import Marker
from marking import MarkPolicy
from running import SUPPORT, wait_until

from rollmill.core.child import Parent
from rollmill.core.errors import EnvError
from rollmill.core.seeds import Seeds
from rollmill.core.slots import Arena, SegmentLayout
from rollmill.envs.batch import NoWatch
from rollmill.envs.make import EnvInstance, make_env
from rollmill.envs.probe import probe_here
from rollmill.envs.settings import EnvSettings
from rollmill.sampling import worker as worker_module
from rollmill.sampling.mailbox import Mailbox, Wakeup
from rollmill.sampling.policies.random import RandomPolicy
from rollmill.sampling.pool import ProcessPool
from rollmill.sampling.sampler import Sampler, SamplerPlan
from rollmill.sampling.settings import SamplingSettings
from rollmill.sampling.worker import Listener, ProcessSetup, Worker, WorkerPlan, WorkerProcess


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
    rounds_until(sampler, lambda: sampler.box.done.all())
    reports = {int(path.name): ast.literal_eval(path.read_text()) for path in tmp_path.iterdir()}
    assert sorted(reports) == [0, 1, 2, 3]
    cores = sorted(os.sched_getaffinity(0))
    for env, report in reports.items():
        assert report["torch"] is False
        assert report["sigint_ignored"] is True
        assert report["cores"] == [cores[env // 2 % len(cores)]]
        assert report["pid"] != os.getpid()
        assert report["frozen"] > 1000, "the garbage collector leaves alone what stands from the start"
        assert report["passed_on"] == [], "a simulator must not keep our memory and pipes alive"
    assert len({report["pid"] for report in reports.values()}) == 2


def test_without_affinity_the_worker_may_use_every_core(tmp_path: Path) -> None:
    sampler = sampler_of(EnvSettings(id="faulty_envs:Inspector", args={"folder": str(tmp_path)}), affinity=False)
    rounds_until(sampler, lambda: sampler.box.done.all())
    report = ast.literal_eval((tmp_path / "0").read_text())
    assert report["cores"] == sorted(os.sched_getaffinity(0))


@pytest.mark.parametrize("module", ["rollmill.sampling.worker", "rollmill.envs.probe", "rollmill.monitor.console"])
def test_importing_it_does_not_bring_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_envs_are_numbered_over_the_whole_run() -> None:
    sampler = sampler_of(EnvSettings(id="faulty_envs:Marker"), groups=2, envs_per_worker=4, workers=3)
    plans = sampler.pool._plans  # type: ignore[attr-defined]
    numbers = [list(plan.envs_of(group)) for plan in plans for group in range(plan.groups)]
    assert numbers == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11]]
    assert isinstance(plans[0], WorkerPlan)
    sampler.stop()


def test_workers_end_with_the_sampler() -> None:
    sampler = sampler_of(EnvSettings(id="faulty_envs:Marker"))
    assert isinstance(sampler.pool, ProcessPool)
    sampler.start()
    pids = sampler.pool.pids()
    assert len(pids) == 2
    sampler.stop()
    assert sampler.pool.pids() == []
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_no_descriptor_is_left_open() -> None:
    """A process that runs many samplers must not collect their pipes and memory."""

    def once() -> int:
        sampler = sampler_of(EnvSettings(id="faulty_envs:Marker"))
        rounds_until(sampler, lambda: sampler.finished)
        gc.collect()  # what earlier tests left to the collector must not go in between
        return len(os.listdir("/proc/self/fd"))

    assert once() == once()


def test_a_dead_worker_s_pipes_do_not_keep_the_sampler_busy() -> None:
    """A closed pipe is always "readable": polling it would burn a core until the worker is replaced."""
    sampler = sampler_of(EnvSettings(id="faulty_envs:Marker"), worker_restarts=0, workers=1)
    pool = sampler.pool
    assert isinstance(pool, ProcessPool)
    sampler.start()
    try:
        wait_until(lambda: sampler.round(0.1) and sampler.finished)
        child = pool._children[0]
        assert child is not None
        child.end()
        for _ in range(5):
            pool.wait(0)  # hears the end of both pipes
        assert pool._poll.poll(0) == []
    finally:
        sampler.stop()


def test_failures_that_arrive_while_stopping_do_not_keep_the_others_alive(caplog: pytest.LogCaptureFixture) -> None:
    """Both workers report the end of their envs at once: the first is raised, the second only logged."""
    env = EnvSettings(id="faulty_envs:Misbehave", args={"where": "step"}, fault_limit=0)
    settings = SamplingSettings(mode="sync", workers=2, envs_per_worker=1, groups=1, rollout=4)
    spec = make_env(env).spec
    plan = SamplerPlan(settings, env, spec, Seeds(0), 1, environment=os.environ, lockstep=True)
    sampler = Sampler(plan, [RandomPolicy(spec, 0)])
    pool = sampler.pool
    assert isinstance(pool, ProcessPool)
    sampler.start()
    try:
        wait_until(lambda: sampler.round(0.1))  # both are told to step
        for child in pool._children:
            assert child is not None
            child.ends_within(None)  # both have sent their last words
        with pytest.raises(EnvError, match="told to raise"):
            wait_until(lambda: pool.check().size)
    finally:
        sampler.stop()
    assert pool.pids() == []
    assert "while stopping: env" in caplog.text


def test_what_workers_have_to_say_may_be_long() -> None:
    sampler = sampler_of(EnvSettings(id="faulty_envs:Talkative"), workers=1)
    rounds_until(sampler, lambda: len(sampler.pool.report.episode_stats) >= 3)
    _, _, stats = sampler.pool.report.episode_stats[0]
    assert stats == {"n" * 2_000_000: 1.0}


def test_the_worker_counts_its_time() -> None:
    sampler = sampler_of(EnvSettings(id="faulty_envs:Marker"), workers=1)
    rounds_until(sampler, lambda: sampler.finished)
    assert sampler.box.seconds_env[0] > 0
    assert sampler.box.seconds_wait[0] > 0
    assert np.isfinite(sampler.box.seconds_env).all()


# -- ends ------------------------------------------------------------------------------------------------


def test_signals_are_the_main_process_s_business() -> None:
    """A Ctrl-C reaches the whole process group; the workers go on until they are told to stop."""
    sampler = sampler_of(EnvSettings(id="faulty_envs:Marker"), workers=1, affinity=False)
    pool = sampler.pool
    assert isinstance(pool, ProcessPool)
    sampler.start()
    try:
        wait_until(lambda: sampler.round() and sampler.finished)
        (pid,) = pool.pids()
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(pid, number)
        before = len(sampler.finished)
        sampler.release(sampler.take(before, 0) or [])
        wait_until(lambda: sampler.round() >= 0 and len(sampler.finished) >= 2)
        assert pool.pids() == [pid]
        assert pool.report.worker_restarts == 0
    finally:
        sampler.stop()


PARENT = """
import os, time
from rollmill.core.seeds import Seeds
from rollmill.envs.batch import STEP
from rollmill.envs.make import make_env
from rollmill.envs.settings import EnvSettings
from rollmill.sampling.policies.random import RandomPolicy
from rollmill.sampling.sampler import Sampler, SamplerPlan
from rollmill.sampling.settings import SamplingSettings

env = EnvSettings(id="faulty_envs:Misbehave", args={"what": "hang"})
settings = SamplingSettings(mode="sync", workers=2, envs_per_worker=1, groups=1, rollout=4)
spec = make_env(env).spec
sampler = Sampler(SamplerPlan(settings, env, spec, Seeds(0), 1, environment=os.environ), [RandomPolicy(spec, 0)])
sampler.start()
while not (sampler.box.phase == STEP).all():
    sampler.round()
print(*sampler.pool.pids(), flush=True)
time.sleep(3600)
"""


def test_workers_end_when_their_parent_is_killed() -> None:
    """Even those that hang in their env and will never look for it."""
    path = os.pathsep.join([str(SUPPORT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) == 2
        assert all(lives(pid) for pid in pids)
        parent.kill()
    wait_until(lambda: not any(lives(pid) for pid in pids), what="the workers to end")


def lives(pid: int) -> bool:
    """Whether it runs; a zombie does not, whoever fails to bury it."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_where_the_system_does_not_help_the_worker_looks_for_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody notifies it and its parent is another process: it closes its envs and ends."""
    monkeypatch.setattr(worker_module, "PARENT_CHECK_SECONDS", 0.01)
    journal = tmp_path / "journal"
    env = EnvSettings(id="faulty_envs:Misbehave", args={"env": 99, "journal": str(journal)})
    with served(env) as setup:
        WorkerProcess(setup, NOBODY).serve()
    assert journal.read_text().splitlines()[2:] == ["constructor 0", "constructor 1", "close 0", "close 1"]


def test_a_worker_with_a_core_of_its_own_looks_out_before_it_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    with served(EnvSettings(id="faulty_envs:Marker")) as setup:
        process = WorkerProcess(replace(setup, awake=True), NOBODY)
        assert process._look_out() is False, "nothing came in time"
        monkeypatch.setattr(worker_module, "AWAKE_SECONDS", 100.0)
        order = threading.Timer(0.1, lambda: process._box.command.__setitem__(0, 1))
        order.start()
        assert process._sleep() is True
        assert process._box.sleeping[0] == 0
        order.join()
        process._worker.close()


def test_a_command_that_comes_while_a_worker_falls_asleep_is_seen() -> None:
    """It says that it sleeps, and looks once more: nobody has notified it, and it does not wait."""
    with served(EnvSettings(id="faulty_envs:Marker")) as setup:
        process = WorkerProcess(setup, NOBODY)
        process._box.command[0] = 1
        assert process._sleep() is True
        assert process._box.sleeping[0] == 0
        process._worker.close()


def layout_of(env: EnvSettings) -> SegmentLayout:
    look = make_env(env)
    look.close()
    return SegmentLayout(look.spec, steps=4, lanes=2)


NOBODY = Parent(pid=0, events_fd=-1)


@contextmanager
def served(env: EnvSettings) -> Iterator[ProcessSetup]:
    """What a worker of one group of two envs is given, by a parent that does not exist."""
    layout = layout_of(env)
    arena, box, wakeups = Arena(layout, 1), Mailbox(1, 1, 2), [Wakeup.create(), Wakeup.create()]
    yield ProcessSetup(
        plan=WorkerPlan(0, env, layout, Seeds(0), groups=1, envs_per_group=2),
        slots=1,
        arena=(os.dup(arena.block.fd), arena.block.nbytes),
        mailbox=(os.dup(box.block.fd), box.block.nbytes),
        shape=(1, 1, 2),
        main_wakeup=(wakeups[0].fd, wakeups[0].notify_fd),
        own_wakeup=(wakeups[1].fd, wakeups[1].notify_fd),
        core=None,
        awake=False,
        shares_inference_core=False,
        nice=0,
    )
    for wakeup in wakeups:
        wakeup.close()


# -- the worker itself, without a process ----------------------------------------------------------------


def worker_of(env: EnvSettings, index: int = 1, groups: int = 2) -> tuple[Worker, Arena, Mailbox]:
    layout = layout_of(env)
    arena, box = Arena(layout, 2 * groups), Mailbox(2 * groups, 2, 4 * groups)
    box.slot[:], box.row[:] = np.arange(2 * groups), -1
    box.next_episode[:] = 100 * np.arange(4 * groups)
    plan = WorkerPlan(index, env, layout, Seeds(0), groups, envs_per_group=2)
    listener = Listener(on_fault=lambda fault: None, on_episode=lambda *told: None)
    return Worker(plan, arena, box, NoWatch(), listener), arena, box


def test_a_worker_does_what_waits_and_nothing_else() -> None:
    worker, arena, box = worker_of(EnvSettings(id="faulty_envs:Marker"))
    assert worker.groups == range(2, 4)
    assert worker.work() == 0
    box.command[[0, 3]] = 1  # group 0 is another worker's
    assert worker.work() == 1
    assert box.done.tolist() == [0, 0, 0, 1]
    assert arena.obs["where"][3, 0, :, 0].tolist() == [6, 7]
    assert not arena.obs["where"][:3].any()
    assert worker.work() == 0
    box.command[2:] += 1
    box.row[3] = 0
    arena["action"][3, 0] = [3, 4]
    assert worker.work() == 2
    assert arena.obs["where"][3, 1, :, 4].tolist() == [3, 4]
    assert arena["valid"][3, 0].all()
    assert arena["first"][2, 0].all()
    worker.close()


def test_the_episodes_in_use_are_known_outside() -> None:
    """Whoever replaces this worker must not repeat them."""
    worker, arena, box = worker_of(EnvSettings(id="faulty_envs:Marker"))
    box.command[3] = 1
    worker.work()
    assert arena["episode"][3, 0].tolist() == [600, 700]
    assert box.next_episode.tolist() == [0, 100, 200, 300, 400, 500, 601, 701]


def test_a_worker_that_cannot_be_built_closes_what_stands(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    args = {"where": "constructor", "env": 6, "journal": str(journal)}
    with pytest.raises(EnvError, match=r"env 6 .* failed in constructor"):
        worker_of(EnvSettings(id="faulty_envs:Misbehave", args=args, fault_limit=1))
    lines = journal.read_text().splitlines()[2:]  # after the look at its spec
    assert lines == ["constructor 4", "constructor 5", "constructor 6", "constructor 6", "close 4", "close 5"]


def test_workers_step_vector_envs() -> None:
    """Groups of their own vectorised form in worker processes: lanes tell who they are and how far."""
    env = EnvSettings(id="vector_envs:Counter", vector=True)
    spec = probe_here(env)
    settings = SamplingSettings(mode="sync", workers=2, envs_per_worker=4, groups=2, rollout=8)
    plan = SamplerPlan(settings, env, spec, Seeds(0), 4, environment=os.environ)
    sampler = Sampler(plan, [RandomPolicy(spec, 0)])
    rounds_until(sampler, lambda: len(sampler.finished) >= 4)
    for slot in sampler.finished:
        segment = sampler.arena.segment(slot)
        np.testing.assert_array_equal(segment["obs:obs"][:, :, 0], np.broadcast_to([0, 1], (9, 2)))
        np.testing.assert_array_equal(segment["obs:obs"][:, :, 2], segment["step"])
    assert {(end.length, end.episode_return) for end in sampler.episodes} == {(3, 3.0), (4, 8.0)}


def test_a_vector_env_that_hangs_is_replaced(tmp_path: Path) -> None:
    """The limit is far beyond what a slow machine takes for a step; once the env hangs, its time is put back."""
    hangs = tmp_path / "once"
    args = {"what": "hang", "at_step": 3, "once": str(hangs)}
    env = EnvSettings(id="vector_envs:Counter", vector=True, args=args)
    spec = probe_here(env)
    settings = SamplingSettings(mode="sync", workers=1, envs_per_worker=2, groups=1, rollout=8, step_timeout=300)
    sampler = Sampler(SamplerPlan(settings, env, spec, Seeds(0), 1, environment=os.environ), [RandomPolicy(spec, 0)])

    def hang_was_noticed() -> bool:
        if hangs.exists() and not sampler.pool.report.worker_restarts:
            sampler.box.since[0] = time.monotonic() - 301
        return len(sampler.finished) >= 1

    rounds_until(sampler, hang_was_noticed)
    assert sampler.pool.report.worker_restarts == 1
    assert sampler.arena.segment(sampler.finished[0])["episode"].min() > 0, "no episode number is used twice"


def test_only_single_envs_have_episode_seeds() -> None:
    layout = SegmentLayout(Marker(EnvInstance()).spec, 4, 1)
    plans = [WorkerPlan(0, EnvSettings(id="CartPole-v1", vector=v), layout, Seeds(0), 1, 1) for v in (False, True)]
    assert isinstance(plans[0].episode_seed(0, 0), int)
    assert plans[1].episode_seed(0, 0) is None
