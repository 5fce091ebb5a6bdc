"""Pages about the stages of a world model, each one HTML file that loads nothing from elsewhere."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rollmill.core import atomic
from rollmill.core.errors import RunFolderError
from rollmill.core.run_folder import RunFolder
from rollmill.monitor.jsonl import read_jsonl
from rollmill.runs.world_report import PICTURES
from rollmill.store.page.style import STYLE
from rollmill.store.page.svg import Plot, escape, number
from rollmill.store.page.tables import table

_POLICY = "default-src 'none'; img-src data:; media-src data:; style-src 'unsafe-inline'; base-uri 'none'"
_EXTRA = ".shown img, .shown video { max-width: 100%; border-radius: 4px; image-rendering: pixelated; }"
_EXTRA += " .shown video { max-height: 420px; }"
SHEETS = 3
"""Sheets of reconstructions on the page: the first, one from the middle, the last."""


def write_page(path: Path, title: str, about: str, sections: Sequence[tuple[str, str]]) -> Path:
    """Write a page of (heading, HTML) sections; empty ones are left out. RunFolderError where that is impossible."""
    body = "".join(f"<section>\n<h2>{escape(name)}</h2>\n{html}\n</section>\n" for name, html in sections if html)
    made = datetime.now(UTC).isoformat(timespec="seconds")
    text = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}"/>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}{_EXTRA}</style>\n</head>\n<body>\n<main>\n"
        f'<h1>{escape(title)}</h1>\n<p class="muted">{escape(about)}</p>\n{body}'
        f'<footer class="note"><p>Made {made}.</p></footer>\n</main>\n</body>\n</html>\n'
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic.write_text(path, text)
    except OSError as error:
        raise RunFolderError(f"{path} cannot be written: {error.strerror or error}") from error
    return path


def write_vae_page(folder: RunFolder, facts: Mapping[str, Any]) -> Path:
    """``report.html`` of an encoder's training: reconstructions, curves, figures."""
    about = f"{facts['store']}; {facts['steps']:,} optimizer steps in {facts['seconds']:,.0f} s"
    return write_page(folder.path / "report.html", f"Encoder {folder.path.name}", about, vae_sections(folder, facts))


def vae_sections(folder: RunFolder, facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What there is to show of an encoder's training."""
    rows = list(read_jsonl(folder.metrics)) if folder.metrics.is_file() else []
    curves = [
        curve(rows, ("learn/loss", "validation/loss"), "loss"),
        curve(rows, ("validation/pixel_error",), "pixel error (held out)"),
        curve(rows, ("learn/kl",), "nats per picture"),
    ]
    figures = [(name, number(value)) for name, value in facts["metrics"].items()]
    return [
        ("Reconstructions", reconstructions(folder.path)),
        ("Curves", f'<div class="grid3">{"".join(curves)}</div>'),
        ("Figures", table(("figure", "value"), figures, left=1)),
    ]


def reconstructions(folder: Path) -> str:
    """Sheets of pictures and what encoding leaves of them, from early to late."""
    found = sorted((folder / PICTURES).glob("reconstructions-*.png"))
    if not found:
        return ""
    chosen = dict.fromkeys([found[0], found[len(found) // 2], found[-1]])
    figures = []
    for path in list(chosen)[-SHEETS:]:
        data = base64.b64encode(path.read_bytes()).decode("ascii")
        step = int(path.stem.rpartition("-")[2])
        figures.append(
            f'<figure class="card shown"><img alt="reconstructions" src="data:image/png;base64,{data}"/>'
            f"<figcaption>step {step:,}: above the picture, below what its latents say of it</figcaption></figure>"
        )
    return "".join(figures)


def curve(rows: Sequence[Mapping[str, Any]], names: Sequence[str], label: str) -> str:
    """Metrics over steps, a line for each name; nothing where there are fewer than two points."""
    lines = [[(row["frames"], row[name]) for row in rows if row.get(name) is not None] for name in names]
    lines = [line for line in lines if len(line) > 1]
    if not lines:
        return ""
    values = sorted(value for line in lines for _, value in line)
    # The first steps are far above the rest and would press the curve flat.
    high = values[min(len(values) - 1, int(0.9 * len(values)))]
    plot = Plot(
        (0, max(line[-1][0] for line in lines)),
        (values[0], high),
        label=f"{label} over optimizer steps",
        x_title="optimizer steps",
        y_title=label,
    ).axes()
    for line in lines:
        plot.line([(x, min(y, high)) for x, y in line])
    return f'<div class="card"><h3>{escape(", ".join(names))}</h3>{plot}</div>'
