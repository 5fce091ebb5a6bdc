"""The section that asks whether what was kept is like what was played."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from rollmill.reports.html.svg import Plot, escape
from rollmill.reports.html.tables import table, value
from rollmill.reports.store.comparison import QUANTITIES


def kept_and_played(selection: dict[str, Any] | None) -> str:
    """Means of kept and of all episodes, over the run and part by part; empty where nobody knows what was played."""
    if selection is None:
        return ""
    sentence = f"<p>{escape(selection['sentence'][:1].upper() + selection['sentence'][1:])}.</p>"
    if selection["agrees"] is None:
        return f'<div class="card">{sentence}</div>'
    rows = []
    for name in QUANTITIES:
        found = selection[name]
        figures = (found["kept"], found["played"], found["z"], found["ks"], found["ks_p"])
        rows.append((f"mean {name}", *(value(figure) for figure in figures)))
    head = (
        "of whole episodes",
        "kept, weighted",
        "played",
        "standard errors apart",
        "KS distance",
        "KS p-value",
    )
    plots = "".join(_plot(selection["parts"], name) for name in QUANTITIES)
    note = (
        "line: kept, weighted by one over the probability of having been kept; dots: all episodes that were played; "
        "by the global step (frames) at which an episode began"
    )
    return (
        f'<div class="card">{sentence}<div class="grid2">{plots}</div><p class="note">{escape(note)}</p></div>'
        f"{table(head, rows, left=1)}"
    )


def _plot(parts: Sequence[dict[str, Any]], name: str) -> str:
    usual = statistics.median(part["played"] for part in parts)
    parts = [part for part in parts if part["played"] >= usual / 4]  # of the last part only short ones have ended
    middles = [sum(part["frames"]) / 2 for part in parts]
    kept = [part[name]["kept"] for part in parts]
    played = [part[name]["played"] for part in parts]
    low, high = min(kept + played), max(kept + played)
    margin = 0.05 * (high - low)
    plot = Plot(
        (min(middles), max(middles)),
        (low - margin, high + margin),
        width=480,
        height=240,
        label=f"mean {name} over global step, kept and played",
        x_title="global step",
        y_title=f"mean {name}",
    ).axes()
    plot.points(list(zip(middles, played)))
    return str(plot.line(list(zip(middles, kept))))
