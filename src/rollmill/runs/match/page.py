"""From the result of a match to its page."""

from __future__ import annotations

from pathlib import Path

from rollmill.reports.run.match import MatchPage, write_match
from rollmill.runs.match.results import RATING_HEAD, MatchResult


def write_page_of(found: MatchResult, path: Path) -> Path:
    """Write the page of a match and return where it is; RunFolderError where that is impossible."""
    order, ratings, table = found.order, found.ratings, found.table
    page = MatchPage(
        title=f"Match of {len(order)} players in {found.env}",
        about=f"{found.games:,} games of {table.steps:,} steps in all, seed {found.seed}; every pair has played both "
        "seatings of the same games.",
        names=[found.names[k] for k in order],
        elo=[float(ratings.elo[k]) for k in order],
        margin=[float(ratings.margin[k]) for k in order],
        head=RATING_HEAD,
        rows=found.rating_rows(),
        shares=[[None if k == j else table.share(k, j) for j in order] for k in order],
        sentences=[f"{said}." for said in found.sentences()],
    )
    return write_match(path, page)
