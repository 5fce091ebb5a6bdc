"""``rollmill report``."""

from __future__ import annotations

import json
from pathlib import Path

import tyro

from rollmill.cli.diary import find_experiment
from rollmill.cli.options import Json
from rollmill.core import atomic
from rollmill.core.errors import ConfigError, LaunchError
from rollmill.core.run_folder import RunFolder
from rollmill.launch.aggregate import METRIC, Aggregate, aggregate, to_dict, write_csv
from rollmill.launch.page import render
from rollmill.runs.run_report import write_run_report


def report(
    experiment: tyro.conf.Positional[Path],
    /,
    root: Path = Path("runs"),
    metric: str = METRIC,
    out: Path | None = None,
    csv: Path | None = None,
    json_: Json = False,
) -> int:
    """A page about all runs of an experiment, ``rollmill report runs/gammas``, or about one run.

    Curves of every group (runs that differ in their seed alone) with 95 % confidence bands, the best settings, and
    which parameters matter. The experiment may have been launched, or its runs started one by one.

    Args:
        experiment: The experiment's folder, or its name; or a run's folder.
        root: Folder of all experiments.
        metric: The metric to compare; see ``metrics.jsonl`` of a run for their names.
        out: The page; default: report.html in the experiment's folder.
        csv: Write curves.csv, groups.csv and runs.csv into this folder.
        json_: Print scores and importance as JSON.
    """
    folder = find_experiment(experiment, root)
    if RunFolder(folder).config.is_file():
        if csv is not None:
            raise ConfigError(f"--csv: {folder} is one run. For the whole experiment: rollmill report {folder.parent}")
        one = write_run_report(folder, out)
        print(json.dumps({"page": str(one)}) if json_ else one)
        return 0
    found = aggregate(folder, metric)
    page = out or folder / "report.html"
    try:
        atomic.write_text(page, render(found))
    except OSError as error:
        raise LaunchError(f"{page}: cannot be written: {error.strerror or error}") from error
    files = write_csv(found, csv) if csv is not None else []
    if json_:
        print(json.dumps(to_dict(found)))
        return 0
    print(text(found))
    print("\n".join(map(str, [page, *files])))
    return 0


def text(found: Aggregate) -> str:
    """The best settings and what matters, for a terminal."""
    width = max(len(group.name) for group in found.groups)
    lines = [f"{'group':{width}}  runs  {found.metric} (mean of the last tenth, ± 95 %)"]
    for group in found.groups:
        margin = "" if group.margin is None else f" ± {group.margin:.3g}"
        score = "no value yet" if group.score is None else f"{group.score:.4g}{margin}"
        lines.append(f"{group.name:{width}}  {len(group.runs):4}  {score}")
    if found.importance:
        lines += ["", "share of the differences that goes with one parameter:"]
        lines += [f"  {item.share:4.0%}  {item.param} (best: {item.levels[0][0]})" for item in found.importance]
    return "\n".join(lines)
