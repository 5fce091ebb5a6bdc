"""The sampler in all its modes: every row of every segment against a plain-loop oracle."""

import dataclasses
import itertools
import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from faulty_envs import Marker
from marking import MarkPolicy, Segment, check_stream, check_turn_over

from rollmill.core.errors import EnvError
from rollmill.core.fields import Array, EnvSpec
from rollmill.core.machine import available_cores
from rollmill.core.seeds import Seeds
from rollmill.envs.make import EnvInstance, make_env
from rollmill.envs.settings import EnvSettings
from rollmill.sampling import sampler as sampler_module
from rollmill.sampling.placement import default_workers
from rollmill.sampling.policies.random import RandomPolicy
from rollmill.sampling.pool import PoolReport
from rollmill.sampling.sampler import Sampler, SamplerPlan, SamplerThread
from rollmill.sampling.settings import SamplingSettings

MODES = ["serial", "sync", "async"]
SEEDS = Seeds(11).branch("envs")


def spec_of(agents: int = 1) -> EnvSpec:
    return Marker(EnvInstance(), agents).spec


def plan_of(
    mode: str, agents: int = 1, lockstep: bool = False, state_every: int = 0, **settings: object
) -> SamplerPlan:
    values = {"workers": 2, "envs_per_worker": 4, "groups": 2, "rollout": 8, "affinity": False, "poison": True}
    return SamplerPlan(
        settings=SamplingSettings(mode=mode, **{**values, **settings}),  # type: ignore[arg-type]
        env=EnvSettings(id="faulty_envs:Marker", args={"agents": agents}),
        spec=spec_of(agents),
        seeds=SEEDS,
        segments_per_batch=3,
        state_every=state_every,
        environment=os.environ,
        lockstep=lockstep,
    )


@contextmanager
def running(sampler: Sampler) -> Iterator[Sampler]:
    """The sampler in its mode; in async mode its thread runs the rounds."""
    sampler.start()
    thread = SamplerThread(sampler) if sampler.plan.settings.mode == "async" else None
    if thread is not None:
        thread.start()
    try:
        yield sampler
        if thread is not None:
            thread.check()
    finally:
        if thread is not None:
            thread.stop()
        sampler.stop()
        if thread is not None:
            thread.join()


def take(sampler: Sampler, count: int, groups: int = 1) -> list[tuple[int, Segment]]:
    """At least ``count`` segments as (group, copies of the arrays), three at a time, given back at once.

    Goes on until so many ``groups`` have delivered: how late a worker starts is the machine's business.
    """
    taken: list[tuple[int, Segment]] = []
    deadline = time.monotonic() + 300  # ends a test that is broken
    while len(taken) < count or len(by_group(taken)) < groups:
        assert time.monotonic() < deadline, f"{len(taken)} segments of groups {list(by_group(taken))}"
        slots = sampler.take(3, timeout=0.05 if sampler.plan.settings.mode == "async" else 0)
        if slots is None:
            if sampler.plan.settings.mode != "async":
                sampler.round()
            continue
        for slot in slots:
            arrays = {name: array.copy() for name, array in sampler.arena.segment(slot).items()}
            taken.append((int(sampler.inference.group_of_slot[slot]), arrays))
        sampler.release(slots)
    return taken


def by_group(taken: list[tuple[int, Segment]]) -> dict[int, list[Segment]]:
    groups: dict[int, list[Segment]] = defaultdict(list)
    for group, segment in taken:
        groups[group].append(segment)
    return dict(sorted(groups.items()))


def check_all(sampler: Sampler, taken: list[tuple[int, Segment]], every: int = 0) -> int:
    plan, rows = sampler.plan, 0
    per_group = plan.settings.envs_per_worker // plan.settings.groups
    for group, segments in by_group(taken).items():
        envs = range(group * per_group, (group + 1) * per_group)
        worker = plan.seeds.branch("worker", group // plan.settings.groups)
        rows += check_stream(segments, envs, plan.spec.agents, worker, every=every)
    return rows


@pytest.mark.parametrize("mode", MODES)
def test_every_row_is_where_it_belongs(mode: str) -> None:
    sampler = Sampler(plan_of(mode), [MarkPolicy(spec_of())])
    with running(sampler):
        taken = take(sampler, 300, groups=4)
    assert check_all(sampler, taken) == len(taken) * 8 * 2
    steps = sum(np.count_nonzero(segment["valid"][:-1]) for _, segment in taken)
    assert sampler.frames >= 2 * steps


@pytest.mark.parametrize("mode", MODES)
def test_agents_that_end_at_different_times_and_stored_states(mode: str) -> None:
    plan = plan_of(mode, agents=3, state_every=4, workers=1)
    sampler = Sampler(plan, [MarkPolicy(spec_of(3))])
    with running(sampler):
        taken = take(sampler, 60)
    assert check_all(sampler, taken, every=4) == 60 * 8 * 6


def test_lockstep_fixes_the_order_of_decisions() -> None:
    def run() -> list[tuple[int, Segment]]:
        sampler = Sampler(plan_of("sync", lockstep=True), [MarkPolicy(spec_of())])
        with running(sampler):
            return take(sampler, 12)

    for (group, one), (other, two) in zip(run(), run(), strict=True):
        assert group == other
        for name in one:
            np.testing.assert_array_equal(one[name], two[name], name)


@pytest.mark.parametrize(
    "settings", [{"rollout": 1}, {"groups": 1}, {"groups": 4}, {"workers": 1, "envs_per_worker": 1, "groups": 1}]
)
def test_shapes_at_the_edge(settings: dict[str, int]) -> None:
    sampler = Sampler(plan_of("serial", **settings), [MarkPolicy(spec_of())])
    with running(sampler):
        taken = take(sampler, 30)
    assert check_all(sampler, taken) > 0


def test_serial_and_processes_show_the_same_episodes() -> None:
    """Actions differ by timing, but which env plays which episode with which seed does not."""

    def episodes(mode: str) -> dict[tuple[int, int], int]:
        sampler = Sampler(plan_of(mode), [MarkPolicy(spec_of())])
        with running(sampler):
            taken = take(sampler, 24)
        seeds = {}
        for _, segment in taken:
            where = segment["obs:where"][:-1].reshape(-1, 5)
            for (env, _, episode, *_), seed in zip(where.tolist(), segment["obs:seed"][:-1].ravel().tolist()):
                seeds[int(env), int(episode)] = seed
        return seeds

    serial, processes = episodes("serial"), episodes("sync")
    common = serial.keys() & processes.keys()
    assert len(common) > 8
    assert all(serial[key] == processes[key] for key in common)


def test_episodes_are_reported_once_each_with_their_returns() -> None:
    sampler = Sampler(plan_of("serial"), [MarkPolicy(spec_of())])
    with running(sampler):
        taken = take(sampler, 40)
    ended = list(sampler.episodes)
    assert len({(e.lane, e.episode) for e in ended}) == len(ended)
    for episode in ended:
        assert episode.length == Marker.length(episode.lane, episode.episode)
        assert episode.terminated == (episode.episode % 2 == 0)
        assert episode.policy_id == 0
    seen = [float(x) for _, segment in taken for x in segment["episode_return"][:-1].ravel() if np.isfinite(x)]
    assert len(seen) > 20
    assert set(seen) <= {episode.episode_return for episode in ended}


# -- the order of finished segments ----------------------------------------------------------------------


def test_taken_segments_can_be_put_back() -> None:
    sampler = Sampler(plan_of("serial"), [MarkPolicy(spec_of())])
    with running(sampler):
        while len(sampler.finished) < 4:
            sampler.round()
        order = list(sampler.finished)
        slots = sampler.take(3, timeout=0)
        assert slots == order[:3]
        sampler.put_back(slots)
        assert list(sampler.finished) == order


def test_nothing_is_sampled_into_slots_that_are_not_given_back() -> None:
    sampler = Sampler(plan_of("serial"), [MarkPolicy(spec_of())])
    with running(sampler):
        for _ in range(100):
            sampler.round()
        full = [sampler.arena.segment(slot)["obs:where"].copy() for slot in sampler.finished]
        assert not sampler.inference.free
        assert sampler.take(100, timeout=0) is None
        for _ in range(20):
            assert sampler.round() == 0
        for slot, before in zip(sampler.finished, full):
            np.testing.assert_array_equal(sampler.arena.segment(slot)["obs:where"], before)


def test_a_waiting_learner_is_woken() -> None:
    """``take`` returns as soon as another thread has finished enough segments."""
    sampler = Sampler(plan_of("async", workers=1), [MarkPolicy(spec_of())])
    with running(sampler):
        assert sampler.take(3, timeout=60) is not None


def test_a_batch_of_one_policy_is_waited_for_while_segments_of_others_end() -> None:
    """Of a population's segments there may be enough, and not enough of anybody's."""
    plan = dataclasses.replace(plan_of("serial"), policy_of_group=(0, 1, 2, 0))
    sampler = Sampler(plan, [MarkPolicy(spec_of(), k) for k in range(3)])
    waits: list[float] = []

    class AnotherEnds(threading.Condition):
        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            group = len(waits)
            waits.append(timeout)
            sampler.inference.group_of_slot[group] = group
            sampler.finished.append(group)
            return True

    sampler._any_finished = AnotherEnds()
    assert sampler.take(2, timeout=60) == [0, 3]
    assert list(sampler.finished) == [1, 2]
    assert 60 == waits[0] > waits[1] > waits[2] > waits[3], "what is left of the time"
    sampler.stop()


def test_an_error_in_the_thread_comes_home() -> None:
    class Broken(MarkPolicy):
        def act(self, request: object) -> object:  # type: ignore[override]
            raise EnvError("the policy broke")

    sampler = Sampler(plan_of("async", workers=1), [Broken(spec_of())])
    sampler.start()
    thread = SamplerThread(sampler)
    thread.check()
    thread.start()
    assert thread._idle.wait(60)
    with pytest.raises(EnvError, match="the policy broke"):
        thread.check()
    thread.stop()
    sampler.stop()
    thread.join()


# -- several policies ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["serial", "sync"])
def test_policies_share_the_lanes_of_an_env(mode: str) -> None:
    """Two agents, two policies: each decides for its own lanes, and its marks stand in these lanes only."""
    spec = spec_of(2)
    policies = [MarkPolicy(spec, 0), MarkPolicy(spec, 1, offset=1000.0)]
    policies[1].version = 7
    sampler = Sampler(plan_of(mode, agents=2), policies)
    sampler.inference.policy_of_lane[:] = np.arange(4) % 2
    with running(sampler):
        taken = take(sampler, 24)
    assert {lane % 2 for lane in policies[0].lanes} == {0}
    assert {lane % 2 for lane in policies[1].lanes} == {1}
    for segments in by_group(taken).values():
        for before, after in itertools.pairwise(segments):
            check_turn_over(before, after)
        for segment in segments:
            owner = np.broadcast_to(np.arange(4) % 2, segment["value"].shape)
            np.testing.assert_array_equal(segment["policy_id"], owner)
            np.testing.assert_array_equal(segment["version"], owner * 7)
            assert ((segment["value"] >= 1000) == (owner == 1)).all()
            where = segment["obs:where"]
            state = np.stack([where[0, :, 0], 100 * where[0, :, 2] + where[0, :, 3]], axis=-1)
            np.testing.assert_array_equal(segment["state"][0], state)


# -- counting on -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [2, 1])
def test_counters_go_on_with_episodes_that_were_never_used(workers: int) -> None:
    first = Sampler(plan_of("serial"), [MarkPolicy(spec_of())])
    with running(first):
        take(first, 30)
    state = first.counters()
    second = Sampler(plan_of("serial", workers=workers), [MarkPolicy(spec_of())])
    second.load_counters(state)
    assert second.frames == first.frames
    with running(second):
        (_, segment), *_ = take(second, 3)
    used = np.asarray(state["next_episode"])
    assert (segment["episode"][0] >= (used[:2] if workers == 2 else used.max())).all()
    assert second.frames > first.frames


def test_a_sampler_that_is_idle_keeps_the_numbers_of_episodes_for_those_that_are_not() -> None:
    """A run with workers of its own, then with nodes alone, and then with its own again."""

    def counted(state: dict[str, Any] | None, idle: bool) -> dict[str, Any]:
        sampler = Sampler(dataclasses.replace(plan_of("async", workers=1), idle=idle), [MarkPolicy(spec_of())])
        if state is not None:
            sampler.load_counters(state)
        return sampler.counters()

    nobody = counted(None, idle=True)
    assert counted(nobody, idle=False)["next_episode"].tolist() == [1] * len(counted(None, False)["next_episode"])
    played = counted(None, idle=False)
    played["next_episode"] += 70
    away = counted(counted(played, idle=True), idle=True)
    assert away["next_episode"].tolist() == played["next_episode"].tolist()
    back = counted(away, idle=False)["next_episode"]
    assert (back > played["next_episode"]).all()


def test_one_worker_per_core_by_default() -> None:
    assert default_workers() == available_cores()
    assert SamplerPlan(SamplingSettings(), EnvSettings(), spec_of(), SEEDS, 1).workers == default_workers()


# -- answering groups together ----------------------------------------------------------------------


class StillPool:
    """Nobody works: the test says which groups are ready, and what happens while the sampler waits."""

    def __init__(self) -> None:
        self.report = PoolReport()
        self.waits: list[float] = []
        self.meanwhile = lambda: None

    def start(self) -> None: ...

    def post(self, groups: object) -> None: ...

    def wait(self, timeout: float) -> None:
        self.waits.append(timeout)
        self.meanwhile()

    def check(self) -> Array:
        return np.zeros(0, np.int64)

    def stop(self) -> None: ...


def still_sampler(share: float, clock: list[float], monkeypatch: pytest.MonkeyPatch) -> tuple[Sampler, StillPool]:
    monkeypatch.setattr(sampler_module.time, "monotonic", lambda: clock[0])
    sampler = Sampler(plan_of("serial", inference_batch_share=share, poison=False), [RandomPolicy(spec_of(), 0)])
    pool = sampler.pool = StillPool()
    sampler.box.row[:] = -1
    sampler.box.command[:] = 1
    sampler.arena["first"][:] = True
    return sampler, pool


@pytest.mark.parametrize(("share", "wanted"), [(0, 1), (0.25, 1), (0.3, 2), (0.5, 2), (1, 4)])
def test_as_many_groups_are_answered_together_as_the_share_says(
    share: float, wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler, pool = still_sampler(share, [0.0], monkeypatch)
    assert sampler.box.wanted[0] == wanted, "workers notify from then on"
    for ready in range(1, wanted + 1):
        assert sampler.rounds == 0
        sampler.box.done[:ready] = 1
        assert sampler.box.enough_ready() == (ready == wanted)
        assert sampler.round() == (wanted if ready == wanted else 0)
    assert len(pool.waits) == wanted - 1
    assert sampler.rounds == 1


def test_groups_do_not_wait_long_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """An env that hangs must not hold up the rest of the run."""
    clock = [100.0]
    sampler, pool = still_sampler(1.0, clock, monkeypatch)
    sampler.box.done[:3] = 1
    assert sampler.round() == 0
    clock[0] += sampler_module.GATHER_SECONDS / 2
    assert sampler.round() == 0
    clock[0] += sampler_module.GATHER_SECONDS / 2
    assert sampler.round() == 3
    assert max(pool.waits[1:], default=0) <= sampler_module.GATHER_SECONDS, "it does not sleep longer than that either"
    sampler.box.done[:3] = 2
    assert sampler.round() == 0, "the next ones begin to wait anew"


def test_an_answer_comes_as_soon_as_the_last_one_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler, pool = still_sampler(1.0, [0.0], monkeypatch)
    sampler.box.done[:3] = 1
    pool.meanwhile = lambda: sampler.box.done.__setitem__(3, 1)
    assert sampler.round() == 4


# -- workers that fill segments with random actions by themselves -------------------------------------------


def alone(plan: SamplerPlan) -> Sampler:
    return Sampler(dataclasses.replace(plan, random_actions=True), [RandomPolicy(plan.spec, 0)])


@pytest.mark.parametrize("agents", [1, 2])
@pytest.mark.parametrize("mode", ["serial", "sync", "async"])
def test_every_row_of_a_worker_that_acts_alone(mode: str, agents: int) -> None:
    sampler = alone(plan_of(mode, agents))
    with running(sampler):
        taken = take(sampler, 60, groups=4)
    chosen = set()
    for group, segments in by_group(taken).items():
        envs = range(group * 2, (group + 1) * 2)
        check_stream(segments, envs, agents, sampler.plan.seeds.branch("worker", group // 2), offset=None)
        chosen |= {int(action) for segment in segments for action in segment["action"][:-1].ravel()}
        for segment in segments:
            assert not segment["value"].any(), "poison of a row that nobody answered"
            assert not segment["log_prob"][:-1].any()
    assert chosen == set(range(5))


def test_the_main_process_decides_once_per_segment() -> None:
    sampler = alone(plan_of("serial"))
    with running(sampler):
        taken = take(sampler, 40, groups=4)
    rows = 16 * (len(taken) + 4)  # groups have begun one more
    assert sampler.inference.frames <= 2 * rows / 8
    valid = sum(int(np.count_nonzero(segment["valid"][:-1])) for _, segment in taken)
    assert sampler.frames >= 2 * valid > 0


@pytest.mark.parametrize("env", ["toy_masked", "toy_reach"])
def test_actions_are_allowed_ones(env: str) -> None:
    """toy_masked raises at an illegal action; toy_reach has continuous ones."""
    settings = EnvSettings(id=env)
    spec = make_env(settings).spec
    plan = SamplerPlan(
        settings=SamplingSettings(mode="serial", workers=1, envs_per_worker=4, groups=2, rollout=8),
        env=settings,
        spec=spec,
        seeds=Seeds(3),
        segments_per_batch=3,
        environment=os.environ,
    )
    sampler = alone(plan)
    with running(sampler):
        taken = take(sampler, 30)
    assert sampler.pool.report.env_faults == 0
    actions = np.concatenate([segment["action"][:-1] for _, segment in taken])
    assert len(np.unique(actions)) > 2


def test_workers_draw_different_actions() -> None:
    sampler = alone(plan_of("serial"))
    with running(sampler):
        groups = by_group(take(sampler, 20, groups=4))
    assert not np.array_equal(groups[0][0]["action"], groups[2][0]["action"])
