"""APPO that learns from every segment several times: off-policy, corrected by V-trace.

``train`` takes new segments into a buffer (``replay.buffer``) and learns from batches drawn of it as often as the
settings allow. The loop around it does not know: to it, this learner takes in segments like the others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rollmill.core.fields import Array
from rollmill.learning.appo import Appo
from rollmill.learning.batch import own_rows
from rollmill.learning.settings import LearningSettings
from rollmill.models.acting.weights import WeightBoard
from rollmill.models.actor_critic import ActorCritic
from rollmill.replay.buffer import SegmentBuffer
from rollmill.replay.settings import BY_PRIORITY, ReplaySettings


class OffPolicyAppo(Appo):
    """Improves one policy from a buffer of segments. ``version`` counts the batches that were drawn."""

    def __init__(
        self,
        model: ActorCritic,
        board: WeightBoard,
        settings: tuple[LearningSettings, ReplaySettings],
        batch: int,
        seed: int,
        policy_id: int = 0,
    ) -> None:
        super().__init__(model, board, settings[0], seed, policy_id)
        self.buffer = SegmentBuffer(settings[1], batch, seed)
        self.goes_on: Callable[[], bool] = lambda: True
        """Asked before every further batch of a call, of which there may be thousands (a table that fills again after a
        resume): the run looks after what must not wait so long. False: the run is over, and the call ends here."""
        self._over = False
        self._by_priority = not {settings[1].sampler, settings[1].remover}.isdisjoint(BY_PRIORITY)

    def train(self, segments: Mapping[str, Any], progress: float = 0.0) -> dict[str, float]:
        """Take in segments ``[T + 1, B, ...]``, if there are any, and learn from batches as often as is due."""
        reports: list[dict[str, float]] = []
        lanes = np.flatnonzero(own_rows(segments, self.policy_id).any(axis=0)) if segments else np.zeros(0, np.int64)
        for lane in lanes.tolist():
            segment = {name: x[:, lane] for name, x in segments.items()}
            self.buffer.open(segment)
            while not self.buffer.may_add() and self._replay(reports, progress):
                pass
            if self._over:
                break
            self.buffer.add(segment, self._priority(segment))
        while self._replay(reports, progress) and self.buffer.repeats:
            pass
        if segments and not reports:
            self.buffer.missed()
        return _means(reports)

    def _replay(self, reports: list[dict[str, float]], progress: float) -> bool:
        """Learn from one batch, if one is due."""
        self.buffer.expire(self.oldest_useful)
        if not self.buffer.due():
            return False
        if reports:
            self.publish()  # what the last batch taught; the loop publishes after the last one
            self._over = not self.goes_on()
            if self._over:
                return False
        reports.append(super().train(self.buffer.draw(), progress))
        return True

    def _priority(self, segment: Mapping[str, Array]) -> float:
        """Return the mean size of its own temporal-difference errors, with values as predicted when acting; or 1."""
        if not self._by_priority:
            return 1.0
        s, value = self.settings, segment["value"]
        reward = segment["reward"][:-1] * s.reward_scale
        if s.reward_clip:
            reward = reward.clip(-s.reward_clip, s.reward_clip)
        error = reward + s.gamma * np.where(segment["terminated"][:-1], 0.0, value[1:]) - value[:-1]
        return float(np.abs(error[own_rows(segment, self.policy_id)]).mean())

    def counts(self) -> dict[str, float]:
        return self.buffer.counts()

    # -- checkpoints ---------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {**super().state(), "replay": self.buffer.state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        super().load_state(state)
        if "replay" in state:  # else the run did not replay until now
            self.buffer.load_state(state["replay"])


def _means(reports: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of every metric over the batches that have it; the largest value of a metric ``*_max``."""
    found: dict[str, list[float]] = defaultdict(list)
    for report in reports:
        for name, value in report.items():
            found[name].append(value)
    means = {name: sum(values) / len(values) for name, values in found.items()}
    return means | {name: max(found[name]) for name in found if name.endswith("_max")}
