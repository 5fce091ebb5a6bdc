"""What travels between the learner, its gateway, the agents of nodes and their samplers.

All of it is pickled between processes of one user and one version: an agent compares ``versions`` before it reads an
order.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

from rollmill import __version__
from rollmill.core.fields import Array, EnvSpec
from rollmill.core.seeds import INCARNATION_EPISODES, Seeds
from rollmill.core.slots import SegmentLayout
from rollmill.distributed.settings import ClusterSettings
from rollmill.distributed.weight_buffer import Publication
from rollmill.envs.settings import EnvSettings
from rollmill.models.settings import ModelSettings
from rollmill.sampling.settings import SamplingSettings

Versions = Mapping[str, str]
NodeStage = Literal["starting", "sampling", "failed", "refused"]


def versions() -> Versions:
    """Return what must be the same on all nodes: the code, and what computes with the weights."""
    found = {"rollmill": __version__, "Python": ".".join(map(str, sys.version_info[:2]))}
    for package in ("torch", "numpy", "gymnasium"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "missing"
    return found


def differences(here: Versions, learner: Versions) -> str:
    """Say the differences in words; empty where there are none."""
    pairs = [(name, here.get(name, "missing"), learner.get(name, "missing")) for name in sorted({*here, *learner})]
    return ", ".join(f"{name} {mine} (the learner has {its})" for name, mine, its in pairs if mine != its)


# -- to a node --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NodePlan:
    """What all nodes of a run have in common."""

    sampling: SamplingSettings
    """Of one node."""
    env: EnvSettings
    model: ModelSettings
    spec: EnvSpec
    layout: SegmentLayout
    """Of the learner's slots; a node's must be the same."""
    seeds: Seeds
    """The branch that environments grow from."""
    action_seeds: Seeds
    bfloat16: bool
    """The learner computes with it; a node does so where its processor has units for it."""
    weight_bytes: int
    workers_before: int
    """Workers of the learner's own machine."""
    chunk_bytes: int
    start_timeout: float
    lease: float
    folder: str
    """The learner's working folder: paths in the settings are seen from there."""
    own_code: str
    """``core.given``"""
    path: tuple[str, ...]
    """Folders in which the learner looks for modules; those that a node has, too, come last there."""

    @property
    def groups(self) -> int:
        """Groups of one node."""
        return self.sampling.workers * self.sampling.groups

    @property
    def segments_at_once(self) -> int:
        """Segments that a node's sampler hands out at a time, as if for a batch; slots are counted by it."""
        return max(1, self.groups // 2)

    @property
    def waiting(self) -> int:
        """Finished segments that one node has slots for."""
        return self.segments_at_once * (1 + self.sampling.spare_batches)


@dataclass(frozen=True)
class NodeOrder:
    """What one incarnation is told."""

    plan: NodePlan
    seat: int
    incarnation: int

    @property
    def workers_before(self) -> int:
        return self.plan.workers_before + self.seat * self.plan.sampling.workers

    @property
    def first_episode(self) -> int:
        return self.incarnation * INCARNATION_EPISODES


# -- from a node ------------------------------------------------------------------------------------

Extra = tuple[int, int, dict[str, float]]
"""An env's own statistics of an episode: lane (of the node), number, values."""


@dataclass(frozen=True)
class SamplerCounts:
    """What a node's sampler has counted since its incarnation began."""

    env_faults: int = 0
    worker_restarts: int = 0
    lost_segments: int = 0


@dataclass(frozen=True)
class Chunk:
    """An answer to ``collect``."""

    stage: NodeStage
    reason: str
    """Of a stage that is no good."""
    finished: int
    """Segments that were finished so far, those that wait included."""
    numbers: tuple[int, ...] = ()
    """Of the segments that come with this, within the incarnation."""
    groups: tuple[int, ...] = ()
    """Who filled them: groups of the node."""
    sizes: tuple[int, ...] = ()
    """Bytes of each."""
    data: Array | None = None
    """uint8: packed segments, one behind the other."""
    counts: SamplerCounts = field(default_factory=SamplerCounts)
    extras: tuple[Extra, ...] = ()
    words: tuple[str, ...] = ()
    """What it has logged or printed."""


# -- to an agent that is a process of this machine --------------------------------------------------


@dataclass(frozen=True)
class Begin:
    """Asks for ``NodeAgent.start``."""

    order: bytes
    versions: Versions
    publication: Publication


@dataclass(frozen=True)
class Ask:
    """Asks for ``NodeAgent.collect``; a ``Publication`` is for ``NodeAgent.refresh``."""

    most: int


# -- between an agent and its sampler ---------------------------------------------------------------


@dataclass(frozen=True)
class NodeSetup:
    """What the sampler's process is given: its order and the inherited descriptors."""

    order: NodeOrder
    channel: int
    weights: tuple[int, int]  # fd, bytes


@dataclass(frozen=True)
class Ready:
    """The sampler is built: where its slots are."""

    slots: int
    fd: int
    """Of the arena's memory, in the sampler's process."""
    nbytes: int


@dataclass(frozen=True)
class Full:
    """A segment is finished; nothing changes in its slot until it is given back."""

    slot: int
    group: int


@dataclass(frozen=True)
class Counted:
    counts: SamplerCounts
    extras: tuple[Extra, ...]


@dataclass(frozen=True)
class Release:
    """To the sampler: these slots were read."""

    slots: tuple[int, ...]


@dataclass(frozen=True)
class Alive:
    """To the sampler: the learner was heard of within the lease."""


# -- between the gateway and the learner ------------------------------------------------------------


@dataclass(frozen=True)
class GatewaySetup:
    """What the process is given: what nodes are told, and the inherited descriptors."""

    plan: NodePlan
    settings: ClusterSettings
    first_incarnation: int
    first_group: int
    layout: SegmentLayout
    slots: int
    arena: tuple[int, int]  # fd, bytes
    weights: tuple[int, int]
    channel: int


@dataclass(frozen=True)
class Slots:
    """To the gateway: these may be filled."""

    slots: tuple[int, ...]


@dataclass(frozen=True)
class Admitted:
    """A segment lies in this slot."""

    slot: int
    group: int
    """Numbered over the whole run."""


@dataclass(frozen=True)
class NodeState:
    """How a node stands."""

    node: str
    seat: int
    incarnation: int
    stage: str
    reason: str
    rows: int
    """Steps received."""
    packed_bytes: int
    raw_bytes: int
    lag: float
    """Mean versions that its last segment was behind."""
    heard: float
    """Seconds since it was last heard."""
    lost: int
    """Segments of all its incarnations that were lost."""


@dataclass(frozen=True)
class State:
    """How all nodes stand, about once a second."""

    nodes: tuple[NodeState, ...]
    received: int
    lost: int
    refused: int
    waiting: int
    """Segments that nodes have finished and that have not come yet: lost when this gateway dies."""
    counts: SamplerCounts
    """Of all incarnations of this gateway."""
    published: int
    """Publications that nodes have taken over."""


@dataclass(frozen=True)
class Said:
    """Something for the learner's log."""

    level: int
    text: str


@dataclass(frozen=True)
class Ended:
    """An env's own statistics, lanes numbered over the whole run."""

    extras: tuple[Extra, ...]
