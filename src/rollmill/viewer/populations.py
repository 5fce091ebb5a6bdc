"""Populations as the viewer shows them: whose weights went where, how good members were, and with which settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rollmill.core.errors import RunFolderError
from rollmill.core.opening import check_within
from rollmill.pbt.ledger import NAME, Entry, read_ledger
from rollmill.pbt.lineage import ancestors, best_member, last_judged, rounds_of, schedule
from rollmill.viewer.facts import written


def population(folder: Path, root: Path) -> dict[str, Any]:
    """Return the ledger of a run, or of an experiment whose runs are the members, as lists that can be drawn.

    Raises RunFolderError where there is none, or a damaged one.
    """
    ledger = folder / NAME
    check_within(ledger, root)
    entries = read_ledger(ledger)
    try:
        found = _population(entries)
    except (LookupError, TypeError, ValueError) as error:
        raise RunFolderError(f"{NAME} is damaged: {error!r}") from error
    return dict(written(found))


def _population(entries: Sequence[Entry]) -> dict[str, Any]:
    first, rounds = entries[0], rounds_of(entries)
    members, best = len(first["begin"]), best_member(entries)
    return {
        "objective": str(first.get("objective", "return")),
        "method": str(first.get("method", "")),
        "keys": list(first["begin"][0]),
        "best": best,
        "line": ancestors(entries, best),
        "frames": [min(own["frames"] for own in entry["members"]) for entry in rounds],
        "end": max((own["frames"] for own in rounds[-1]["members"]), default=0) if rounds else 0,
        "objectives": [[entry["members"][k]["objective"] for entry in rounds] for k in range(members)],
        "moves": [_move(entry, move) for entry in rounds for move in entry["moves"]],
        "stays": [[int(k), str(why)] for k, why in rounds[-1]["kept"].items()] if rounds else [],
        "members": [_member(entries, k) for k in range(members)],
    }


def _move(entry: Entry, move: Mapping[str, Any]) -> dict[str, Any]:
    frames = min(own["frames"] for own in entry["members"])
    kept = {key: move[key] for key in ("member", "from", "settings")}
    return {"round": entry["round"], "frames": frames, **kept}


def _member(entries: Sequence[Entry], k: int) -> dict[str, Any]:
    """Return what a member began with and has now, and with what its present weights were trained (``way``)."""
    rounds = rounds_of(entries)
    last = last_judged(entries, k) or {}
    way = schedule(entries, k)
    return {
        "begin": dict(entries[0]["begin"][k]),
        "now": dict(way[-1].settings),
        "objective": last.get("objective"),
        "error": last.get("error"),
        "episodes": last.get("episodes", 0),
        "replaced": sum(move["member"] == k and move["from"] is not None for own in rounds for move in own["moves"]),
        "way": [[stretch.member, stretch.frames, dict(stretch.settings)] for stretch in way],
    }
