"""``rollmill report``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rollmill.cli.diary import find_experiment
from rollmill.cli.options import Json
from rollmill.core.errors import ConfigError
from rollmill.core.run_folder import RunFolder
from rollmill.launch.compare.aggregate import aggregate
from rollmill.launch.compare.export import text, to_dict, write_csv
from rollmill.launch.compare.methods import read_references
from rollmill.launch.compare.page import render
from rollmill.reports.html.document import write_page
from rollmill.reports.run.report import write_run_report


def report(
    experiment: Path,
    /,
    root: Path = Path("runs"),
    metric: str | None = None,
    lower_is_better: bool = False,
    references: Path | None = None,
    out: Path | None = None,
    csv: Path | None = None,
    json_: Json = False,
) -> int:
    """A page about all runs of an experiment, ``rollmill report runs/gammas``, or about one run.

    For each environment, and for offline runs apart: curves of every group (runs that differ in their seed alone), the
    best settings, statistics of few runs (interquartile mean, bootstrap intervals, probability of improvement,
    performance profiles), and which parameters matter. The experiment may have been launched, or its runs started one
    by one.
    A page of another kind that has the same name is left alone; the new one gets a name beside it, which is printed.

    Args:
        experiment: The experiment's folder, or its name; or a run's folder.
        root: Folder of all experiments.
        metric: The metric to compare; unset: the return. See ``metrics.jsonl`` of a run for their names.
        lower_is_better: Rank the lowest first. Losses and errors are ranked so without being told.
        references: A YAML file, environment: [score that becomes 0, score that becomes 1], for statistics over several
            environments; unset: the worst and the best run of each.
        out: The page; default: report.html in the experiment's folder.
        csv: Write curves.csv, groups.csv and runs.csv into this folder.
        json_: Print scores and importance as JSON.
    """
    folder = find_experiment(experiment, root)
    wanted = out or folder / "report.html"
    if RunFolder(folder).config.is_file():
        if csv is not None:
            raise ConfigError(f"--csv: {folder} is one run. For the whole experiment: rollmill report {folder.parent}")
        one = write_run_report(folder, out)
        print(json.dumps({"page": str(one)}) if json_ else one)
        _say_what_stays(wanted, one)
        return 0
    scale = read_references(references) if references is not None else None
    found = aggregate(folder, metric, lower_is_better, scale)
    page = write_page(wanted, "experiment", render(found))
    files = write_csv(found, csv) if csv is not None else []
    if json_:
        print(json.dumps({**to_dict(found), "page": str(page)}))
    else:
        print(text(found))
        print("\n".join(map(str, [page, *files])))
    _say_what_stays(wanted, page)
    return 0


def _say_what_stays(wanted: Path, page: Path) -> None:
    if page != wanted:
        print(f"{wanted} is another page and stays as it is; this one is {page}", file=sys.stderr)
