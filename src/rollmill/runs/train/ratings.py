"""What the members of a population have reached: the objective of episodes that their present weights have played from
the first step on, in the environments as they are now.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from rollmill.core.errors import ConfigError
from rollmill.core.shapes import INTS, Shape
from rollmill.core.text import nearest
from rollmill.pbt.evidence import Evidence
from rollmill.pbt.settings import PbtSettings
from rollmill.sampling.sampler import EpisodeEnd, Sampler

STATE_SHAPE: Shape = {
    "windows": [[float]],
    "since": [int],
    "from_episode": INTS,
    "waiting": [[int]],
    "told": [{"lane": int, "episode": int, "stats": {str: float}}],
}
MOST_WAITING = 10_000
"""Episodes whose statistics have not come yet, or that have not come themselves."""
SILENT = 10
"""Episodes without any statistics after which none are expected any more."""
BUILT_IN = {"return": "episode_return", "length": "length"}


def require_objective(objective: str, told: Collection[str]) -> None:
    """ConfigError unless members can be compared by it; ``told``: what the environment tells of an episode, by name."""
    name, there = objective.removeprefix("-"), (*BUILT_IN, *told)
    if name in there:
        return
    hint = nearest(name, there)
    raise ConfigError(
        f"pbt.objective={objective}: the environment tells no {'such statistic' if told else 'statistics'} of its "
        f"episodes{f'; {hint}' if hint else ''} (there are: {', '.join(there)})"
    )


class Ratings:
    """A window of episodes for each policy of the run."""

    def __init__(self, pbt: PbtSettings, sampler: Sampler, policies: int) -> None:
        self._objective, self._sampler = pbt.objective, sampler
        self.windows: list[deque[float]] = [deque(maxlen=pbt.episodes) for _ in range(policies)]
        self._since = [-1] * policies
        """Frames of the run when each policy took over its present weights: later episodes are theirs."""
        self._from_episode = np.zeros(len(sampler.box.next_episode), np.int64)
        """[envs]: the first episode of each that has begun with its policy's present ``env.variables``."""
        self._waiting: dict[tuple[int, int], int] = {}
        """Episodes (lane, number) that have ended, by policy, and whose statistics have not come yet."""
        self._told: dict[tuple[int, int], Mapping[str, float]] = {}
        """Statistics that have come before the episode that they are of."""
        self._is_told = False
        """Whether any statistics have come in this session."""

    def add(self, ended: Sequence[EpisodeEnd]) -> None:
        """Take in episodes that have ended."""
        objective = self._objective.removeprefix("-")
        for episode in ended:
            env = episode.lane // self._sampler.plan.spec.agents
            if episode.first_frames <= self._since[episode.policy_id] or episode.episode < self._from_episode[env]:
                continue  # begun by other weights or with other variables, or nobody knows
            if objective in BUILT_IN:
                self._rate(episode.policy_id, float(getattr(episode, BUILT_IN[objective])))
            elif episode.lane % self._sampler.plan.spec.agents == 0:
                self._wait_for_statistics(episode)

    def add_statistics(self, lane: int, episode: int, stats: Mapping[str, float]) -> None:
        """Take in what an environment says of an ended episode; it may come before or after its end."""
        if self._objective.removeprefix("-") in BUILT_IN:
            return
        self._is_told = True
        member = self._waiting.pop((lane, episode), None)
        if member is not None:
            self._rate_by(member, stats)
        else:
            _keep(self._told, (lane, episode), stats)

    def _wait_for_statistics(self, episode: EpisodeEnd) -> None:
        stats = self._told.pop((episode.lane, episode.episode), None)
        if stats is not None:
            self._rate_by(episode.policy_id, stats)
        else:
            _keep(self._waiting, (episode.lane, episode.episode), episode.policy_id)

    def _rate_by(self, member: int, stats: Mapping[str, float]) -> None:
        require_objective(self._objective, stats)
        self._rate(member, float(stats[self._objective.removeprefix("-")]))

    def _rate(self, member: int, value: float) -> None:
        self.windows[member].append(-value if self._objective.startswith("-") else value)

    def evidence(self) -> list[Evidence]:
        """Of every policy; ConfigError where the environment never says what they are to be judged by."""
        if len(self._waiting) >= SILENT and not self._is_told:
            require_objective(self._objective, ())
        return [Evidence.of(list(window)) for window in self.windows]

    def restart(self, policy: int, varied: bool) -> None:
        """A policy has other weights from now on or, with ``varied``, other variables of its environments.

        Called after the weights were published: what is decided later than this is decided by them.
        """
        self._since[policy] = self._sampler.inference.frames
        self.windows[policy].clear()
        self._waiting = {key: owner for key, owner in self._waiting.items() if owner != policy}
        if not varied:
            return
        # An env may be reset, and have taken the variables, before its first decision is asked for; and it may
        # have begun one more episode than it has told of.
        plan, box = self._sampler.plan, self._sampler.box
        envs = plan.lanes_per_group // plan.spec.agents
        owners = np.array(plan.policy_of_group or [policy] * plan.groups)
        for group in np.flatnonzero(owners == policy).tolist():
            own = slice(group * envs, (group + 1) * envs)
            self._from_episode[own] = box.next_episode[own] + 1

    def state(self) -> dict[str, Any]:
        return {
            "windows": [list(window) for window in self.windows],
            "since": list(self._since),
            "from_episode": self._from_episode.copy(),
            "waiting": [[*key, policy] for key, policy in self._waiting.items()],
            "told": [{"lane": k[0], "episode": k[1], "stats": dict(stats)} for k, stats in self._told.items()],
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        for window, saved in zip(self.windows, state["windows"], strict=True):
            window.extend(saved)
        self._since = list(state["since"])
        if state["from_episode"].shape == self._from_episode.shape:  # else all envs begin new episodes
            self._from_episode[:] = state["from_episode"]
        self._waiting = {(lane, episode): policy for lane, episode, policy in state["waiting"]}
        self._told = {(row["lane"], row["episode"]): row["stats"] for row in state["told"]}


def _keep(waiting: dict[tuple[int, int], Any], key: tuple[int, int], value: Any) -> None:
    """What never finds its other half (a lane was reset) must not fill the memory."""
    waiting[key] = value
    if len(waiting) > MOST_WAITING:
        del waiting[next(iter(waiting))]
