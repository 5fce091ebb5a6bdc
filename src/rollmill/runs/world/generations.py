"""What a controller's search has done: ``generations.csv``, and plots of returns against generations and steps."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from rollmill.core import atomic
from rollmill.reports.run.world import AXES, TABLE, search_plot

PLOTS = {"generation": "return_by_generation.svg", "env_steps": "return_by_steps.svg"}
"""Files, by what returns are drawn against."""


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


def write_generations(folder: Path, rows: Sequence[GenerationRow]) -> None:
    """Write the table, and both plots as soon as there is something to plot."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [f.name for f in fields(GenerationRow)], lineterminator="\n")
    writer.writeheader()
    plain = [asdict(row) for row in rows]
    writer.writerows({name: "" if v is None else v for name, v in row.items()} for row in plain)
    atomic.write_text(folder / TABLE, text.getvalue())
    for column in AXES if rows else ():
        atomic.write_text(folder / PLOTS[column], search_plot(plain, column).file() + "\n")
