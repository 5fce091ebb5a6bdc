"""A run's end of its cluster: the gateway's process, the slots it fills, the weights it takes out (``distributed``).

Nothing here imports Ray or waits for a node. The gateway is watched and started anew when it dies or stands still; what
was under way is lost and counted, and the run goes on with what it has.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import TYPE_CHECKING

from rollmill.core import given
from rollmill.core.errors import ClusterError, ConfigError
from rollmill.core.opening import read_json
from rollmill.core.process import Child, OutputLog, Recent
from rollmill.core.seeds import Seeds
from rollmill.distributed.membership import INCARNATIONS_EACH
from rollmill.distributed.messages import Admitted, Ended, GatewaySetup, NodePlan, Said, SamplerCounts, Slots, State
from rollmill.distributed.settings import LOCAL
from rollmill.distributed.standing import FILE, NodeStanding, Rates, RunStanding, standing_of
from rollmill.distributed.weight_buffer import WeightBuffer
from rollmill.runs.settings.train import TrainConfig
from rollmill.runs.train.cluster.forecast import announce
from rollmill.sampling.settings import SamplingSettings

if TYPE_CHECKING:
    from rollmill.runs.train.build import Parts

log = logging.getLogger("rollmill")

WRITE_SECONDS = 2.0
LONGEST_REST = 30.0
"""Seconds between two starts of a gateway that keeps dying."""
END_SECONDS = 10.0
SILENT_SECONDS = 30.0
"""At least so long a gateway may say nothing of how nodes stand: it does so twice a second."""
TIMEOUTS = 3
"""``cluster.node_timeout`` as often, if that is longer."""


def node_sampling(config: TrainConfig) -> SamplingSettings:
    """Return how one node samples. Nodes of one machine share its cores, so they are not pinned."""
    s, cluster = config.sampling, config.cluster
    return replace(
        s, workers=cluster.workers or s.workers, affinity=s.affinity and cluster.address != LOCAL, poison=False
    )


def own_path() -> tuple[str, ...]:
    """Return where modules are found beside those of Python and what was installed for it: the user's own code."""
    installed = (sys.prefix, sys.base_prefix)
    return tuple(folder for folder in sys.path if folder and not folder.startswith(installed))


def remote_slots(config: TrainConfig, segments_per_batch: int) -> int:
    """Return how many slots there are for segments of nodes.

    Raises ConfigError if they cannot hold a batch and nobody else fills one.
    """
    cluster = config.cluster
    if not cluster.on:
        return 0
    if cluster.remote_slots and cluster.remote_slots < segments_per_batch and not cluster.local_workers:
        raise ConfigError(
            f"cluster.remote_slots={cluster.remote_slots} do not hold a batch of {segments_per_batch} segments, and "
            "cluster.local_workers=false"
        )
    return cluster.remote_slots or segments_per_batch * (1 + config.sampling.spare_batches)


def node_plan(config: TrainConfig, parts: Parts, weight_bytes: int) -> NodePlan:
    """Return what all nodes of a run are told."""
    cluster, plan = config.cluster, parts.sampler.plan
    return NodePlan(
        sampling=node_sampling(config),
        env=config.env,
        model=config.model,
        spec=plan.spec,
        layout=parts.sampler.arena.layout,
        seeds=plan.seeds,
        action_seeds=Seeds(config.run.seed).branch("actions", "nodes"),
        bfloat16=config.learning.precision == "bfloat16",
        weight_bytes=weight_bytes,
        workers_before=plan.workers,
        chunk_bytes=int(cluster.chunk_mb * 1e6),
        start_timeout=cluster.start_timeout,
        lease=cluster.lease,
        folder=os.getcwd(),
        own_code=given.packed(),
        path=own_path(),
    )


@dataclass
class _Totals:
    """Counts of the gateways that have ended."""

    lost: int = 0
    refused: int = 0
    counts: SamplerCounts = field(default_factory=SamplerCounts)

    def plus(self, state: State) -> _Totals:
        counts = SamplerCounts(*(a + b for a, b in zip(_numbers(self.counts), _numbers(state.counts))))
        return _Totals(self.lost + state.lost, self.refused + state.refused, counts)


def _numbers(counts: SamplerCounts) -> tuple[int, ...]:
    return tuple(asdict(counts).values())


NOTHING = State((), 0, 0, 0, 0, SamplerCounts(), 0)


class Cluster:
    """The nodes of a run, as its main process sees them."""

    def __init__(self, config: TrainConfig, parts: Parts, environment: Mapping[str, str], folder: Path) -> None:
        self._config, self._settings, self._parts = config, config.cluster, parts
        self._environment, self._folder = dict(environment), folder
        sampler = parts.sampler
        (board,) = parts.boards
        from rollmill.distributed.acting import weight_bytes, weight_views

        self._board = board
        self._weights = WeightBuffer(weight_bytes(board.tensors), len(config.env.variables))
        self._views = weight_views(board.tensors, self._weights.weights)
        self._written: tuple[int, int, tuple[float, ...]] | None = None
        self._away = set(sampler.remote)
        """Slots that the gateway has."""
        self._lock = threading.Lock()
        sampler.hand_back = self._hand_back
        self._plan = node_plan(config, parts, len(self._weights.weights))
        self._state = NOTHING
        self._before = _Totals()
        self._child: Child | None = None
        self._channel: Connection | None = None
        self._reader: threading.Thread | None = None
        self._output = OutputLog("gateway")
        self._deaths = Recent()
        self.restarts = 0
        """Of the gateway."""
        self.received = 0
        """Segments of nodes, in this session."""
        self._retry_at = self._started = self._last_node = self._saved = self._told = time.monotonic()
        self._failure: BaseException | None = None
        """What has ended the reader's thread, if it was not the gateway's end."""
        self._complete = self._stopped = False
        self._gateways = self._saved_gateways()
        """Of this run, over all its sessions."""
        self._rates = Rates()
        self._nodes: Sequence[NodeStanding] = ()
        """As the gateway has told last."""
        self._received_when_told = 0
        self._problem = ""
        """Why the gateway ended last; empty while nodes are there."""

    # -- what the run calls --------------------------------------------------------------------

    def start(self, frames: int) -> None:
        announce(self._config, self._parts.sampler.plan, self._plan)
        self._started = self._last_node = time.monotonic()
        self._write_weights(frames)
        self._try_to_spawn()

    def tick(self, frames: int) -> None:
        """Do the work of one turn of the training loop: publish, look after the gateway.

        Raises ClusterError when it is hopeless.
        """
        if self._failure is not None:
            raise self._failure
        self._write_weights(frames)
        self._look_after()
        now, sampling = time.monotonic(), self._sampling()
        self._complete |= len(sampling) >= self._settings.nodes
        if not self._complete and now - self._started > self._settings.start_timeout:
            raise ClusterError(
                f"cluster.nodes={self._settings.nodes}: {len(sampling)} sample after cluster.start_timeout="
                f"{self._settings.start_timeout:g} s; {self._who_does_not()}"
            )
        silent = now - self._last_node
        if not self._settings.local_workers and silent > self._settings.patience:
            raise ClusterError(
                f"no node has sampled for cluster.patience={self._settings.patience:g} s, and "
                f"cluster.local_workers=false; {self._who_does_not()}. The run is saved: --resume goes on"
            )
        if now - self._saved >= WRITE_SECONDS:
            self._save(now)

    def stop(self) -> None:
        """End the gateway, and with it all nodes; may be called again."""
        if self._stopped:
            return
        self._stopped = True
        self._parts.sampler.hand_back = None
        if self._child is not None:
            self._end_gateway(END_SECONDS)
            self._save(time.monotonic())
        self._output.close()
        self._weights.block.close_fd()

    def state(self) -> dict[str, int]:
        """Return what a checkpoint keeps, for a session that does not find ``cluster.json``."""
        return {"gateways": self._gateways}

    def load_state(self, state: Mapping[str, int]) -> None:
        self._gateways = max(self._gateways, state.get("gateways", 0))

    def counts(self) -> dict[str, int]:
        """Return what nodes have counted in this session, by the names of ``runs.train.ranks.sync.COUNTERS``.

        Steps are not among them: the sampler counts those.
        """
        totals = self._totals()
        return {
            "lost_segments": totals.lost + totals.counts.lost_segments,
            "env_faults": totals.counts.env_faults,
            "worker_restarts": totals.counts.worker_restarts,
        }

    def metrics(self) -> dict[str, float]:
        """Return a row of metrics (``docs/metrics.md``)."""
        totals, sampling = self._totals(), self._sampling()
        found: dict[str, float] = {
            "cluster/nodes": len(sampling),
            "cluster/segments": self.received,
            "cluster/lost_segments": totals.lost,
            "cluster/refused_segments": totals.refused,
            "cluster/gateway_restarts": self.restarts,
            "cluster/publications": self._state.published,
        }
        for node in sampling:
            found |= {
                f"cluster/node{node.seat}/frames_per_s": node.steps_per_s * self._parts.spec.frames_per_step,
                f"cluster/node{node.seat}/mb_per_s": node.mb_per_s,
                f"cluster/node{node.seat}/lag": node.lag,
                f"cluster/node{node.seat}/incarnation": node.incarnation,
            }
        if sampling:
            each = [node.lag for node in sampling]
            found["cluster/lag"] = sum(each) / len(each)
            found["cluster/mb_per_s"] = sum(node.mb_per_s for node in sampling)
        if packed_bytes := sum(node.packed_bytes for node in self._state.nodes):
            found["cluster/pack_ratio"] = sum(node.raw_bytes for node in self._state.nodes) / packed_bytes
        return found

    # -- segments and weights ------------------------------------------------------------------

    def _write_weights(self, frames: int) -> None:
        version, variables = self._board.version, tuple(self._parts.sampler.variables.values())
        now = (version, frames, variables)
        if now == self._written:
            return
        with self._weights.writing():
            if self._written is None or version != self._written[0]:
                version = self._board.copy_to(self._views)
            self._weights.tell(version, frames, variables)
        self._written = (version, frames, variables)

    def _hand_back(self, slots: Sequence[int]) -> None:
        """Give slots back to the gateway; called from whichever thread releases segments."""
        with self._lock:
            self._away.update(slots)
            self._send(slots)

    def _send(self, slots: Sequence[int]) -> None:
        if self._channel is not None:
            with contextlib.suppress(OSError):  # it has died: the next one is given all slots that are away
                self._channel.send(Slots(tuple(slots)))

    def _hear(self, channel: Connection) -> None:
        """Read, in a thread, until the gateway has gone, and what it has sent is taken in."""
        try:
            while True:
                self._take(channel.recv())
        except (EOFError, OSError):
            pass
        except BaseException as error:  # noqa: BLE001 - tick raises it; without a reader the gateway would wait for ever
            self._failure = error

    def _take(self, message: object) -> None:
        sampler = self._parts.sampler
        if isinstance(message, Admitted):
            with self._lock:
                self._away.discard(message.slot)
            sampler.admit(message.slot, message.group)
            self.received += 1
        elif isinstance(message, State):
            self._take_state(message)
        elif isinstance(message, Said):
            log.log(message.level, "%s", message.text)
        elif isinstance(message, Ended):
            for lane, number, stats in message.extras:
                sampler.pool.report.note_episode(lane, number, stats)

    def _take_state(self, state: State) -> None:
        now = time.monotonic()
        rates = self._rates.hear(state.nodes, now)
        self._state, self._problem, self._received_when_told = state, "", self.received
        self._nodes = [standing_of(node, rates[node.incarnation]) for node in state.nodes]
        self._told = now
        if self._sampling():  # here, not in tick: a training step may be longer than cluster.patience
            self._last_node = now

    # -- the gateway's process -----------------------------------------------------------------

    def _try_to_spawn(self) -> bool:
        """Start another gateway and return whether there is one; else it is tried again after a rest."""
        try:
            self._spawn(self._next_incarnation())
        except OSError as error:  # a full disk, no process, no descriptors
            rest = self._rest()
            self._problem = f"the gateway cannot be started: {error}"
            log.error("%s; it is tried again in %.1f s", self._problem, rest)
            return False
        return True

    def _rest(self) -> float:
        """Count a gateway that has failed, and return how many seconds it takes until the next is started."""
        rest = min(LONGEST_REST, 0.5 * 2.0 ** min(self._deaths.add() - 1, 8))
        self._retry_at = time.monotonic() + rest
        return rest

    def _spawn(self, first_incarnation: int) -> None:
        ours, theirs = Pipe()
        with theirs:
            try:
                self._child = self._start_gateway(first_incarnation, theirs)
            except BaseException:
                ours.close()
                raise
        self._told = time.monotonic()
        with self._lock:
            self._channel = ours
            self._send(sorted(self._away))
        self._reader = threading.Thread(target=self._hear, args=(ours,), name="gateway", daemon=True)
        self._reader.start()

    def _start_gateway(self, first_incarnation: int, channel: Connection) -> Child:
        sampler, weights = self._parts.sampler, self._weights.block
        arena = sampler.arena
        setup = GatewaySetup(
            plan=self._plan,
            settings=self._settings,
            first_incarnation=first_incarnation,
            first_group=sampler.plan.groups,
            layout=arena.layout,
            slots=arena.slots,
            arena=(arena.block.fd, arena.block.nbytes),
            weights=(weights.fd, weights.nbytes),
            channel=channel.fileno(),
        )
        inherit = {setup.arena[0], setup.weights[0], setup.channel}
        return Child("rollmill.distributed.gateway_main", setup, self._environment, inherit)

    def _next_incarnation(self) -> int:
        """Return a number that no gateway of this run has ever given: it is on the disk before it is used."""
        self._gateways += 1
        self._write(time.monotonic(), durable=True)
        return self._gateways * INCARNATIONS_EACH

    def _saved_gateways(self) -> int:
        try:
            return int(read_json(self._folder / FILE)["gateways"])
        except FileNotFoundError:
            return 0
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ClusterError(
                f"{self._folder / FILE} is damaged ({error}). It says which episodes nodes have played: without it a "
                'run that goes on would play them again. Write {"gateways": 1000} into it, a number that was not '
                "reached"
            ) from error

    def _look_after(self) -> None:
        child = self._child
        if child is None:
            if time.monotonic() >= self._retry_at:
                self.restarts += self._try_to_spawn()
            return
        self._output.write(child.read_output())
        if child.alive and not self._stands_still(child):
            return
        events = child.read_events()
        self._end_gateway(0.0)
        rest = self._rest()
        said = [str(event["trace"] or event["error"]) for event in events]
        for text in said:
            log.error("the gateway failed: %s", text)
        self._problem = said[0].strip().splitlines()[-1] if said else f"the gateway {child.how_it_ended()}"
        log.warning(
            "the gateway %s; training goes on, all nodes are started anew in %.1f s", child.how_it_ended(), rest
        )

    def _stands_still(self, child: Child) -> bool:
        """Return whether the gateway has said nothing for too long: it is alive, and serves nobody."""
        allowed = max(SILENT_SECONDS, TIMEOUTS * self._settings.node_timeout)
        if self._state is NOTHING:  # it starts: Python, Ray, the way to the cluster's head
            allowed = max(allowed, self._settings.start_timeout)
        silent = time.monotonic() - self._told
        if silent < allowed:
            return False
        if self._channel is not None and self._channel.poll():  # it was this process that had no time to read
            return False
        log.error("the gateway (pid %d) has said nothing for %.0f s: it is killed", child.pid, silent)
        return True

    def _end_gateway(self, patience: float) -> None:
        assert self._child is not None
        with self._lock:
            channel, self._channel = self._channel, None
        if patience and channel is not None:
            with contextlib.suppress(OSError):
                channel.send(None)
        self._child.end(patience)
        self._output.write(self._child.read_output())
        if self._reader is not None:
            self._reader.join(END_SECONDS)
        if channel is not None:
            channel.close()
        self._child.close()
        self._child = None
        since = self.received - self._received_when_told
        lost = 0 if self._stopped else max(0, self._state.waiting - since)  # at the end of a run nobody wants them
        self._before, self._state = self._before.plus(replace(self._state, lost=self._state.lost + lost)), NOTHING
        self._nodes = ()

    # -- how it stands -------------------------------------------------------------------------

    def _totals(self) -> _Totals:
        return self._before.plus(self._state)

    def _sampling(self) -> list[NodeStanding]:
        return [node for node in self._nodes if node.stage == "sampling"]

    def _who_does_not(self) -> str:
        if self._problem or self._state is NOTHING:
            return self._problem or "the gateway has not reached the cluster yet"
        others = [node for node in self._nodes if node.stage != "sampling"]
        if not others:
            return "no other node is there"
        return "; ".join(f"{node.node} {node.stage}{node.reason and f': {node.reason}'}" for node in others)

    def _save(self, now: float) -> None:
        """Write ``cluster.json`` for ``rollmill cluster status``.

        It does not wait for the disk: the training does not go on meanwhile.
        """
        try:
            self._write(now, durable=False)
        except OSError as error:
            log.error("%s cannot be written: %s", self._folder / FILE, error)

    def _write(self, now: float, durable: bool) -> None:
        self._saved = now
        totals, since = self._totals(), now - self._told
        standing = RunStanding(
            gateways=self._gateways,
            address=self._settings.address,
            time=time.time(),
            restarts=self.restarts,
            problem=self._problem,
            received=self.received,
            lost=totals.lost,
            refused=totals.refused,
            nodes=[replace(node, heard=round(node.heard + since, 2)) for node in self._nodes],
        )
        standing.write(self._folder, durable)


@contextlib.contextmanager
def start_cluster(
    config: TrainConfig, parts: Parts, environment: Mapping[str, str], folder: Path
) -> Iterator[Cluster | None]:
    """Yield the cluster of a run that has one, else None; nothing is left of it when this ends."""
    if not config.cluster.on:
        yield None
        return
    cluster = Cluster(config, parts, environment, folder)
    try:
        yield cluster
    finally:
        cluster.stop()
