"""Where a member's weights come from, read out of a ledger: its ancestors, their settings, the best so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rollmill.pbt.ledger import Entry


@dataclass(frozen=True)
class Stretch:
    """A part of a lineage: the weights were ``member``'s, and learnt with ``settings`` from ``frames`` on."""

    member: int
    frames: int
    """Of the member, when the stretch began."""
    settings: Mapping[str, float]


def rounds_of(entries: Sequence[Entry]) -> Sequence[Entry]:
    return entries[1:]


def best_member(entries: Sequence[Entry]) -> int:
    """Return the member with the highest objective at the newest round; 0 before the first.

    Who was not judged at that round has the objective of the last one at which its present weights were.
    """
    known: dict[int, float] = {}
    best = 0
    for entry in rounds_of(entries):
        known |= {own["member"]: own["objective"] for own in entry["members"] if own["objective"] is not None}
        if known:
            best = max(known, key=lambda k: (known[k], -k))
        for move in entry["moves"]:
            if move["from"] is not None or any(key.startswith("env.variables.") for key in move["settings"]):
                known.pop(move["member"], None)
    return best


def last_judged(entries: Sequence[Entry], member: int) -> Entry | None:
    """Return what is said of a member in the newest round that knows its objective."""
    rows = (entry["members"][member] for entry in reversed(rounds_of(entries)))
    return next((own for own in rows if own["objective"] is not None), None)


def ancestors(entries: Sequence[Entry], member: int) -> list[int]:
    """Return whose weights those of ``member`` were: before the first round, before the second, ... now."""
    found = [member]
    for entry in reversed(rounds_of(entries)):
        donors = {move["member"]: move["from"] for move in entry["moves"] if move["from"] is not None}
        found.append(donors.get(found[-1], found[-1]))
    return found[::-1]


def schedule(entries: Sequence[Entry], member: int) -> list[Stretch]:
    """Return the settings that the present weights of ``member`` were trained with, and from when on.

    The first stretch begins at 0. Frames are those of whoever held the weights: members are equally far at every round.
    """
    line = ancestors(entries, member)
    found = [Stretch(line[0], 0, dict(entries[0]["begin"][line[0]]))]
    current = [dict(own) for own in entries[0]["begin"]]
    for entry, holder in zip(rounds_of(entries), line[1:], strict=True):
        at = entry["members"][found[-1].member]["frames"]
        for move in entry["moves"]:
            current[move["member"]].update({key: pair[1] for key, pair in move["settings"].items()})
        if holder != found[-1].member or current[holder] != found[-1].settings:
            found.append(Stretch(holder, at, dict(current[holder])))
    return found


def best_so_far(entries: Sequence[Entry], member: int) -> list[tuple[int, float, float]]:
    """Return (frames, objective along the lineage of ``member``, best of the population) at every round."""
    found = []
    for entry, holder in zip(rounds_of(entries), ancestors(entries, member)[:-1], strict=True):
        own = entry["members"][holder]
        known = [other["objective"] for other in entry["members"] if other["objective"] is not None]
        if own["objective"] is not None:
            found.append((own["frames"], own["objective"], max(known)))
    return found
