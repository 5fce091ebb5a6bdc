"""The tasks of a suite on the page of a run: how each has done, and its curve."""

from __future__ import annotations

from collections.abc import Sequence

from rollmill.reports.html.document import grid
from rollmill.reports.html.elements import NOTHING, Html, join
from rollmill.reports.html.tables import NONE, table, value
from rollmill.reports.run.sections import Row, curve_card, last, metric_names, points

HEAD = ("task", "frames", "episodes", "mean return at the end", "highest", "score at the end")


def tasks(rows: Sequence[Row]) -> Html:
    """Show a line and a curve for every task, and a curve of the score of all; nothing where the run has no suite."""
    counted = [name for name in metric_names(rows) if name.startswith("task/") and name.endswith("/frames")]
    found = [name.removeprefix("task/").removesuffix("/frames") for name in counted]
    if not found:
        return NOTHING
    whole = curve_card(rows, "Suite", {"score": "suite/score"}, "frames", "mean score of all tasks, each at most 100")
    curves = (
        curve_card(rows, name, {"return": f"task/{name}/return"}, "frames", "mean return of its last episodes")
        for name in found
    )
    return join(table(HEAD, [_line(rows, name) for name in found], left=1), grid([whole, *curves]))


def _line(rows: Sequence[Row], name: str) -> list[str]:
    ended = last(rows)
    counts = (f"{ended[f'task/{name}/{what}']:,.0f}" for what in ("frames", "episodes"))
    returns = [y for _, y in points(rows, f"task/{name}/return")]
    score = value(ended.get(f"task/{name}/score"))
    return [name, *counts, *((value(returns[-1]), value(max(returns))) if returns else (NONE, NONE)), score]
