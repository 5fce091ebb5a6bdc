"""``rollmill train``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rollmill.cli.options import Configs, Json, keep_stdout
from rollmill.core.config import dump_yaml, load_config
from rollmill.core.errors import ConfigError
from rollmill.core.run_folder import Mode, RunFolder
from rollmill.runs.train.run import Outcome, Request
from rollmill.runs.train.run import train as run_training
from rollmill.runs.train.settings import TrainConfig
from rollmill.runs.train.sizing import size


def train(
    overrides: tuple[str, ...],
    /,
    config: Configs = (),
    resume: bool = False,
    overwrite: bool = False,
    restore: Path | None = None,
    profile: bool = False,
    json_: Json = False,
) -> int:
    """Train an agent: ``rollmill train env=CartPole-v1 stop.frames=200_000``.

    Settings come from YAML files, left to right, then from KEY=VALUE words; ``rollmill config`` explains every
    key. The run lives in ``<run.dir>/<run.experiment>/<run.name>``.

    Args:
        overrides: The KEY=VALUE words, for example env=doom_basic learning.gamma=0.995.
        config: A YAML file with settings; may be given several times, later files win.
        resume: Continue the run in its folder from the newest checkpoint, with its saved settings below the given ones.
        overwrite: Delete the run in the folder and start anew.
        restore: Start from this checkpoint: a new run with a parent or, with --resume, the same run from there.
        profile: Record traces of every process into the run's folder (settings: ``rollmill config profile``).
        json_: Print the outcome as JSON on stdout, and nothing else there.
    """
    if resume and overwrite:
        raise ConfigError("--resume and --overwrite exclude each other: one keeps the run, the other deletes it")
    settings = _load(config, overrides, resume)
    sized = size(settings)
    mode: Mode = "resume" if resume else "overwrite" if overwrite else "new"
    if not json_:
        print(dump_yaml(sized), flush=True)
    request = Request(mode, restore, ("rollmill", *sys.argv[1:]), "plain" if json_ else "auto", profile)
    with keep_stdout(json_):
        outcome = run_training(settings, request)
    _print(outcome, json_)
    return outcome.exit_code


def _load(files: tuple[Path, ...], overrides: tuple[str, ...], resume: bool) -> TrainConfig:
    settings = load_config(TrainConfig, files, overrides)
    saved = RunFolder(settings.folder).config
    if resume and saved.is_file():
        return load_config(TrainConfig, (saved, *files), overrides)
    return settings


def _print(outcome: Outcome, as_json: bool) -> None:
    if as_json:
        values = {
            "state": outcome.state,
            "reason": outcome.reason,
            "frames": outcome.frames,
            "mean_return": outcome.mean_return,
            "folder": str(outcome.folder),
        }
        print(json.dumps(values))
        return
    mean = "-" if outcome.mean_return is None else f"{outcome.mean_return:.4g}"
    print(f"{outcome.state}: {outcome.reason}; {outcome.frames:,} frames, mean return {mean}, folder {outcome.folder}")
    if outcome.state == "interrupted":
        print("the same command with --resume continues it")
