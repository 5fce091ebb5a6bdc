"""An online training in progress: collect a batch of segments, learn from it, publish, report, save.

``OnlineRun.loop`` is the whole training. The same loop serves all three modes; they differ only in who
calls ``sampler.round``: a thread of its own (async), or the loop itself (sync and serial). What stands
around it (run folder, janitor, env spec, parts, how it ended) is in ``runs.train.run``.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from rollmill.core.checkpoints import Loaded, restoring
from rollmill.core.config.plain import completed, to_dict
from rollmill.core.errors import CheckpointError, ConfigError, LostRankError, NonFiniteError
from rollmill.core.fields import Array, EnvSpec
from rollmill.core.protocols import Learner
from rollmill.core.shapes import check_shape
from rollmill.envs.tasks.scores import RETURN, usual_metric
from rollmill.envs.variables import PROGRESS
from rollmill.learning.appo import Appo
from rollmill.learning.guards import ValueCollapseError
from rollmill.learning.off_policy import OffPolicyAppo
from rollmill.recording.recorder import DropCounts, Recorder, closing_words
from rollmill.runs.lifecycle import Life
from rollmill.runs.policies.online_state import STATE_SHAPE
from rollmill.runs.settings.train import TrainConfig
from rollmill.runs.train.build import Parts
from rollmill.runs.train.cluster.cluster import Cluster
from rollmill.runs.train.observers import Observer, Trajectory, call_hook, cut_trajectories
from rollmill.runs.train.population.member import Member
from rollmill.runs.train.population.members import Members
from rollmill.runs.train.ranks.sync import COUNTERS, RankSync
from rollmill.runs.train.reporting import TrainMetrics
from rollmill.runs.train.selfplay.opponents import SelfPlay
from rollmill.sampling.sampler import COUNTERS_SHAPE, EXACT_SHAPE, SamplerThread

log = logging.getLogger("rollmill")

PATIENCE = 0.2
"""Seconds to wait for segments before it is looked what else there is to do (async mode)."""
SWITCH_SECONDS = 0.0005
"""How long the learner may hold the interpreter while the sampler's thread wants it (async mode)."""


def _mean(seconds: Array) -> float:
    """Return the mean over workers, where there are any."""
    return float(seconds.mean()) if seconds.size else 0.0


class OnlineRun:
    """A run in progress. Everything public here is what observers may look at."""

    def __init__(
        self,
        config: TrainConfig,
        parts: Parts,
        life: Life,
        metrics: TrainMetrics,
        observers: Sequence[Observer],
    ) -> None:
        self.config = config
        self.spec: EnvSpec = parts.spec
        self.parts = parts
        self.folder = life.folder
        self.observers = tuple(observers)
        self.iteration = 0
        """Training steps done, over all sessions of the run."""
        self.seconds = 0.0
        """Seconds of training, over all sessions of the run."""
        self.recorder: Recorder | None = None
        """Keeps trajectories; None if the run does not record. Set before ``loop``."""
        self.cluster: Cluster | None = None
        """Other machines that sample for the run; None without ``cluster.address``. Set before ``loop``."""
        self.life = life
        """Its checkpoints, its signals, and how it will end."""
        self._metrics = metrics
        self.members: Members | Member | None = None
        """The population, if the run is one, or its part in one of separate runs."""
        appo = [learner for learner in parts.learners if isinstance(learner, Appo)]
        if config.pbt.on:
            self.members = Members(config, appo, parts.sampler, life.folder)
        elif config.pbt.exchange is not None:
            self.members = Member(config, appo, parts.sampler, life, self.save)
        if self.members is not None:
            metrics.follow(self.members)
        self.selfplay: SelfPlay | None = None
        """Opponents and results, if policies play against others than themselves."""
        if parts.matches is not None:
            self.selfplay = SelfPlay(config, parts.matches, parts.sampler, life.folder)
        self._learners = [learner for learner in parts.learners if learner.policy_id not in config.learning.frozen]
        self._observers_saved: Sequence[Mapping[str, Any]] = []
        """What the loaded checkpoint holds of observers: name and state."""
        self._observers_are_set = False
        self._cluster_saved: Mapping[str, int] = {}
        """What the loaded checkpoint holds of nodes: a session without any keeps it for the next."""
        replaying = [own for own in self._learners if isinstance(own, OffPolicyAppo)]
        for own in replaying:
            own.goes_on = self._goes_on
        self._timed = [own for own in replaying if own.buffer.timed]
        self._rank_sync = RankSync(parts.ranks, parts.sampler, parts.learners)
        self._patience = min(PATIENCE, config.replay.clock_seconds)
        self._dropped = 0
        self._batch: Mapping[str, Any] = {}
        self._on_host: Mapping[str, Array] | None = None
        self._groups: Array = np.zeros(0, np.int64)
        self._seconds_gather = self._seconds_learn = 0.0
        self._thread: SamplerThread | None = None
        self._sampler_is_set = False

    @property
    def frames(self) -> int:
        """Simulator frames so far, of all ranks."""
        return self.counts()["steps"] * self.spec.frames_per_step

    @property
    def step(self) -> int:
        """What the life of this run is counted in: frames."""
        return self.frames

    @property
    def stop_reason(self) -> str:
        """Why the run is over; empty while it goes on."""
        return self.life.stop_reason

    @property
    def dropped_segments(self) -> int:
        """Segments that were too old to learn from, over all sessions and ranks."""
        return self._dropped + self._rank_sync.elsewhere("dropped_segments")

    def counts(self) -> dict[str, int]:
        """Return what the samplers of all ranks have counted in all sessions (``runs.train.ranks.sync.COUNTERS``)."""
        sampler = self.parts.sampler
        report = sampler.pool.report
        own = (sampler.steps, sampler.lost_segments, report.env_faults, report.worker_restarts)
        counts = {name: n + self._rank_sync.elsewhere(name) for name, n in zip(COUNTERS, own, strict=True)}
        if self.cluster is not None:
            for name, count in self.cluster.counts().items():
                counts[name] += count
        return counts

    @property
    def frames_allowed(self) -> int:
        """Frames after which the run ends; 0 for no limit."""
        return self.config.stop.frames

    @property
    def progress(self) -> float:
        """Share of the run that is done, by the limit that is nearest."""
        stop = self.config.stop
        pairs = ((self.frames, stop.frames), (self.seconds, stop.seconds), (self.iteration, stop.batches))
        return min(1.0, max((done / limit for done, limit in pairs if limit), default=0.0))

    @property
    def segments(self) -> Mapping[str, Array]:
        """The batch of the last training step as numpy: ``[T + 1, B, ...]`` per field (``core.slots``).

        The learner's own arrays; only what lives on a GPU is copied, once per step and only if asked for.
        """
        if self._on_host is None:
            self._on_host = {
                name: x if isinstance(x, np.ndarray) else x.cpu().numpy() for name, x in self._batch.items()
            }
        return self._on_host

    def trajectories(self) -> list[Trajectory]:
        """Return the batch of the last training step, segment by segment: who acted, and arrays (views, no copies)."""
        return cut_trajectories(self.segments, self._groups, self.config.sampling.groups)

    @property
    def variables(self) -> dict[str, float]:
        """``env.variables`` as they stand now."""
        return self.parts.sampler.variables

    def set_variable(self, name: str, value: float) -> None:
        """Turn one of ``env.variables`` for all environments; each takes it over when its next episode begins."""
        if name not in self.config.env.variables:
            known = ", ".join(self.config.env.variables) or "none"
            raise ConfigError(f"set_variable({name!r}): env.variables has no such name (it has: {known})")
        self.parts.sampler.set_variable(name, value)

    @property
    def mean_return(self) -> float | None:
        """Mean return of the last ``report.window`` episodes; None before the first has ended."""
        return self._metrics.mean_return

    def phase_seconds(self) -> dict[str, float]:
        """Return where the time of this session went so far, by process and phase (workers: mean over them)."""
        sampler = self.parts.sampler
        return {
            "worker env": _mean(sampler.box.seconds_env),
            "worker wait": _mean(sampler.box.seconds_wait),
            "main inference": sampler.seconds_inference,
            "main gather": self._seconds_gather,
            "main learn": self._seconds_learn,
        }

    def stop(self, reason: str) -> None:
        """End the run after the current training step (for observers)."""
        self.life.stop(reason)

    # -- the life of a run ---------------------------------------------------------------------

    def loop(self) -> None:
        """Train until a limit, a signal or an observer ends it; the last weights are always saved."""
        if self._rank_sync.leads:
            self._metrics.open(self.frames, self.seconds)
        if not self.iteration:  # a run that goes on has what its checkpoint says
            self._keep_progress(0.0)
        with self.life.interrupt, self._populated(), self._sampling():
            self.tell("on_start")
            begun = time.monotonic()
            before = self.seconds
            while (learnt := self._turn()) is not None:
                self.seconds = before + time.monotonic() - begun
                if learnt:
                    self._after_step()
        if self._rank_sync.leads:
            self._metrics.finish(self)  # only now: the recorder has written the last of it

    def _turn(self) -> bool | None:
        """Learn once, if all ranks have a batch; returns whether they had, or None when the run is over."""
        try:
            agreed = self._agree()
            if agreed is None:
                return None
            slots, progress = agreed
            if slots:
                self._learn(slots, progress)
            else:
                self._learn_again(progress)
            return bool(slots)
        except LostRankError as error:
            why = str(error)
        # Only now: the error holds on to the group that is to be left. The update that was under way has ended early.
        self.iteration = self._rank_sync.regroup(self.iteration, why)
        return False

    def begin_together(self) -> None:
        """Begin on all ranks with what rank 0 has: weights, counts, and episodes that nobody has used."""
        self.iteration = self._rank_sync.begin(self.iteration)

    def _agree(self) -> tuple[list[int], float] | None:
        """Return what all ranks do next: segments to learn from, and the share of the run that is done.

        There are no segments where one of the ranks has no batch yet. Returns None when the run is over.
        """
        if self.cluster is not None:
            self.cluster.tick(self.frames)
        if isinstance(self.members, Member):  # before it is looked whether the run is over: others may wait for it
            self._follow(self.members.step())
        slots = None if self._over() else self._collect()
        try:
            agreed = self._rank_sync.agree(slots is not None, self.stop_reason, self.progress, self._dropped)
        except LostRankError:
            self.parts.sampler.put_back(slots or [])
            raise
        if agreed.stop:
            self.stop(agreed.stop)
            return None
        for name, value in agreed.variables.items():  # what observers have set on rank 0
            self.parts.sampler.set_variable(name, value)
        self._keep_progress(agreed.progress)
        if slots is not None and not agreed.learn:
            self.parts.sampler.put_back(slots)
            slots = None
        return slots or [], agreed.progress

    def _keep_progress(self, progress: float) -> None:
        """Let environments that ask for it know how far the run is: the same number on every rank."""
        if PROGRESS in self.config.env.variables:
            self.parts.sampler.set_variable(PROGRESS, progress)

    def _goes_on(self) -> bool:
        """Look after the run between two batches of one training step: nodes get weights, and signals are heard.

        Returns whether the run goes on.
        """
        if self.cluster is not None:
            self.cluster.tick(self.frames)
        return not self.life.over(lambda: "")

    def _over(self) -> bool:
        return self._rank_sync.leads and self.life.over(self._limit)

    @contextlib.contextmanager
    def _populated(self) -> Iterator[None]:
        """Give the members of a population their settings before the first environment begins."""
        if self.members is not None:
            self._follow(self.members.begin(anew=not self.iteration, same=self._sampler_is_set))
        yield

    def _follow(self, changed: Sequence[int]) -> None:
        """Begin the metrics of these policies anew: they have weights of others now."""
        for policy in changed:
            self._metrics.restart(policy)

    @contextlib.contextmanager
    def _sampling(self) -> Iterator[None]:
        """Run workers and, in async mode, the sampler's thread, for as long as the loop runs."""
        sampler, usual = self.parts.sampler, sys.getswitchinterval()
        try:
            if self.recorder is not None:
                self.recorder.start()
            if not self._sampler_is_set:
                sampler.start()
            if self.recorder is not None:
                self.recorder.wait_ready()
            if self.cluster is not None:
                self.cluster.start(self.frames)
            untrained = None if self.life.can_be_resumed or not self._rank_sync.leads else self.state()
            if self.config.sampling.mode == "async":
                # By default a thread may hold the interpreter for 5 ms while the other one waits: ten rounds.
                sys.setswitchinterval(SWITCH_SECONDS)
                self._thread = SamplerThread(sampler)
                self._thread.start()
            if untrained is not None:  # only now: it is written while the first batch is being played
                self._save_or_complain(untrained)
            yield
        finally:
            sys.setswitchinterval(usual)
            if self.cluster is not None:
                self.cluster.stop()
            if self._thread is not None:
                self._thread.stop()
            sampler.stop()
            if self._thread is not None:
                self._thread.join()
            if self.recorder is not None:
                self._offer_rest(self.recorder)
                self.recorder.stop()
                rows = self.recorder.counts()["rows"]
                log.log(logging.INFO if rows else logging.WARNING, "%s", closing_words(self.recorder, self.folder.data))

    def _collect(self) -> list[int] | None:
        """Return a batch of finished segments that are fresh enough, or None when it is time to look around."""
        sampler, wanted = self.parts.sampler, self.parts.segments_per_batch
        if self._thread is not None:
            self._thread.check()
            taken = sampler.take(wanted, self._patience)
        else:
            taken = sampler.take(wanted, timeout=0)
            if taken is None:
                sampler.round()
        if taken is None:
            return None
        fresh = self._drop_stale(taken)
        if len(fresh) < wanted:
            sampler.put_back(fresh)
            return None
        return fresh

    def _drop_stale(self, slots: list[int]) -> list[int]:
        """Return the segments in which a learner finds a row to learn from, and give the others back.

        Each learner leaves out what is too old for it.
        """
        arena = self.parts.sampler.arena
        versions, owners = arena["version"][slots, :-1], arena["policy_id"][slots, :-1]
        useful = np.zeros(versions.shape, bool)
        for learner in self._learners:
            useful |= (owners == learner.policy_id) & (versions >= learner.oldest_useful)
        fresh = [slot for slot, found in zip(slots, useful, strict=True) if found.any()]
        if len(fresh) < len(slots):
            stale = [slot for slot in slots if slot not in fresh]
            self._dropped += len(stale)
            self._give_back(stale, learnt=False)
        return fresh

    def _give_back(self, slots: list[int], learnt: bool = True) -> None:
        """Give back segments that nobody here needs any more; the recorder may keep some a little longer."""
        sampler = self.parts.sampler
        if self.recorder is not None:
            groups = sampler.inference.group_of_slot[slots]
            slots = self.recorder.offer(slots, groups.tolist(), self.frames, learnt)
            sampler.inference.group_of_slot[slots] = groups  # another slot may stand in for one that is held
        sampler.release(slots)

    def _offer_rest(self, recorder: Recorder) -> None:
        """Offer the recorder segments that ended and that nobody will learn from: episodes end in them, too."""
        sampler = self.parts.sampler
        rest = list(sampler.finished)
        if rest and self.config.sampling.mode != "serial":  # there they are learnt from after a resume
            recorder.offer(rest, sampler.inference.group_of_slot[rest].tolist(), self.frames, learnt=False)
        self._metrics.close_episodes(self)

    def _learn(self, slots: list[int], progress: float) -> None:
        begun = time.perf_counter()
        self._batch, self._on_host = self.parts.gather(slots), None
        self._groups = self.parts.sampler.inference.group_of_slot[slots].copy()
        self._give_back(slots)
        gathered = time.perf_counter()
        self._seconds_gather += gathered - begun
        for learner in [self._learners[self._owner]] if isinstance(self.members, Members) else self._learners:
            self._teach(learner, self._batch, progress)
        self._seconds_learn += time.perf_counter() - gathered
        self.iteration += 1

    @property
    def _owner(self) -> int:
        """The member of a population that the batch belongs to."""
        return self.parts.sampler.plan.policy_of_group[int(self._groups[0])]

    def _learn_again(self, progress: float) -> None:
        """Learn from old segments by the clock while none are new. No training step: observers have seen them all."""
        begun = time.perf_counter()
        for learner in self._timed:
            self._teach(learner, {}, progress)
        self._seconds_learn += time.perf_counter() - begun

    def _teach(self, learner: Learner, segments: Mapping[str, Any], progress: float) -> None:
        try:
            metrics = learner.train(segments, progress)
        except (NonFiniteError, ValueCollapseError) as error:
            if self.members is None:
                raise
            self.members.set_back(learner.policy_id, error)
            return
        if not metrics:
            return
        learner.publish()
        self._metrics.add_learning(learner.policy_id, metrics)

    def _after_step(self) -> None:
        if not self._rank_sync.leads:
            return
        self.tell("on_training_step", self.iteration)
        self._metrics.step(self)
        if isinstance(self.members, Members):
            self._follow(self.members.step())
        if self.life.save_due(self.iteration):
            self._save_or_complain(self.state())

    def init_observers(self) -> None:
        """Tell the observers that everything is built, and give them back what they have saved."""
        self.tell("on_init")
        self._observers_are_set = True
        waiting = list(self.observers)
        for k, entry in enumerate(self._observers_saved):
            own = next((observer for observer in waiting if type(observer).__name__ == entry["name"]), None)
            if own is not None and self.life.loaded is not None:  # else the run has no such observer any more
                waiting.remove(own)
                with restoring(self.life.loaded.path, f"observers.{k}.saved"):
                    own.on_load(self, entry["saved"])

    def tell(self, hook: str, *args: object) -> None:
        """Call a hook of every observer."""
        for observer in self.observers:
            call_hook(observer, hook, self, *args)

    def _limit(self) -> str:
        """Return the limit that is reached, if one is."""
        stop, mean = self.config.stop, self.mean_return
        if stop.frames and self.frames >= stop.frames:
            return f"reached stop.frames={stop.frames:_}"
        if stop.seconds and self.seconds >= stop.seconds:
            return f"reached stop.seconds={stop.seconds:g}"
        if stop.batches and self.iteration >= stop.batches:
            return f"reached stop.batches={stop.batches:_}"
        if stop.mean_return is None or mean is None or not self._metrics.window_full or mean < stop.mean_return:
            return ""
        return f"reached stop.mean_return={stop.mean_return:g}"

    def write_row(self) -> None:
        """Write a row of metrics now (for observers whose metrics come after the last training step)."""
        self._metrics.write_row(self)

    # -- checkpoints ---------------------------------------------------------------------------

    def save(self, with_envs: bool = True, keep: bool = False) -> Path:
        """Write a checkpoint now. Raises CheckpointError if it cannot be written (older ones are safe).

        ``keep``: it stays for ever.
        """
        return self.life.save(*self._to_save(self.state(with_envs)), keep)

    def _best_metric(self) -> float | None:
        """Return what checkpoints are compared by (``checkpoints.best_metric``): the higher, the better."""
        settings, usual = self.config.checkpoints, usual_metric(self.config.env)
        if not settings.best_metric and usual == RETURN:
            return self.mean_return
        return settings.rated(self._metrics.last_row, usual)

    def _save_or_complain(self, state: dict[str, Any]) -> None:
        if not self.life.try_save(*self._to_save(state)):
            self._metrics.checkpoint_failures += 1

    def _to_save(self, state: dict[str, Any]) -> tuple[dict[str, Any], int, float | None]:
        """Return the state, the frames it was taken at, and the metric that checkpoints are compared by.

        The frames are not ``self.frames``: the sampler's thread may have counted on while the weights were copied.
        """
        return state, state["sampler"]["steps"] * self.spec.frames_per_step, self._best_metric()

    def state(self, with_envs: bool = True) -> dict[str, Any]:
        """Return everything needed to go on; in serial mode bit for bit, unless the envs are to be left out.

        Vector envs always are: their lanes restart by themselves, from no seed of their own.
        After a failure in the middle of a step the envs stand between two rows: they begin anew.
        """
        exact = with_envs and self.config.sampling.mode == "serial" and not self.config.env.vector
        return {
            "spec": self.spec.to_dict(),
            "iteration": self.iteration,
            "seconds": self.seconds,
            "dropped_segments": self.dropped_segments,
            "learners": [learner.state() for learner in self.parts.learners],
            "policies": [policy.state() for policy in self.parts.policies] if exact else [],
            "sampler": {**(self.parts.sampler.state() if exact else self.parts.sampler.counters()), **self.counts()},
            "ranks": self._rank_sync.state(),
            "reporter": self._metrics.state(),
            **({} if self.members is None else {self.members.saved_as: self.members.state()}),
            **({} if self.selfplay is None else {"selfplay": self.selfplay.state()}),
            "observers": self._observer_states(),
            "recorder": asdict(self.recorder.drops.plus(self.recorder.counts())) if self.recorder else {},
            "cluster": self._cluster_saved if self.cluster is None else self.cluster.state(),
        }

    def _observer_states(self) -> Sequence[Mapping[str, Any]]:
        if not self._observers_are_set:
            return self._observers_saved
        kept = [(type(observer).__name__, call_hook(observer, "on_save", self)) for observer in self.observers]
        return [{"name": name, "saved": saved} for name, saved in kept if saved]

    def load_state(self, loaded: Loaded) -> None:
        """Continue from a checkpoint of this run."""
        state, path = loaded.state, loaded.path
        saved = {**state["spec"], "info": []}  # what is kept of it may change
        if saved != {**self.spec.to_dict(), "info": []}:
            raise CheckpointError(
                f"{path} was made for another environment: {state['spec']['name']} with "
                f"observations {state['spec']['observation']} and actions {state['spec']['action']}"
            )
        with restoring(path):
            check_shape(state, STATE_SHAPE)
        with restoring(path, "learners"):
            for k, (learner, entry) in enumerate(zip(self.parts.learners, state["learners"], strict=True)):
                with restoring(path, f"learners.{k}"):
                    learner.load_state(entry)
        self.iteration = state["iteration"]
        self.seconds = state["seconds"]
        self._observers_saved = state.get("observers", [])
        self._rank_sync.load_state(state.get("ranks", []))
        self._dropped = state["dropped_segments"]
        with restoring(path, "reporter"):
            self._metrics.load_state(state["reporter"])
        if self.members is not None:
            with restoring(path, self.members.saved_as):
                self.members.load_state(state[self.members.saved_as])
        if self.selfplay is not None and "selfplay" in state:
            with restoring(path, "selfplay"):
                self.selfplay.load_state(state["selfplay"], path)
        if self.recorder is not None:
            with restoring(path, "recorder"):
                self.recorder.drops = DropCounts(**state.get("recorder", {}))
        self._cluster_saved = state.get("cluster", {})
        if self.cluster is not None:
            self.cluster.load_state(self._cluster_saved)
        with restoring(path, "sampler"):
            check_shape(state["sampler"], EXACT_SHAPE if state["policies"] else COUNTERS_SHAPE)
            if not state["policies"] or not self._can_replay(state):
                self.parts.sampler.load_counters(state["sampler"])
                return
        with restoring(path, "policies"):
            for k, (policy, entry) in enumerate(zip(self.parts.policies, state["policies"], strict=True)):
                with restoring(path, f"policies.{k}"):
                    policy.load_state(entry)
        with restoring(path, "sampler"):
            self.parts.sampler.resume(state["sampler"])
        self._sampler_is_set = True

    def _can_replay(self, state: Mapping[str, Any]) -> bool:
        """Return whether the saved rows and envs fit this run; if not, it goes on with fresh episodes."""
        old, new = completed(state["config"], type(self.config)()), to_dict(self.config)
        held = state["sampler"]["held"]
        return (
            old["run"]["seed"] == new["run"]["seed"]
            and old["sampling"] == new["sampling"]
            and old["env"] == new["env"]
            and old.get("pbt", new["pbt"]) == new["pbt"]
            and old["selfplay"] == new["selfplay"]
            and old["learning"]["recurrence"] == new["learning"]["recurrence"]
            and len(held) == self.parts.sampler.plan.groups  # workers=0 is a matter of the machine
        )
