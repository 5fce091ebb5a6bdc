"""``rollmill launch``: many runs from one description."""

from __future__ import annotations

import fnmatch
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rollmill.cli.options import Json
from rollmill.core.errors import ConfigError, LaunchError, exit_code_of
from rollmill.core.terminal import drawing
from rollmill.core.text import counted, nearest
from rollmill.launch import launcher as launcher_module
from rollmill.launch import populating, searching
from rollmill.launch.experiment import described_search, load_experiment
from rollmill.launch.measure import measure, measure_like
from rollmill.launch.plan import Plan, Total, command_text, total_of
from rollmill.launch.records import LaunchRecords, PlanRecord
from rollmill.launch.settings import LaunchSettings
from rollmill.launch.status import RunStatus, look
from rollmill.launch.table import first_line, plain, rich_table, summary, tails
from rollmill.monitor.console import stdout_is_terminal
from rollmill.pbt.exchange import Exchange
from rollmill.runs.launching import launch_settings, launcher_of, open_launch, plan_of

if TYPE_CHECKING:
    from rich.live import Live

_ROOT = Path("runs")
_SHOWN = 200


# -------------------------------------------------------------------------------------------------------- plan


def plan(
    overrides: tuple[str, ...],
    description: str,
    /,
    root: Path = _ROOT,
    like: Path | None = None,
    json_: Json = False,
) -> int:
    """Print what a description comes to: ``rollmill launch plan examples/grid_cartpole.yaml``. Nothing is started.

    Args:
        overrides: Settings of the launch, for example local.parallel=2 or backend=slurm.
        description: A YAML file, path/to/file.py or package.module (with :NAME if it defines several).
        root: Folder of all experiments.
        like: A run folder whose speed and size the forecast takes; default: runs of the same experiment.
        json_: Print JSON.
    """
    experiment = load_experiment(description)
    settings = launch_settings(experiment, overrides)
    made = plan_of(experiment, root)
    measured = measure_like(like) if like else measure(run.folder for run in made.runs)
    total = total_of(made, settings.at_once, measured)
    if json_:
        print(json.dumps(_plan_dict(made, total)))
        return 0
    for run in made.runs[:_SHOWN]:
        print(f"{run.folder}\n    {command_text(run.command)}")
    if len(made.runs) > _SHOWN:
        print(f"... and {len(made.runs) - _SHOWN} more runs (--json prints all)")
    print(f"\n{total_text(total, settings)}")
    if experiment.search is not None:
        print(f"a search: {experiment.search.trials} trials, each chosen by what the ones before it have reached")
    if made.population is not None:
        print(f"a population: rounds of decisions every {made.population['period']:,} frames of each member")
    return 0


def total_text(total: Total, settings: LaunchSettings) -> str:
    """Say the totals in a few lines."""
    at_once = f"{settings.at_once} at a time" if settings.at_once else "all at the same time"
    unknown = "not known (no run has been measured: --like RUN, or expect in the description)"
    hours = unknown if total.hours is None else f"about {total.hours:.3g} h with {at_once}"
    disk = unknown if total.gb is None else f"about {total.gb:.3g} GB"
    lines = [
        f"{counted(total.runs, 'run')} in {counted(total.groups, 'group')}, {total.frames:,} frames in all; "
        f"back end {settings.backend}",
        f"time: {hours}",
        f"disk: {disk}" + (f"; recordings at most {total.recording_gb:.3g} GB" if total.recording_gb else ""),
    ]
    if total.source:
        lines.append(f"forecast from {total.source}")
    return "\n".join(lines)


def _plan_dict(made: Plan, total: Total) -> dict[str, object]:
    runs = [
        {
            "name": run.name,
            "group": run.group,
            "params": dict(run.params),
            "folder": str(run.folder),
            "command": list(run.command),
            "frames": run.facts.frames,
        }
        for run in made.runs
    ]
    return {"experiment": made.name, "folder": str(made.folder), "runs": runs, "total": vars(total)}


# --------------------------------------------------------------------------------------------------------- run


def run(
    overrides: tuple[str, ...],
    description: str,
    /,
    root: Path = _ROOT,
    again: bool = False,
    detach: bool = False,
    json_: Json = False,
) -> int:
    """Start all runs of a description and look after them: ``rollmill launch run grid.yaml local.parallel=2``.

    The same command continues after anything: finished runs are not repeated, running ones are found again, failed
    ones are started again up to ``retries`` times, from their checkpoint. Exit code 1 if any run failed.

    Args:
        overrides: Settings of the launch, for example backend=slurm slurm.partition=gpu.
        description: A description (see plan), or the folder of an experiment that was launched before.
        root: Folder of all experiments.
        again: Also try runs again that failed for good or were cancelled.
        detach: Hand in what there is room for and return; the same command later looks after the rest.
        json_: Print the standing of all runs as JSON at the end.
    """
    records, settings, made = open_launch(description, overrides, root)
    with records.as_launcher():
        record = launcher_module.record_plan(records, made, settings, os.getcwd()) if made else records.read_plan()
        launcher = launcher_of(records, record, settings)
        if again:
            launcher.reset_failures()
        try:
            statuses = launcher.tick() if detach else _watched(launcher, json_)
        except KeyboardInterrupt as error:
            folder = command_text(
                [str(records.experiment)]
            )  # where its settings are, those of the command line included
            print(f"\nthe launcher has ended, its runs go on; to continue: rollmill launch run {folder}")
            print(f"to end them: rollmill launch cancel {folder}")
            return exit_code_of(error)
    shown = not detach and stdout_is_terminal()  # the live table ends with the summary
    return _told(statuses, records, json_, shown)


def _watched(launcher: launcher_module.Launcher, json_: bool) -> list[RunStatus]:
    if json_:
        return launcher.run()
    if stdout_is_terminal():
        with _live() as live:
            return launcher.run(lambda statuses: _draw(live, statuses))
    said: dict[str, tuple[str, int]] = {}

    def tell(statuses: Sequence[RunStatus]) -> None:
        for status in statuses:
            now = (status.state, max(1, status.attempts))
            if said.get(status.run.name) != now:
                said[status.run.name] = now
                if status.state != "waiting" or status.attempts:
                    print(f"{time.strftime('%H:%M:%S')} {_event(status)}", flush=True)

    return launcher.run(tell)


def _event(status: RunStatus) -> str:
    """Return one line of the log."""
    again = status.state == "waiting" and status.attempts and not status.paused
    state = "to be started again" if again else status.state
    attempt = f", attempt {status.attempts}" if status.attempts > 1 else ""
    reason = f": {first_line(status.reason)}" if status.reason else ""
    return f"{status.run.name} {state}{attempt}{reason}"


def _found_best(records: LaunchRecords) -> list[str]:
    """Say what a search, or a population, has found so far; nothing of other launches."""
    plan = records.read_plan()
    if plan.population is not None:
        exchange = Exchange(records.experiment)
        return populating.told(exchange, records.experiment) if exchange.exists else []
    if plan.search is None:
        return []
    search = described_search(plan.search).search
    assert search is not None
    return searching.told(search, records.trials(), records.best_settings)


def _told(statuses: Sequence[RunStatus], records: LaunchRecords, json_: bool, shown: bool) -> int:
    if json_:
        print(json.dumps([status.to_dict() for status in statuses]))
    else:
        lines = [*([] if shown else [summary(statuses)]), *tails(statuses)]
        if any(status.state == "finished" for status in statuses):
            folder = records.experiment
            short = folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder
            lines.append(f"compare them: rollmill report {command_text([str(short)])}")
        lines += _found_best(records)
        print("\n".join(lines))
    return 1 if any(status.state == "failed" for status in statuses) else 0


# ------------------------------------------------------------------------------------------------------ status


def status(
    overrides: tuple[str, ...],
    experiment: str,
    /,
    root: Path = _ROOT,
    watch: bool = False,
    every: float = 2.0,
    json_: Json = False,
) -> int:
    """How all runs of an experiment stand: ``rollmill launch status runs/gammas``. From any shell, at any time.

    Args:
        overrides: Settings of the launch that differ from those it was made with.
        experiment: The experiment's folder, its name, or the file that describes it.
        root: Folder of all experiments.
        watch: Keep the table up to date until nothing is left to do.
        every: Seconds between two looks.
        json_: Print JSON.
    """
    if not every > 0:
        raise ConfigError(f"--every {every}: a positive number of seconds is expected")
    records, record, settings = _found(experiment, root, overrides)
    backend = launcher_module.make_backend(settings)

    def now() -> list[RunStatus]:
        return look(records, record, backend, settings.retries)

    if json_:
        print(json.dumps([status.to_dict() for status in now()]))
        return 0
    if watch:
        with _live() as live:
            while True:
                statuses = now()
                _draw(live, statuses)
                if all(status.settled for status in statuses):
                    break
                time.sleep(every)
    statuses = now()
    print("\n".join([*(tails(statuses) if watch else [plain(statuses)]), *_found_best(records)]))
    if any(not s.settled for s in statuses) and not any(s.active for s in statuses) and not records.launcher_alive():
        folder = command_text([str(records.experiment)])
        print(f"nobody launches the waiting runs; to continue: rollmill launch run {folder}")
    return 0


def _found(experiment: str, root: Path, overrides: Sequence[str]) -> tuple[LaunchRecords, PlanRecord, LaunchSettings]:
    if Path(experiment).is_file():
        experiment = load_experiment(experiment).name
    folder = Path(experiment) if Path(experiment).is_dir() else root / experiment
    if not folder.is_dir():
        names = [entry.parent.parent.name for entry in root.glob("*/launch/plan.json")]
        hint = nearest(experiment, names) or (f"launched were: {', '.join(sorted(names)[:10])}" if names else "")
        raise LaunchError(f"no experiment {experiment!r} in {root}{f'; {hint}' if hint else ''}")
    records = LaunchRecords(folder)
    record = records.read_plan()
    return records, record, launcher_module.settings_of(record, overrides)


def _live() -> Live:
    from rich.console import Console
    from rich.live import Live

    return Live(console=Console(file=drawing(sys.stdout)), auto_refresh=False, transient=False)


def _draw(live: Live, statuses: Sequence[RunStatus]) -> None:
    live.update(rich_table(statuses, max(5, live.console.height - 6)), refresh=True)


# ------------------------------------------------------------------------------------------------------ cancel


def cancel(
    overrides: tuple[str, ...],
    experiment: str,
    runs: tuple[str, ...] = (),
    /,
    root: Path = _ROOT,
    grace: float = 30.0,
) -> int:
    """End runs: ``rollmill launch cancel runs/gammas '*gamma-0.9_*'``. They save a checkpoint before they end.

    What was cancelled is not started again, unless ``rollmill launch run --again`` asks for it.

    Args:
        overrides: Settings of the launch that differ from those it was made with.
        experiment: The experiment's folder, its name, or the file that describes it.
        runs: Names or masks; none: all.
        root: Folder of all experiments.
        grace: Seconds a run has to save and end before it is killed.
    """
    records, record, settings = _found(experiment, root, overrides)
    names = [run.name for run in record.runs if not runs or any(fnmatch.fnmatch(run.name, mask) for mask in runs)]
    if not names:
        raise LaunchError(f"no run of {experiment} matches {', '.join(runs)}")
    if not grace >= 0:
        raise ConfigError(f"--grace {grace}: seconds are expected")
    ended = launcher_module.cancel(records, record, launcher_module.make_backend(settings), names, grace)
    active = sum(state in ("queued", "running") for state in ended.values())
    print(f"cancelled {counted(len(ended), 'run')}, {active} of which had been queued or running")
    if len(ended) < len(names):
        print(f"{counted(len(names) - len(ended), 'run')} had finished, failed or been cancelled before")
    return 0
