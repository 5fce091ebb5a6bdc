"""Who plays whom: the rules, and the draw for every episode.

A rule weighs the models of the pool (pure functions of what is known about each). The draw of an episode depends on
the run's seed, the environment and the episode's number alone, never on who asks when; so it needs no generator whose
state would have to be kept.

Words
-----
side       agents of an environment that belong together. In every episode one side learns, the others are the opponent.
opponent   who plays all other sides: a model of the pool, an anchor, or the policies that learn (``live``).
number     of whoever plays, as rows say it (``policy_id``): policies of the run from 0; then the models of the pool, in
           the order of their ids, one number for each policy a model holds; anchors from the top (``TOP``) downwards.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rollmill.core.errors import ConfigError
from rollmill.core.fields import Array
from rollmill.core.protocols import Seats
from rollmill.core.seeds import Seeds
from rollmill.pbt.selfplay_settings import SelfPlaySettings, Weighting

TOP = int(np.iinfo(np.int16).max)
"""The number of the first anchor."""
LIVE = -1
"""In a draw: all sides are played by policies that learn."""


@dataclass(frozen=True)
class Candidate:
    """A model of the pool, as a rule sees it."""

    model: int
    """Its id: the higher, the newer."""
    version: int
    """Batches that it has learnt from."""
    frames: int
    """Of the run when it was published."""
    win_rate: float
    """How often the learning policy has won against it lately, draws half; 1/2 while there are too few games."""


Rule = Callable[[Sequence[Candidate]], Sequence[float]]


@dataclass(frozen=True)
class Numbers:
    """Which ``policy_id`` means whom."""

    policies: int
    """Policies of the run."""
    anchors: int = 0
    """Anchors that the run has, or has had."""

    def model(self, model: int, policy: int = 0) -> int:
        """Return the number of a model's weights of one policy."""
        return self.policies * (1 + model) + policy

    def model_of(self, number: int) -> int | None:
        """Return the model that a number is one of; None: no model's."""
        return number // self.policies - 1 if self.policies <= number and not self.is_anchor(number) else None

    def opponent_of(self, number: int) -> int:
        """Return the number that stands for an opponent as a whole: of a model, that of its first policy."""
        model = self.model_of(number)
        return number if model is None else self.model(model)

    def fits(self, model: int) -> bool:
        """Return whether there are numbers left for a model."""
        return not self.is_anchor(self.model(model, self.policies - 1))

    def is_anchor(self, number: int) -> bool:
        return number > TOP - self.anchors

    @staticmethod
    def anchor(index: int) -> int:
        return TOP - index


# -- rules ------------------------------------------------------------------------------------------------------------


def pfsp(weighting: Weighting, win_rate: float) -> float:
    """Return how much an opponent counts that is beaten with this probability (prioritized fictitious self-play)."""
    lost = 1.0 - win_rate
    if weighting == "linear":
        return lost
    if weighting == "squared":
        return lost * lost
    if weighting == "variance":
        return win_rate * lost
    return min(0.5, lost)


def weigh(settings: SelfPlaySettings, candidates: Sequence[Candidate], own: Rule | None = None) -> list[float]:
    """Return the probability of each candidate (oldest first): they add up to 1. ``own``: the user's rule."""
    count, s = len(candidates), settings
    if own is not None:
        return _shares(_checked(s.rule, own(candidates), count))
    if s.rule == "latest":
        return [0.0] * (count - 1) + [1.0]
    if s.rule == "newest":
        return _shares([float(k >= count - s.window) for k in range(count)])
    if s.rule == "mix":
        return [(1 - s.latest_share) / count + s.latest_share * (k == count - 1) for k in range(count)]
    if s.rule == "pfsp":
        return _shares([pfsp(s.weighting, candidate.win_rate) for candidate in candidates])
    return _shares([1.0] * count)


def _shares(weights: Sequence[float]) -> list[float]:
    """Return shares of the sum; all alike where all are 0: nobody can be beaten more often than always."""
    total = math.fsum(weights)
    return [w / total for w in weights] if total > 0 else [1.0 / len(weights)] * len(weights)


def _checked(rule: str, answer: Any, count: int) -> list[float]:
    try:
        weights = [float(x) for x in answer]
    except (TypeError, ValueError) as error:
        raise ConfigError(f"selfplay.rule={rule} answered {answer!r}, expected a list of weights: {error}") from error
    if len(weights) != count or not all(math.isfinite(w) and w >= 0 for w in weights):
        raise ConfigError(
            f"selfplay.rule={rule} answered {weights}, expected {count} weights, one for each candidate, none negative"
        )
    return weights


# -- the draw ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Odds:
    """Opponents and their probabilities, of one learning policy. Replaced whole, never changed."""

    opponents: tuple[int, ...]
    """Numbers (of a model: of its first policy), or ``LIVE``."""
    limits: tuple[float, ...]
    """Sums of the probabilities up to each, the last one 1."""

    @classmethod
    def of(cls, shares: Mapping[int, float]) -> Odds:
        sums = list(itertools.accumulate(shares.values()))
        if abs(sums[-1] - 1) > 1e-6:
            raise ValueError(f"probabilities add up to {sums[-1]}")
        return cls(tuple(shares), (*sums[:-1], 1.0))

    def draw(self, u: float) -> int:
        """Return the opponent for a number in [0, 1)."""
        return self.opponents[bisect(self.limits, u)]


@dataclass
class Draw:
    """Seats agents of environments: the side that learns and the opponent of every episode."""

    numbers: Numbers
    sides: tuple[int, ...]
    """Of every agent."""
    policy_of_side: tuple[int, ...]
    """Which policy of the run plays a side, when it learns."""
    learns: tuple[int, ...]
    """Sides that learn, by chance."""
    seeds: Seeds
    odds: tuple[Odds, ...] = ()
    """Of every policy of the run."""
    versions: Mapping[int, int] = field(default_factory=dict)
    """Of the opponents, by number; 0 for those that are not there."""

    def seat(self, lanes: Array, episodes: Array) -> Seats:
        """Say who plays each lane's episode, and against whom (``protocols.Matchmaker.seat``)."""
        odds, versions = self.odds, self.versions  # another thread replaces them, versions before odds
        envs, agents = np.divmod(lanes, len(self.sides))
        ids = np.empty(len(lanes), np.int16)
        against = np.empty(len(lanes), np.int16)
        games: dict[tuple[int, int], tuple[list[int], list[int]]] = {}
        for k, key in enumerate(zip(envs.tolist(), episodes.tolist(), strict=True)):
            if key not in games:
                games[key] = self._game(*key, odds)
            played, opponents = games[key]
            ids[k], against[k] = played[agents[k]], opponents[agents[k]]
        own = [versions.get(number, 0) for number in ids.tolist()]
        return Seats(ids, np.array(own, np.int64), against)

    def _game(self, env: int, episode: int, odds: Sequence[Odds]) -> tuple[list[int], list[int]]:
        """Draw one episode: return who plays each agent, and against whom."""
        u, v = self.seeds.branch(env, episode).generator().random(2).tolist()
        side = self.learns[int(u * len(self.learns))]
        opponent = odds[self.policy_of_side[side]].draw(v)
        by_side = [self._player(number, side, opponent) for number in range(len(self.policy_of_side))]
        return [by_side[own] for own in self.sides], [self._met_by(own, side, by_side) for own in self.sides]

    def _player(self, number: int, learning: int, opponent: int) -> int:
        """Return who plays a side."""
        policy = self.policy_of_side[number]
        if number == learning or opponent == LIVE:
            return policy
        return opponent if self.numbers.is_anchor(opponent) else opponent + policy

    def _met_by(self, own: int, learning: int, by_side: Sequence[int]) -> int:
        """Return whom a side plays against: the opponent, or (the opponent's side) the one that learns."""
        if own != learning:
            return by_side[learning]
        return by_side[next(number for number in range(len(by_side)) if number != own)]
