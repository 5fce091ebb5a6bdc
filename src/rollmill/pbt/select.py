"""Who learns from whom: one function for each rule, all of them pure.

Each gets the members in the order of their objectives (best first; those with too few episodes are not there) and
answers for the members that are due. ``Copy`` says what a member takes over; the others stay, and ``kept`` says why.
Pairs that are chosen by rank are chosen from all: that many tests are made, whichever of them is looked at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from rollmill.pbt.evidence import Evidence, Gate

MULTIPLES = (1, 10, 25, 50)
"""Periods of the sub-populations of ``mf``, in rounds (2506.03225)."""


@dataclass(frozen=True)
class Copy:
    """``member`` goes on from the weights of ``donor``."""

    member: int
    donor: int
    settings_of: int
    """Whose settings it takes over."""
    explore: bool
    """Whether those are changed before it goes on."""


@dataclass
class Selection:
    """What one round has decided."""

    copies: list[Copy] = field(default_factory=list)
    kept: dict[int, str] = field(default_factory=dict)
    """Members that might have been replaced and were not, and why."""

    def consider(self, copy: Copy, gate: Gate, evidence: Sequence[Evidence], pairs: int) -> bool:
        """Let a member be replaced, if the gate lets it; ``pairs``: (donor, taker) that the two were chosen from."""
        refusal = gate.refusal(evidence[copy.donor], evidence[copy.member], pairs)
        if refusal:
            self.kept[copy.member] = refusal
            return False
        self.kept.pop(copy.member, None)
        self.copies.append(copy)
        return True


def ordered_pairs(members: int) -> int:
    """Return how many pairs (donor, taker) there are among so many members."""
    return members * (members - 1)


def truncation(
    ranked: Sequence[int],
    evidence: Sequence[Evidence],
    gate: Gate,
    rng: np.random.Generator,
    fraction: float,
    explore: bool = True,
    due: Callable[[int], bool] = lambda _member: True,
) -> Selection:
    """Let the worst go on from random ones of the best; the middle stays as it is."""
    count = min(math.ceil(fraction * len(ranked)), len(ranked) // 2)
    best, selection, tests = ranked[:count], Selection(), ordered_pairs(len(ranked))
    for member in ranked[len(ranked) - count :]:
        donor = best[int(rng.integers(count))]
        if due(member):
            selection.consider(Copy(member, donor, donor, explore), gate, evidence, tests)
    return selection


def sub_population(member: int, members: int, parts: int) -> int:
    """Return the sub-population of a member: neighbours stand together, the first have the shortest period."""
    return member * parts // members


def multi_frequency(
    ranked: Sequence[int], evidence: Sequence[Evidence], gate: Gate, number: int, members: int, parts: int
) -> Selection:
    """Select as MF-PBT does, in round ``number`` (from 1): sub-populations have periods of 1, 10, 25 and 50 rounds.

    In each that is due, the last quarter takes weights and settings from its first quarter and explores. The third
    quarter takes weights from the best of other sub-populations, where those are better: their settings with them only
    from slower sub-populations, which are less greedy; else those of the own best.
    """
    selection, tests = Selection(), ordered_pairs(len(ranked))
    part = {k: sub_population(k, members, parts) for k in ranked}
    for p in range(parts):
        own = [k for k in ranked if part[k] == p]
        if number % MULTIPLES[p] or len(own) < 2:
            continue
        quarter = max(1, len(own) // 4)
        first, last = own[:quarter], own[-quarter:]
        for donor, member in zip(first, reversed(last), strict=True):
            selection.consider(Copy(member, donor, donor, True), gate, evidence, tests)
        third = own[len(own) - 2 * quarter : len(own) - quarter]
        others = [k for k in ranked if part[k] != p]
        for donor, member in zip(others, third if len(own) >= 4 else ()):
            settings_of = donor if part[donor] > p else own[0]
            selection.consider(Copy(member, donor, settings_of, False), gate, evidence, tests)
    return selection


def pairs(ranked: Sequence[int], evidence: Sequence[Evidence], gate: Gate, rng: np.random.Generator) -> Selection:
    """Draw random pairs: the loser goes on from the winner's weights, and moves its own settings (GPBT-PL)."""
    order = [ranked[k] for k in rng.permutation(len(ranked)).tolist()]
    place = {member: k for k, member in enumerate(ranked)}
    selection = Selection()
    for one, two in zip(order[::2], order[1::2]):
        winner, loser = sorted((one, two), key=place.__getitem__)
        # Pairs are drawn blindly; only which of the two is the winner has been looked at.
        selection.consider(Copy(loser, winner, loser, True), gate, evidence, 2 * (len(order) // 2))
    return selection
