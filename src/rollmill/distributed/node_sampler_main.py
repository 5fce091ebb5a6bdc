"""The process that samples on a node: today's sampler, unchanged. It does not know that its learner is elsewhere.

``python -m rollmill.distributed.node_sampler_main FD`` is started by ``node_agent``, one level below whatever places
agents on machines: it has a main thread of its own for its workers to die with, and a janitor that outlives it. Weights
come through shared memory, finished slots are read by the agent. It ends by itself when the learner was not heard of
for the lease.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from multiprocessing.connection import Connection

from rollmill.core.child import Parent, run_child
from rollmill.core.errors import ConfigError
from rollmill.core.process_scope import process_scope
from rollmill.core.slots import SharedBlock
from rollmill.distributed.messages import Alive, Counted, Full, NodeSetup, Ready, Release, SamplerCounts
from rollmill.distributed.weight_buffer import WeightBuffer
from rollmill.envs.probe import Probe
from rollmill.sampling.sampler import Sampler, SamplerPlan, SamplerThread

log = logging.getLogger("rollmill")

LOOK_SECONDS = 0.1
COUNT_SECONDS = 0.5
"""Between two messages about what was counted."""


class Refused(ConfigError):
    """This node does not fit the run, and would not the next time."""


class NodeSampler:
    """Samples until it is told to stop, nobody is there any more, or something fails."""

    def __init__(self, setup: NodeSetup) -> None:
        self._order = setup.order
        self._channel = Connection(setup.channel)
        plan, block = setup.order.plan, SharedBlock(*setup.weights)
        self._weights = WeightBuffer(plan.weight_bytes, len(plan.env.variables), block)
        block.close_fd()
        self._alive_at = time.monotonic()
        self._gone = False
        self._counted_at = 0.0

    def run(self) -> None:
        with process_scope() as environment:
            sampler = self._build(environment)
            try:
                sampler.box.next_episode[:] = self._order.first_episode
                block = sampler.arena.block
                self._channel.send(Ready(sampler.arena.slots, block.fd, block.nbytes))
                self._follow(sampler)
                sampler.start()
                thread = SamplerThread(sampler)
                threading.Thread(target=self._hear, args=(sampler,), daemon=True, name="agent").start()
                thread.start()
                try:
                    self._serve(sampler, thread)
                finally:
                    thread.stop()
                    sampler.stop()
                    thread.join()
            finally:
                sampler.stop()

    def _build(self, environment: dict[str, str]) -> Sampler:
        plan = self._order.plan
        probe = Probe(plan.env, environment)
        try:
            from rollmill.distributed.acting import build_actor
        except BaseException:
            probe.close()
            raise
        spec = probe.result(plan.sampling.start_timeout)
        if spec.to_dict() != plan.spec.to_dict():
            raise Refused(f"{plan.env.id} is another one here: {spec.to_dict()}; the learner has {plan.spec.to_dict()}")
        sampler_plan = SamplerPlan(
            settings=plan.sampling,
            env=plan.env,
            spec=spec,
            seeds=plan.seeds.of_incarnation(self._order.first_episode),
            segments_per_batch=plan.segments_at_once,
            state_every=plan.layout.state_every,
            environment=environment,
            workers_before=self._order.workers_before,
        )
        lanes = sampler_plan.groups * sampler_plan.lanes_per_group
        seed = plan.action_seeds.branch("node", self._order.incarnation).integer()
        sampler = Sampler(sampler_plan, [build_actor(plan, self._weights, lanes, seed)])
        if sampler.arena.layout != plan.layout:
            sampler.stop()
            raise Refused(f"segments are {sampler.arena.layout} here; the learner has {plan.layout}")
        return sampler

    # -- while it samples ----------------------------------------------------------------------

    def _serve(self, sampler: Sampler, thread: SamplerThread) -> None:
        lease = self._order.plan.lease
        while not self._gone:
            thread.check()
            self._follow(sampler)
            for slot in sampler.take(1, LOOK_SECONDS) or []:
                self._count(sampler)  # before the segment: its episodes' statistics are known
                self._channel.send(Full(slot, int(sampler.inference.group_of_slot[slot])))
            if time.monotonic() - self._counted_at >= COUNT_SECONDS:
                self._count(sampler)
            if time.monotonic() - self._alive_at >= lease:
                log.warning("nothing was heard of the learner for %g s (cluster.lease): this node ends", lease)
                return

    def _follow(self, sampler: Sampler) -> None:
        """Bring the run's frames and variables to the sampler: rows are stamped and environments see them."""
        frames, variables = self._weights.read_small()
        sampler.inference.frames = max(sampler.inference.frames, frames)
        for name, value in zip(sampler.plan.env.variables, variables, strict=True):
            sampler.set_variable(name, value)

    def _count(self, sampler: Sampler) -> None:
        report = sampler.pool.report
        extras = []
        while report.episode_stats:
            extras.append(report.episode_stats.popleft())
        sampler.episodes.clear()  # the learner finds them in the segments
        counts = SamplerCounts(report.env_faults, report.worker_restarts, sampler.lost_segments)
        if extras or time.monotonic() - self._counted_at >= COUNT_SECONDS:
            self._counted_at = time.monotonic()
            self._channel.send(Counted(counts, tuple(extras)))

    def _hear(self, sampler: Sampler) -> None:
        """Hear what the agent says, in a thread of its own."""
        with contextlib.suppress(EOFError, OSError):
            while True:
                message = self._channel.recv()
                if isinstance(message, Release):
                    sampler.release(message.slots)
                elif isinstance(message, Alive):
                    self._alive_at = time.monotonic()
        self._gone = True


def work(setup: NodeSetup, _parent: Parent) -> None:
    logging.basicConfig(format="%(levelname)s %(message)s", level=logging.INFO)
    with contextlib.suppress(OSError):  # another machine may have other folders; what is missing is said by name
        os.chdir(setup.order.plan.folder)
    NodeSampler(setup).run()


if __name__ == "__main__":
    sys.exit(run_child(work))
