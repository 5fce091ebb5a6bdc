"""A population in a run: takes in the members' episodes, carries out what is decided, and writes it down.

Decisions themselves are pure (``rollmill.pbt``). Here are the three things that a member is: a learner, a row of
``env.variables``, and a window of episodes that its present weights have played from their first step on.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rollmill.core.errors import ConfigError
from rollmill.core.run_folder import RunFolder
from rollmill.core.seeds import Seeds
from rollmill.core.shapes import INTS, MAPPING, Shape, check_shape
from rollmill.core.text import nearest
from rollmill.learning.appo import Appo
from rollmill.pbt import population as rules
from rollmill.pbt.evidence import Evidence
from rollmill.pbt.ledger import Ledger
from rollmill.pbt.population import Move, Population, Round
from rollmill.pbt.space import parse_space
from rollmill.runs.settings.population_checks import LEARNING, VARIABLES, configured, population_period
from rollmill.runs.settings.train import TrainConfig
from rollmill.sampling.sampler import EpisodeEnd, Sampler

log = logging.getLogger("rollmill")

STATE_SHAPE: Shape = {
    "rules": rules.STATE_SHAPE,
    "windows": [[float]],
    "since": [int],
    "from_episode": INTS,
    "waiting": [[int]],
    "told": [{"lane": int, "episode": int, "stats": {str: float}}],
    "copies": int,
    "setbacks": int,
    "best": int,
    "ledger": [MAPPING],
}
MOST_WAITING = 10_000
"""Episodes whose statistics have not come yet, or that have not come themselves."""
BUILT_IN = {"return": "episode_return", "length": "length"}


class Members:
    """The members of a population, by number."""

    def __init__(self, config: TrainConfig, learners: Sequence[Appo], sampler: Sampler, folder: RunFolder) -> None:
        pbt = config.pbt
        self._config, self._learners, self._sampler = config, learners, sampler
        space = parse_space(pbt.tuned)
        own = {key: configured(config, key) for key in space}
        seeds = Seeds(config.run.seed).branch("pbt")
        self.population = Population(pbt, space, own, seeds, population_period(config))
        self.ledger = Ledger(folder.path)
        self.best = 0
        """The member with the highest objective, of those with enough episodes."""
        self.copies = self.setbacks = 0
        self._windows: list[deque[float]] = [deque(maxlen=pbt.episodes) for _ in learners]
        self._since = [-1] * len(learners)
        """Frames of the run when each member took over its present weights: later episodes are theirs."""
        self._from_episode = np.zeros(len(sampler.box.next_episode), np.int64)
        """[envs]: the first episode of each that has begun with its member's present ``env.variables``."""
        self._waiting: dict[tuple[int, int], int] = {}
        """Episodes (lane, number) that have ended, by member, and whose statistics have not come yet."""
        self._told: dict[tuple[int, int], Mapping[str, float]] = {}
        """Statistics that have come before the episode that they are of."""

    def begin(self) -> None:
        """A run begins: every member gets its settings."""
        pbt = self._config.pbt
        about = {"method": pbt.method, "objective": pbt.objective, "seed": self._config.run.seed}
        self.ledger.begin([{"begin": [dict(own) for own in self.population.settings], **about}])
        for member in range(len(self._learners)):
            self._apply(member)

    # -- episodes ------------------------------------------------------------------------------

    def add(self, ended: Sequence[EpisodeEnd]) -> None:
        """Take in episodes that have ended."""
        objective = self._config.pbt.objective.removeprefix("-")
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
        if self._config.pbt.objective.removeprefix("-") in BUILT_IN:
            return
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
        name = self._config.pbt.objective.removeprefix("-")
        if name not in stats:
            hint = nearest(name, (*BUILT_IN, *stats))
            raise ConfigError(
                f"pbt.objective={name}: the environment tells no such statistic of its episodes"
                f"{f'; {hint}' if hint else ''} (there are: {', '.join((*BUILT_IN, *stats))})"
            )
        self._rate(member, float(stats[name]))

    def _rate(self, member: int, value: float) -> None:
        self._windows[member].append(-value if self._config.pbt.objective.startswith("-") else value)

    # -- decisions -----------------------------------------------------------------------------

    @property
    def frames(self) -> list[int]:
        """Of every member."""
        return [steps * self._sampler.plan.spec.frames_per_step for steps in self._sampler.steps_of]

    def step(self) -> Sequence[int]:
        """Decide, if it is time; returns the members that have other weights now."""
        frames = self.frames
        if not self.population.due(frames):
            return ()
        evidence = [Evidence.of(list(window)) for window in self._windows]
        done = self.population.decide(frames, evidence)
        self._note_best(evidence)
        # The donor is always the better one: from the worst taker upwards, none has changed yet when it is copied.
        moves = sorted(done.moves, key=lambda move: _rank(evidence[move.member]))
        for move in moves:
            self._carry_out(move)
        self.ledger.add(done.entry())
        self._tell(done)
        return [move.member for move in moves if move.donor is not None]

    def _carry_out(self, move: Move) -> None:
        if move.donor is not None:
            self.copies += 1
            self._learners[move.member].adopt(self._learners[move.donor])
        self._apply(move.member)
        varied = any(key.startswith(VARIABLES) for key in move.settings)
        if move.donor is not None or varied:
            # Read after the weights were published: what is decided later than this is decided by them.
            self._since[move.member] = self._sampler.inference.frames
            self._windows[move.member].clear()
            self._waiting = {key: member for key, member in self._waiting.items() if member != move.member}
        if varied:
            # An env may be reset, and have taken the variables, before its first decision is asked for; and it may
            # have begun one more episode than it has told of.
            plan, box = self._sampler.plan, self._sampler.box
            envs = plan.lanes_per_group // plan.spec.agents
            for group in np.flatnonzero(np.array(plan.policy_of_group) == move.member).tolist():
                own = slice(group * envs, (group + 1) * envs)
                self._from_episode[own] = box.next_episode[own] + 1

    def _apply(self, member: int) -> None:
        """Give a member's settings to its learner and its environments."""
        own = self.population.settings[member]
        knobs = {key.removeprefix(LEARNING): value for key, value in own.items() if key.startswith(LEARNING)}
        self._learners[member].set_knobs(knobs)
        for key, value in own.items():
            if key.startswith(VARIABLES):
                self._sampler.set_variable(key.removeprefix(VARIABLES), value, member)

    def _note_best(self, evidence: Sequence[Evidence]) -> None:
        enough = [k for k, e in enumerate(evidence) if e.episodes >= self._config.pbt.min_episodes]
        if enough:
            self.best = max(enough, key=lambda k: (evidence[k].mean, -k))

    def _tell(self, done: Round) -> None:
        copies = ", ".join(f"{m.member} <- {m.donor}" for m in done.moves if m.donor is not None)
        best = done.evidence[self.best]
        log.info(
            "population, round %d: best is member %d with %.4g +- %.2g over %d episodes; %s",
            *(done.number, self.best, best.mean, best.error, best.episodes),
            f"weights: {copies}" if copies else "nobody was replaced",
        )

    def set_back(self, member: int, error: Exception) -> None:
        """A member cannot learn from a batch: its settings are bad, which the next rounds see to; the run goes on."""
        self.setbacks += 1
        if self.setbacks <= 3 or self.setbacks & (self.setbacks - 1) == 0:
            log.warning("member %d of the population left out a batch: %s", member, str(error).splitlines()[0])

    # -- metrics and checkpoints ---------------------------------------------------------------

    def metrics(self) -> dict[str, float]:
        """``docs/populations.md`` explains them."""
        found = {
            "pbt/rounds": float(self.population.number),
            "pbt/next_round": float(self.population.next_at),
            "pbt/copies": float(self.copies),
            "pbt/setbacks": float(self.setbacks),
            "pbt/best_member": float(self.best),
        }
        for member, (window, own) in enumerate(zip(self._windows, self.population.settings, strict=True)):
            before = f"policy{member}/pbt/"
            found |= {f"{before}{key}": value for key, value in own.items()}
            found |= {f"{before}episodes": float(len(window))}
            if window:
                found[f"{before}objective"] = sum(window) / len(window)
        return found

    def state(self) -> dict[str, Any]:
        return {
            "rules": self.population.state(),
            "windows": [list(window) for window in self._windows],
            "since": list(self._since),
            "from_episode": self._from_episode.copy(),
            "waiting": [[*key, member] for key, member in self._waiting.items()],
            "told": [{"lane": k[0], "episode": k[1], "stats": dict(stats)} for k, stats in self._told.items()],
            "copies": self.copies,
            "setbacks": self.setbacks,
            "best": self.best,
            "ledger": [dict(entry) for entry in self.ledger.entries],
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state`` was taken; the ledger's file is written anew from there."""
        check_shape(state, STATE_SHAPE)
        self.population.load_state(state["rules"])
        for window, saved in zip(self._windows, state["windows"], strict=True):
            window.extend(saved)
        self._since = list(state["since"])
        if state["from_episode"].shape == self._from_episode.shape:  # else all envs begin new episodes
            self._from_episode[:] = state["from_episode"]
        self._waiting = {(lane, episode): member for lane, episode, member in state["waiting"]}
        self._told = {(row["lane"], row["episode"]): row["stats"] for row in state["told"]}
        self.copies, self.setbacks, self.best = state["copies"], state["setbacks"], state["best"]
        self.ledger.begin(state["ledger"])
        for member in range(len(self._learners)):
            self._apply(member)


def _rank(evidence: Evidence) -> float:
    return evidence.mean if math.isfinite(evidence.mean) else -math.inf


def _keep(waiting: dict[tuple[int, int], Any], key: tuple[int, int], value: Any) -> None:
    """What never finds its other half (a lane was reset) must not fill the memory."""
    waiting[key] = value
    if len(waiting) > MOST_WAITING:
        del waiting[next(iter(waiting))]
