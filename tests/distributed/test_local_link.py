"""The gateway with real nodes: agents and samplers as processes of this machine, no Ray."""

from __future__ import annotations

import os
import re
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
from clustering import SEEDS, SLOTS, VARIABLES, episodes_of, gateway, node_plan
from recordable_env import seed_of

from rollmill.core.seeds import INCARNATION_EPISODES as EACH
from rollmill.distributed.local_link import LocalLink
from rollmill.recording.assemble import LanePlan

LANES = LanePlan(groups=14, lanes=2, agents=1, groups_per_worker=2, seeds=SEEDS, own_groups=6, node_groups=4)


def descendants(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def test_segments_of_two_nodes_arrive_whole_and_once() -> None:
    link = LocalLink(2)
    with gateway(link) as learner:
        learner.until(lambda: len({group for group, _ in learner.segments}) == 8 and len(learner.segments) > 60)
        assert {group for group, _ in learner.segments} == set(range(6, 14))  # 6 groups of the learner's own come first
        episodes_of(learner.segments)
        for group, segment in learner.segments:
            # The observation says which env and step it is of, and the seed of the episode: nothing was mixed up.
            assert segment["episode"][0, 0] // EACH == 7 + (group - 6) // 4
            lanes = group * 2 + np.arange(2)
            assert (segment["obs:where"][..., 0] == lanes).all()
            counts = segment["valid"][:-1]
            assert (segment["obs:where"][:-1, :, 3] == segment["step"][:-1])[counts].all()
            told = (seed_of(segment["obs:seed"][0, 0]), int(segment["episode"][0, 0]))
            assert told[0] == LANES.seed(group * 2, told[1])
            assert (segment["version"] == 0).all()
        learner.until(
            lambda: [node.stage for node in learner.states[-1].nodes] == ["sampling"] * 2
        )  # told now and then
        state = learner.states[-1]
        assert (state.lost, state.refused) == (0, 0)
        assert state.received <= len(learner.segments)


def test_weights_frames_and_variables_reach_every_node() -> None:
    link = LocalLink(2)
    with gateway(link, node_plan(VARIABLES)) as learner:
        learner.until(lambda: len(learner.segments) > 10)
        assert (learner.segments[0][1]["obs:obs"][..., 0] == 1.0).all()
        learner.publish(5, frames=10**9, level=4.0)
        learner.segments.clear()

        def arrived() -> bool:
            new = {
                (group - 6) // 4
                for group, s in learner.segments
                if (s["version"] == 5).all() and (s["frames"] >= 10**9).all() and (s["obs:obs"][..., 0] == 4.0).all()
            }
            return len(new) == 2

        learner.until(arrived)
        versions = [s["version"] for _, s in learner.segments]
        assert all((np.diff(v[:, 0]) >= 0).all() for v in versions), "no version goes backwards"


def test_without_free_slots_nodes_wait_and_nothing_is_lost() -> None:
    link = LocalLink(1)
    with gateway(link, nodes=1) as learner:
        learner.holding = True
        learner.until(lambda: len(learner.held) == SLOTS)
        before = len(learner.states)
        learner.until(lambda: len(learner.states) > before + 4)  # it is still heard of
        assert len(learner.held) == SLOTS
        assert learner.stages() == ["sampling"]
        learner.holding = False
        learner.give_back()
        learner.until(lambda: len(learner.segments) > 4 * SLOTS)
        assert learner.states[-1].lost == 0
        rows = episodes_of(learner.segments)
        by_lane: dict[int, set[tuple[int, int]]] = {}
        for lane, episode, step in rows:
            by_lane.setdefault(lane, set()).add((episode, step))
        for played in by_lane.values():  # steps of an episode without a hole
            longest = {e: max(s for ep, s in played if ep == e) for e, _ in played}
            assert all((e, s) in played for e, last in longest.items() for s in range(last + 1))


def test_an_agent_that_is_killed_is_replaced_and_leaves_nothing_behind() -> None:
    link = LocalLink(2)
    with gateway(link) as learner:
        learner.until(lambda: learner.stages() == ["sampling"] * 2 and len(learner.segments) > 10)
        agent = link.pid("local-0")
        below = descendants(agent)
        assert any("node_sampler_main" in " ".join(process.cmdline()) for process in below)
        os.kill(agent, signal.SIGKILL)
        learner.until(
            lambda: any(node.incarnation > 8 and node.stage == "sampling" for node in learner.states[-1].nodes)
        )
        learner.until(lambda: any(s["episode"].min() >= 9 * EACH for _, s in learner.segments))
        episodes_of(learner.segments)
        assert any("local-0 (seat 0, incarnation 7): its agent" in line for line in learner.said), learner.said
        _, alive = psutil.wait_procs(below, timeout=30)
        assert not alive, "all that the agent had started is gone"


def test_an_agent_that_fails_at_a_call_is_lost_with_its_reason() -> None:
    """It would go on taking weights, and be heard of by that."""
    plan = replace(node_plan(), chunk_bytes=None)  # type: ignore[arg-type]
    link = LocalLink(1)
    with gateway(link, plan, nodes=1) as learner:
        learner.until(lambda: learner.stages() == ["resting"])
        reason = learner.states[-1].nodes[0].reason
        assert re.search(r"its agent \(pid \d+\) ended with exit code 1; it said: TypeError: ", reason), reason


def test_a_sampler_that_is_killed_is_replaced_and_its_segments_are_counted() -> None:
    link = LocalLink(1)
    with gateway(link, nodes=1) as learner:
        learner.until(lambda: len(learner.segments) > 10)
        (sampler,) = (p for p in psutil.Process(link.pid("local-0")).children() if "node_sampler" in str(p.cmdline()))
        below = sampler.children(recursive=True)
        sampler.kill()
        learner.until(lambda: any(s["episode"].min() >= 8 * EACH for _, s in learner.segments))
        assert any("SIGKILL" in line for line in learner.said), learner.said
        episodes_of(learner.segments)
        _, alive = psutil.wait_procs(below, timeout=30)
        assert not alive


def test_a_node_with_another_environment_is_refused_with_the_difference() -> None:
    plan = node_plan()
    plan = replace(plan, spec=replace(plan.spec, name="another"))
    link = LocalLink(1)
    with gateway(link, plan, nodes=1) as learner:
        learner.until(lambda: learner.stages() == ["refused"])
        assert "another" in learner.states[-1].nodes[0].reason


def test_a_node_with_another_layout_is_refused_with_the_difference() -> None:
    plan = node_plan()
    plan = replace(plan, layout=replace(plan.layout, steps=4))
    link = LocalLink(1)
    with gateway(link, plan, nodes=1) as learner:
        learner.until(lambda: learner.stages() == ["refused"])
        reason = learner.states[-1].nodes[0].reason
        assert "segments are" in reason
        assert "steps=8" in reason.partition("the learner has")[0]
        assert "steps=4" in reason.partition("the learner has")[2]
        assert not learner.segments


def test_a_node_that_cannot_make_the_environment_is_refused_or_tried_again_and_says_why(tmp_path: Path) -> None:
    plan = replace(node_plan(), env=replace(node_plan().env, id="recordable_env:Missing"))
    link = LocalLink(1)
    with gateway(link, plan, nodes=1) as learner:
        learner.until(lambda: learner.stages() in (["refused"], ["resting"]))
        assert "Missing" in learner.states[-1].nodes[0].reason


def test_a_sampler_ends_when_the_learner_is_not_heard_of_for_the_lease() -> None:
    plan = replace(node_plan(), lease=1.5)
    link = LocalLink(1)
    with gateway(link, plan, nodes=1) as learner:
        learner.until(lambda: len(learner.segments) > 4)
        (sampler,) = (p for p in psutil.Process(link.pid("local-0")).children() if "node_sampler" in str(p.cmdline()))
        below = [sampler, *sampler.children(recursive=True)]
        _, alive = psutil.wait_procs(below, timeout=60)  # nobody calls the gateway meanwhile
        assert not alive
        learner.until(lambda: any(s["episode"].min() >= 8 * EACH for _, s in learner.segments))
