"""Several curves in one plot, with a legend, on axes that hide nothing.

Losses often begin far above where they end. Then the axis is logarithmic, or, where that is impossible or does not
help, a second plot below shows the later part. Either is said; no value is cut off.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rollmill.reports.html.document import note
from rollmill.reports.html.style import HUES
from rollmill.reports.html.svg import Plot, escape, short

Points = Sequence[tuple[float, float]]

LATE = 0.25
"""Share of the axis after which a curve counts as late."""
FLAT = 0.1
"""Later values that span less than this share of all are pressed flat by the early ones."""
MARGIN = 0.05


@dataclass(frozen=True)
class Line:
    """One curve and its name."""

    label: str
    points: Points


def curves(
    lines: Sequence[Line],
    label: str,
    *,
    x_title: str,
    y_title: str = "",
    mark: tuple[float, str] | None = None,
    width: int = 340,
    height: int = 190,
) -> str:
    """The plot (or both), and a legend where there are several curves; nothing without points.

    ``mark``: a place on the axis to point out, with a word for it.
    """
    lines = [Line(line.label, [p for p in line.points if math.isfinite(p[1])]) for line in lines]
    lines = [line for line in lines if line.points]
    if not lines:
        return ""

    def draw(shown: Sequence[Line], log: bool = False) -> str:
        title = f"{y_title} (logarithmic axis)" if log else y_title
        xs, ys = [x for line in shown for x, _ in line.points], [y for line in shown for _, y in line.points]
        plot = Plot(
            (min(xs), max(xs)),
            _range(ys, log),
            width=width,
            height=height,
            label=label,
            x_title=x_title,
            y_title=title.strip(),
            log=log,
        ).axes()
        for k, line in enumerate(shown):
            colour = f" c{k % len(HUES)}" if len(shown) > 1 else ""
            draw_one = plot.line if len(line.points) > 1 else plot.points
            draw_one(line.points, f"{'line' if len(line.points) > 1 else 'point'}{colour}")
        if mark is not None and min(xs) <= mark[0] <= max(xs):
            plot.mark(*mark)
        return str(plot)

    keys = legend([line.label for line in lines]) if len(lines) > 1 else ""
    late = _late(lines)
    if not late or not _is_flat(lines, late):
        return draw(lines) + keys
    if _log_helps(lines, late):
        return draw(lines, log=True) + keys
    start = min(line.points[0][0] for line in late)
    return f"{draw(lines)}{keys}{note(f'The same from {short(start)} on:')}{draw(late)}"


def legend(labels: Sequence[str]) -> str:
    """What the colours mean, in their order."""
    keys = "".join(f'<span class="key c{k % len(HUES)}"></span><span>{escape(t)}</span>' for k, t in enumerate(labels))
    return f'<p class="note legend">{keys}</p>'


def _range(values: Sequence[float], log: bool) -> tuple[float, float]:
    low, high = min(values), max(values)
    if log:
        factor = (high / low) ** MARGIN
        return low / factor, high * factor
    margin = (high - low) * MARGIN
    return low - margin, high + margin


def _late(lines: Sequence[Line]) -> list[Line]:
    """The later part of every curve; empty unless all of them have one worth drawing."""
    first = min(line.points[0][0] for line in lines)
    last = max(line.points[-1][0] for line in lines)
    start = first + LATE * (last - first)
    found = [Line(line.label, [p for p in line.points if p[0] >= start]) for line in lines]
    return found if all(len(line.points) > 1 for line in found) else []


def _values(lines: Sequence[Line]) -> list[float]:
    return [y for line in lines for _, y in line.points]


def _is_flat(lines: Sequence[Line], late: Sequence[Line]) -> bool:
    every, later = _values(lines), _values(late)
    return 0 < max(later) - min(later) < FLAT * (max(every) - min(every))


def _log_helps(lines: Sequence[Line], late: Sequence[Line]) -> bool:
    every, later = _values(lines), _values(late)
    return min(every) > 0 and math.log(max(later) / min(later)) >= FLAT * math.log(max(every) / min(every))
