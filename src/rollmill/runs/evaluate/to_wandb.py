"""Sends what an evaluation has found to W&B: a table of its episodes and its videos, to the run of each training."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import field, replace
from pathlib import Path

from rollmill.core.config.load import load_config
from rollmill.core.config.schema import settings
from rollmill.core.config.yaml import read_mapping
from rollmill.core.errors import ConfigError
from rollmill.core.run_folder import RunFolder
from rollmill.monitor.wandb import TrackedRun, WandbSettings, WandbSink, require_wandb
from rollmill.runs.evaluate.results import EvalResult

COLUMNS = ("episode", "agent", "seed", "return", "length", "terminated", "target")


@settings
class _RunSettings:
    """What a run says about W&B."""

    wandb: WandbSettings = field(default_factory=WandbSettings)


def wandb_settings(checkpoint: Path | None, name: str, overrides: Sequence[str]) -> tuple[RunFolder, WandbSettings]:
    """Return the folder of the run that a policy comes from, and its settings for W&B.

    Words that begin with ``wandb.`` come on top of the saved ones.
    """
    run = None if checkpoint is None else RunFolder(checkpoint.absolute().parent.parent)
    if run is None or not run.config.is_file():
        raise ConfigError(f"--wandb: {name} is no checkpoint in a run's folder, so it has no run at W&B")
    words = [word for word in overrides if word.startswith(("wandb.", "wandb="))]
    known = {key: value for key, value in read_mapping(run.config).data.items() if key == "wandb"}
    found = replace(load_config(_RunSettings, [], words, base=known).wandb, on=True)
    require_wandb(found)
    return run, found


def send(results: Sequence[EvalResult], overrides: Sequence[str]) -> list[str]:
    """Log every result to the run of its training; returns where each run can be seen."""
    links: dict[Path, str] = {}
    for result in results:
        run, wanted = wandb_settings(Path(result.checkpoint), result.name, overrides)
        about = TrackedRun(run.path.name, result.env)
        with closing(WandbSink(run.path / "wandb", wanted, about, result.unit or "frames")) as sink:
            links[run.path] = sink.link
            _log(sink, result)
    return list(links.values())


def _log(sink: WandbSink, result: EvalResult) -> None:
    summary = result.policy.summary()
    metrics = {f"evaluation/{name}": value for name, value in summary.items() if value is not None}
    sink.write(result.frames, metrics)
    rows = [
        (r.episode, r.agent, r.seed, r.episode_return, r.length, r.terminated, r.target) for r in result.policy.rows
    ]
    sink.write_table(result.frames, "evaluation/episodes", COLUMNS, rows)
    for number, video in enumerate(result.videos):
        if not video.problem:
            sink.write_video(result.frames, f"evaluation/video_{number}", Path(video.file))
