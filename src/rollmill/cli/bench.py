"""``rollmill bench`` measures speed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Literal

from rollmill.cli.options import Configs, Json, keep_stdout
from rollmill.core import atomic
from rollmill.core.config.load import load_config
from rollmill.core.config.plain import dump_yaml
from rollmill.core.errors import ConfigError
from rollmill.distributed.settings import MOST_NODES
from rollmill.runs.bench.run import FAKE_NODES, KINDS, Measurement, load_of_others
from rollmill.runs.bench.run import bench as run_bench
from rollmill.runs.bench.tune import Trial, TuneOptions, TuneResult
from rollmill.runs.bench.tune import tune as run_tune
from rollmill.runs.settings.train import TrainConfig
from rollmill.runs.train.profiler import Profiler

Kind = Literal["sim", "sample", "policy", "learn", "train", "bound", "all", "tune", "cluster"]


def bench(
    overrides: tuple[str, ...],
    kind: Kind = "all",
    /,
    config: Configs = (),
    seconds: float | None = None,
    profile: Path | None = None,
    out: Path | None = None,
    tune_batch: bool = False,
    fake_nodes: int | None = None,
    json_: Json = False,
) -> int:
    """Measure speed: the bare simulator, our sampling, sampling with the network, the learner alone, and training.

    ``rollmill bench all -f doom_basic``. Shares are of the bare simulator and of the bound that the
    cores set (see ``rollmill bench bound``). Settings are those of ``rollmill train``.
    ``rollmill bench tune`` searches the numbers of workers, environments and threads that train fastest.
    ``rollmill bench cluster`` measures how much one gateway takes in from nodes (see ``cluster.address``).

    Args:
        overrides: Settings, for example env=doom_basic sampling.workers=4.
        kind: What to measure.
        config: A YAML file with settings; may be given several times.
        seconds: Seconds of each measurement (unset: 10), or of the whole search of ``tune`` (unset: 60).
        profile: Record traces of every process of ``train`` into this folder; numbers are then too low.
        out: File for the settings that ``tune`` has found: ``rollmill train -f FILE`` uses them.
        tune_batch: Let ``tune`` change the batch size, too, which changes what is learnt.
        fake_nodes: Nodes of ``cluster`` (unset: 3); they send segments that were sampled beforehand.
        json_: Print JSON on stdout, and nothing else there.
    """
    if seconds is not None and seconds <= 0:
        raise ConfigError("--seconds must be positive")
    settings = load_config(TrainConfig, config, overrides)
    if fake_nodes is not None and (kind != "cluster" or not 1 <= fake_nodes <= MOST_NODES):
        raise ConfigError(f"--fake-nodes is for `rollmill bench cluster`, and from 1 to {MOST_NODES}")
    if kind == "tune":
        if profile is not None:
            raise ConfigError("--profile is for `rollmill bench train`")
        return _tune(settings, TuneOptions(seconds or 60.0, tune_batch), out, json_)
    if out is not None or tune_batch:
        raise ConfigError("--out and --tune-batch are for `rollmill bench tune`")
    if profile is not None and kind not in ("train", "all"):
        raise ConfigError("--profile is for `rollmill bench train`")
    if profile is not None and profile.exists() and not profile.is_dir():
        raise ConfigError(f"--profile {profile}: is no folder")
    profiler = Profiler(settings.profile, profile) if profile is not None else None
    others = load_of_others()
    with keep_stdout(json_):
        kinds = KINDS if kind == "all" else (kind,)
        results = run_bench(settings, kinds, seconds or 10.0, profiler, fake_nodes or FAKE_NODES)
    if json_:
        rows = {name: result.to_dict() for name, result in results.items()}
        print(json.dumps({"env": settings.env.id, "busy_cores_before": others, **rows}))
        return 0
    if others > 0.1:
        print(_loaded(others))
    print(_table(results))
    return 0


def _loaded(others: float) -> str:
    return f"the machine is loaded by others ({others:.1f} cores busy before the start): numbers are too low"


def _tune(settings: TrainConfig, options: TuneOptions, out: Path | None, as_json: bool) -> int:
    if out is not None and not out.parent.is_dir():
        raise ConfigError(f"--out {out}: there is no folder {out.parent}")  # now, not after a minute of work
    others = load_of_others()
    if others > 0.1:
        print(_loaded(others), file=sys.stderr)
    with keep_stdout(as_json):
        result = run_tune(settings, options, lambda trial: print(_trial(trial), file=sys.stderr, flush=True))
    if out is not None:
        atomic.write_text(out, f"{_comment(result)}{dump_yaml(result.best)}")
    if as_json:
        print(json.dumps({"env": settings.env.id, "busy_cores_before": others, **result.to_dict()}))
    else:
        print(tune_table(result))
        print(f"use it: rollmill train -f {out}" if out is not None else "--out FILE writes the settings down")
    return 130 if result.interrupted else 0


def _words(changes: dict[str, Any]) -> str:
    """Return changed settings as they are written on the command line."""
    return " ".join(f"{key}={value}" for key, value in changes.items()) or "(start)"


def _trial(trial: Trial) -> str:
    number = "failed" if trial.frames_per_s is None else f"{trial.frames_per_s:,.0f} frames/s"
    return f"{number:>18}  {_words(trial.changes)}{f': {trial.error}' if trial.error else ''}"


def tune_table(result: TuneResult) -> str:
    """List all trials, the fastest first, and the winner against the start."""
    trials = sorted(result.trials, key=lambda trial: trial.frames_per_s or 0.0, reverse=True)
    ratio = result.best_frames_per_s / result.start_frames_per_s
    lines = [_trial(trial) for trial in trials]
    if result.failures:
        lines.append(f"{result.failures} of {len(trials)} trials failed")
    if result.out_of_time:
        lines.append("the time was up before everything was tried: --seconds gives it more")
    if result.interrupted:
        lines.append("interrupted: the best so far is")
    if result.changes:
        lines.append(f"fastest: {_words(result.changes)}")
        lines.append(
            f"{result.best_frames_per_s:,.0f} against {result.start_frames_per_s:,.0f} frames/s "
            f"of the start: {ratio:.2f} times"
        )
    else:
        lines.append(f"nothing was faster than the start: {result.start_frames_per_s:,.0f} frames/s")
    return "\n".join(lines + _warnings(result.changes))


def _warnings(changes: dict[str, Any]) -> list[str]:
    """Say what of the found settings also touches what is learnt."""
    notes = {
        "learning.precision": "the arithmetic is less exact: compare learning curves",
        "learning.batch_size": "another batch learns differently: the learning rate may have to follow",
    }
    return [f"{key}={changes[key]}: {note}" for key, note in notes.items() if key in changes]


def _comment(result: TuneResult) -> str:
    text = f"Found by `rollmill bench tune`.\n{tune_table(result)}"
    return "".join(f"# {line.strip()}\n" for line in text.splitlines())


MEANINGS = {
    "sim": "bare simulators, one process per core, nothing else",
    "sample": "the same through our workers, with random actions",
    "policy": "with the network that answers",
    "learn": "the learner by itself, on segments sampled beforehand: more than this no sampling can feed it",
    "train": "with the learner: what `rollmill train` reaches",
    "bound": "what these cores would reach in training if nothing ever waited, every part timed alone",
    "cluster": "what one gateway takes in from nodes that are never late: more than this they cannot bring",
}


def _table(results: dict[str, Measurement]) -> str:
    lines = []
    for result in results.values():
        others = {"sim": result.kind not in ("sim", "learn", "bound", "cluster"), "bound": result.kind == "train"}
        shares = [
            f"{100 * result.frames_per_s / results[other].frames_per_s:.0f} % of {other}"
            for other, compares in others.items()
            if compares and other in results
        ]
        speed = f"{result.frames_per_s:12,.0f} frames/s {result.steps_per_s:12,.0f} steps/s   {', '.join(shares)}"
        lines.append(f"{result.kind:8} {speed}".rstrip())
        lines += [f"         {_phase(name, value)}" for name, value in result.phases.items()]
    return "\n".join([*lines, "", *(f"{kind:8} {MEANINGS[kind]}" for kind in results)])


def _phase(name: str, value: float) -> str:
    """Show a part of a measurement with its unit: most are shares of the time, of a worker or of the main process."""
    if name.endswith(" ms/step"):
        return f"{name.removesuffix(' ms/step'):18} {value:.3f} ms per step"
    if name.endswith(" MB/s"):
        return f"{name.removesuffix(' MB/s'):18} {value:,.1f} MB/s"
    if name in ("main rounds", "main batches", "gateway segments"):
        return f"{name:18} {value:,.0f} per second"
    return f"{name:18} {100 * value:.1f} % of the time"
