"""The gateway with real nodes: agents and samplers as processes of this machine, no Ray."""

from __future__ import annotations

import os
import re
import signal
import struct
from dataclasses import replace
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import cast

import numpy as np
import psutil
from clustering import SEEDS, SLOTS, VARIABLES, episodes_of, gateway, node_plan
from recordable_env import seed_of
from running import wait_until

from rollmill.core.process import Child
from rollmill.core.seeds import INCARNATION_EPISODES as EACH
from rollmill.distributed.acting import weight_bytes
from rollmill.distributed.link import Event, Refreshed
from rollmill.distributed.local_link import Agent, Line, LocalLink
from rollmill.distributed.messages import Ask
from rollmill.distributed.weight_buffer import Publication
from rollmill.models.acting.weights import tensors_of
from rollmill.models.actor_critic import build_model
from rollmill.models.settings import ModelSettings
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


def test_an_agent_that_is_stopped_holds_up_nobody_but_itself() -> None:
    """Its pipe holds less than the weights that it does not take."""
    model = ModelSettings(mlp=(720, 720), hidden_size=8)
    plan = replace(node_plan(), model=model)
    plan = replace(plan, weight_bytes=weight_bytes(tensors_of(build_model(plan.spec, model))))
    assert plan.weight_bytes > 2_000_000
    link = LocalLink(2)
    with gateway(link, plan, node_timeout=5.0, publish_seconds=0.01) as learner:
        learner.until(lambda: learner.stages() == ["sampling"] * 2)
        stopped = link.pid("local-0")
        os.kill(stopped, signal.SIGSTOP)
        versions = iter(range(1, 1_000_000))

        def given_up() -> bool:
            learner.publish(next(versions))
            return any("local-0" in line and "nothing was heard of it for 5 s" in line for line in learner.said)

        learner.until(given_up)
        assert not psutil.pid_exists(stopped)
        assert not any("local-1" in line and "nothing was heard" in line for line in learner.said)
        newest = next(versions)
        learner.publish(newest)
        arrived = lambda: {(g - 6) // 4 for g, s in learner.segments if (s["version"] == newest).all()}  # noqa: E731
        learner.until(lambda: arrived() == {0, 1})


def test_half_a_message_holds_up_nobody_else() -> None:
    """An agent may be stopped while it sends; of two publications for it only the newer one waits."""
    link, agents = LocalLink(2), {}
    for number, name in enumerate(link.nodes()):
        ours, agents[name] = Pipe()
        link._agents[name] = Agent(name, number, cast(Child, None), Line(ours, link._wake))
    half, whole = agents.values()
    os.write(half.fileno(), struct.pack("!i", 1000) + b"not yet 1000 bytes")
    whole.send(7)
    (event,) = iter_events(link)
    assert event == Refreshed("local-1", 1, 7)
    weights = np.zeros(4_000_000, np.uint8)
    for sequence in (2, 4, 6):
        link.refresh("local-0", Publication(sequence, 0, 0, (), weights))
        if sequence == 2:
            wait_until(lambda: not link._agents["local-0"].line._to_send, what="the first to be under way")
        link.collect("local-0", sequence)
    said = [half.recv() for _ in range(5)]
    assert [one.sequence if isinstance(one, Publication) else one for one in said] == [2, Ask(2), Ask(4), 6, Ask(6)]
    for agent in link._agents.values():
        agent.line.close()


def iter_events(link: LocalLink) -> list[Event]:
    quiet, _ = Pipe()
    while not (found := link.events(1.0, quiet.fileno())):
        pass
    return found


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
