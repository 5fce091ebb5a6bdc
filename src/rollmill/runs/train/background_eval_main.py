"""The process that evaluates beside a training: reads orders line by line, plays, answers with figures.

``python -m rollmill.runs.train.background_eval_main PARENT NICE`` is started by ``background_eval``.
Environments run in this very process (serial mode), which has one thread and steps back behind others. It ends with
its standard input.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rollmill.core.checkpoints import load_checkpoint
from rollmill.core.config import load_config
from rollmill.core.exits import leave
from rollmill.core.fields import EnvSpec
from rollmill.core.seeds import Seeds
from rollmill.runs.evaluate.play import make_plan, play
from rollmill.runs.evaluate.results import Score
from rollmill.runs.evaluate.run import trained_policy
from rollmill.runs.train.settings import TrainConfig
from rollmill.sampling.worker import die_with_parent


def main(parent: int, nice: int) -> int:
    # A Ctrl-C reaches the whole process group; ending is the run's business.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()
    if os.getppid() != parent:
        return 1
    os.nice(nice)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what an environment prints is no answer
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line)), allow_nan=False), file=answers, flush=True)
    return 0


def _answer(order: Mapping[str, Any]) -> dict[str, Any]:
    begun = time.monotonic()
    try:
        summary = _evaluate(order).summary()
    except Exception as error:  # noqa: BLE001 - whatever it is, the run is told
        print(traceback.format_exc(), file=sys.stderr)
        return {"kind": "failed", "frames": order["frames"], "error": f"{type(error).__name__}: {error}"}
    finally:
        Path(order["checkpoint"]).unlink(missing_ok=True)
    return {"kind": "done", "frames": order["frames"], "summary": summary, "seconds": time.monotonic() - begun}


def _evaluate(order: Mapping[str, Any]) -> Score:
    import torch

    torch.set_num_threads(1)
    loaded = load_checkpoint(Path(order["checkpoint"]))
    config = load_config(TrainConfig, [], ["learning.device=cpu"], base=loaded.state["config"])
    spec = EnvSpec.from_dict(loaded.state["spec"])
    plan = make_plan(
        config, spec, seed=order["seed"], workers=1, envs=order["envs"], episodes=order["episodes"], steps=None
    )
    sampler = replace(plan.sampler, settings=replace(plan.sampler.settings, mode="serial"))
    plan = replace(plan, sampler=sampler)
    seed = Seeds(order["seed"]).branch("actions").integer()
    policy = trained_policy(config, loaded, plan.sampler, seed, order["deterministic"])
    return play(plan, policy, "policy")


if __name__ == "__main__":
    leave(main(int(sys.argv[1]), int(sys.argv[2])))
