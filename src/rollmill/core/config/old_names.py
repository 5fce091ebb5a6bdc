"""What settings and records were called in version 0.1: saved ones are read under their names of today.

Only what a run has saved is read so. Whoever writes an old name, in a file or on the command line, is told the new one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

OLD_NAMES = {
    "lam": "gae_lambda",
    "answer_share": "inference_batch_share",
    "dials": "variables",
    "pictures": "images",
    "film": "video",
    "forgiven": "failures_reset",
}
"""Name in version 0.1 -> name now, each the last part of a dotted key."""

_OTHERS = ("args",)
"""Mappings whose keys are not ours."""


def renamed(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Give saved settings, or a record that holds some, the names of today."""
    return {OLD_NAMES.get(name, name): value if name in _OTHERS else _inside(value) for name, value in saved.items()}


def _inside(value: Any) -> Any:
    if isinstance(value, Mapping):
        return renamed(value)
    return [_inside(item) for item in value] if isinstance(value, list) else value


def read_saved(path: Path) -> dict[str, Any]:
    """Read the settings that a run has saved as ``config.yaml``; raises ConfigError where they cannot be read."""
    from rollmill.core.config.yaml import read_mapping

    return renamed(read_mapping(path, ours=True).data)


def is_saved(path: Path) -> bool:
    """Return whether a run has written this file of settings: other files of a run lie beside it."""
    marks = ("state.json", "diary.json", "stages")
    return path.name == "config.yaml" and any((path.parent / mark).exists() for mark in marks)
