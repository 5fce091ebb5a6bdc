"""A page about a store: one HTML file without scripts and without anything from elsewhere, and its metrics as JSON.

The page is made from the metrics alone (``statistics.describe``) and from a few images. Names come from data, so
every text is escaped, and the page forbids the browser to load anything.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from rollmill.core import atomic
from rollmill.core.errors import StoreError
from rollmill.reports.html.document import place_for
from rollmill.reports.store.contact_sheet import contact_sheets
from rollmill.reports.store.contents import Progress
from rollmill.reports.store.page import render
from rollmill.reports.store.statistics import MAX_EPISODES, Metrics, describe
from rollmill.store.reader import Store


@dataclass(frozen=True)
class Report:
    """What ``write_report`` wrote."""

    html: Path
    json: Path
    metrics: Metrics = field(repr=False)


def write_report(
    store: Store,
    out: Path | None = None,
    *,
    max_episodes: int = MAX_EPISODES,
    progress: Progress | None = None,
) -> Report:
    """Write ``out`` (default: ``report.html`` in the store) and, beside it, the same metrics as ``.json``."""
    page = (out or store.path / "report.html").absolute()
    if page.suffix.lower() not in (".html", ".htm"):
        raise StoreError(f"{page}: the report is a web page, give it a name that ends in .html")
    metrics = describe(store, max_episodes, progress)
    metrics["made_at"] = datetime.now(UTC).isoformat(timespec="seconds")
    sheets = contact_sheets(store, metrics["problems"])
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
        page = place_for(page, "store")
        data = page.with_suffix(".json")
        # ASCII, because a name from elsewhere may hold halves of characters that no encoding has.
        atomic.write_text(data, json.dumps(metrics, indent=1, allow_nan=False) + "\n")
        atomic.write_text(page, render(metrics, sheets, data.name))
    except OSError as error:
        raise StoreError(
            f"{page} cannot be written: {error.strerror or error} (choose another place: --out)"
        ) from error
    return Report(page, data, metrics)
