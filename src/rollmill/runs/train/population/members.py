"""A population in a run: takes in the members' episodes, carries out what is decided, and writes it down.

Decisions themselves are pure (``rollmill.pbt``). Here are the three things that a member is: a learner, a row of
``env.variables``, and a block of episodes that its present weights have played from their first step on.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rollmill.core.run_folder import RunFolder
from rollmill.core.seeds import Seeds
from rollmill.core.shapes import MAPPING, Shape, check_shape
from rollmill.learning.appo import Appo
from rollmill.pbt import population as rules
from rollmill.pbt.evidence import Evidence
from rollmill.pbt.ledger import Ledger
from rollmill.pbt.population import Population, Round
from rollmill.pbt.settings import PbtSettings
from rollmill.pbt.space import parse_space
from rollmill.runs.settings.population_checks import LEARNING, VARIABLES, configured, population_period
from rollmill.runs.settings.train import TrainConfig
from rollmill.runs.train.population import ratings
from rollmill.runs.train.population.ratings import Ratings
from rollmill.sampling.sampler import Sampler

log = logging.getLogger("rollmill")

STATE_SHAPE: Shape = {
    "rules": rules.STATE_SHAPE,
    **ratings.STATE_SHAPE,
    "copies": int,
    "setbacks": int,
    "best": int,
    "ledger": [MAPPING],
}


class Tuned:
    """The policies of a run whose settings a population decides: all its members, or one of them (``member``)."""

    def __init__(self, pbt: PbtSettings, learners: Sequence[Appo], sampler: Sampler) -> None:
        self._learners, self._sampler = learners, sampler
        self.ratings = Ratings(pbt, sampler, len(learners))
        self.best = 0
        """The policy with the highest objective, of those with enough episodes."""
        self.copies = self.setbacks = 0

    def give(self, policy: int, settings: Mapping[str, float]) -> None:
        """Give a policy's settings to its learner and its environments."""
        knobs = {key.removeprefix(LEARNING): value for key, value in settings.items() if key.startswith(LEARNING)}
        self._learners[policy].set_knobs(knobs)
        for key, value in settings.items():
            if key.startswith(VARIABLES):
                self._sampler.set_variable(key.removeprefix(VARIABLES), value, policy)

    def change(self, policy: int, settings: Mapping[str, float], keys: Collection[str], weights: Any = None) -> None:
        """Give a policy other ``settings``, of which ``keys`` have changed.

        ``weights``: the state of another's learner, from which the policy goes on, if there is one.
        """
        if weights is not None:
            self.copies += 1
            self._learners[policy].adopt(weights)
        self.give(policy, settings)
        varied = any(key.startswith(VARIABLES) for key in keys)
        if weights is not None or varied:
            self.ratings.restart(policy, varied)

    def set_back(self, policy: int, error: Exception) -> None:
        """Set back a policy that cannot learn from a batch: its settings are bad, which the next rounds see to.

        The run goes on. The policy keeps the weights that act: its episodes speak of them, and others may take them.
        """
        self.setbacks += 1
        self._learners[policy].set_back()
        if self.setbacks <= 3 or self.setbacks & (self.setbacks - 1) == 0:
            log.warning("%s left out a batch: %s", self._called(policy), str(error).splitlines()[0])

    def _called(self, policy: int) -> str:
        return f"member {policy} of the population"


class Members(Tuned):
    """All members of a population, by number."""

    saved_as = "population"

    def __init__(self, config: TrainConfig, learners: Sequence[Appo], sampler: Sampler, folder: RunFolder) -> None:
        pbt = config.pbt
        super().__init__(pbt, learners, sampler)
        self._config = config
        space = parse_space(pbt.tuned)
        own = {key: configured(config, key) for key in space}
        seeds = Seeds(config.run.seed).branch("pbt")
        self.population = Population(pbt, space, own, seeds, population_period(config))
        self.ledger = Ledger(folder.path)

    def begin(self, anew: bool, same: bool = False) -> Sequence[int]:
        """Begin the run, or go on, with the ``same`` episodes under way or with new ones.

        Returns the members that have other weights than it was saved with.
        """
        if not anew:
            self.ratings.go_on(same)
            return ()  # everything was loaded
        pbt = self._config.pbt
        about = {"method": pbt.method, "objective": pbt.objective, "seed": self._config.run.seed}
        self.ledger.begin([{"begin": [dict(own) for own in self.population.settings], **about}])
        for member, own in enumerate(self.population.settings):
            self.give(member, own)
        return ()

    # -- decisions -----------------------------------------------------------------------------

    @property
    def frames(self) -> list[int]:
        """The frames of every member."""
        return [steps * self._sampler.plan.spec.frames_per_step for steps in self._sampler.steps_of]

    def step(self) -> Sequence[int]:
        """Decide, if it is time; returns the members that have other weights now."""
        frames = self.frames
        if not self.population.due(frames):
            return ()
        evidence = self.ratings.judge()
        done = self.population.decide(frames, evidence)
        self._note_best()
        # The donor is always the better one: from the worst taker upwards, none has changed yet when it is copied.
        moves = sorted(done.moves, key=lambda move: _rank(evidence[move.member]))
        for move in moves:
            weights = None if move.donor is None else self._learners[move.donor].state()
            self.change(move.member, self.population.settings[move.member], move.settings, weights)
        self.ledger.add(done.entry())
        self._tell(done)
        return [move.member for move in moves if move.donor is not None]

    def _note_best(self) -> None:
        known = self.ratings.known
        if any(e.episodes for e in known):
            self.best = max(range(len(known)), key=lambda k: (_rank(known[k]), -k))

    def _tell(self, done: Round) -> None:
        copies = ", ".join(f"{m.member} <- {m.donor}" for m in done.moves if m.donor is not None)
        best = self.ratings.known[self.best]
        late = ", ".join(str(k) for k, e in enumerate(done.evidence) if not math.isfinite(e.mean))
        log.info(
            "population, round %d: best is member %d with %.4g +- %.2g over %d episodes; %s%s",
            *(done.number, self.best, best.mean, best.error, best.episodes),
            f"weights: {copies}" if copies else "nobody was replaced",
            f"; not judged yet: {late}" if late else "",
        )

    # -- metrics and checkpoints ---------------------------------------------------------------

    def metrics(self) -> dict[str, float]:
        """Return the metrics that ``docs/populations.md`` explains."""
        found = {
            "pbt/rounds": float(self.population.number),
            "pbt/next_round": float(self.population.next_at),
            "pbt/copies": float(self.copies),
            "pbt/setbacks": float(self.setbacks),
            "pbt/best_member": float(self.best),
        }
        for member, (known, own) in enumerate(zip(self.ratings.known, self.population.settings, strict=True)):
            before = f"policy{member}/pbt/"
            found |= {f"{before}{key}": value for key, value in own.items()}
            found |= {f"{before}episodes": float(known.episodes)}
            if known.episodes:
                found[f"{before}objective"] = known.mean
        return found

    def state(self) -> dict[str, Any]:
        return {
            "rules": self.population.state(),
            **self.ratings.state(),
            "copies": self.copies,
            "setbacks": self.setbacks,
            "best": self.best,
            "ledger": [dict(entry) for entry in self.ledger.entries],
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state`` was taken; the ledger's file is written anew from there."""
        check_shape(state, STATE_SHAPE)
        self.population.load_state(state["rules"])
        self.ratings.load_state(state)
        self.copies, self.setbacks, self.best = state["copies"], state["setbacks"], state["best"]
        self.ledger.begin(state["ledger"])
        for member, own in enumerate(self.population.settings):
            self.give(member, own)


def _rank(evidence: Evidence) -> float:
    return evidence.mean if math.isfinite(evidence.mean) else -math.inf
