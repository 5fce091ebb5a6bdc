"""Where the ranks of a run agree: once per turn of the training loop, on learning, stopping and schedules.

Rank 0 leads. It alone looks at limits, signals and the clock, and what it decides holds for all, so no rank ever
waits for one that has left. The others tell it what they have counted. A rank without a full batch comes to the
meeting all the same, a few times per second: nobody has to wait for a slow simulator to hear that the run is over.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rollmill.core.fields import Array
from rollmill.learning.ranks import Ranks
from rollmill.sampling.sampler import EpisodeEnd, Sampler

PATIENCE = 0.2
"""Seconds after which a rank comes to the meeting even without a batch."""

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
    """One rank's seat at the meeting; with one rank, no more than its own opinion."""

    def __init__(self, ranks: Ranks, sampler: Sampler) -> None:
        self.leads = ranks.rank == 0
        self._ranks, self._sampler = ranks, sampler
        self._last = 0.0
        self._heard: list[Mapping[str, Any]] = []
        """Rank 0: the last notes of ranks 1, 2, ..."""

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
            self._listen(others)
        ready = first["ready"] and all(o["ready"] for o in others)
        return Decision(ready, first["stop"], first["progress"], {} if self.leads else first["variables"])

    # -- what rank 0 knows of the others -------------------------------------------------------

    def elsewhere(self, counter: str) -> int:
        """What the other ranks have counted in this session: one of ``COUNTERS``, or ``dropped_segments``."""
        return sum(int(note[counter]) for note in self._heard)

    def state(self) -> list[Array]:
        """For ranks 1, 2, ...: the first episode that each env has not used."""
        return [np.array(note["next_episode"], np.int64) for note in self._heard]

    def load_state(self, unused: list[Array]) -> None:
        """A follower goes on with episodes that were never used; a rank that was not there before begins at 0."""
        place = self._ranks.rank - 1
        if place < len(unused):
            self._sampler.load_counters({**self._sampler.counters(), "next_episode": unused[place]})

    def _counts(self, dropped: int) -> dict[str, Any]:
        """A follower's counts, and the episodes that ended since it last told."""
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

    def _listen(self, others: list[dict[str, Any]]) -> None:
        """Take over what ended elsewhere, as if it had ended here; lanes are counted on."""
        plan = self._sampler.plan
        lanes = plan.groups * plan.lanes_per_group
        for rank, note in enumerate(others, start=1):
            for episode in note["episodes"]:
                self._sampler.episodes.append(EpisodeEnd(**{**episode, "lane": episode["lane"] + rank * lanes}))
            for lane, number, stats in note["extras"]:
                self._sampler.pool.report.note_episode(lane + rank * lanes, number, stats)
        self._heard = list(others)
