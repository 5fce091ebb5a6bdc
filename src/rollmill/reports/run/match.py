"""The page of ``rollmill match``: ratings with their intervals, and who wins against whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rollmill.reports.html.document import (
    card,
    document,
    footer,
    header,
    made_at,
    note,
    paragraph,
    section,
    write_page,
)
from rollmill.reports.html.elements import NOTHING, Html, element, join
from rollmill.reports.html.heat_map import heat_map
from rollmill.reports.html.plots import Plot, spread, wide
from rollmill.reports.html.tables import table

MOST_COLUMNS = 24
"""Players of a heat map that is as wide as the page; more of them would be too small to read."""

SMALL = 8
"""Players of a heat map that needs only a part of the page."""


@dataclass(frozen=True)
class MatchPage:
    """What stands on the page of a match; players in the order of their ratings."""

    title: str
    about: str
    names: Sequence[str]
    elo: Sequence[float]
    margin: Sequence[float]
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    shares: Sequence[Sequence[float | None]]
    sentences: Sequence[str]


def write_match(path: Path, page: MatchPage) -> Path:
    """Write the page and return where it is; raises RunFolderError where that is impossible."""
    every = document(
        "match",
        page.title,
        header(page.title, paragraph(page.about, kind="muted")),
        section("Ratings", _ratings(page), table(page.head, page.rows, left=1), *map(note, page.sentences)),
        section("Who wins against whom", _map(page)),
        footer(f"Made {made_at()}."),
    )
    return write_page(path, "match", every)


def _ratings(page: MatchPage) -> Html:
    """Draw a point and an interval for each player, the best on top."""
    count = len(page.names)
    ends = [elo + sign * margin for elo, margin in zip(page.elo, page.margin, strict=True) for sign in (-1, 1)]

    def draw(size: tuple[int, int]) -> Html:
        shown = size[0], 50 + 24 * count
        plot = Plot(spread(ends), (-0.6, count - 0.4), size=shown, label="Ratings", x_title="Elo")
        plot.axes(names=[(count - 1 - k, str(k + 1)) for k in range(count)])
        for k, (elo, margin) in enumerate(zip(page.elo, page.margin, strict=True)):
            y = float(count - 1 - k)
            plot.line([(elo - margin, y), (elo + margin, y)], "seed").points([(elo, y)])
        return plot.svg()

    return card(wide(draw))


def _map(page: MatchPage) -> Html:
    shown = page.shares[:MOST_COLUMNS]
    drawn = heat_map(page.names[:MOST_COLUMNS], [row[:MOST_COLUMNS] for row in shown], "Share of points")
    more = len(page.names) - len(shown)
    rest = note(f"The best {MOST_COLUMNS}; {more} more are in the JSON file.") if more else NOTHING
    words = note("Share of points that the row's player has won from the column's; a draw is half a point.")
    return join(card(element("div", drawn, class_="map" if len(shown) <= SMALL else None)), words, rest)
