"""How far a run is, in its own unit, as all of its files say it.

Online runs count frames: ``{"frames": 4096}``. Others say what they count: ``{"step": 300, "unit": "updates"}``. What
version 0.1 has written says ``frames`` for every kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FRAMES = "frames"


def place(step: int, unit: str) -> dict[str, Any]:
    """Return the entries of a file that say how far a run is."""
    return {FRAMES: int(step)} if unit == FRAMES else {"step": int(step), "unit": unit}


def position(entry: Mapping[str, Any]) -> int | None:
    """Return the step that a file's entry tells, whatever its unit; None where it does not say."""
    found = entry.get(FRAMES, entry.get("step"))
    return found if isinstance(found, int) else None


def is_placed(entry: Mapping[str, Any]) -> bool:
    """Return whether a file's entry tells any step."""
    return FRAMES in entry or "step" in entry


def unit_of(entry: Mapping[str, Any]) -> str:
    """Return the unit of that step."""
    return str(entry.get("unit", FRAMES))
