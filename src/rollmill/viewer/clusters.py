"""Runs with nodes as the viewer shows them: how every node stands, which metrics there are, what the log says."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rollmill.core.opening import check_within, read_json, read_lines
from rollmill.core.run_folder import RunFolder
from rollmill.viewer.facts import written

FILE = "cluster.json"
"""What the run itself writes down for people and programs to read."""
PREFIX = "cluster/"
NODE = ("node", "seat", "incarnation", "stage", "reason", "rows", "packed_bytes", "raw_bytes", "lag")
MOST_LINES = 200
_TOLD = re.compile(rb"\b(?:nodes?|gateway|cluster)\b")


def cluster(run: RunFolder, root: Path, metrics: Sequence[str]) -> dict[str, Any]:
    """``metrics``: all names that the run has written; what is left of its nodes lies in its folder."""
    found = _saved(run.path / FILE, root)
    nodes = [node for node in found.get("nodes", []) if isinstance(node, dict)]
    lines = _log(run.log, root)
    return {
        "metrics": sorted(name for name in metrics if name.startswith(PREFIX)),
        "address": str(found.get("address", "")),
        "time": written(found.get("time")),
        "gateways": written(found.get("gateways")),
        "nodes": written([{key: node.get(key) for key in NODE} for node in nodes]),
        "problem": found.get("problem", ""),
        "log": lines[-MOST_LINES:],
        "earlier": max(0, len(lines) - MOST_LINES),
    }


def _saved(file: Path, root: Path) -> dict[str, Any]:
    """What ``cluster.json`` holds, or why that cannot be told: the curves tell the rest."""
    try:
        found = read_json(file, within=root)
    except FileNotFoundError:
        return {"problem": f"there is no {FILE} yet"}
    except ValueError as error:
        return {"problem": f"{FILE} is damaged: {error}"}
    return found if isinstance(found, dict) else {"problem": f"{FILE} is damaged"}


def _log(file: Path, root: Path) -> list[str]:
    """Lines of the log about nodes and the gateway, oldest first."""
    try:
        check_within(file, root)
        return [line.decode("utf-8", "replace").rstrip("\n") for line in read_lines(file) if _TOLD.search(line[24:])]
    except FileNotFoundError:
        return []
