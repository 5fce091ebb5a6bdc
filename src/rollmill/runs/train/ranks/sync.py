"""Where the ranks of a run agree: once per turn of the training loop, on learning, stopping and schedules.

Rank 0 leads. It alone looks at limits, signals and the clock, and what it decides holds for all, so no rank ever
waits for one that has left. The others tell it what they have counted. A rank without a full batch takes
part all the same, a few times per second: nobody has to wait for a slow simulator to hear that the run is over.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rollmill.core.errors import LostRankError
from rollmill.core.fields import Array
from rollmill.core.protocols import Learner
from rollmill.learning.ranks import Ranks
from rollmill.sampling.sampler import EpisodeEnd, Sampler

log = logging.getLogger("rollmill")

PATIENCE = 0.2
"""Seconds after which a rank takes part in the exchange even without a batch."""

COUNTERS = ("steps", "lost_segments", "env_faults", "worker_restarts")
"""What samplers count, by the names of ``Sampler.counters``."""


@dataclass(frozen=True)
class Decision:
    """What holds for all ranks until they meet again."""

    learn: bool
    """Every rank has a batch: learn now."""
    stop: str
    """Why the run is over; empty while it goes on."""
    progress: float
    """Share of the run that is done."""
    variables: Mapping[str, float] = field(default_factory=dict)
    """Rank 0's ``env.variables``, for the others to take over."""


class RankSync:
    """One rank's part in the exchange; with one rank, no more than its own opinion."""

    def __init__(self, ranks: Ranks, sampler: Sampler, learners: Sequence[Learner]) -> None:
        self.leads = ranks.rank == 0
        self._ranks, self._sampler, self._learners = ranks, sampler, learners
        self._last = 0.0
        self._heard: dict[int, Mapping[str, Any]] = {}
        """Rank 0: the last note of every other rank; of one that is lost, what it has counted stays."""
        self._unused: list[Array] = []
        """Rank 0: what ranks 1, 2, ... are to go on with."""

    def agree(self, ready: bool, stop: str, progress: float, dropped: int) -> Decision:
        """Say how this rank stands, and hear what all will do. Only rank 0's ``stop`` and ``progress`` count."""
        if self._ranks.count == 1:
            return Decision(ready, stop, progress)
        if not ready and not stop and time.monotonic() < self._last + PATIENCE:
            return Decision(False, "", progress)
        said = {"stop": stop, "progress": progress, "variables": self._sampler.variables}
        note = said if self.leads else self._counts(dropped)
        first, *others = self._ranks.gather_notes({"ready": ready, **note})
        self._last = time.monotonic()
        if self.leads:
            self._listen(dict(zip(self._ranks.present[1:], others, strict=True)))
        ready = first["ready"] and all(o["ready"] for o in others)
        return Decision(ready, first["stop"], first["progress"], {} if self.leads else first["variables"])

    # -- at the start, and when one is lost ----------------------------------------------------

    def begin(self, iteration: int) -> int:
        """Begin on all ranks with what rank 0 has; returns the training steps it has done.

        Followers begin with episodes that were never used; a rank that was not there before begins at 0.
        """
        unused = self._ranks.gather_notes([x.tolist() for x in self._unused])[0]
        if 0 < self._ranks.rank <= len(unused):
            counted, own = self._sampler.counters(), np.array(unused[self._ranks.rank - 1], np.int64)
            self._sampler.load_counters({**counted, "next_episode": own})
        return self._go_on_from_first(iteration)

    def regroup(self, iteration: int, why: str) -> int:
        """Go on with the ranks that are left, from what rank 0 has; returns the training steps it has done."""
        before, plan = self._ranks.count, self._sampler.plan
        while True:
            try:
                self._ranks.regroup()
                for learner in self._learners:
                    learner.version += 1  # its weights may have moved: rows tell by the version whose they are
                iteration = self._go_on_from_first(iteration)
                break
            except LostRankError as error:  # one more
                why = str(error)
        count = self._ranks.count
        if self.leads and count == before:
            log.warning("the ranks have met anew: %s", why)
        elif self.leads:
            rows = plan.segments_per_batch * plan.settings.rollout * plan.lanes_per_group * count
            log.warning("%d of %d ranks go on: a batch has %s rows now", count, before, f"{rows:,}")
        return iteration

    def _go_on_from_first(self, iteration: int) -> int:
        for learner in self._learners:
            learner.agree()
        return int(self._ranks.gather_notes(iteration)[0])

    # -- what rank 0 knows of the others -------------------------------------------------------

    def elsewhere(self, counter: str) -> int:
        """Return what the other ranks have counted in this session: one of ``COUNTERS``, or ``dropped_segments``."""
        return sum(int(note[counter]) for note in self._heard.values())

    def state(self) -> list[Array]:
        """Return for ranks 1, 2, ... the first episode that each env has not used."""
        return self._unused

    def load_state(self, unused: list[Array]) -> None:
        self._unused = list(unused)

    def _counts(self, dropped: int) -> dict[str, Any]:
        """Return a follower's counts, and the episodes that ended since it last told."""
        counted = self._sampler.counters()
        for _ in counted["episodes"]:
            self._sampler.episodes.popleft()
        stats, extras = self._sampler.pool.report.episode_stats, []
        while stats:
            extras.append(stats.popleft())
        return {
            **{name: counted[name] for name in COUNTERS},
            "dropped_segments": dropped,
            "next_episode": counted["next_episode"].tolist(),
            "episodes": counted["episodes"],
            "extras": extras,
        }

    def _listen(self, others: Mapping[int, Mapping[str, Any]]) -> None:
        """Take over what ended elsewhere, as if it had ended here; lanes are counted on."""
        plan = self._sampler.plan
        lanes = plan.groups * plan.lanes_per_group
        for rank, note in others.items():
            for episode in note["episodes"]:
                self._sampler.episodes.append(EpisodeEnd(**{**episode, "lane": episode["lane"] + rank * lanes}))
            for lane, number, stats in note["extras"]:
                self._sampler.pool.report.note_episode(lane + rank * lanes, number, stats)
            missing = [np.zeros_like(self._sampler.box.next_episode)] * (rank - len(self._unused))
            self._unused = [*self._unused, *missing]
            self._unused[rank - 1] = np.array(note["next_episode"], np.int64)
        self._heard |= others
