"""Tables, and how numbers look in them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from rollmill.reports.html.document import note
from rollmill.reports.html.elements import Html, element, join

MAX_ROWS = 50
"""Rows of a table on the page; the JSON file holds more."""
NONE = "-"
_UNBROKEN = 24
"""Characters of a name that is never broken over two lines."""
_PIECES = re.compile(r".{1,40}?[./_,:=-]+|.{1,40}", re.DOTALL)


class Marked(str):
    """A cell's text, and whether it stands out."""

    marked: bool

    def __new__(cls, text: str, marked: bool) -> Marked:
        made = super().__new__(cls, text)
        made.marked = marked
        return made


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    left: int,
    more: int = 0,
    elsewhere: str = "see the JSON file",
) -> Html:
    """Return a table whose first ``left`` columns are text and wrap where they are long; numbers never do.

    ``head``: empty where the columns need no names. ``more``: rows that are left out already; ``elsewhere`` says where
    all of them are.
    """
    rows = list(rows)
    top = element("tr", *(_cell("th", "l" if k < left else "", text) for k, text in enumerate(head)))
    body = element("tbody", *(element("tr", *_cells(row, left)) for row in rows[:MAX_ROWS]))
    drawn = element("table", element("thead", top), body) if head else element("table", body)
    more += max(0, len(rows) - MAX_ROWS)
    rest = note(f"{more:,} more rows; {elsewhere}." if more else "")
    return join(element("div", drawn, class_="card scroll"), rest)


def _cells(row: Sequence[Any], left: int) -> list[Html]:
    cells = []
    for k, cell in enumerate(row):
        kind = ("l name" if k == 0 else "l") if k < left else ""
        if isinstance(cell, Marked) and cell.marked:
            kind = f"{kind} warn".strip()
        cells.append(_cell("td", kind, cell))
    return cells


def _cell(tag: str, kind: str, text: Any) -> Html:
    if isinstance(text, Html):
        return element(tag, text, class_=kind)
    return element(tag, breakable(str(text)) if kind else str(text), class_=kind)


def breakable(text: str) -> Html:
    """Return text in which a long name may be broken, but between its words and not in the middle of one."""
    pieces: list[str] = []
    for word in re.split(r"(\s+)", text):
        if len(word) <= _UNBROKEN:
            pieces.append(word)
        else:
            pieces += [part for piece in _PIECES.findall(word) for part in (element("wbr"), piece)][1:]
    return join(*pieces)


# -- numbers --------------------------------------------------------------------------------------------------


def number(value: float) -> str:
    """Write the four digits of a number that matter, thousands separated: ``12,345``, ``0.01234``, ``1.2e-07``."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    size = abs(value)
    if size >= 1e15 or size < 1e-4:
        return f"{value:.3g}"
    if size >= 1000:
        return f"{value:,.0f}"
    decimals = max(0, 3 - math.floor(math.log10(size)))
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def value(found: float | None) -> str:
    return NONE if found is None else number(found)


def whole(found: int | None) -> str:
    return NONE if found is None else f"{found:,}"
