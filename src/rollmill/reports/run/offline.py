"""Pages about offline policies: of one run, from the files of its folder, and of several side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollmill.core.text import counted
from rollmill.monitor.console import duration_text
from rollmill.reports.html.document import (
    card,
    document,
    footer,
    grid,
    header,
    made_at,
    note,
    paragraph,
    section,
    tiles,
    write_page,
)
from rollmill.reports.html.elements import NOTHING, Html, join
from rollmill.reports.html.media import Media
from rollmill.reports.html.plots import Line, curves
from rollmill.reports.html.tables import NONE, number, table, whole
from rollmill.reports.run import sections
from rollmill.reports.run.facts import RunFacts
from rollmill.reports.run.results import Results
from rollmill.reports.run.sections import curve_card, points

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
class Video:
    """A video and what it shows."""

    caption: str
    path: Path


# -- several policies -----------------------------------------------------------------------------------------


def write_comparison(path: Path, results: Results, videos: Sequence[Video], about: str) -> Path:
    """Write a page about policies side by side; raises RunFolderError where that is impossible."""
    media = Media(path.parent)
    page = document(
        "comparison",
        results.title,
        header(results.title, paragraph(about, kind="muted")),
        section("What it is worth", _worth(results)),
        section("Asked for and achieved", card(results.plot())),
        section("Videos", grid(media.figure(video.path, video.caption) for video in videos)),
        footer(f"Made {made_at()}."),
    )
    return write_page(path, "comparison", page)


def _worth(results: Results) -> Html:
    head, lines = results.table()
    return join(table(head, lines, left=1), *(note(f"{text}.") for text in results.sentences()))


# -- one run --------------------------------------------------------------------------------------------------


def render_offline(facts: RunFacts) -> Html:
    """Return the page about one offline training."""
    saved = facts.results
    drawn = {*LOSSES.values(), *(name for _, name, _ in CURVES)}
    every: sections.Sections = {
        "What it is worth": lambda: _own_worth(facts),
        "Asked for and achieved": lambda: card(Results.from_dict(saved).plot()) if saved.get("rows") else NOTHING,
        "Curves": lambda: _curves(facts),
        "Videos": lambda: sections.videos(facts, _captions(facts)),
        "Warnings and errors": lambda: sections.faults(facts),
        "All metrics": lambda: sections.all_metrics(facts.rows, drawn, UNIT),
        "Checkpoints": lambda: sections.checkpoints(facts, UNIT),
        "Where it comes from": lambda: sections.origin(facts, "update"),
    }
    top = (lambda: _tiles(facts), lambda: _rise(facts))
    return sections.run_page("offline", facts, f"{facts.folder.name}: offline training", top, every)


def _captions(facts: RunFacts) -> dict[Path, str]:
    videos = facts.results.get("videos") or facts.results.get("films") or []  # films: version 0.1
    return {facts.folder / "videos" / video["file"]: video["caption"] for video in videos}


def _tiles(facts: RunFacts) -> Html:
    saved, last, best = facts.results, sections.last(facts.rows), _lowest(facts)
    data, seconds, sessions = saved.get("data") or {}, last.get("time/seconds"), facts.diary.get("sessions") or []
    metrics = [(whole(sections.reached(facts)), UNIT)]
    if best is not None:
        metrics.append((number(best[1]), f"lowest held-out loss, at update {best[0]:,.0f}"))
    own = [row for row in saved.get("rows") or [] if row["policy"] == (saved.get("config") or {}).get("algorithm")]
    if own:
        top = max(own, key=lambda row: row["mean"])
        asked = "" if top["target"] is None else f", asked for {number(top['target'])}"
        metrics.append((number(top["mean"]), f"return{asked}"))
    if data:
        metrics.append((whole(data["episodes"]), f"episodes learnt from, {whole(data['steps'])} steps"))
    spent = duration_text(seconds) if seconds is not None else NONE
    metrics.append((spent, f"of fitting, {counted(len(sessions), 'session')}"))
    return tiles(metrics)


def _lowest(facts: RunFacts) -> tuple[float, float] | None:
    """Return (update, loss) of the lowest held-out loss."""
    return min(points(facts.rows, LOSSES["held out"]), key=lambda point: point[1], default=None)


def _rise(facts: RunFacts) -> Html:
    """Return a warning where the policy was fitted beyond the lowest held-out loss."""
    held_out, best = points(facts.rows, LOSSES["held out"]), _lowest(facts)
    if best is None or not sections.last(facts.rows).get("validation/rising"):
        return NOTHING
    text = (
        f"Held-out loss has risen since update {best[0]:,.0f}, from {number(best[1])} to {number(held_out[-1][1])}: "
        "the policy has learnt the recorded episodes by heart. The weights of that update are those that act; more "
        "data, fewer updates or a smaller network keep it from rising."
    )
    return paragraph(text, kind="warn")


def _own_worth(facts: RunFacts) -> Html:
    if facts.results.get("rows"):
        return _worth(Results.from_dict(facts.results))
    return note(f"It was not evaluated in its environment; rollmill eval {facts.folder} does that.")


def _curves(facts: RunFacts) -> Html:
    best = _lowest(facts)
    mark = (best[0], "lowest") if best else None
    losses = curve_card(facts.rows, "Loss", LOSSES, UNIT, "minus the log-probability of the actions taken", mark)
    others = (curve_card(facts.rows, title, {title: name}, UNIT, about) for title, name, about in CURVES)
    return grid([losses, _history(facts.results), *others])


def _history(saved: Mapping[str, Any]) -> Html:
    """Draw return over updates, a line per target; nothing where it was evaluated at the end only."""
    lines: dict[Any, list[tuple[float, float]]] = {}
    for entry in saved.get("evaluations") or []:
        for target, mean in entry["rows"]:
            lines.setdefault(target, []).append((entry["step"], mean))
    shown = [Line("return" if t is None else f"asked for {number(t)}", drawn) for t, drawn in lines.items()]
    return card(curves(shown, "return over updates", x_title=UNIT), title="Return while fitting")
