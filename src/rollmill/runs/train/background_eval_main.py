"""The process that evaluates beside a training: reads orders line by line, plays, answers with metrics.

``python -m rollmill.runs.train.background_eval_main FD`` is started by ``background_eval``. Environments run in this
very process (serial mode), which has one thread and steps back behind others. It ends when no more orders can come.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rollmill.core.checkpoints import load_checkpoint
from rollmill.core.child import begin_child
from rollmill.core.config.load import load_config
from rollmill.core.exits import leave
from rollmill.core.fields import EnvSpec
from rollmill.core.seeds import Seeds
from rollmill.runs.evaluate.play import make_plan, play
from rollmill.runs.evaluate.results import Score
from rollmill.runs.evaluate.run import trained_policy
from rollmill.runs.settings import TrainConfig
from rollmill.runs.train.background_eval import EvaluatorSetup


def main(setup_fd: int) -> int:
    setup: EvaluatorSetup
    setup, parent = begin_child(setup_fd)
    os.nice(setup.nice)
    os.set_inheritable(setup.orders_fd, False)
    with os.fdopen(setup.orders_fd, encoding="utf-8") as orders:
        for line in orders:
            parent.tell(*_answer(json.loads(line)))
    return 0


def _answer(order: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """What to tell of an evaluation: its kind, and more."""
    begun = time.monotonic()
    try:
        summary = _evaluate(order).summary()
    except Exception as error:  # noqa: BLE001 - whatever it is, the run is told
        print(traceback.format_exc(), file=sys.stderr)
        return "failed", {"frames": order["frames"], "error": f"{type(error).__name__}: {error}"}
    finally:
        Path(order["checkpoint"]).unlink(missing_ok=True)
    return "done", {"frames": order["frames"], "summary": summary, "seconds": time.monotonic() - begun}


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
    leave(main(int(sys.argv[1])))
