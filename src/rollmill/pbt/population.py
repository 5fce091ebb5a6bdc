"""The population: which settings every member has, when decisions are due, and what they are.

``Population`` knows nothing of networks or environments. Whoever trains the members asks ``due`` with how far each of
them is, and ``decide`` with what is known about each; the answer is a ``Round``, to be carried out and written down.
The same numbers and the same seed give the same rounds, whenever and wherever they are asked for.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rollmill.core.seeds import Seeds
from rollmill.core.shapes import Shape
from rollmill.pbt.bandit import GainModel, propose
from rollmill.pbt.evidence import Evidence, Gate
from rollmill.pbt.select import Copy, Selection, multi_frequency, pairs, truncation
from rollmill.pbt.settings import PbtSettings
from rollmill.pbt.space import Space, from_units, perturbed, sampled, spread, units

Values = dict[str, float]
STATE_SHAPE: Shape = {
    "settings": [{str: float}],
    "velocity": [[float]],
    "number": int,
    "next_at": int,
    "stretch": int,
    "waited": int,
    "best": (float, None),
    "smooth": (float, None),
    "lowest?": (float, None),
    "began": [(float, None)],
    "gains": [{"time": float, "units": [float], "gain": float}],
}
SMOOTHING = 0.5
"""Weight of the newest round in the best objective that ``growth=auto`` looks at."""
LEAST_RISE = 0.01
"""Share of its whole rise by which the best objective must rise, or it stands still (``growth=auto``): one that comes
nearer to its limit by less and less never stands still otherwise."""
LEARNS_FROM = 3
"""Rows that pb2 needs before it trusts its model."""


@dataclass(frozen=True)
class Move:
    """What becomes of one member in a round."""

    member: int
    settings: Mapping[str, tuple[float, float]]
    """Before and after, of each that has changed."""
    donor: int | None = None
    """Whose weights it goes on from; None: its own."""


@dataclass(frozen=True)
class Round:
    """One round of decisions, with all that they were made from."""

    number: int
    frames: Sequence[int]
    """Of every member."""
    evidence: Sequence[Evidence]
    settings: Sequence[Mapping[str, float]]
    """Of every member, before."""
    moves: Sequence[Move]
    kept: Mapping[int, str] = field(default_factory=dict)

    def entry(self) -> dict[str, Any]:
        """Return the round as it is written down."""
        members = [
            {
                "member": k,
                "frames": self.frames[k],
                "objective": plain(e.mean),
                "error": plain(e.error),
                "episodes": e.episodes,
                "settings": dict(self.settings[k]),
            }
            for k, e in enumerate(self.evidence)
        ]
        moves = [
            {"member": m.member, "from": m.donor, "settings": {key: list(pair) for key, pair in m.settings.items()}}
            for m in self.moves
        ]
        kept = {str(member): why for member, why in sorted(self.kept.items())}
        return {"round": self.number, "members": members, "moves": moves, "kept": kept}


class Population:
    """The members' settings and the clock of decisions."""

    def __init__(
        self, settings: PbtSettings, space: Space, configured: Mapping[str, float], seeds: Seeds, period: int
    ) -> None:
        """Set up the members; ``configured``: the run's own value of every tuned setting; ``period``: in frames of a
        member."""
        self._s, self._space, self._seeds, self._period = settings, space, seeds, period
        self._gate = Gate(
            settings.significance, settings.replace_gap, settings.replace_gap_absolute, settings.min_episodes
        )
        self.settings: list[Values] = self._first(configured)
        self.number = 0
        """Rounds so far."""
        self.stretch = 1
        """How often the period has doubled, as a factor."""
        self._next_at = settings.start + period
        self._waited = 0
        self._best: float | None = None
        self._smooth: float | None = None
        self._lowest: float | None = None
        self._velocity = [[0.0] * len(space) for _ in range(settings.members)]
        self._began: list[float | None] = [None] * settings.members
        """Objective with which each member began the present stretch (pb2)."""
        self._gains: list[dict[str, Any]] = []

    def _first(self, configured: Mapping[str, float]) -> list[Values]:
        s, rng = self._s, self._seeds.branch("begin").generator()
        if s.method == "random" or s.begin == "sample":
            return sampled(self._space, s.members, rng)
        if s.begin == "spread":
            return spread(self._space, s.members, rng)
        own = {key: float(configured[key]) for key in self._space}
        others = [perturbed(self._space, own, rng, (s.perturb_min, s.perturb_max)) for _ in range(s.members - 1)]
        return [own, *others]

    # -- the clock -----------------------------------------------------------------------------

    def due(self, frames: Sequence[int]) -> bool:
        """Return whether decisions are due: every member has come that far. ``frames`` of each member."""
        return self._s.decides and min(frames) >= self._next_at

    @property
    def next_at(self) -> int:
        """Frames of each member at which decisions are next due."""
        return self._next_at

    def _advance(self, frames: int, evidence: Sequence[Evidence], ranked: Sequence[int]) -> None:
        """Set the clock for the next round; with ``growth=auto`` it doubles when the best stands still."""
        self.number += 1
        if self._s.growth == "auto" and ranked:
            self._waited = 0 if self._has_risen(evidence[ranked[0]]) else self._waited + 1
            if self._waited >= self._s.patience:
                self.stretch, self._waited = 2 * self.stretch, 0
        self._next_at = max(self._next_at, frames) + self._period * self.stretch

    def _has_risen(self, best: Evidence) -> bool:
        """Return whether the best objective, smoothed, exceeds its highest by more than noise and a share of its
        rise."""
        before, highest, mean = self._smooth, self._best, best.mean
        self._smooth = smooth = mean if before is None else before + SMOOTHING * (mean - before)
        self._lowest = lowest = smooth if self._lowest is None else min(self._lowest, smooth)
        noise = best.error if math.isfinite(best.error) else 0.0
        if highest is not None and smooth <= highest + max(noise, LEAST_RISE * (highest - lowest)):
            return False
        self._best = smooth
        return True

    # -- a round -------------------------------------------------------------------------------

    def decide(self, frames: Sequence[int], evidence: Sequence[Evidence], lost: Collection[int] = ()) -> Round:
        """Decide for all members; their settings are then what the round says.

        ``lost``: members whose weights are gone. They go on from those of one of the best, whatever the gap is.
        """
        rng = self._seeds.branch("round", self.number).generator()
        ranked = self._gate.ranked(evidence)
        self._note_gains(evidence)
        selection = self._select(ranked, evidence, rng)
        if ranked:
            best = ranked[: math.ceil(self._s.replace_fraction * len(ranked))]
            for member in sorted(lost):
                donor = best[int(rng.integers(len(best)))]
                selection.copies.append(Copy(member, donor, donor, explore=self._s.method != "exploit"))
        before = [dict(own) for own in self.settings]
        after = [dict(own) for own in before]
        self._explore(selection, before, after, rng)
        self.settings = after
        donors: dict[int, int | None] = {copy.member: copy.donor for copy in selection.copies}
        if self._s.method == "explore":
            donors = {member: donors.get(member) for member in range(self._s.members)}
        moves = [self._move(member, before, donor) for member, donor in donors.items()]
        for k, own in enumerate(evidence):
            if k not in ranked and (k not in lost or not ranked):
                selection.kept[k] = self._not_judged(own)
        done = Round(self.number + 1, list(frames), list(evidence), before, moves, selection.kept)
        self._begin_stretch(evidence, selection)
        self._advance(min(at for k, at in enumerate(frames) if k not in lost), evidence, ranked)
        return done

    def _not_judged(self, own: Evidence) -> str:
        if own.episodes < self._s.min_episodes:
            return f"{own.episodes} episodes of its present weights, {self._s.min_episodes} are needed"
        return f"{own.episodes} episodes of its present weights, and others that count have not ended"

    def _move(self, member: int, before: Sequence[Values], donor: int | None) -> Move:
        old, new = before[member], self.settings[member]
        return Move(member, {key: (old[key], new[key]) for key in old if old[key] != new[key]}, donor)

    def _select(self, ranked: Sequence[int], evidence: Sequence[Evidence], rng: np.random.Generator) -> Selection:
        s, gate = self._s, self._gate
        if s.method == "explore" or len(ranked) < 2:
            return Selection()
        if s.method == "pairwise":
            return pairs(ranked, evidence, gate, rng)
        if s.method == "mf":
            return multi_frequency(ranked, evidence, gate, self.number + 1, s.members, s.parts)
        return truncation(ranked, evidence, gate, rng, s.replace_fraction, explore=s.method != "exploit")

    def _explore(
        self, selection: Selection, before: Sequence[Values], after: list[Values], rng: np.random.Generator
    ) -> None:
        """Write what becomes of everybody's settings into ``after``."""
        model = self._gain_model() if self._s.method == "pb2" else None
        for copy in selection.copies:
            taken = dict(before[copy.settings_of])
            after[copy.member] = self._changed(copy, taken, before, model, rng) if copy.explore else taken
        if self._s.method == "explore":
            copied = {copy.member for copy in selection.copies}
            for member, own in enumerate(before):
                if member not in copied:
                    after[member] = self._perturbed(own, rng)

    def _changed(
        self, copy: Copy, taken: Values, before: Sequence[Values], model: GainModel | None, rng: np.random.Generator
    ) -> Values:
        if self._s.method == "pairwise":
            return self._towards(copy, before, rng)
        if model is not None:
            # The gain of the coming period is noted at the next round, under its number.
            near, time = units(self._space, taken), float(self.number + 1)
            return from_units(self._space, propose(model, time, near, rng).tolist())
        return self._perturbed(taken, rng)

    def _perturbed(self, own: Mapping[str, float], rng: np.random.Generator) -> Values:
        s = self._s
        return perturbed(self._space, own, rng, (s.perturb_min, s.perturb_max), s.mutation_rate, s.resample_rate)

    def _towards(self, copy: Copy, before: Sequence[Values], rng: np.random.Generator) -> Values:
        """Move the loser's settings towards the winner's, with the velocity of earlier moves (GPBT-PL)."""
        own, winner = units(self._space, before[copy.member]), units(self._space, before[copy.donor])
        inertia, pull = rng.random(len(own)), rng.random(len(own))
        velocity = self._velocity[copy.member]
        speed = [i * v + p * (w - u) for i, v, p, w, u in zip(inertia, velocity, pull, winner, own, strict=True)]
        self._velocity[copy.member] = [float(v) for v in speed]
        return from_units(self._space, [u + v for u, v in zip(own, speed, strict=True)])

    # -- what pb2 learns from ------------------------------------------------------------------

    def _note_gains(self, evidence: Sequence[Evidence]) -> None:
        if self._s.method != "pb2":
            return
        for own, began, now in zip(self.settings, self._began, evidence, strict=True):
            if began is not None and math.isfinite(now.mean):
                gain = (now.mean - began) / self.stretch
                self._gains.append({"time": float(self.number), "units": units(self._space, own), "gain": gain})

    def _begin_stretch(self, evidence: Sequence[Evidence], selection: Selection) -> None:
        means = [e.mean if math.isfinite(e.mean) else None for e in evidence]
        self._began = list(means)
        for copy in selection.copies:
            self._began[copy.member] = means[copy.donor]

    def _gain_model(self) -> GainModel | None:
        if len(self._gains) < LEARNS_FROM:
            return None
        rows = self._gains
        columns = [np.array([row[name] for row in rows], float) for name in ("time", "units", "gain")]
        return GainModel(*columns)

    # -- checkpoints ---------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {
            "settings": [dict(own) for own in self.settings],
            "velocity": [list(own) for own in self._velocity],
            "number": self.number,
            "next_at": self._next_at,
            "stretch": self.stretch,
            "waited": self._waited,
            "best": self._best,
            "smooth": self._smooth,
            "lowest": self._lowest,
            "began": list(self._began),
            "gains": [dict(row) for row in self._gains],
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.settings = [{key: float(own[key]) for key in self._space} for own in state["settings"]]
        self._velocity = [list(own) for own in state["velocity"]]
        self.number, self._next_at, self.stretch = state["number"], state["next_at"], state["stretch"]
        self._waited, self._best, self._smooth = state["waited"], state["best"], state["smooth"]
        self._lowest = state.get("lowest", self._best)  # earlier checkpoints do not have it
        self._began, self._gains = list(state["began"]), [dict(row) for row in state["gains"]]


def plain(value: float) -> float | None:
    """Return a number for JSON, which has neither NaN nor infinity: None for these."""
    return float(value) if math.isfinite(value) else None
