"""An online training in progress: collect a batch of segments, learn from it, publish, report, save.

``OnlineRun.loop`` is the whole training. The same loop serves all three modes; they differ only in who
calls ``sampler.round``: a thread of its own (async), or the loop itself (sync and serial). What stands
around it (run folder, janitor, env spec, parts, how it ended) is in ``runs.train``.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rollmill.core.checkpoints import Checkpoints, Loaded
from rollmill.core.config import to_dict
from rollmill.core.errors import CheckpointError
from rollmill.core.fields import Array, EnvSpec
from rollmill.core.run_folder import RunFolder
from rollmill.runs.build import Parts
from rollmill.runs.observers import Observer
from rollmill.runs.reporting import Reporter
from rollmill.runs.settings import TrainConfig
from rollmill.runs.stopping import Interrupt, StopRules
from rollmill.sampling.sampler import SamplerThread

log = logging.getLogger("rollmill")

CHECKPOINT_FORMAT = 1


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
        self.dropped_segments = 0
        self.seconds = 0.0
        """Seconds of training, over all sessions of the run."""
        self.stop_reason = ""
        """Why the run is over; empty while it goes on."""
        self._reporter = reporter
        self.interrupt = Interrupt()
        self._batch: Mapping[str, Any] = {}
        self._seconds_gather = self._seconds_learn = 0.0
        self._thread: SamplerThread | None = None
        self._sampler_is_set = False
        s = config.checkpoints
        self._checkpoints = Checkpoints(folder.checkpoints, s.keep_last, s.keep_best, s.milestone_frames, s.min_free_mb)
        self._saved_at = time.monotonic()
        self._rules = StopRules(self._limits())

    @property
    def frames(self) -> int:
        """Simulator frames so far."""
        return self.parts.sampler.frames

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
        """The batch of the last training step as numpy: ``[T + 1, B, ...]`` per field (``core.slots``)."""
        return {name: x if isinstance(x, np.ndarray) else x.cpu().numpy() for name, x in self._batch.items()}

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
            "main answer": sampler.seconds_answer,
            "main gather": self._seconds_gather,
            "main learn": self._seconds_learn,
        }

    def stop(self, reason: str) -> None:
        """End the run after the current training step (for observers)."""
        self.stop_reason = self.stop_reason or reason

    # -- the life of a run ---------------------------------------------------------------------

    def loop(self) -> None:
        """Train until a limit, a signal or an observer ends it; the last weights are always saved."""
        self._reporter.open(self.frames, self.seconds)
        with self.interrupt, self._sampling():
            self.tell("on_start")
            begun = time.monotonic()
            before = self.seconds
            while not self._over():
                slots = self._collect()
                if slots is not None:
                    self._learn(slots)
                self.seconds = before + time.monotonic() - begun
                if slots is not None:
                    self._after_step()

    def _over(self) -> bool:
        if self.interrupt.signal is not None:
            self.stop(f"{self.interrupt.signal.name} received")
        self.stop_reason = self.stop_reason or self._rules.reason()
        return bool(self.stop_reason)

    @contextlib.contextmanager
    def _sampling(self) -> Iterator[None]:
        """Workers and, in async mode, the sampler's thread, for as long as the loop runs."""
        sampler = self.parts.sampler
        try:
            if not self._sampler_is_set:
                sampler.start()
            if self.config.sampling.mode == "async":
                self._thread = SamplerThread(sampler)
                self._thread.start()
            yield
        finally:
            if self._thread is not None:
                self._thread.stop()
            sampler.stop()
            if self._thread is not None:
                self._thread.join()

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
        newest = max(learner.version for learner in self.parts.learners)
        oldest = newest - self.config.learning.max_policy_lag
        fresh = [slot for slot in slots if versions[slot, :-1].min() >= oldest]
        if len(fresh) < len(slots):
            stale = [slot for slot in slots if slot not in fresh]
            self.dropped_segments += len(stale)
            self.parts.sampler.release(stale)
        return fresh

    def _learn(self, slots: list[int]) -> None:
        begun = time.perf_counter()
        self._batch = self.parts.gather(slots)
        self.parts.sampler.release(slots)
        gathered = time.perf_counter()
        self._seconds_gather += gathered - begun
        for learner in self.parts.learners:
            metrics = learner.train(self._batch, self.progress)
            learner.publish()
            self._reporter.add_learning(learner.policy_id, metrics)
        self._seconds_learn += time.perf_counter() - gathered
        self.iteration += 1

    def _after_step(self) -> None:
        self.tell("on_training_step", self.iteration)
        self._reporter.step(self)
        if time.monotonic() - self._saved_at >= self.config.checkpoints.every_seconds:
            self._save_or_complain()

    def tell(self, hook: str, *args: object) -> None:
        """Call a hook of every observer."""
        for observer in self.observers:
            getattr(observer, hook)(self, *args)

    def _limits(self) -> list[Callable[[], str]]:
        stop = self.config.stop

        def reached_return() -> str:
            mean, wanted = self.mean_return, stop.mean_return
            if mean is None or wanted is None or not self._reporter.window_full or mean < wanted:
                return ""
            return f"mean return {mean:.4g}"

        return [
            lambda: f"limit of {stop.frames:,} frames" if stop.frames and self.frames >= stop.frames else "",
            lambda: f"limit of {stop.seconds:g} seconds" if stop.seconds and self.seconds >= stop.seconds else "",
            lambda: f"limit of {stop.batches} batches" if stop.batches and self.iteration >= stop.batches else "",
            reached_return,
        ]

    def close(self) -> None:
        self._reporter.close()

    # -- checkpoints ---------------------------------------------------------------------------

    def save(self, with_envs: bool = True) -> Path:
        """Write a checkpoint now; CheckpointError when it cannot be written (older ones are safe)."""
        state = self.state(with_envs)
        # Not self.frames: the sampler's thread may have counted on while the weights were copied.
        frames = state["sampler"]["steps"] * self.spec.frames_per_step
        path = self._checkpoints.save(state, frames, self.mean_return)
        self._saved_at = time.monotonic()
        log.info("checkpoint %s", path)
        return path

    def _save_or_complain(self) -> None:
        try:
            self.save()
        except CheckpointError as error:
            self._saved_at = time.monotonic()  # try again after the usual time, not at every step
            self._reporter.checkpoint_failures += 1
            log.error("no checkpoint was written, training goes on: %s", error)

    def state(self, with_envs: bool = True) -> dict[str, Any]:
        """Everything needed to go on; in serial mode bit for bit, unless the envs are to be left out.

        After a failure in the middle of a step the envs stand between two rows: they begin anew.
        """
        exact = with_envs and self.config.sampling.mode == "serial"
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
            "sampler": self.parts.sampler.state() if exact else self.parts.sampler.counters(),
            "reporter": self._reporter.state(),
        }

    def load_state(self, loaded: Loaded) -> None:
        """Continue from a checkpoint of this run."""
        state = loaded.state
        for learner, entry in zip(self.parts.learners, state["learners"], strict=True):
            learner.load_state(entry)
        self.iteration = state["iteration"]
        self.seconds = state["seconds"]
        self.dropped_segments = state["dropped_segments"]
        self._reporter.load_state(state["reporter"])
        sampler = self.parts.sampler
        if state["policies"] and self._can_replay(state):
            for policy, entry in zip(self.parts.policies, state["policies"], strict=True):
                policy.load_state(entry)
            sampler.resume(state["sampler"])
            self._sampler_is_set = True
        else:
            sampler.load_counters(state["sampler"])

    def _can_replay(self, state: Mapping[str, Any]) -> bool:
        """Whether the saved rows and envs fit this run; if not, it goes on with fresh episodes."""
        old, new = state["config"], to_dict(self.config)
        return (
            old["run"]["seed"] == new["run"]["seed"]
            and old["sampling"] == new["sampling"]
            and old["env"] == new["env"]
            and old["learning"]["recurrence"] == new["learning"]["recurrence"]
            and len(state["sampler"]["held"]) == self.parts.sampler.plan.groups  # workers=0 is a matter of the machine
        )
