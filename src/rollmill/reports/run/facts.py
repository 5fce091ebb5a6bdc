"""What the folder of a run tells, read for its page (``online``, ``offline`` and ``world`` draw it).

Only files of the run's folder are read, nothing is unpickled, and what is missing or damaged is left out and named on
the page: a report is wanted most when something went wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollmill.core.checkpoints import Checkpoints
from rollmill.core.diary import new_names
from rollmill.core.errors import RollmillError, RunFolderError
from rollmill.core.opening import check_within, parse_json, read_bytes
from rollmill.core.run_folder import RunFolder
from rollmill.monitor.jsonl import read_jsonl
from rollmill.pbt.ledger import NAME, read_ledger
from rollmill.pbt.payoff import PAYOFF_FILE

LOG_LINES = 12
_COMPLAINT = re.compile(r" (WARNING|ERROR|CRITICAL) +")

Metrics = dict[str, Any]


@dataclass
class RunFacts:
    """What a run's folder says, read once."""

    folder: Path
    state: Metrics = field(default_factory=dict)
    diary: Metrics = field(default_factory=dict)
    config: str = ""
    """``config.yaml`` as it is."""
    rows: list[Metrics] = field(default_factory=list)
    """``metrics.jsonl``"""
    checkpoints: list[tuple[str, int, int]] = field(default_factory=list)
    """(name, frames, bytes)"""
    evaluations: list[Metrics] = field(default_factory=list)
    """Summaries of ``rollmill eval`` that lie in the run's folder."""
    eval_rows: list[Metrics] = field(default_factory=list)
    """``eval/training.jsonl``: evaluations while the run went on."""
    ledger: list[Mapping[str, Any]] = field(default_factory=list)
    """``population.jsonl``: every decision of a population."""
    games: list[Mapping[str, Any]] = field(default_factory=list)
    """``payoff.jsonl``: who has played whom, with self-play."""
    results: Metrics = field(default_factory=dict)
    """``eval/results.json`` of an offline run: what it was fitted to and what it is worth."""
    data: Metrics = field(default_factory=dict)
    """Metrics of the recorded data (``data_report.json``)."""
    data_page: str = ""
    videos: list[Path] = field(default_factory=list)
    """Videos below the folder, newest first."""
    complaints: list[str] = field(default_factory=list)
    """Last warnings and errors of the log."""
    complaint_count: int = 0
    problems: list[str] = field(default_factory=list)
    """What could not be read for this report."""


def read_run(folder: Path) -> RunFacts:
    """Read everything a report needs."""
    run = RunFolder(folder)
    if not run.config.is_file() and not run.diary.is_file():
        raise RunFolderError(f"{folder}: not a run (no config.yaml and no diary.json)")
    facts = RunFacts(folder.absolute())
    facts.diary = new_names(_json(run.diary, facts))
    facts.state = _json(run.state, facts)
    facts.config = _text(run.config, facts)
    facts.data = _json(folder / "data_report.json", facts)
    facts.results = _json(folder / "eval" / "results.json", facts)
    if (folder / "data_report.html").is_file():
        facts.data_page = "data_report.html"
    try:
        facts.rows = _rows(run.metrics, folder)
        facts.eval_rows = _rows(folder / "eval" / "training.jsonl", folder)
        if (folder / NAME).is_file():
            facts.ledger = read_ledger(folder / NAME)
        if (folder / PAYOFF_FILE).is_file():
            facts.games = read_ledger(folder / PAYOFF_FILE)
        found = Checkpoints(run.checkpoints).list() if run.checkpoints.is_dir() else ()
        facts.checkpoints = [(c.path.name, c.step, c.path.stat().st_size) for c in found]
    except (RollmillError, OSError) as error:
        facts.problems.append(str(error))
    facts.evaluations = _evaluations(folder / "eval", facts)
    facts.videos = _videos(facts.folder)
    _read_log(run.log, facts)
    return facts


def _rows(path: Path, folder: Path) -> list[Metrics]:
    if not path.is_file():
        return []
    check_within(path, folder)
    return read_jsonl(path)


def _text(path: Path, facts: RunFacts) -> str:
    try:
        return read_bytes(path, within=facts.folder).decode("utf-8", errors="replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        facts.problems.append(f"{path.name}: {error.strerror or error}")
        return ""


def _json(path: Path, facts: RunFacts) -> Metrics:
    text = _text(path, facts)
    if not text:
        return {}
    try:
        found = parse_json(text)
    except ValueError as error:
        facts.problems.append(f"{path.name}: not JSON ({error})")
        return {}
    return found if isinstance(found, dict) else {}


def _evaluations(folder: Path, facts: RunFacts) -> list[Metrics]:
    """Return summaries that ``rollmill eval`` has left, oldest checkpoint first: JSON files with a mean return."""
    paths = sorted(folder.rglob("*.json")) if folder.is_dir() else []
    found: list[Metrics] = []
    for path in paths:
        one = _json(path, facts)
        entries = (one, *_mappings(one.get("results")), *_mappings(one.get("evaluations")))
        found += [{**entry, "file": str(path.relative_to(folder))} for entry in entries if _is_score(entry)]
    return sorted(found, key=lambda entry: (entry["frames"], entry["file"]))


def _is_score(entry: Mapping[str, Any]) -> bool:
    return isinstance(entry.get("mean"), int | float) and isinstance(entry.get("frames"), int)


def _mappings(value: Any) -> Iterable[Mapping[str, Any]]:
    return [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list) else []


def _videos(folder: Path) -> list[Path]:
    files = (path for path in folder.rglob("*.mp4") if path.is_file())
    return sorted(files, key=lambda path: path.stat().st_mtime, reverse=True)


def _read_log(path: Path, facts: RunFacts) -> None:
    lines = [line for line in _text(path, facts).splitlines() if _COMPLAINT.search(line[:60])]
    facts.complaint_count = len(lines)
    facts.complaints = lines[-LOG_LINES:]
