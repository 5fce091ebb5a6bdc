"""The table and the plots of a controller's search: ``generations.csv`` and returns against generations and steps."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from rollmill.core import atomic
from rollmill.reports.html.svg import Plot

TABLE = "generations.csv"
BY_GENERATION, BY_STEPS = "return_by_generation.svg", "return_by_steps.svg"

STYLE = """
svg{background:#fff;font:11px sans-serif}
.grid{stroke:#ddd;fill:none}.axis{stroke:#555;fill:none}.tick{fill:#555}.title{fill:#222}
.band{fill:#4477aa;opacity:.18}.line{stroke:#4477aa;stroke-width:1.6;fill:none}
.judged{stroke:#cc6633;stroke-width:2;fill:none}.point{stroke:#cc6633;stroke-width:5;stroke-linecap:round}
"""


@dataclass(frozen=True)
class GenerationRow:
    """One generation: returns are means over a member's trials; evaluations are over many episodes."""

    generation: int
    env_steps: int
    frames: int
    seconds: float
    mean: float
    best: float
    worst: float
    sigma: float
    lost: int
    """Episodes that faults of environments have cost."""
    evaluated_best: float | None
    evaluated_mean: float | None
    champion: float | None


def write_curves(folder: Path, rows: Sequence[GenerationRow]) -> None:
    """Write the table, and both plots as soon as there is something to plot."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [f.name for f in fields(GenerationRow)], lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: "" if v is None else v for name, v in asdict(row).items()} for row in rows)
    atomic.write_text(folder / TABLE, text.getvalue())
    if rows:
        atomic.write_text(folder / BY_GENERATION, curve(rows, lambda row: row.generation, "generations"))
        atomic.write_text(folder / BY_STEPS, curve(rows, lambda row: row.env_steps, "environment steps"))


def curve(rows: Sequence[GenerationRow], x: Callable[[GenerationRow], float], title: str) -> str:
    """An SVG picture: mean of the generation, the span from worst to best, and evaluations of the champion."""
    judged = [(x(row), row.champion) for row in rows if row.champion is not None]
    heights = [row.best for row in rows] + [row.worst for row in rows] + [y for _, y in judged]
    low, high = min(heights), max(heights)
    margin = 0.05 * (high - low or 1.0)
    plot = Plot(
        (0, x(rows[-1])),
        (low - margin, high + margin),
        width=560,
        height=320,
        label="return of a generation",
        x_title=f"{title} (line: mean, area: worst to best, orange: best so far over many episodes)",
        y_title="return",
    ).axes()
    plot.band([(x(row), row.worst) for row in rows], [(x(row), row.best) for row in rows])
    plot.line([(x(row), row.mean) for row in rows])
    fresh = {x(row) for row in rows if row.evaluated_best is not None}
    plot.line(judged, "judged").points([point for point in judged if point[0] in fresh])
    picture = str(plot).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    return picture.replace(">", f"><style>{STYLE}</style>", 1) + "\n"
