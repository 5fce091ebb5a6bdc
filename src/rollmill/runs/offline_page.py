"""The page of an offline evaluation: table, plot and films in one HTML file that loads nothing from elsewhere."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rollmill.core import atomic
from rollmill.core.errors import RunFolderError
from rollmill.offline.results import Results
from rollmill.store.page.style import STYLE
from rollmill.store.page.svg import Plot, escape, number
from rollmill.store.page.tables import table

_POLICY = "default-src 'none'; img-src data:; media-src data:; style-src 'unsafe-inline'; base-uri 'none'"
_EXTRA = ".films { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 330px), 1fr)); gap: 12px; }"
_EXTRA += " video { width: 100%; border-radius: 4px; }"


@dataclass(frozen=True)
class Film:
    """A film and what it shows."""

    caption: str
    path: Path


def write_page(path: Path, results: Results, films: Sequence[Film], facts: Mapping[str, Any]) -> Path:
    """Write the page; RunFolderError where that is impossible."""
    sections = [
        f"<h1>{escape(results.title)}</h1>",
        f'<p class="muted">{escape(_about(facts))}</p>',
        _section("What it is worth", table(Results.HEAD, results.cells(), left=1) + _table_note(results)),
        _section("Asked for and achieved", _card(results.plot())),
        _section("While fitting", _card(_history(facts))),
        _section("Films", _films(films)),
        f'<footer class="note"><p>Made {datetime.now(UTC).isoformat(timespec="seconds")}.</p></footer>',
    ]
    text = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}"/>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>\n'
        f"<title>{escape(results.title)}</title>\n<style>{STYLE}{_EXTRA}</style>\n</head>\n<body>\n<main>\n"
        f"{''.join(sections)}</main>\n</body>\n</html>\n"
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic.write_text(path, text)
    except OSError as error:
        raise RunFolderError(f"{path} cannot be written: {error.strerror or error}") from error
    return path


def _section(title: str, body: str) -> str:
    return f"<section>\n<h2>{escape(title)}</h2>\n{body}\n</section>\n" if body else ""


def _card(body: str) -> str:
    return f'<div class="card">{body}</div>' if body else ""


def _about(facts: Mapping[str, Any]) -> str:
    data = facts.get("data")
    if not data:
        return str(facts.get("about", ""))
    return (
        f"{facts['store']}: {data['episodes']:,} episodes, {data['steps']:,} steps; fitted with {facts['steps']:,} "
        f"optimizer steps in {facts['seconds']:,.0f} s"
    )


def _table_note(results: Results) -> str:
    if all(results.share(row) is None for row in results.rows):
        return ""
    return '<p class="note">Of behaviour: 0 % is random play, 100 % the run that made the data.</p>'


def _history(facts: Mapping[str, Any]) -> str:
    """Return over optimizer steps, a line per target."""
    evaluations = facts.get("evaluations") or []
    if len(evaluations) < 2:
        return ""
    lines: dict[Any, list[tuple[float, float]]] = {}
    for entry in evaluations:
        for target, mean in entry["rows"]:
            lines.setdefault(target, []).append((entry["step"], mean))
    values = [mean for points in lines.values() for _, mean in points]
    plot = Plot(
        (0, evaluations[-1]["step"] * 1.1),
        (min(values), max(values)),
        width=560,
        height=280,
        label="return over optimizer steps",
        x_title="optimizer steps",
        y_title="return",
    ).axes()
    for target, points in lines.items():
        plot.line(points).points(points)
        if target is not None:
            plot.note(points[-1][0], points[-1][1], number(target), before=False)
    return str(plot)


def _films(films: Sequence[Film]) -> str:
    if not films:
        return ""
    shown = []
    for film in films:
        data = base64.b64encode(film.path.read_bytes()).decode("ascii")
        shown.append(
            f'<figure class="card"><video controls="controls" loop="loop" muted="muted" '
            f'src="data:video/mp4;base64,{data}"></video><figcaption>{escape(film.caption)}</figcaption></figure>'
        )
    return f'<div class="films">{"".join(shown)}</div>'
