"""``rollmill train``."""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rollmill.cli.announce import announcement, page_of
from rollmill.cli.options import StartOptions, keep_stdout
from rollmill.core.config.load import load_config
from rollmill.core.config.plain import dump_yaml
from rollmill.core.errors import RollmillError
from rollmill.core.run_folder import RunFolder
from rollmill.distributed.ray_place import place_of
from rollmill.monitor.console import live_panel
from rollmill.runs.resume import resumed_settings
from rollmill.runs.settings.sizing import size
from rollmill.runs.settings.train import TrainConfig, require_env
from rollmill.runs.train.observers import Observer
from rollmill.runs.train.ranks.following import join_run
from rollmill.runs.train.run import Outcome
from rollmill.runs.train.run import train as run_training

if TYPE_CHECKING:
    from rollmill.runs.train.loop import OnlineRun

OVERSHOOT = 1.05
"""A run that ended so far above its limit of frames says why."""


def train(
    overrides: tuple[str, ...],
    /,
    options: StartOptions,
    restore: Path | None = None,
    profile: bool = False,
) -> int:
    """Train an agent: ``rollmill train env=CartPole-v1 stop.frames=200_000``.

    Settings come from YAML files, left to right, then from KEY=VALUE words; ``rollmill config`` explains every
    key. The run lives in ``<run.dir>/<run.experiment>/<run.name>``.

    Args:
        overrides: Settings, for example env=doom_basic learning.gamma=0.995.
        restore: Start from this checkpoint: a new run with a parent or, with --resume, the same run from there.
        profile: Record traces of every process into the run's folder (settings: ``rollmill config profile``).
    """
    if place := _place_in_slurm(options.config, overrides):
        return join_learner(place)
    request = options.request(mode=options.mode(), restore=restore, profile=profile)
    settings = _load(options.config, overrides, options.resume, restore)
    if options.print_config:
        print(dump_yaml(size(settings)), end="")
        return 0
    if not options.resume:
        require_env(options.config, overrides, "rollmill train")
    announcer = _Announcer(settings, quiet=options.json_)
    try:
        with keep_stdout(options.json_):
            outcome = run_training(settings, request, (announcer,))
    except RollmillError:
        if announcer.page is not None and live_panel(request.console):  # elsewhere the log has said so
            print(f"report: {announcer.page}", file=sys.stderr)
        raise
    _print(outcome, announcer, settings.stop.frames, options.json_)
    return outcome.exit_code


def join_learner(address: str, /) -> int:
    """Learn together with a training on another machine: ``rollmill join-learner 10.0.0.5:29500``.

    Nothing is written here: the run is that of the other machine, which says what is learnt and with which code.

    Args:
        address: host:port, as in the other machine's learning.meet.
    """
    place = place_of(address, "ADDRESS")
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    print(f"the run at {place} is over: {join_run(place)}")
    return 0


def _place_in_slurm(files: tuple[Path, ...], overrides: tuple[str, ...]) -> str:
    """Return where to join, in all tasks of ``srun`` but the first one: all of them are the same command."""
    if int(os.environ.get("SLURM_PROCID") or 0) == 0:
        return ""
    return load_config(TrainConfig, files, overrides).learning.meet


class _Announcer(Observer):
    """Says what the run is about to do as soon as nothing can be refused any more: an error stays one line."""

    def __init__(self, asked: TrainConfig, quiet: bool) -> None:
        self._asked, self._quiet = asked, quiet
        self._folder: Path | None = None
        self.untrained = ""
        """Why a run that has ended has not learnt anything."""

    def on_init(self, run: OnlineRun) -> None:
        self._folder = run.folder.path
        if not self._quiet:
            print(announcement(self._asked, run.config, run.folder.path), flush=True)

    def on_stop(self, run: OnlineRun) -> None:
        if not run.iteration:
            rows = run.config.learning.batch_size
            self.untrained = f"no training step was done: a batch has {rows:,} rows (learning.batch_size)"

    @property
    def page(self) -> Path | None:
        """The page about the run, once it has ended."""
        if self._folder is None or not self._asked.report.page:
            return None
        return page_of(self._folder, "run")


def _load(files: tuple[Path, ...], overrides: tuple[str, ...], resume: bool, restore: Path | None) -> TrainConfig:
    settings = load_config(TrainConfig, files, overrides)
    if not resume:
        return settings
    return resumed_settings(TrainConfig, RunFolder(settings.folder), files, overrides, restore)


def _print(outcome: Outcome, announcer: _Announcer, limit: int, as_json: bool) -> None:
    page = announcer.page
    if as_json:
        values = {
            "state": outcome.state,
            "reason": outcome.reason,
            "frames": outcome.frames,
            "mean_return": outcome.mean_return,
            "folder": str(outcome.folder),
            "page": None if page is None else str(page),
        }
        print(json.dumps(values))
        return
    mean = "-" if outcome.mean_return is None else f"{outcome.mean_return:.4g}"
    late = limit and outcome.frames > OVERSHOOT * limit
    why = " (limits are looked at when segments are finished and between training steps)" if late else ""
    frames = f"{outcome.frames:,} frames{why}"
    print(f"{outcome.state}: {outcome.reason}; {frames}, mean return {mean}, folder {outcome.folder}")
    if announcer.untrained:
        print(announcer.untrained)
    if page is not None:
        print(f"report: {page}")
    if outcome.state == "interrupted":
        print("the same command with --resume continues it")
