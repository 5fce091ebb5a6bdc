"""``rollmill bench``."""

from __future__ import annotations

import json
from typing import Literal

import tyro

from rollmill.cli.options import Configs, Json, keep_stdout
from rollmill.core.config import load_config
from rollmill.core.errors import ConfigError
from rollmill.runs.bench import KINDS, Measurement, load_of_others
from rollmill.runs.bench import bench as run_bench
from rollmill.runs.settings import TrainConfig

Kind = Literal["sim", "sample", "policy", "train", "bound", "all"]


def bench(
    overrides: tuple[str, ...],
    kind: tyro.conf.Positional[Kind] = "all",
    /,
    config: Configs = (),
    seconds: float = 10.0,
    json_: Json = False,
) -> int:
    """Measure speed: the bare simulator, our sampling, sampling with the network, and training.

    ``rollmill bench all -f configs/doom_basic.yaml``. Shares are of the bare simulator and of the bound that the
    cores set (see ``rollmill bench bound``). Settings are those of ``rollmill train``.

    Args:
        overrides: The KEY=VALUE words.
        kind: What to measure.
        config: A YAML file with settings; may be given several times.
        seconds: Seconds of each measurement.
        json_: Print JSON on stdout, and nothing else there.
    """
    if seconds <= 0:
        raise ConfigError("--seconds must be positive")
    settings = load_config(TrainConfig, config, overrides)
    others = load_of_others()
    with keep_stdout(json_):
        results = run_bench(settings, KINDS if kind == "all" else (kind,), seconds)
    if json_:
        rows = {name: result.to_dict() for name, result in results.items()}
        print(json.dumps({"env": settings.env.id, "busy_cores_before": others, **rows}))
        return 0
    if others > 0.1:
        print(f"the machine is loaded by others ({others:.1f} cores busy before the start): figures are too low")
    print(_table(results))
    return 0


def _table(results: dict[str, Measurement]) -> str:
    lines = []
    for result in results.values():
        shares = [
            f"{100 * result.frames_per_s / results[other].frames_per_s:.0f} % of {other}"
            for other in ("sim", "bound")
            if other in results and result.kind not in ("sim", "bound")
        ]
        lines.append(
            f"{result.kind:8} {result.frames_per_s:12,.0f} frames/s {result.steps_per_s:12,.0f} steps/s   "
            f"{', '.join(shares)}"
        )
        lines += [f"         {name:18} {value:.3f}" for name, value in result.phases.items()]
    return "\n".join(lines)
