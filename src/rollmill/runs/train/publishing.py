"""Puts models into the run's pool while it trains (``core.model_pool``)."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from rollmill.core.config.plain import to_dict
from rollmill.core.errors import CheckpointError
from rollmill.core.model_pool import ModelPool
from rollmill.runs.settings.train import PoolSettings
from rollmill.runs.train.observers import Observer

if TYPE_CHECKING:
    from rollmill.runs.train.loop import OnlineRun

log = logging.getLogger("rollmill")


class Publisher(Observer):
    """Publishes when ``pool.every_updates`` or ``pool.every_seconds`` say so, and the last weights at the end."""

    def __init__(self, settings: PoolSettings, min_free_mb: int) -> None:
        self._settings, self._min_free_mb = settings, min_free_mb
        self._pool: ModelPool | None = None
        self._at = time.monotonic()
        self._version = 0
        self._models = self._published = 0
        self.failures = 0

    def on_init(self, run: OnlineRun) -> None:
        s = self._settings
        self._pool = ModelPool(run.folder.pool, s.keep, s.milestone_updates, self._min_free_mb)
        self._pool.tidy()
        self._count(self._pool)
        self._version = _updates(run)
        if run.selfplay is not None and not run.selfplay.models:
            self._publish(run)  # somebody must be there to play against
            if not run.selfplay.models and run.config.selfplay.pool_share:
                raise CheckpointError("nobody is there to play against: the first model could not be published")

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        s, updates = self._settings, _updates(run)
        by_updates = s.every_updates and updates // s.every_updates > self._version // s.every_updates
        by_time = s.every_seconds and time.monotonic() - self._at >= s.every_seconds
        if updates > self._version and (by_updates or by_time):
            self._publish(run)

    def on_stop(self, run: OnlineRun) -> None:
        # Opponents come at their time: a run that goes on later plays against those that one without a stop would have.
        if run.stop_reason and _updates(run) > self._version and run.selfplay is None:
            self._publish(run)

    def _publish(self, run: OnlineRun) -> None:
        assert self._pool is not None, "on_init comes first"
        self._at, self._version = time.monotonic(), _updates(run)
        try:
            run.folder.require()
            content = weights_only(run)
            entry = self._pool.publish(content, self._version, run.selfplay.needed() if run.selfplay else ())
            log.debug("published model %d (%d updates)", entry.id, entry.version)
            if run.selfplay is not None:
                run.selfplay.admit(entry, content)
            self._count(self._pool)
        except CheckpointError as error:
            self.failures += 1
            log.error("no model was published, training goes on: %s", error)

    def _count(self, pool: ModelPool) -> None:
        entries = pool.entries()
        self._models, self._published = len(entries), entries[-1].id + 1 if entries else 0

    def extra_summaries(self, run: OnlineRun) -> dict[str, float]:
        return {"pool/models": self._models, "pool/published": self._published, "pool/failures": self.failures}


def _updates(run: OnlineRun) -> int:
    """Return the batches learnt from, by the policy that is furthest."""
    return max(learner.version for learner in run.parts.learners)


def weights_only(run: OnlineRun) -> dict[str, Any]:
    """Return a checkpoint that can be played and no more: config, spec and weights, no optimizer, no environments."""
    from rollmill.models.saving import weights_of

    learners = []
    for learner in run.parts.learners:
        model: Any = getattr(learner, "model")  # noqa: B009 - whatever learns has one; the role does not know torch
        learners.append({"model": weights_of(model), "version": learner.version})
    state = {"kind": "online", "config": to_dict(run.config), "spec": run.spec.to_dict(), "learners": learners}
    if run.config.pbt.on and run.members is not None:
        state["population"] = {"best": run.members.best}
    return {"frames": run.frames, "metric": run.mean_return, "state": state}
