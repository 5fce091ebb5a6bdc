"""The workers as the sampler sees them, when they die before they have begun."""

import os
import subprocess
import threading
from typing import Any

import numpy as np
import pytest
from faulty_envs import Marker
from marking import MarkPolicy
from running import wait_until

from rollmill.core import process as process_module
from rollmill.core.errors import WorkerError
from rollmill.core.machine import usable_cores
from rollmill.core.seeds import Seeds
from rollmill.envs.make import EnvInstance
from rollmill.envs.settings import EnvSettings
from rollmill.sampling import placement
from rollmill.sampling import pool as pool_module
from rollmill.sampling.pool import ProcessPool
from rollmill.sampling.sampler import Sampler, SamplerPlan
from rollmill.sampling.settings import SamplingSettings


def sampler_of(*, pin_inference: bool = False, **settings: Any) -> tuple[Sampler, ProcessPool]:
    values = {"mode": "sync", "workers": 2, "envs_per_worker": 1, "groups": 1, "rollout": 4, **settings}
    spec = Marker(EnvInstance()).spec
    env = EnvSettings(id="faulty_envs:Marker")
    plan = SamplerPlan(
        SamplingSettings(**values), env, spec, Seeds(0), 1, environment=os.environ, pin_inference=pin_inference
    )
    sampler = Sampler(plan, [MarkPolicy(spec)])
    assert isinstance(sampler.pool, ProcessPool)
    return sampler, sampler.pool


@pytest.mark.parametrize("restarts", [0, 2])
def test_workers_that_die_before_they_read_their_setup(monkeypatch: pytest.MonkeyPatch, restarts: int) -> None:
    """Nobody reads the pipe any more when the setup is written; the next looks around find them dead."""

    class DeadAtOnce(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, words: list[str], **options: Any) -> None:
            super().__init__(["false"], **options)
            self.wait()

    monkeypatch.setattr(process_module.subprocess, "Popen", DeadAtOnce)
    monkeypatch.setattr(pool_module, "WATCH_SECONDS", 0.0)
    sampler, pool = sampler_of(worker_restarts=restarts)
    sampler.start()
    with pytest.raises(WorkerError, match=rf"exit code 1 outside of any call of an env; replaced {restarts} times"):
        wait_until(lambda: sampler.round(0) < 0)
    sampler.stop()
    assert pool.report.worker_restarts >= restarts
    assert pool.pids() == []


def test_output_without_end_does_not_hold_anybody_up() -> None:
    """The worker is gone, and what it has started writes on into its pipe."""
    sampler, pool = sampler_of(workers=1)
    sampler.start()
    (child,) = pool._children
    assert child is not None
    child.end()
    endless = os.open("/dev/zero", os.O_RDONLY)
    os.dup2(endless, child.output.fd)
    os.close(endless)
    reader = threading.Thread(target=pool._drain, args=(0, child), daemon=True)
    reader.start()
    wait_until(lambda: not reader.is_alive(), what="it to stop reading")
    sampler.stop()


def test_a_worker_has_a_process_group_of_its_own() -> None:
    """Ctrl-C in a terminal goes to the group of the run."""
    sampler, pool = sampler_of()
    sampler.start()
    try:
        assert [os.getpgid(pid) for pid in pool.pids()] == pool.pids()
    finally:
        sampler.stop()


def test_workers_step_back_from_the_thread_that_answers_them() -> None:
    sampler, pool = sampler_of(nice=7)
    sampler.start()
    try:
        nicer = min(19, os.getpriority(os.PRIO_PROCESS, 0) + 7)  # 19 is the nicest there is
        wait_until(lambda: [os.getpriority(os.PRIO_PROCESS, pid) for pid in pool.pids()] == [nicer] * 2)
    finally:
        sampler.stop()


@pytest.mark.skipif(len(usable_cores()) < 2, reason="needs two cores")
@pytest.mark.parametrize("apart", [True, False])
def test_the_thread_that_answers_can_have_a_core_to_itself(apart: bool) -> None:
    cores = usable_cores()
    sampler, pool = sampler_of(workers=1, pin_inference=apart)
    other = threading.Event()
    thread = threading.Thread(target=other.wait)
    thread.start()
    sampler.start()
    sampler.pool.pin_inference_thread()
    try:
        wait_until(lambda: os.sched_getaffinity(pool.pids()[0]) == {cores[0]})
        assert sorted(os.sched_getaffinity(0)) == ([cores[1]] if apart else cores)
        assert thread.native_id is not None
        others = [cores[0], *cores[2:]] if apart else cores
        assert sorted(os.sched_getaffinity(thread.native_id)) == others, "other threads keep off that core"
        while sampler.steps == 0:
            sampler.round()
    finally:
        sampler.stop()
        other.set()
        thread.join()
    assert usable_cores() == cores, "and all are free again afterwards"


@pytest.mark.skipif(len(usable_cores()) < 2, reason="needs two cores")
def test_where_every_core_has_a_worker_the_last_one_steps_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = usable_cores()
    monkeypatch.setattr(placement, "SHARED_FROM", 2)
    sampler, pool = sampler_of(mode="async", workers=len(cores), pin_inference=True)
    sampler.start()
    sampler.pool.pin_inference_thread()
    try:
        assert sorted(os.sched_getaffinity(0)) == cores[-1:]
        while sampler.box.done.min() < 2:  # all serve
            sampler.round()
        policies = [os.sched_getscheduler(pid) for pid in pool.pids()]
        assert policies == [os.SCHED_BATCH] * (len(cores) - 1) + [os.SCHED_IDLE]
    finally:
        sampler.stop()
    assert usable_cores() == cores


@pytest.mark.parametrize("pause", [0.0, 0.001])
def test_staying_awake_ends_with_a_ready_group_and_not_for_want_of_a_slot(
    monkeypatch: pytest.MonkeyPatch, pause: float
) -> None:
    sampler, pool = sampler_of(workers=1)
    box = sampler.box
    assert pool._watch_workers(0.0) is False, "every group is ready: it is something else that is waited for"
    box.command[:] += 1
    assert pool._watch_workers(0.0) is False, "nobody became ready in time"
    monkeypatch.setattr(pool_module, "AWAKE_SECONDS", 100.0)
    finish = threading.Timer(0.1, lambda: box.done.__setitem__(slice(None), box.command))
    finish.start()
    assert pool._watch_workers(pause) is True
    finish.join()
    sampler.stop()


def test_pauses_are_longer_the_more_groups_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler, pool = sampler_of(workers=4)
    box, pauses = sampler.box, []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        box.done[len(pauses) - 1] += 1  # a group becomes ready

    box.wanted[0] = 3
    box.command[:] += 1
    monkeypatch.setattr(pool_module.time, "sleep", pause)
    monkeypatch.setattr(pool_module, "LONGEST_POLL_INTERVAL", 1.25)
    assert pool._watch_workers(0.5) is True
    assert pauses == [1.25, 1.0, 0.5]
    assert box.missing() == 0
    box.done[3:] = box.command[3:]
    assert box.missing() == 0, "more than enough"
    monkeypatch.undo()
    sampler.stop()


class CountedWakeup:
    """Counts notifications."""

    def __init__(self) -> None:
        self.notified = 0

    def notify(self) -> None:
        self.notified += 1


def test_only_sleeping_workers_are_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler, pool = sampler_of(workers=3, envs_per_worker=2, groups=2)
    wakeups = [CountedWakeup() for _ in range(3)]
    monkeypatch.setattr(pool, "_wakeups", wakeups)
    sampler.box.sleeping[:] = [1, 0, 1]
    pool.post(np.array([0, 1, 2, 3]))
    assert [wakeup.notified for wakeup in wakeups] == [1, 0, 0], "worker 1 is awake, worker 2 was given nothing"


def test_a_worker_that_missed_its_wakeup_is_woken_by_the_next_look_around(monkeypatch: pytest.MonkeyPatch) -> None:
    _, pool = sampler_of(workers=2)
    wakeups = [CountedWakeup() for _ in range(2)]
    monkeypatch.setattr(pool, "_wakeups", wakeups)
    pool.check()
    assert [wakeup.notified for wakeup in wakeups] == [1, 1]
    pool.check()
    assert [wakeup.notified for wakeup in wakeups] == [1, 1], "not at every call"


def test_workers_ring_only_while_somebody_listens() -> None:
    sampler, pool = sampler_of(workers=1)
    box = sampler.box
    sampler.start()
    try:
        wait_until(lambda: box.ready().size == 1)
        wait_until(lambda: box.sleeping[0] == 1)
        for main_sleeping in (0, 1, 0):
            pool._wakeup.clear()
            box.main_sleeping[0] = main_sleeping
            box.row[0], box.command[0] = 0, box.command[0] + 1
            pool.post(np.array([0]))
            wait_until(lambda: box.ready().size == 1 and box.sleeping[0] == 1)
            assert pool._wakeup.wait(0) is bool(main_sleeping)
    finally:
        sampler.stop()
