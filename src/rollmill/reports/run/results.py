"""What policies achieve, beside each other and beside what they were asked for: rows, a table, a plot."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from rollmill.core.text import columns
from rollmill.reports.html.elements import NOTHING, Html, join
from rollmill.reports.html.plots import Plot, legend, spread, wide
from rollmill.reports.html.style import HUES
from rollmill.reports.html.tables import number

TOP = 0.1
"""Share of the data's episodes whose mean return stands in a row of its own."""

BEHAVIOUR = "behaviour"
"""Names the policy that counts as 100 %: it made the data. Random play is 0 %."""

LAST = ", last"
"""Ends the name of a policy that acts with its last weights instead of those with the lowest held-out loss."""

NOTHING_KNOWN = "-"

APART = 2.0
"""Standard errors between two metrics before their difference counts as more than chance."""


@dataclass(frozen=True)
class Row:
    """Whole episodes of one policy (asked for one return), or of the data."""

    policy: str
    target: float | None
    """The return that was asked for; None where nothing is asked."""
    episodes: int
    mean: float
    standard_error: float | None
    """None for a single episode."""
    median: float
    min: float
    max: float
    length: float | None = None
    """Mean length in steps, where known."""
    frames: int | None = None
    """How far the policy was trained, where that tells it from others."""
    stats: Mapping[str, float] = field(default_factory=dict)
    """Means of the environment's own metrics."""

    @staticmethod
    def of(policy: str, returns: ArrayLike, target: float | None = None, length: float | None = None) -> Row:
        values = np.asarray(returns, np.float64)
        count = len(values)
        return Row(
            policy,
            target,
            count,
            float(values.mean()),
            float(values.std(ddof=1) / math.sqrt(count)) if count > 1 else None,
            float(np.median(values)),
            float(values.min()),
            float(values.max()),
            length,
        )


def data_rows(returns: ArrayLike) -> list[Row]:
    """Return rows for what the data themselves hold: all whole episodes, and the best tenth of them."""
    values = np.sort(np.asarray(returns, np.float64))
    if not len(values):
        return []
    best = values[-max(1, math.ceil(TOP * len(values))) :]
    return [Row.of("data", values), Row.of(f"data, best {TOP:.0%}", best)]


@dataclass(frozen=True)
class Results:
    """All rows of one evaluation."""

    title: str
    rows: Sequence[Row]
    notes: Sequence[str] = ()
    """What a reader must know besides: which weights have played."""

    def share(self, row: Row) -> float | None:
        """Return where the row stands between random play (0) and the behaviour policy (1).

        None where one of them is missing, or where they are not apart by ``APART`` standard errors: a share of a
        difference that may be chance says nothing.
        """
        by_name = {row.policy: row for row in self.rows if row.target is None}
        low, high = by_name.get("random"), by_name.get(BEHAVIOUR)
        if low is None or high is None:
            return None
        error = math.hypot(low.standard_error or 0.0, high.standard_error or 0.0)
        if high.mean <= low.mean + APART * error:
            return None
        return (row.mean - low.mean) / (high.mean - low.mean)

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return the names of the columns, and a line per row; columns that say nothing about any row are left out.

        Which target is best is not decided here: the best of several is better by chance, too.
        """
        own = list(dict.fromkeys(name for row in self.rows for name in row.stats))
        lines = [{**self._cells(row), **_own_cells(row, own)} for row in self.rows]
        head = [name for name in (lines[0] if lines else ()) if any(line[name] != NOTHING_KNOWN for line in lines)]
        return head, [[line[name] for name in head] for line in lines]

    def _cells(self, row: Row) -> dict[str, str]:
        share = self.share(row)
        return {
            "policy": row.policy,
            "frames": NOTHING_KNOWN if row.frames is None else f"{row.frames:,}",
            "asked for": NOTHING_KNOWN if row.target is None else number(row.target),
            "return": number(row.mean),
            "± s.e.": NOTHING_KNOWN if row.standard_error is None else number(float(f"{row.standard_error:.2g}")),
            "of behaviour": NOTHING_KNOWN if share is None else f"{100 * share:.0f} %",
            "median": number(row.median),
            "min": number(row.min),
            "max": number(row.max),
            "length": NOTHING_KNOWN if row.length is None else f"{row.length:.1f}",
            "episodes": f"{row.episodes:,}",
        }

    def sentences(self) -> list[str]:
        """Return what stands below the table."""
        found = list(self.notes)
        if any(self.share(row) is not None for row in self.rows):
            found.append(f"of behaviour: 0 % is random play, 100 % is {BEHAVIOUR} (the run that made the data)")
        found += [text for row in self.rows for clone in self._clones() if (text := _worse(row, clone))]
        return found + [text for row in self.rows for last in self.rows if (text := _late(row, last))]

    def _clones(self) -> list[Row]:
        """Return the rows of policies that are not asked for a return and have learnt from the data."""
        known = ("random", BEHAVIOUR)
        own = [row for row in self.rows if row.target is None and row.policy not in known]
        return [row for row in own if not row.policy.startswith("data") and not row.policy.endswith(LAST)]

    def text(self) -> str:
        """Return the table for a terminal."""
        head, lines = self.table()
        return "\n".join([self.title, *columns([head, *lines], right=True), *self.sentences()])

    def markdown(self) -> str:
        """Return the table for a page of documentation."""
        head, rows = self.table()
        lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
        lines += ["| " + " | ".join(cells) + " |" for cells in rows]
        lines += [line for text in self.sentences() for line in ("", text)]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "rows": [{**asdict(row), "share": self.share(row)} for row in self.rows],
            "notes": list(self.notes),
            "sentences": self.sentences(),
        }

    @staticmethod
    def from_dict(saved: Mapping[str, Any]) -> Results:
        """Read what ``to_dict`` has written."""
        names = [field.name for field in fields(Row)]
        rows = [Row(**{name: row[name] for name in names if name in row}) for row in saved["rows"]]
        return Results(saved["title"], rows, notes=tuple(saved.get("notes", ())))

    def plot(self) -> Html:
        """Draw achieved against asked for: a line for each policy that is asked, marks for those that are not."""
        asked = [row for row in self.rows if row.target is not None]
        if not asked:
            return NOTHING
        return join(wide(lambda size: self._draw(asked, size)), legend(list(dict.fromkeys(r.policy for r in asked))))

    def _draw(self, asked: Sequence[Row], size: tuple[int, int]) -> Html:
        targets = [row.target for row in asked if row.target is not None]
        level = [row for row in self.rows if row.target is None and not row.policy.startswith("data")]
        x_range = spread(targets)
        plot = Plot(
            x_range,
            spread([bound for row in (*asked, *level) for bound in _bounds(row)] + targets),
            size=size,
            label="achieved against asked return",
            x_title="return asked for",
            y_title="return achieved (± standard error); dashed: as asked, and those not asked",
        ).axes()
        plot.line([(bound, bound) for bound in x_range], "mark")
        for row in level:
            plot.line([(x_range[0], row.mean), (x_range[1], row.mean)], "mark")
            plot.note(x_range[1], row.mean, row.policy)
        for k, policy in enumerate(dict.fromkeys(row.policy for row in asked)):
            own = sorted((row for row in asked if row.policy == policy), key=lambda row: row.target or 0.0)
            places, bounds = [row.target or 0.0 for row in own], [_bounds(row) for row in own]
            colour, points = f"c{k % len(HUES)}", [(row.target or 0.0, row.mean) for row in own]
            lower, upper = zip(*bounds)
            plot.band(list(zip(places, lower)), list(zip(places, upper)), f"band {colour}")
            plot.line(points, f"line {colour}").points(points, f"point {colour}")
        return plot.svg()


def _own_cells(row: Row, names: Sequence[str]) -> dict[str, str]:
    return {name: number(row.stats[name]) if name in row.stats else NOTHING_KNOWN for name in names}


def _worse(row: Row, clone: Row) -> str:
    """Return a sentence if cloning, which is asked for nothing, comes nearer to what was asked for than the policy."""
    if row.target is None:
        return ""
    missed, by_clone = abs(row.mean - row.target), abs(clone.mean - row.target)
    error = math.hypot(row.standard_error or 0.0, clone.standard_error or 0.0)
    if missed <= by_clone + APART * error:
        return ""
    return (
        f"asked for {number(row.target)}, {row.policy} brings {number(row.mean)}: {clone.policy}, which is not asked, "
        f"comes nearer with {number(clone.mean)}"
    )


def _late(row: Row, last: Row) -> str:
    """Return a sentence if the last weights play better than those that were chosen by held-out loss."""
    if last.policy != row.policy + LAST or last.target != row.target:
        return ""
    if last.mean <= row.mean + APART * math.hypot(row.standard_error or 0.0, last.standard_error or 0.0):
        return ""
    asked = "" if row.target is None else f"asked for {number(row.target)}, "
    return (
        f"{asked}the last weights bring more ({number(last.mean)}) than those with the lowest held-out loss "
        f"({number(row.mean)})"
    )


def _bounds(row: Row) -> tuple[float, float]:
    error = row.standard_error or 0.0
    return row.mean - error, row.mean + error


def is_monotone(rows: Sequence[Row], slack: float = 0.0) -> bool:
    """Return whether asking for more brings more, over the rows that were asked (``slack``: how much less counts)."""
    means = [row.mean for row in sorted((r for r in rows if r.target is not None), key=lambda r: r.target or 0.0)]
    return all(after >= before - slack for before, after in itertools.pairwise(means))
