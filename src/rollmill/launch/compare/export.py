"""Writes an experiment for other programs and for a terminal: CSV files, JSON, a table of text."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rollmill.core.errors import LaunchError
from rollmill.core.text import columns
from rollmill.launch.compare.aggregate import SEEDS, Aggregate, Family, GroupResult
from rollmill.launch.compare.methods import Method, Summary
from rollmill.launch.compare.statistics import Estimate, Floats


def score_text(group: GroupResult) -> str:
    """Return the score, or why there is none."""
    if group.score is not None:
        return f"{group.score:.4g}"
    return "no frames in common" if group.count else "no value yet"


def spread_text(group: GroupResult) -> str:
    """Return ``± 12.3`` from five seeds on, ``lowest to highest`` with fewer; empty for a single run."""
    if group.score is None or group.score_low is None or group.score_high is None:
        return ""
    if group.spread == "confidence":
        return f"± {(group.score_high - group.score_low) / 2:.3g}"
    return f"{group.score_low:.4g} to {group.score_high:.4g}"


def count_text(group: GroupResult) -> str:
    """Return ``n = 3``, and of how many runs if some are missing from it."""
    missing = len(group.runs) - group.count
    return f"n = {group.count}" + (f" (of {len(group.runs)})" if missing else "")


STATISTICS = ("method", "runs", "IQM", "95 % interval", "P(best is better)", "95 % interval")


def statistics_cells(method: Method) -> tuple[str, ...]:
    """Return a row below ``STATISTICS``."""
    beaten = method.best_is_better
    chance = ("-", "-") if beaten is None else (f"{beaten.value:.2f}", interval_text(beaten, ".2f"))
    return (method.name, f"{method.runs}", f"{method.iqm.value:.4g}", interval_text(method.iqm), *chance)


def interval_text(found: Estimate, how: str = ".4g") -> str:
    """Return ``12.3 to 15.1``; a dash where the runs are too few."""
    return "-" if found.low is None else f"{found.low:{how}} to {found.high:{how}}"


# --------------------------------------------------------------------------------------------------------- text


def text(found: Aggregate) -> str:
    """Return the best settings and what matters, for a terminal."""
    parts = ["\n".join(_family_lines(family)) for family in found.families]
    for summary in found.across:
        title = f"{len(summary.tasks)} environments, scores from 0 to 1"
        parts.append("\n".join([title, *_statistics_lines(summary)]))
    if found.others:
        parts.append(f"not compared: {', '.join(f'{name} ({kind})' for name, kind in found.others)}")
    return "\n\n".join(parts)


def _family_lines(family: Family) -> list[str]:
    title = f"{family.title}: " if family.title else ""
    best = "lowest" if family.lower else "highest"
    lines = [f"{title}{family.metric}, mean of the last tenth, {best} first"]
    head = ("group", "runs", "mean", f"to {family.unit[:-1]}", f"lowest to highest (from {SEEDS} seeds on: ± 95 %)")
    rows = [head, *map(_cells, family.groups)]
    lines += columns(rows if any(group.spread != "none" for group in family.groups) else [row[:-1] for row in rows])
    if family.summary is not None:
        lines += ["", *_statistics_lines(family.summary)]
    if family.shares.why_not:
        lines += ["", family.shares.why_not]
    if family.shares.items:
        lines += ["", "share of the differences that goes with one parameter:"]
        for item in family.shares.items:
            best = f"best: {item.levels[0][0]}" if item.seen else "no effect seen"
            lines.append(f"  {item.share:4.0%}  {item.param} ({best})")
    return lines


def _statistics_lines(summary: Summary) -> list[str]:
    return columns([STATISTICS, *map(statistics_cells, summary.methods)])


def _cells(group: GroupResult) -> tuple[str, ...]:
    end = f"{group.frames[-1]:,.0f}" if len(group.frames) else "-"
    return group.name, count_text(group), score_text(group), end, spread_text(group) or "-"


# ---------------------------------------------------------------------------------------------------------- CSV


def write_csv(found: Aggregate, folder: Path) -> list[Path]:
    """Write ``curves.csv`` (a row per group and place), ``runs.csv`` and ``groups.csv``."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return [_curves_csv(found, folder), _runs_csv(found, folder), _groups_csv(found, folder)]
    except OSError as error:
        raise LaunchError(f"{folder}: cannot be written: {error.strerror or error}") from error


def _curves_csv(found: Aggregate, folder: Path) -> Path:
    rows = [
        (*_about(family), group.name, f"{x:.0f}", *map(_cell, (mean, low, high)), group.spread, group.count)
        for family in found.families
        for group in family.groups
        for x, mean, low, high in zip(group.frames, group.mean, group.low, group.high)
    ]
    head = ("environment", "kind", "metric", "group", "frames", "mean", "low", "high", "spread", "runs")
    return _write(folder / "curves.csv", head, rows)


def _runs_csv(found: Aggregate, folder: Path) -> Path:
    keys = list(dict.fromkeys(key for family in found.families for run in family.runs for key in run.params))
    head = ("environment", "kind", "metric", "run", "group", *keys)
    rows = [
        (
            *(*_about(family), run.name, run.group),
            *(run.params.get(key, "") for key in keys),
            *(run.state, run.frames),
            *map(_cell, (run.score, run.frames_per_s, run.seconds)),
        )
        for family in found.families
        for run in family.runs
    ]
    return _write(folder / "runs.csv", (*head, "state", "frames", "score", "frames_per_s", "seconds"), rows)


def _groups_csv(found: Aggregate, folder: Path) -> Path:
    keys = list(dict.fromkeys(key for family in found.families for group in family.groups for key in group.params))
    head = ("environment", "kind", "metric", "group", *keys, "runs", "score", "low", "high", "spread")
    rows = [
        (
            *(*_about(family), g.name),
            *(g.params.get(key, "") for key in keys),
            *(g.count, *map(_cell, (g.score, g.score_low, g.score_high)), g.spread),
        )
        for family in found.families
        for g in family.groups
    ]
    return _write(folder / "groups.csv", head, rows)


def _about(family: Family) -> tuple[str, str, str]:
    return family.env, family.kind, family.metric


def _cell(value: float | None) -> str:
    return "" if value is None or not math.isfinite(value) else f"{value:.6g}"


def _write(path: Path, head: Sequence[str], rows: Sequence[Sequence[Any]]) -> Path:
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(head)
        writer.writerows(rows)
    return path


# --------------------------------------------------------------------------------------------------------- JSON


def to_dict(found: Aggregate) -> dict[str, Any]:
    """Return the results as plain values, for scripts; curves are in the CSV files."""
    return {
        "experiment": found.name,
        "families": [_family_dict(family) for family in found.families],
        "across": [_summary_dict(summary) for summary in found.across],
        "not_compared": [{"run": name, "kind": kind} for name, kind in found.others],
    }


def _family_dict(family: Family) -> dict[str, Any]:
    return {
        "environment": family.env,
        "kind": family.kind,
        "metric": family.metric,
        "lower_is_better": family.lower,
        "groups": [
            {
                "group": group.name,
                "params": group.params,
                "runs": [run.name for run in group.runs],
                "n": group.count,
                "score": group.score,
                "low": group.score_low,
                "high": group.score_high,
                "spread": group.spread,
                family.unit: float(group.frames[-1]) if len(group.frames) else None,
            }
            for group in family.groups
        ],
        "importance": [
            {"param": item.param, "share": item.share, "levels": [list(level) for level in item.levels]}
            for item in family.shares.items
        ],
        "no_importance": family.shares.why_not,
        "statistics": _summary_dict(family.summary) if family.summary is not None else None,
    }


def _summary_dict(summary: Summary) -> dict[str, Any]:
    return {
        "tasks": list(summary.tasks),
        "lower_is_better": summary.lower,
        "thresholds": summary.thresholds.tolist(),
        "methods": [
            {
                "method": method.name,
                "runs": method.runs,
                "iqm": vars(method.iqm),
                "best_is_better": vars(method.best_is_better) if method.best_is_better is not None else None,
                "profile": {
                    "value": method.profile.tolist(),
                    "low": _listed(method.profile_low),
                    "high": _listed(method.profile_high),
                },
            }
            for method in summary.methods
        ],
    }


def _listed(values: Floats | None) -> list[float] | None:
    return None if values is None else values.tolist()
