"""Tables, and how values look in them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from rollmill.reports.html.svg import escape, number

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
    head: Iterable[str],
    rows: Sequence[Sequence[Any]],
    *,
    left: int,
    more: int = 0,
    elsewhere: str = "see the JSON file",
) -> str:
    """A table whose first ``left`` columns are text and wrap where they are long; figures never do.

    ``more``: rows that are left out already; ``elsewhere`` says where all of them are.
    """
    top = "".join(_cell("th", "l" if k < left else "", text) for k, text in enumerate(head))
    body = "".join(f"<tr>{_cells(row, left)}</tr>" for row in rows[:MAX_ROWS])
    more += max(0, len(rows) - MAX_ROWS)
    rest = f'<p class="note">{more:,} more rows; {escape(elsewhere)}.</p>' if more else ""
    return f'<div class="card scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>{rest}'


def _cells(row: Sequence[Any], left: int) -> str:
    cells = []
    for k, cell in enumerate(row):
        kind = ("l name" if k == 0 else "l") if k < left else ""
        if isinstance(cell, Marked) and cell.marked:
            kind = f"{kind} warn".strip()
        cells.append(_cell("td", kind, cell))
    return "".join(cells)


def _cell(tag: str, kind: str, text: Any) -> str:
    attribute = f' class="{kind}"' if kind else ""
    return f"<{tag}{attribute}>{breakable(str(text)) if kind else escape(text)}</{tag}>"


def breakable(text: str) -> str:
    """Text for HTML in which a long name may be broken, but between its words and not in the middle of one."""
    words = (word if len(word) <= _UNBROKEN else _PIECES.findall(word) for word in re.split(r"(\s+)", text))
    return "".join(escape(word) if isinstance(word, str) else "<wbr/>".join(map(escape, word)) for word in words)


def value(figure: float | None) -> str:
    return NONE if figure is None else number(figure)


def whole(figure: int | None) -> str:
    return NONE if figure is None else f"{figure:,}"


def size(count: float) -> str:
    """``12.3 MB``, in units of 1000."""
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "KB")):
        if count >= unit:
            return f"{count / unit:.3g} {name}" if count < 999.5 * unit else f"{count / unit:.0f} {name}"
    return f"{count:.0f} B"
