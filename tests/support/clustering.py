"""A gateway with nodes for tests: in this process, with the learner's side of it played by the test."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe
from typing import Any

import numpy as np
from recordable_env import Recordable
from variable_env import VariableEnv

from rollmill.core import given
from rollmill.core.fields import Array
from rollmill.core.seeds import Seeds
from rollmill.core.slots import Arena, SegmentLayout
from rollmill.distributed.acting import weight_bytes, weight_views
from rollmill.distributed.gateway import Gateway
from rollmill.distributed.link import Link
from rollmill.distributed.messages import Admitted, Ended, NodePlan, Said, Slots, State
from rollmill.distributed.settings import ClusterSettings
from rollmill.distributed.weight_buffer import WeightBuffer
from rollmill.envs.make import EnvInstance
from rollmill.envs.settings import EnvSettings
from rollmill.models.acting.weights import tensors_of
from rollmill.models.actor_critic import ActorCritic, build_model
from rollmill.models.settings import ModelSettings
from rollmill.sampling.settings import SamplingSettings

SEEDS = Seeds(5).branch("envs")
ENV = EnvSettings(id="recordable_env:Recordable", args={"longest": 5})
VARIABLES = EnvSettings(id="variable_env:VariableEnv", variables={"level": 1.0})
SLOTS = 12
BROKEN_SECONDS = 120.0
"""Ends a test that is broken."""


def node_plan(env: EnvSettings = ENV, **changes: Any) -> NodePlan:
    """A node of two workers with two groups of two lanes each; segments of 8 steps."""
    sampling = SamplingSettings(workers=2, envs_per_worker=4, groups=2, rollout=8, affinity=False, start_timeout=60.0)
    spec = VariableEnv.spec if env is VARIABLES else Recordable(EnvInstance()).spec
    model = ModelSettings(mlp=(8,), hidden_size=8)
    values: dict[str, Any] = {
        "sampling": sampling,
        "env": env,
        "model": model,
        "spec": spec,
        "layout": SegmentLayout(spec, sampling.rollout, 2, 0, 0),
        "seeds": SEEDS,
        "action_seeds": Seeds(5).branch("actions"),
        "bfloat16": False,
        "weight_bytes": weight_bytes(tensors_of(build_model(spec, model))),
        "workers_before": 3,
        "chunk_bytes": 1 << 20,
        "start_timeout": 60.0,
        "lease": 30.0,
        "folder": os.getcwd(),
        "own_code": given.packed(),
        "path": (),
    }
    return NodePlan(**{**values, **changes})


@dataclass
class Learner:
    """What the learner would do: gives slots, writes weights, looks at what is admitted."""

    plan: NodePlan
    arena: Arena
    weights: WeightBuffer
    model: ActorCritic
    channel: Connection
    gateway: Gateway
    segments: list[tuple[int, dict[str, Array]]] = field(default_factory=list)
    states: list[State] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    extras: list[Any] = field(default_factory=list)
    holding: bool = False
    """Whether slots are kept instead of being given back."""
    held: list[int] = field(default_factory=list)

    def publish(self, version: int, frames: int = 0, level: float = 1.0) -> None:
        with self.weights.writing():
            tensors = tensors_of(self.model)
            for view, tensor in zip(weight_views(tensors, self.weights.weights), tensors):
                view.copy_(tensor.detach())
            self.weights.tell(version, frames, (level,) if self.plan.env.variables else ())

    def until(self, done: Callable[[], bool]) -> None:
        """Let the gateway work until something is true."""
        deadline = time.monotonic() + BROKEN_SECONDS
        while not done():
            assert time.monotonic() < deadline, f"{len(self.segments)} segments, {self.states[-1:]}, {self.said}"
            self.turn()

    def turn(self) -> None:
        assert self.gateway.turn(0.02)
        while self.channel.poll():
            self._hear(self.channel.recv())

    def _hear(self, message: object) -> None:
        if isinstance(message, Admitted):
            copies = {name: array.copy() for name, array in self.arena.segment(message.slot).items()}
            self.segments.append((message.group, copies))
            self.held.append(message.slot)
            if not self.holding:
                self.give_back()
        elif isinstance(message, State):
            self.states.append(message)
        elif isinstance(message, Said):
            self.said.append(message.text)
        elif isinstance(message, Ended):
            self.extras += message.extras

    def give_back(self) -> None:
        if self.held:
            self.channel.send(Slots(tuple(self.held)))
            self.held.clear()

    def stages(self) -> list[str]:
        """Of all nodes, as last reported."""
        return [node.stage for node in self.states[-1].nodes] if self.states else []


@contextlib.contextmanager
def gateway(link: Link, plan: NodePlan | None = None, slots: int = SLOTS, **settings: Any) -> Iterator[Learner]:
    """A gateway with all its slots free and weights of version 0."""
    plan = plan or node_plan()
    arena = Arena(plan.layout, slots)
    weights = WeightBuffer(plan.weight_bytes, len(plan.env.variables))
    home, ours = Pipe()
    known = ClusterSettings(**{"address": "local", "nodes": 2, "publish_seconds": 0.05, **settings})
    built = Gateway(plan, known, 7, 6, arena, weights, link, home)
    learner = Learner(plan, arena, weights, build_model(plan.spec, plan.model), ours, built)
    learner.publish(0)
    ours.send(Slots(tuple(range(slots))))
    try:
        yield learner
    finally:
        link.close()
        home.close()
        ours.close()
        for block in (arena.block, weights.block):
            block.close_fd()


def episodes_of(segments: list[tuple[int, dict[str, Array]]]) -> set[tuple[int, int, int]]:
    """(lane, episode, step) of every row that counts; AssertionError where one is there twice."""
    found: set[tuple[int, int, int]] = set()
    for group, segment in segments:
        lanes = segment["valid"].shape[1]
        for row, lane in zip(*np.nonzero(segment["valid"][:-1])):
            key = (group * lanes + int(lane), int(segment["episode"][row, lane]), int(segment["step"][row, lane]))
            assert key not in found, f"{key} was played twice"
            found.add(key)
    return found
