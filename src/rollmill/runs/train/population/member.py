"""A run that is one member of a population of separate runs: at every round it says how far it has come, and goes on
with what is decided.

Whoever is as far as a round asks saves a checkpoint and reports it (``pbt.exchange``). While the others are at work,
the run waits for them. If one of them has no place to work in, the run ends and makes room; it is started again when
the round is decided (``PAUSED``). So there may be more members than places for them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rollmill.core.checkpoints import load_checkpoint, restoring
from rollmill.core.errors import ConfigError
from rollmill.core.shapes import Shape, check_shape
from rollmill.learning.appo import Appo
from rollmill.pbt.exchange import Decided, Exchange
from rollmill.runs.lifecycle import Life
from rollmill.runs.settings.train import TrainConfig
from rollmill.runs.train.population import ratings
from rollmill.runs.train.population.members import Tuned
from rollmill.sampling.sampler import Sampler

log = logging.getLogger("rollmill")

LOOK_SECONDS = 0.2
"""How often a run that waits looks for the others."""
STATE_SHAPE: Shape = {**ratings.STATE_SHAPE, "round": int, "settings": {str: float}, "copies": int, "setbacks": int}


class Member(Tuned):
    """The member that this run is. To the run it is its only policy, number 0."""

    saved_as = "member"

    def __init__(
        self,
        config: TrainConfig,
        learners: Sequence[Appo],
        sampler: Sampler,
        life: Life,
        save: Callable[[], Path],
    ) -> None:
        assert config.pbt.exchange is not None, "asked for by pbt.exchange"
        self._exchange, self.number = Exchange(config.pbt.exchange), config.pbt.member
        about = self._exchange.about()
        if self.number >= len(about.runs):
            raise ConfigError(f"pbt.member={self.number}: {config.pbt.exchange} has {len(about.runs)} members")
        super().__init__(about.pbt, learners, sampler)
        self._pbt, self._life, self._save = about.pbt, life, save
        self._last = config.stop.frames
        """A round that would come later is for nobody: some run a little further than others."""
        self._at = self._decided(0)
        """The newest round that the run has gone on from."""
        self._settings: dict[str, float] = dict(self._at.settings[self.number])

    def _decided(self, number: int) -> Decided:
        found = self._exchange.decided(number)
        assert found is not None, "a round that was decided stays"
        return found

    # -- rounds --------------------------------------------------------------------------------

    @property
    def frames(self) -> int:
        return self._sampler.frames

    def begin(self, anew: bool, same: bool = False) -> Sequence[int]:
        """Begin the run, or go on, with the ``same`` episodes under way or with new ones.

        Returns its policy if that has other weights than it was saved with.
        """
        if anew:
            self.give(0, self._settings)
        else:
            self.ratings.go_on(same)
        return (*self._catch_up(), *self.step())

    def step(self) -> Sequence[int]:
        """Report and wait for the others, if it is time; returns the policy if it has other weights now."""
        if not self._pbt.decides or not self._at.next_at <= min(self.frames, self._last):
            return ()
        number = self._at.number + 1
        if self._exchange.decided(number) is None:
            if not self._exchange.reported(number, self.number):
                evidence = self.ratings.judge()[0]
                self._exchange.report(number, self.number, self.frames, evidence, self._checkpoint())
            if not self._wait(number):
                return ()
        return self._catch_up()

    def _checkpoint(self) -> Path:
        """Return a checkpoint of this moment: a run that goes on has it already."""
        loaded = self._life.loaded
        return loaded.path if loaded is not None and loaded.step == self.frames else self._save()

    def _wait(self, number: int) -> bool:
        """Wait until the round is decided; returns False where the run has to end first."""
        while self._exchange.decide() < number:
            if self._life.over(lambda: ""):
                return False
            missing = self._exchange.missing(self.number)
            if missing:
                names = ", ".join(map(str, missing))
                self._life.pause(f"round {number} waits for member {names}, for whom this run makes room")
                return False
            time.sleep(LOOK_SECONDS)
        return True

    def _catch_up(self) -> Sequence[int]:
        """Go on as the newest round says; of several that were missed, the last copy of weights counts."""
        newest = self._exchange.newest
        missed = [self._decided(number) for number in range(self._at.number + 1, newest + 1)]
        if not missed:
            return ()
        self._at = missed[-1]
        source = next((found for found in reversed(missed) if self.number in found.donors), None)
        weights = None if source is None else self._weights(source)
        settings = dict(self._at.settings[self.number])
        changed = {key for key, value in settings.items() if value != self._settings[key]}
        self._settings = settings
        if changed or weights is not None:
            self.change(0, settings, changed, weights)
        return () if weights is None else (0,)

    def _weights(self, source: Decided) -> Any:
        """Return the state of the donor's learner at a round. Who was lost goes on where the donor was."""
        donor = source.donors[self.number]
        path = self._exchange.checkpoint(source.number, donor)
        state = load_checkpoint(path).state
        log.info("population, round %d: goes on from the weights of member %d", source.number, donor)
        with restoring(path):
            check_shape(state, {"learners": [{"version": int}]})
            if self.number in source.lost:
                steps = source.frames[donor] // self._sampler.plan.spec.frames_per_step
                self._sampler.steps = self._sampler.steps_of[0] = max(self._sampler.steps, steps)
            return state["learners"][0]

    def _called(self, policy: int) -> str:
        return f"member {self.number} of the population"

    # -- metrics and checkpoints ---------------------------------------------------------------

    def metrics(self) -> dict[str, float]:
        """Return the metrics that ``docs/populations.md`` explains."""
        known = self.ratings.known[0]
        found = {
            "pbt/rounds": float(self._at.number),
            "pbt/next_round": float(self._at.next_at),
            "pbt/copies": float(self.copies),
            "pbt/setbacks": float(self.setbacks),
            "pbt/episodes": float(known.episodes),
            **{f"pbt/{key}": value for key, value in self._settings.items()},
        }
        return found | ({"pbt/objective": known.mean} if known.episodes else {})

    def state(self) -> dict[str, Any]:
        return {
            **self.ratings.state(),
            "round": self._at.number,
            "settings": dict(self._settings),
            "copies": self.copies,
            "setbacks": self.setbacks,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state`` was taken."""
        check_shape(state, STATE_SHAPE)
        self.ratings.load_state(state)
        self._at = self._decided(state["round"])
        self._settings = {key: float(state["settings"][key]) for key in self._settings}
        self.copies, self.setbacks = state["copies"], state["setbacks"]
        self.give(0, self._settings)
