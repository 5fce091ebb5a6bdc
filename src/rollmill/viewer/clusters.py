"""Runs with nodes as the viewer shows them: how every node stands, which metrics there are, what the log says."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rollmill.core.errors import ClusterError
from rollmill.core.opening import check_within, read_lines
from rollmill.core.run_folder import RunFolder
from rollmill.distributed.standing import FILE, RunStanding
from rollmill.viewer.facts import written

PREFIX = "cluster/"
MOST_LINES = 200
_TOLD = re.compile(rb"(?<![\w/.-])(?:nodes?|gateway|cluster)\b(?![/-])")
"""Words, and no parts of paths: many a folder of runs is called after its nodes."""


def cluster(run: RunFolder, root: Path, metrics: Sequence[str]) -> dict[str, Any]:
    """Return how a run's nodes stand, as its folder tells; ``metrics``: all names that the run has written."""
    found, problem = _standing(run.path, root)
    lines = _log(run.log, root)
    return {
        "metrics": sorted(name for name in metrics if name.startswith(PREFIX)),
        "address": found.address if found else "",
        "gateways": found.gateways if found else None,
        "nodes": written([asdict(node) for node in found.nodes]) if found else [],
        "problem": problem,
        "log": lines[-MOST_LINES:],
        "earlier": max(0, len(lines) - MOST_LINES),
    }


def _standing(folder: Path, root: Path) -> tuple[RunStanding | None, str]:
    """Read what the run has written down for people and programs; returns it, and what is wrong with it."""
    check_within(folder / FILE, root)
    try:
        found = RunStanding.read(folder)
    except FileNotFoundError:
        return None, f"there is no {FILE} yet"
    except ValueError as error:
        return None, f"{FILE} is damaged: {error}"
    except ClusterError:
        return None, f"{FILE} is damaged, or of another version"
    return found, found.problem


def _log(file: Path, root: Path) -> list[str]:
    """Return the lines of the log about nodes and the gateway, oldest first."""
    try:
        check_within(file, root)
        return [line.decode("utf-8", "replace").rstrip("\n") for line in read_lines(file) if _TOLD.search(line[24:])]
    except FileNotFoundError:
        return []
