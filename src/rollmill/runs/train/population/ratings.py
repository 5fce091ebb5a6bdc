"""What the members of a population have reached: the objective of episodes that their present weights have played from
the first step on, in the environments as they are now, chosen so that neither long nor short ones are preferred.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from statistics import fmean
from typing import Any

import numpy as np

from rollmill.core.errors import ConfigError
from rollmill.core.shapes import INTS, Shape
from rollmill.core.text import nearest
from rollmill.pbt.evidence import Evidence
from rollmill.pbt.settings import PbtSettings
from rollmill.sampling.sampler import EpisodeEnd, Sampler

STATE_SHAPE: Shape = {
    "since": [int],
    "from_episode": INTS,
    "known?": [{"mean": float, "error": float, "episodes": int}],
    "late?": [bool],
    "block?": [{"env": int, "episode": int, "value": (float, None)}],
    "agents?": [{"env": int, "episode": int, "values": [float]}],
    "told": [{"lane": int, "episode": int, "stats": {str: float}}],
}
MOST_WAITING = 10_000
"""Episodes of which something has not come yet."""
SILENT = 10
"""Ended episodes without any statistics after which none are expected any more."""
BUILT_IN = {"return": "episode_return", "length": "length"}


def require_objective(objective: str, told: Collection[str]) -> None:
    """Raise ConfigError unless members can be compared by the ``objective``.

    ``told``: what the environment tells of an episode, by name.
    """
    name, there = objective.removeprefix("-"), (*BUILT_IN, *told)
    if name in there:
        return
    hint = nearest(name, there)
    raise ConfigError(
        f"pbt.objective={objective}: the environment tells no {'such statistic' if told else 'statistics'} of its "
        f"episodes{f'; {hint}' if hint else ''} (there are: {', '.join(there)})"
    )


class Ratings:
    """A block of episodes for each policy of the run: those that its objective at the next round is the mean of.

    A block is the first episodes of each of the policy's environments that begin after the last round, or after the
    policy was given other weights; as many of each, so that an environment with short ones does not outweigh the
    others. Whatever has ended by a certain time would be no fair choice: short episodes end in time more often.

    At least ``least`` of each are waited for, over several rounds if need be. Where they end within one, as many more
    count as all environments have ended: given that so many have ended in time, the last of them says the same about
    the policy as the first. (That is not so for a block that took longer: its first episodes were long ones.)
    """

    def __init__(self, pbt: PbtSettings, sampler: Sampler, policies: int) -> None:
        self._objective, self._sampler = pbt.objective, sampler
        self._envs = [self._envs_of(policy) for policy in range(policies)]
        self._bounds = [bounds(pbt, len(envs)) for envs in self._envs]
        """Fewest and most episodes of each environment in a block, of every policy."""
        self.known = [Evidence.of(()) for _ in range(policies)]
        """What the newest whole block of each policy's present weights has brought."""
        self._since = [-1] * policies
        """Frames of the run when each policy's block began: only episodes that have begun later are in it."""
        self._from_episode = np.zeros(len(sampler.box.next_episode), np.int64)
        """[envs]: the first episode of each that has begun with its policy's present ``env.variables``."""
        self._block: dict[int, dict[int, float | None]] = {}
        """env -> episode -> its objective; None while its statistics have not come."""
        self._agents: dict[tuple[int, int], list[float]] = {}
        """(env, episode) -> the returns, or lengths, of those of its agents that have ended."""
        self._late = [False] * policies
        """Whether the block of each policy was not whole at the first round that came after it had begun."""
        self._told: dict[tuple[int, int], Mapping[str, float]] = {}
        """Statistics (lane, episode) that have come before the end of the episode that they are of."""
        self._is_told = self._is_lost = False
        """Whether any statistics have come in this session; whether the blocks so far are not known."""

    def _envs_of(self, policy: int) -> list[int]:
        plan = self._sampler.plan
        envs = plan.lanes_per_group // plan.spec.agents
        owners = plan.policy_of_group or [policy] * plan.groups
        groups = [group for group, owner in enumerate(owners) if owner == policy]
        return [group * envs + k for group in groups for k in range(envs)]

    # -- episodes ------------------------------------------------------------------------------

    def add(self, ended: Sequence[EpisodeEnd]) -> None:
        """Take in episodes that have ended, agent by agent."""
        objective, agents = self._objective.removeprefix("-"), self._sampler.plan.spec.agents
        for own in ended:
            env, agent = divmod(own.lane, agents)
            if objective in BUILT_IN:
                values = self._agents.get((env, own.episode), [])
                values = [*values, float(getattr(own, BUILT_IN[objective]))]
                if len(values) < agents:
                    _keep(self._agents, (env, own.episode), values)
                else:
                    self._agents.pop((env, own.episode), None)
                    self._add(own, env, self._signed(fmean(values)))
            elif agent == 0:
                stats = self._told.pop((own.lane, own.episode), None)
                self._add(own, env, None if stats is None else self._told_by(stats))

    def _add(self, own: EpisodeEnd, env: int, value: float | None) -> None:
        """Take in an episode that has ended for all of its agents."""
        if own.first_frames <= self._since[own.policy_id] or own.episode < self._from_episode[env]:
            return  # begun before, by other weights or with other variables; or nobody knows
        block = self._block.setdefault(env, {})
        if len(self._first(env)) < self._bounds[own.policy_id][1]:
            _keep(block, own.episode, None)
            if value is not None:
                self._rate(env, own.episode, value)

    def _rate(self, env: int, episode: int, value: float) -> None:
        """Set the objective of an episode. Statistics come in order: earlier episodes that have none never will."""
        block = {k: known for k, known in self._block[env].items() if known is not None or k >= episode}
        self._block[env] = {**block, episode: value}

    def add_statistics(self, lane: int, episode: int, stats: Mapping[str, float]) -> None:
        """Take in what an environment says of an ended episode; it may come before or after its end."""
        env, agent = divmod(lane, self._sampler.plan.spec.agents)
        if self._objective.removeprefix("-") in BUILT_IN or agent:
            return
        self._is_told = True
        if self._block.get(env, {}).get(episode, 0.0) is None:
            self._rate(env, episode, self._told_by(stats))
        else:
            _keep(self._told, (lane, episode), stats)

    def _told_by(self, stats: Mapping[str, float]) -> float:
        require_objective(self._objective, stats)
        return self._signed(float(stats[self._objective.removeprefix("-")]))

    def _signed(self, value: float) -> float:
        return -value if self._objective.startswith("-") else value

    # -- blocks --------------------------------------------------------------------------------

    def _first(self, env: int) -> list[float]:
        """Return objectives of an environment's episodes in its block, up to the first one that is not known yet."""
        found: list[float] = []
        for value in self._block.get(env, {}).values():
            if value is None:
                break
            found.append(value)
        return found

    def values(self, policy: int) -> list[float]:
        """Return the objectives that a policy would be judged by now, whether they are enough or not."""
        rows = [self._first(env) for env in self._envs[policy]]
        least, most = self._bounds[policy]
        each = least if self._late[policy] else min(most, max(least, min(map(len, rows))))
        return [value for row in rows for value in row[:each]]

    def judge(self) -> list[Evidence]:
        """Return what every policy's block has brought, if it is whole, and begin the next one: it is time for a round.

        A block that is not whole has no mean, only a number of episodes, and goes on. Raises ConfigError if the
        environment never says what they are to be judged by.
        """
        silent = sum(list(block.values()).count(None) for block in self._block.values())
        if silent >= SILENT and not self._is_told:
            require_objective(self._objective, ())
        return [self._judge(policy) for policy in range(len(self._envs))]

    def _judge(self, policy: int) -> Evidence:
        values = self.values(policy)
        if min(len(self._first(env)) for env in self._envs[policy]) < self._bounds[policy][0]:
            self._late[policy] = True
            return replace(Evidence.of(()), episodes=len(values))
        self.known[policy] = found = Evidence.of(values)
        self._begin(policy)
        return found

    def _begin(self, policy: int) -> None:
        """Begin a block: what is decided later than this is in it."""
        self._since[policy], self._late[policy] = self._sampler.inference.frames, False
        for env in self._envs[policy]:
            self._block.pop(env, None)

    def restart(self, policy: int, varied: bool) -> None:
        """Begin anew for a policy that has other weights or, with ``varied``, other variables of its environments.

        Called after the weights were published: what is decided later than this is decided by them.
        """
        self.known[policy] = Evidence.of(())
        self._begin(policy)
        if varied:
            # An env may be reset, and have taken the variables, before its first decision is asked for; and it may
            # have begun one more episode than it has told of.
            own = self._envs[policy]
            self._from_episode[own] = self._sampler.box.next_episode[own] + 1

    def go_on(self, same: bool) -> None:
        """Go on in another session; ``same``: with the very episodes that were under way when it was saved.

        Else those are lost, long ones more often than short ones, and the blocks begin anew.
        """
        if same and not self._is_lost:
            return
        self._agents.clear()
        self._told.clear()
        for policy in range(len(self._envs)):
            self._begin(policy)

    def state(self) -> dict[str, Any]:
        rows = [(env, k, value) for env, block in self._block.items() for k, value in block.items()]
        return {
            "known": [asdict(own) for own in self.known],
            "since": list(self._since),
            "late": list(self._late),
            "from_episode": self._from_episode.copy(),
            "block": [{"env": env, "episode": k, "value": value} for env, k, value in rows],
            "agents": [{"env": k[0], "episode": k[1], "values": list(x)} for k, x in self._agents.items()],
            "told": [{"lane": k[0], "episode": k[1], "stats": dict(stats)} for k, stats in self._told.items()],
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._since = list(state["since"])
        if state["from_episode"].shape == self._from_episode.shape:  # else all envs begin new episodes
            self._from_episode[:] = state["from_episode"]
        if "block" not in state:  # saved before there were blocks
            self._is_lost = True
            return
        self.known = [Evidence(**own) for own in state["known"]]
        self._late = list(state["late"])
        self._block = {}
        for row in state["block"]:
            self._block.setdefault(row["env"], {})[row["episode"]] = row["value"]
        self._agents = {(row["env"], row["episode"]): list(row["values"]) for row in state["agents"]}
        self._told = {(row["lane"], row["episode"]): row["stats"] for row in state["told"]}


def bounds(pbt: PbtSettings, envs: int) -> tuple[int, int]:
    """Return the fewest and most episodes of each of a policy's environments in a block."""
    least = math.ceil(pbt.min_episodes / envs)
    return least, max(least, pbt.episodes // envs)


def _keep(waiting: dict[Any, Any], key: Any, value: Any) -> None:
    """Keep a value until its other half comes; what never finds it (a lane was reset) must not fill the memory."""
    waiting[key] = value
    if len(waiting) > MOST_WAITING:
        del waiting[next(iter(waiting))]
