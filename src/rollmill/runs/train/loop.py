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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from rollmill.core.checkpoints import Checkpoints, Loaded, restoring
from rollmill.core.config.plain import to_dict
from rollmill.core.errors import CheckpointError, ConfigError
from rollmill.core.fields import Array, EnvSpec
from rollmill.core.run_folder import RunFolder
from rollmill.core.shapes import check_shape
from rollmill.envs.variables import PROGRESS
from rollmill.recording.recorder import DropCounts, Recorder, closing_words
from rollmill.runs.online_state import CHECKPOINT_FORMAT, STATE_SHAPE
from rollmill.runs.settings import TrainConfig
from rollmill.runs.stopping import Interrupt, StopRules
from rollmill.runs.train.build import Parts
from rollmill.runs.train.observers import Observer, Trajectory, call_hook, cut_trajectories
from rollmill.runs.train.rank_sync import COUNTERS, RankSync
from rollmill.runs.train.reporting import Reporter
from rollmill.sampling.sampler import COUNTERS_SHAPE, EXACT_SHAPE, SamplerThread

log = logging.getLogger("rollmill")

SWITCH_SECONDS = 0.0005
"""How long the learner may hold the interpreter while the sampler's thread wants it (async mode)."""


class OnlineRun:
    """A run in progress. Everything public here is what observers may look at."""

    def __init__(
        self,
        config: TrainConfig,
        parts: Parts,
        folder: RunFolder,
        reporter: Reporter,
        observers: Sequence[Observer],
    ) -> None:
        self.config = config
        self.spec: EnvSpec = parts.spec
        self.parts = parts
        self.folder = folder
        self.observers = tuple(observers)
        self.iteration = 0
        """Training steps done, over all sessions of the run."""
        self.seconds = 0.0
        """Seconds of training, over all sessions of the run."""
        self.stop_reason = ""
        """Why the run is over; empty while it goes on."""
        self.recorder: Recorder | None = None
        """Keeps trajectories; None if the run does not record. Set before ``loop``."""
        self._reporter = reporter
        self.interrupt = Interrupt()
        self._rank_sync = RankSync(parts.ranks, parts.sampler)
        self._dropped = 0
        self._batch: Mapping[str, Any] = {}
        self._on_host: Mapping[str, Array] | None = None
        self._groups: Array = np.zeros(0, np.int64)
        self._seconds_gather = self._seconds_learn = 0.0
        self._thread: SamplerThread | None = None
        self._sampler_is_set = False
        s = config.checkpoints
        self._checkpoints = Checkpoints(folder.checkpoints, s.keep_last, s.keep_best, s.milestone_frames, s.min_free_mb)
        self._saved_at = time.monotonic()
        self._loaded: Path | None = None
        self._rules = StopRules(self._limits())

    @property
    def frames(self) -> int:
        """Simulator frames so far, of all ranks."""
        return self.counts()["steps"] * self.spec.frames_per_step

    @property
    def dropped_segments(self) -> int:
        """Segments that were too old to learn from, over all sessions and ranks."""
        return self._dropped + self._rank_sync.elsewhere("dropped_segments")

    def counts(self) -> dict[str, int]:
        """What the samplers of all ranks have counted, over all sessions (``rank_sync.COUNTERS``)."""
        sampler = self.parts.sampler
        report = sampler.pool.report
        own = (sampler.steps, sampler.lost_segments, report.env_faults, report.worker_restarts)
        return {name: n + self._rank_sync.elsewhere(name) for name, n in zip(COUNTERS, own, strict=True)}

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
        """The batch of the last training step, segment by segment: who acted, and named arrays (views, no copies)."""
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
        return self._reporter.mean_return

    def phase_seconds(self) -> dict[str, float]:
        """Where the time of this session went so far, by process and phase (workers: mean over them)."""
        sampler = self.parts.sampler
        return {
            "worker env": float(sampler.box.seconds_env.mean()),
            "worker wait": float(sampler.box.seconds_wait.mean()),
            "main inference": sampler.seconds_inference,
            "main gather": self._seconds_gather,
            "main learn": self._seconds_learn,
        }

    def stop(self, reason: str) -> None:
        """End the run after the current training step (for observers)."""
        self.stop_reason = self.stop_reason or reason

    # -- the life of a run ---------------------------------------------------------------------

    def loop(self) -> None:
        """Train until a limit, a signal or an observer ends it; the last weights are always saved."""
        if self._rank_sync.leads:
            self._reporter.open(self.frames, self.seconds)
        if not self.iteration:  # a run that goes on has what its checkpoint says
            self._keep_progress(0.0)
        with self.interrupt, self._sampling():
            self.tell("on_start")
            begun = time.monotonic()
            before = self.seconds
            while True:
                slots = None if self._over() else self._collect()
                agreed = self._rank_sync.agree(slots is not None, self.stop_reason, self.progress, self._dropped)
                if agreed.stop:
                    self.stop(agreed.stop)
                    break
                self._keep_progress(agreed.progress)
                if slots is not None and not agreed.learn:
                    self.parts.sampler.put_back(slots)
                    slots = None
                if slots is not None:
                    self._learn(slots, agreed.progress)
                self.seconds = before + time.monotonic() - begun
                if slots is not None:
                    self._after_step()
        if self._rank_sync.leads:
            self._reporter.finish(self)  # only now: the recorder has written the last of it

    def _keep_progress(self, progress: float) -> None:
        """Let environments that ask for it know how far the run is: the same number on every rank."""
        if PROGRESS in self.config.env.variables:
            self.parts.sampler.set_variable(PROGRESS, progress)

    def _over(self) -> bool:
        if not self._rank_sync.leads:
            return False
        self.folder.watch()
        if self.interrupt.signal is not None:
            self.stop(f"{self.interrupt.signal.name} received")
        self.stop_reason = self.stop_reason or self._rules.reason()
        return bool(self.stop_reason)

    @contextlib.contextmanager
    def _sampling(self) -> Iterator[None]:
        """Workers and, in async mode, the sampler's thread, for as long as the loop runs."""
        sampler, usual = self.parts.sampler, sys.getswitchinterval()
        try:
            if self.recorder is not None:
                self.recorder.start()
            if not self._sampler_is_set:
                sampler.start()
            if self.recorder is not None:
                self.recorder.wait_ready()
            untrained = None if self._can_be_resumed() else self.state()
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
        """A batch of finished segments that are fresh enough, or None when it is time to look around."""
        sampler, wanted = self.parts.sampler, self.parts.segments_per_batch
        if self._thread is not None:
            self._thread.check()
            taken = sampler.take(wanted, timeout=0.2)
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
        versions = self.parts.sampler.arena["version"]
        oldest = max(learner.oldest_useful for learner in self.parts.learners)
        fresh = [slot for slot in slots if versions[slot, :-1].min() >= oldest]
        if len(fresh) < len(slots):
            stale = [slot for slot in slots if slot not in fresh]
            self._dropped += len(stale)
            self._give_back(stale, learnt=False)
        return fresh

    def _give_back(self, slots: list[int], learnt: bool = True) -> None:
        """Nobody here needs these segments any more; the recorder may want to keep some a little longer."""
        sampler = self.parts.sampler
        if self.recorder is not None:
            groups = sampler.inference.group_of_slot[slots].tolist()
            slots = self.recorder.offer(slots, groups, self.frames, learnt)
        sampler.release(slots)

    def _offer_rest(self, recorder: Recorder) -> None:
        """Segments that ended, and that nobody will learn from any more: episodes end in them, too."""
        sampler = self.parts.sampler
        rest = list(sampler.finished)
        if rest and self.config.sampling.mode != "serial":  # there they are learnt from after a resume
            recorder.offer(rest, sampler.inference.group_of_slot[rest].tolist(), self.frames, learnt=False)
        self._reporter.close_episodes(self)

    def _learn(self, slots: list[int], progress: float) -> None:
        begun = time.perf_counter()
        self._batch, self._on_host = self.parts.gather(slots), None
        self._groups = self.parts.sampler.inference.group_of_slot[slots].copy()
        self._give_back(slots)
        gathered = time.perf_counter()
        self._seconds_gather += gathered - begun
        for learner in self.parts.learners:
            metrics = learner.train(self._batch, progress)
            learner.publish()
            self._reporter.add_learning(learner.policy_id, metrics)
        self._seconds_learn += time.perf_counter() - gathered
        self.iteration += 1

    def _after_step(self) -> None:
        if not self._rank_sync.leads:
            return
        self.tell("on_training_step", self.iteration)
        self._reporter.step(self)
        if time.monotonic() - self._saved_at >= self.config.checkpoints.every_seconds:
            self._save_or_complain(self.state())

    def tell(self, hook: str, *args: object) -> None:
        """Call a hook of every observer."""
        for observer in self.observers:
            call_hook(observer, hook, self, *args)

    def _limits(self) -> list[Callable[[], str]]:
        stop = self.config.stop

        def reached_return() -> bool:
            mean, wanted = self.mean_return, stop.mean_return
            return mean is not None and wanted is not None and self._reporter.window_full and mean >= wanted

        return [
            lambda: f"reached stop.frames={stop.frames:_}" if stop.frames and self.frames >= stop.frames else "",
            lambda: f"reached stop.seconds={stop.seconds:g}" if stop.seconds and self.seconds >= stop.seconds else "",
            lambda: f"reached stop.batches={stop.batches:_}" if stop.batches and self.iteration >= stop.batches else "",
            lambda: f"reached stop.mean_return={stop.mean_return:g}" if reached_return() else "",
        ]

    def write_row(self) -> None:
        """Write a row of metrics now (for observers whose metrics come after the last training step)."""
        self._reporter.write_row(self)

    def close(self) -> None:
        self._reporter.close()

    # -- checkpoints ---------------------------------------------------------------------------

    def save(self, with_envs: bool = True, keep: bool = False) -> Path:
        """Write a checkpoint now; CheckpointError when it cannot be written (older ones are safe).

        ``keep``: it stays for ever.
        """
        return self._write_checkpoint(self.state(with_envs), keep)

    def _write_checkpoint(self, state: dict[str, Any], keep: bool = False) -> Path:
        self.folder.require()
        # Not self.frames: the sampler's thread may have counted on while the weights were copied.
        frames = state["sampler"]["steps"] * self.spec.frames_per_step
        path = self._checkpoints.save(state, frames, self._best_metric(), keep)
        self._saved_at = time.monotonic()
        log.info("checkpoint %s", path)
        return path

    def _best_metric(self) -> float | None:
        """What checkpoints are compared by (``checkpoints.best_metric``): the higher, the better."""
        settings = self.config.checkpoints
        return settings.rated(self._reporter.last_row) if settings.best_metric else self.mean_return

    def _save_or_complain(self, state: dict[str, Any]) -> None:
        try:
            self._write_checkpoint(state)
        except CheckpointError as error:
            self._saved_at = time.monotonic()  # try again after the usual time, not at every step
            self._reporter.checkpoint_failures += 1
            log.error("no checkpoint was written, training goes on: %s", error)

    def _can_be_resumed(self) -> bool:
        """Whether ``--resume`` would go on from where this run begins, should it be killed before it saves anything."""
        is_there = self._loaded is not None and self._checkpoints.is_newest(self._loaded)
        return is_there or not self._rank_sync.leads

    def state(self, with_envs: bool = True) -> dict[str, Any]:
        """Everything needed to go on; in serial mode bit for bit, unless the envs are to be left out.

        Vector envs always are: their lanes restart by themselves, from no seed of their own.
        After a failure in the middle of a step the envs stand between two rows: they begin anew.
        """
        exact = with_envs and self.config.sampling.mode == "serial" and not self.config.env.vector
        return {
            "format": CHECKPOINT_FORMAT,
            "kind": "online",
            "config": to_dict(self.config),
            "spec": self.spec.to_dict(),
            "iteration": self.iteration,
            "seconds": self.seconds,
            "dropped_segments": self.dropped_segments,
            "learners": [learner.state() for learner in self.parts.learners],
            "policies": [policy.state() for policy in self.parts.policies] if exact else [],
            "sampler": {**(self.parts.sampler.state() if exact else self.parts.sampler.counters()), **self.counts()},
            "ranks": self._rank_sync.state(),
            "reporter": self._reporter.state(),
            "recorder": asdict(self.recorder.tally.plus(self.recorder.counts())) if self.recorder else {},
        }

    def load_state(self, loaded: Loaded) -> None:
        """Continue from a checkpoint of this run."""
        state, path = loaded.state, loaded.path
        self._loaded = path
        with restoring(path):
            check_shape(state, STATE_SHAPE)
        with restoring(path, "learners"):
            for k, (learner, entry) in enumerate(zip(self.parts.learners, state["learners"], strict=True)):
                with restoring(path, f"learners.{k}"):
                    learner.load_state(entry)
        self.iteration = state["iteration"]
        self.seconds = state["seconds"]
        if not self._rank_sync.leads:
            with restoring(path, "ranks"):
                self._rank_sync.load_state(state.get("ranks", []))
            return
        self._dropped = state["dropped_segments"]
        with restoring(path, "reporter"):
            self._reporter.load_state(state["reporter"])
        if self.recorder is not None:
            with restoring(path, "recorder"):
                self.recorder.tally = DropCounts(**state.get("recorder", {}))
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
        """Whether the saved rows and envs fit this run; if not, it goes on with fresh episodes."""
        old, new = state["config"], to_dict(self.config)
        held = state["sampler"]["held"]
        return (
            old["run"]["seed"] == new["run"]["seed"]
            and old["sampling"] == new["sampling"]
            and old["env"] == new["env"]
            and old["learning"]["recurrence"] == new["learning"]["recurrence"]
            and len(held) == self.parts.sampler.plan.groups  # workers=0 is a matter of the machine
        )
