"""Pages about the stages of a world model, each one HTML file that loads nothing from elsewhere.

They are made from the files of the stage's folder alone, so that ``rollmill report`` can make them again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from rollmill.core.errors import RunFolderError
from rollmill.core.run_folder import RunFolder
from rollmill.monitor.console import duration_text
from rollmill.monitor.jsonl import read_jsonl
from rollmill.reports.html.curves import Line, curves
from rollmill.reports.html.document import Kind, card, data_url, document, grid, note, section, write_page
from rollmill.reports.html.svg import escape, number
from rollmill.reports.html.tables import table
from rollmill.reports.run.parts import last, metric_names, points, thinned
from rollmill.runs.world.reporting import PICTURES

Stage = Literal["encoder", "dynamics", "controller"]

_EXTRA = """
.shown img, .shown video { max-width: 100%; border-radius: 4px; image-rendering: pixelated; }
.shown video { max-height: 420px; }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 480px), 1fr)); gap: 12px; }
.plots .card { margin-top: 0; }
"""
SHEETS = 3
"""Sheets of reconstructions on the page: the first, one from the middle, the last."""
TRAINING, HELD_OUT = "learn/", "validation/"


def write_sections(path: Path, kind: Kind, title: str, about: str, sections: Sequence[tuple[str, str]]) -> Path:
    """Write a page of (heading, HTML) sections; empty ones are left out. RunFolderError where that is impossible."""
    made = datetime.now(UTC).isoformat(timespec="seconds")
    body = (
        f'<h1>{escape(title)}</h1>\n<p class="muted">{escape(about)}</p>\n'
        f"{''.join(section(name, html) for name, html in sections)}"
        f'<footer class="note"><p>Made {made}.</p></footer>\n'
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return write_page(path, kind, document(kind, title, body, _EXTRA))
    except OSError as error:
        raise RunFolderError(f"{path} cannot be written: {error.strerror or error}") from error


def write_stage_page(folder: Path, stage: Stage, out: Path | None = None) -> Path:
    """The page of one stage: reconstructions, plots of the search, curves, figures; whatever of it there is."""
    run = RunFolder(folder)
    rows = read_jsonl(run.metrics) if run.metrics.is_file() else []
    state, figures = run.read_state() or {}, last(rows)
    unit = "generations" if stage == "controller" else "updates"
    seconds = figures.get("time/seconds") or figures.get("search/seconds")
    spent = f" in {duration_text(seconds)}" if seconds else ""
    about = f"{folder}: {state.get('state', 'unknown')}, {state.get('frames') or 0:,} {unit}{spent}"
    shown = [(name, number(value)) for name, value in figures.items() if name not in ("frames", "time")]
    sections = [
        ("Reconstructions", reconstructions(folder)),
        ("Search", search_plots(folder)),
        ("Curves", metric_curves(rows, unit) if stage != "controller" else ""),
        ("Figures at the end", table(("figure", "value"), shown, left=1) if shown else ""),
    ]
    place = folder.absolute()
    title = f"{stage.capitalize()} {place.parent.name if place.name == stage else place.name}"
    return write_sections(out or folder / "report.html", stage, title, about, sections)


def reconstructions(folder: Path) -> str:
    """Sheets of pictures and what encoding leaves of them, from early to late."""
    found = sorted((folder / PICTURES).glob("reconstructions-*.png"))
    if not found:
        return ""
    chosen = dict.fromkeys([found[0], found[len(found) // 2], found[-1]])
    figures = []
    for path in list(chosen)[-SHEETS:]:
        step = path.stem.rpartition("-")[2]
        step = f"{int(step):,}" if step.isdecimal() else step
        caption = f"update {step}: above the picture, below what its latents say of it"
        figures.append(figure(path, "image/png", folder, caption))
    return "".join(figures)


def search_plots(folder: Path) -> str:
    """The plots that a controller's search has drawn itself."""
    paths = sorted(folder.glob("*.svg"))
    shown = [figure(path, "image/svg+xml", folder, path.stem.replace("_", " ")) for path in paths]
    return f'<div class="plots">{"".join(shown)}</div>' if shown else ""


def figure(path: Path, media: str, folder: Path, caption: str) -> str:
    """A picture or film that lies in the folder; where there is something else in its place, the caption says so."""
    try:
        data = data_url(path, media, folder)
    except OSError as error:
        return f'<figure class="card shown">{note(f"{path.name}: {error.strerror or error}")}</figure>'
    element = f'<img alt="{escape(path.stem)}" src="{data}"/>'
    if media.startswith("video"):
        element = f'<video controls="controls" loop="loop" muted="muted" src="{data}"></video>'
    return f'<figure class="card shown">{element}<figcaption>{escape(caption)}</figcaption></figure>'


def metric_curves(rows: Sequence[Mapping[str, Any]], unit: str = "updates") -> str:
    """Everything that was learnt and validated; a figure of training and its held-out twin share a plot."""
    names = metric_names(rows)
    figures = dict.fromkeys(name.partition("/")[2] for name in names if name.startswith((TRAINING, HELD_OUT)))
    wanted = [figure for figure in figures if "rate" not in figure and "norm" not in figure]
    return grid(card(curve(rows, figure, unit), figure) for figure in wanted)


def curve(rows: Sequence[Mapping[str, Any]], figure: str, unit: str) -> str:
    """One figure over updates, in training and held out; nothing where there are fewer than two points."""
    lines = [
        Line("training", thinned(points(rows, TRAINING + figure))),
        Line("held out", thinned(points(rows, HELD_OUT + figure))),
    ]
    lines = [line for line in lines if len(line.points) > 1]
    only = lines[0].label if len(lines) == 1 else ""
    return curves(lines, f"{figure} over {unit}", x_title=unit, y_title=only)
