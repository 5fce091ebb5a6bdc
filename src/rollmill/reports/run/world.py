"""Pages about a world model as a whole and about each of its stages that learn, from the files of their folders."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from rollmill.core import atomic
from rollmill.core.run_folder import RunFolder
from rollmill.core.run_kind import FOLDERS, RECORDS
from rollmill.monitor.console import duration_text
from rollmill.monitor.jsonl import read_jsonl
from rollmill.reports.html.document import card, grid, note, pair, paragraph, tiles, word
from rollmill.reports.html.elements import NOTHING, Html, join
from rollmill.reports.html.media import Media
from rollmill.reports.html.plots import Line, Plot, curves, spread
from rollmill.reports.html.tables import NONE, number, table
from rollmill.reports.run import sections
from rollmill.reports.run.facts import RunFacts
from rollmill.reports.run.sections import Row, points, thinned

Stage = Literal["encoder", "dynamics", "controller"]
Records = Mapping[str, Mapping[str, Any]]

VIDEO = "dreams.mp4"
TABLE = "generations.csv"
"""Of a controller's search, in its folder: a row for each generation."""
SHEETS = 3
"""Sheets of reconstructions on the page: the first, one from the middle, the last."""
MAX_FACTS = 5
TRAINING, HELD_OUT = "learn/", "validation/"
AXES = {"generation": "generations", "env_steps": "environment steps"}
"""What returns of a search are drawn against, by the column of its table."""
PLOTS = {"generation": "return_by_generation.svg", "env_steps": "return_by_steps.svg"}
"""Files, by what returns are drawn against."""


# -- the whole ------------------------------------------------------------------------------------------------


def render_world(facts: RunFacts) -> Html:
    """Return the page of a world model: the controller's worth, the stages, reconstructions, dreams, curves."""
    folder, media = facts.folder, Media(facts.folder)
    place = {stage: folder / name for stage, name in FOLDERS.items()}
    every: sections.Sections = {
        "What it is worth": lambda: _worth(read_records(folder)),
        "Stages": lambda: stages_table(read_records(folder)),
        "Reconstructions": lambda: reconstructions(place["vae"], media),
        "Dreams": lambda: _dreams(folder, media),
        "Controller": lambda: search_plots(place["controller"]),
        "Dynamics": lambda: metric_curves(_metrics(place["dynamics"])),
        "Encoder": lambda: metric_curves(_metrics(place["vae"])),
        "Warnings and errors": lambda: sections.faults(facts),
    }
    return sections.run_page("world", facts, f"{folder.name}: world model", [lambda: _progress(folder)], every)


def read_records(folder: Path) -> dict[str, dict[str, Any]]:
    """Read what every stage that was begun has written down about itself, in their order."""
    found = {}
    for name in FOLDERS:
        path = folder / RECORDS / f"{name}.json"
        try:
            found[name] = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            continue
    return found


def _progress(folder: Path) -> Html:
    done = [name for name, record in read_records(folder).items() if record["state"] == "done"]
    left = [name for name in FOLDERS if name not in done]
    said = "all stages are done" if not left else f"not done: {', '.join(left)}"
    return paragraph(word(said, "warn" if left else "good"))


def _worth(records: Records) -> Html:
    result = records.get("controller", {}).get("result", {})
    if result.get("final_return") is None:
        return NOTHING
    metrics = [
        (number(result["final_return"]), f"return ± {number(result['final_std'])} (standard deviation)"),
        (f"{result['final_episodes']:,}", "episodes that nothing was chosen by"),
        (f"{result['generations']:,}", "generations"),
        (f"{result['env_steps']:,}", "steps in environments"),
        (duration_text(sum(record["seconds"] for record in records.values())), "in all stages together"),
    ]
    return tiles(metrics)


def stages_table(records: Records) -> Html:
    rows = [
        (name, record["state"] or NONE, duration_text(record["seconds"]), _facts(record["result"]))
        for name, record in records.items()
    ]
    return table(("stage", "state", "time", "outcome"), rows, left=4) if rows else NOTHING


def _facts(result: Mapping[str, Any]) -> str:
    """Write the numbers of an outcome; that no signal has ended the stage (0) is none."""
    kept = {name: value for name, value in result.items() if (name, value) != ("signal", 0)}
    plain = [(name, value) for name, value in kept.items() if type(value) in (int, float) and value == value]
    return ", ".join(f"{name.rpartition('/')[2]} {number(value)}" for name, value in plain[:MAX_FACTS])


def _dreams(folder: Path, media: Media) -> Html:
    return media.figure(
        folder / VIDEO,
        "From left to right: what was seen, what the encoder makes of it, and what the model dreams with the same "
        "actions. From where its frame changes colour, it goes on alone.",
    )


def _metrics(folder: Path) -> list[Row]:
    metrics = RunFolder(folder).metrics
    return list(read_jsonl(metrics)) if metrics.is_file() else []


# -- one stage ------------------------------------------------------------------------------------------------


def render_stage(facts: RunFacts, stage: Stage) -> Html:
    """Return the page of a stage: reconstructions, plots of the search, curves, metrics; what it has of them."""
    folder, media = facts.folder, Media(facts.folder)
    unit = "generations" if stage == "controller" else "updates"
    every: sections.Sections = {
        "Reconstructions": lambda: reconstructions(folder, media),
        "Search": lambda: search_plots(folder),
        "Curves": lambda: metric_curves(facts.rows, unit),
        "Warnings and errors": lambda: sections.faults(facts),
        "All metrics": lambda: sections.all_metrics(facts.rows, _drawn(facts.rows), unit),
        "Checkpoints": lambda: sections.checkpoints(facts, unit),
        "Where it comes from": lambda: sections.origin(facts, unit.removesuffix("s")) if facts.diary else NOTHING,
    }
    name = folder.parent.name if folder.name in FOLDERS.values() else folder.name
    return sections.run_page(stage, facts, f"{name}, {stage}: world model", [lambda: _tiles(facts, unit)], every)


def _tiles(facts: RunFacts, unit: str) -> Html:
    last = sections.last(facts.rows)
    seconds = last.get("time/seconds") or last.get("search/seconds")
    done = sections.reached(facts)
    metrics = [(f"{done:,}", unit), (duration_text(seconds) if seconds else NONE, "of training")]
    shown = (
        ("validation/loss", "held-out loss"),
        ("validation/pixel_error", "held-out pixel error"),
        ("search/champion", "return of the best controller so far"),
        ("search/env_steps", "steps in environments"),
    )
    return tiles([*metrics, *((number(last[name]), words) for name, words in shown if name in last)])


def reconstructions(folder: Path, media: Media) -> Html:
    """Show sheets of images and what encoding leaves of them, from early to late."""
    found = sorted(path for name in ("images", "pictures") for path in (folder / name).glob("reconstructions-*.png"))
    if not found:
        return NOTHING
    chosen = dict.fromkeys([found[0], found[len(found) // 2], found[-1]])
    steps = {path: int(path.stem.rpartition("-")[2]) for path in list(chosen)[-SHEETS:]}
    about = "above the image, below what its latents say of it"
    return join(*(media.figure(path, f"update {step:,}: {about}") for path, step in steps.items()))


# -- curves ---------------------------------------------------------------------------------------------------


def metric_curves(rows: Sequence[Row], unit: str = "updates") -> Html:
    """Draw everything that was learnt and validated; a metric of training and its held-out twin share a plot."""
    metrics = dict.fromkeys(name.partition("/")[2] for name in _drawn(rows))
    return grid(card(_curve(rows, metric, unit), title=metric) for metric in metrics)


def _drawn(rows: Sequence[Row]) -> list[str]:
    names = [name for name in sections.metric_names(rows) if name.startswith((TRAINING, HELD_OUT))]
    return [name for name in names if "rate" not in name and "norm" not in name]


def _curve(rows: Sequence[Row], metric: str, unit: str) -> Html:
    """Draw one metric over updates, in training and held out; nothing where there are fewer than two points."""
    lines = [
        Line("training", thinned(points(rows, TRAINING + metric))),
        Line("held out", thinned(points(rows, HELD_OUT + metric))),
    ]
    lines = [line for line in lines if len(line.points) > 1]
    only = lines[0].label if len(lines) == 1 else ""
    return curves(lines, f"{metric} over {unit}", x_title=unit, y_title=only)


Generation = Mapping[str, float | None]
"""One row of the table: metrics by their names; None where there is none."""


def search_plots(folder: Path) -> Html:
    """Draw returns of a controller's search over generations and steps; nothing before the first generation."""
    try:
        with open(folder / TABLE, encoding="utf-8", newline="") as file:
            rows = [{name: float(text) if text else None for name, text in row.items()} for row in csv.DictReader(file)]
    except FileNotFoundError:
        return NOTHING
    if not rows:
        return NOTHING
    about = "line: mean of the generation, band: worst to best; orange: the best controller so far, over many episodes"
    return join(pair(*(card(search_plot(rows, column).svg()) for column in AXES)), note(about))


def search_plot(rows: Sequence[Generation], column: str) -> Plot:
    """Draw the mean of each generation, the span from worst to best, and evaluations of the champion."""

    def line(name: str, only: str = "") -> list[tuple[float, float]]:
        """Return (place on the axis, value) where there is one; ``only``: where there is one of that name, too."""
        return [
            (x, y)
            for row in rows
            if (x := row[column]) is not None and (y := row[name]) is not None and row[only or name] is not None
        ]

    worst, best, judged = line("worst"), line("best"), line("champion")
    plot = Plot(
        (0, max(x for x, _ in best)),
        spread([y for _, y in (*worst, *best, *judged)]),
        size=(480, 260),
        label="return of a generation",
        x_title=AXES[column],
        y_title="return",
    ).axes()
    plot.band(worst, best, "band c0").curve(line("mean"), "c0")
    return plot.line(judged, "line c1").points(line("champion", only="evaluated_best"), "point c1")


# -- what a search writes ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class GenerationRow:
    """One generation: returns are means over a member's trials; evaluations are over many episodes."""

    generation: int
    env_steps: int
    frames: int
    seconds: float
    mean: float
    best: float
    worst: float
    sigma: float
    lost: int
    """Episodes that faults of environments have cost."""
    evaluated_best: float | None
    evaluated_mean: float | None
    champion: float | None


def write_generations(folder: Path, rows: Sequence[GenerationRow]) -> None:
    """Write the table, and both plots as soon as there is something to plot."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [f.name for f in fields(GenerationRow)], lineterminator="\n")
    writer.writeheader()
    plain = [asdict(row) for row in rows]
    writer.writerows({name: "" if v is None else v for name, v in row.items()} for row in plain)
    atomic.write_text(folder / TABLE, text.getvalue())
    for column in AXES if rows else ():
        atomic.write_text(folder / PLOTS[column], search_plot(plain, column).file() + "\n")
