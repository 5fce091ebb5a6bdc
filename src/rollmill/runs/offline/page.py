"""Pages about offline policies: of one run, from the files of its folder, and of several side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollmill.core.errors import RunFolderError
from rollmill.monitor.console import duration_text
from rollmill.offline.held_out import RISING
from rollmill.offline.results import Results
from rollmill.reports.html.curves import Line, curves
from rollmill.reports.html.document import card, data_url, document, grid, note, tiles, write_page
from rollmill.reports.html.document import section as plain_section
from rollmill.reports.html.svg import escape, number
from rollmill.reports.html.tables import NONE, table, whole
from rollmill.reports.run import parts
from rollmill.reports.run.parts import curve_card, points, section

if TYPE_CHECKING:
    from rollmill.reports.run.facts import RunFacts

UNIT = "updates"
CURVES = (
    ("Accuracy", "validation/accuracy", "held out: how often the most likely action is the one that was taken"),
    ("Error", "validation/error", "held out: root of the mean squared distance to the action that was taken"),
    ("Learning rate", "learn/learning_rate", ""),
    ("Gradient norm", "learn/grad_norm", "before clipping"),
    ("Updates per second", "time/updates_per_s", ""),
    ("Waiting for data", "data/wait_share", "share of the time"),
)
LOSSES = {"training": "learn/loss", "held out": "validation/loss"}


@dataclass(frozen=True)
class Film:
    """A film and what it shows."""

    caption: str
    path: Path


# -- several policies -----------------------------------------------------------------------------------------


def write_comparison(path: Path, results: Results, films: Sequence[Film], about: str) -> Path:
    """Write a page about policies side by side; RunFolderError where that is impossible."""
    body = (
        f'<h1>{escape(results.title)}</h1><p class="muted">{escape(about)}</p>',
        plain_section("What it is worth", _worth(results)),
        plain_section("Asked for and achieved", card(results.plot())),
        plain_section("Films", grid(_film(film) for film in films)),
        f'<footer class="note"><p>Made {datetime.now(UTC).isoformat(timespec="seconds")}.</p></footer>',
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return write_page(path, "comparison", document("comparison", results.title, "".join(body), parts.STYLE))
    except OSError as error:
        raise RunFolderError(f"{path} cannot be written: {error.strerror or error}") from error


def _worth(results: Results) -> str:
    sentences = "".join(note(f"{text}.") for text in results.sentences())
    return table(Results.HEAD, results.cells(), left=1) + sentences


def _film(film: Film) -> str:
    data = data_url(film.path, "video/mp4", film.path.parent)
    return card(
        f'<figure><video controls="controls" loop="loop" muted="muted" src="{data}"></video>'
        f"<figcaption>{escape(film.caption)}</figcaption></figure>"
    )


# -- one run --------------------------------------------------------------------------------------------------


def render_offline(facts: RunFacts) -> str:
    """The page about one offline training."""
    names, saved = parts.metric_names(facts.rows), facts.results
    drawn = {*LOSSES.values(), *(name for _, name, _ in CURVES)}
    captions = {f"videos/{film['file']}": film["caption"] for film in saved.get("films") or []}
    body = (
        parts.head(facts),
        parts.whole(lambda: _tiles(facts)),
        parts.whole(lambda: _rise(facts)),
        section("What it is worth", lambda: _own_worth(facts)),
        section("Asked for and achieved", lambda: card(_results(saved).plot()) if saved.get("rows") else ""),
        section("Curves", lambda: _curves(facts)),
        section("Films", lambda: parts.videos(facts, captions)),
        section("Warnings and errors", lambda: parts.faults(facts, ())),
        section("All metrics", lambda: parts.all_metrics(facts.rows, names, drawn, UNIT)),
        section("Checkpoints", lambda: parts.checkpoints(facts, UNIT)),
        section("Where it comes from", lambda: parts.origin(facts, "update")),
        section("Configuration", lambda: parts.configuration(facts)),
        parts.foot(facts),
    )
    return document("offline", f"{facts.folder.name}: offline training", "".join(body), parts.STYLE)


def _results(saved: Mapping[str, Any]) -> Results:
    return Results.from_dict(saved)


def _tiles(facts: RunFacts) -> str:
    saved, last, best = facts.results, parts.last(facts.rows), _lowest(facts)
    data, seconds, sessions = saved.get("data") or {}, last.get("time/seconds"), facts.diary.get("sessions") or []
    figures = [(whole(int(facts.state.get("frames") or last.get("frames") or 0)), UNIT)]
    if best is not None:
        figures.append((number(best[1]), f"lowest held-out loss, at update {best[0]:,.0f}"))
    own = [row for row in saved.get("rows") or [] if row["policy"] == (saved.get("config") or {}).get("algorithm")]
    if own:
        top = max(own, key=lambda row: row["mean"])
        asked = "" if top["target"] is None else f", asked for {number(top['target'])}"
        figures.append((number(top["mean"]), f"return{asked}"))
    if data:
        figures.append((whole(data["episodes"]), f"episodes learnt from, {whole(data['steps'])} steps"))
    figures.append((duration_text(seconds) if seconds is not None else NONE, f"of fitting, {len(sessions)} session(s)"))
    return tiles(figures)


def _lowest(facts: RunFacts) -> tuple[float, float] | None:
    """(update, loss) of the lowest held-out loss."""
    return min(points(facts.rows, LOSSES["held out"]), key=lambda point: point[1], default=None)


def _rise(facts: RunFacts) -> str:
    """A warning where the policy was fitted beyond the lowest held-out loss."""
    held_out, best = points(facts.rows, LOSSES["held out"]), _lowest(facts)
    if best is None or sum(x > best[0] for x, _ in held_out) < RISING or held_out[-1][1] <= best[1]:
        return ""
    text = (
        f"Held-out loss has risen since update {best[0]:,.0f}, from {number(best[1])} to {number(held_out[-1][1])}: "
        "the policy has learnt the recorded episodes by heart. The weights of that update are those that act; more "
        "data, fewer updates or a smaller network keep it from rising."
    )
    return f'<p class="warn">{escape(text)}</p>\n'


def _own_worth(facts: RunFacts) -> str:
    saved = facts.results
    if saved.get("rows"):
        return _worth(_results(saved))
    return note(f"It was not evaluated in its environment; rollmill offline-eval {facts.folder} does that.")


def _curves(facts: RunFacts) -> str:
    best = _lowest(facts)
    mark = (best[0], "lowest") if best else None
    losses = curve_card(facts.rows, "Loss", LOSSES, UNIT, "minus the log-probability of the actions taken", mark)
    others = (curve_card(facts.rows, title, {title: name}, UNIT, about) for title, name, about in CURVES)
    return grid([losses, _history(facts.results), *others])


def _history(saved: Mapping[str, Any]) -> str:
    """Return over updates, a line per target; nothing where it was evaluated at the end only."""
    lines: dict[Any, list[tuple[float, float]]] = {}
    for entry in saved.get("evaluations") or []:
        for target, mean in entry["rows"]:
            lines.setdefault(target, []).append((entry["step"], mean))
    shown = [Line("return" if t is None else f"asked for {number(t)}", drawn) for t, drawn in lines.items()]
    return card(curves(shown, "return over updates", x_title=UNIT), "Return while fitting")
