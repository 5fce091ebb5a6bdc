"""The process that evaluates beside a training: reads orders line by line, plays, answers with metrics.

``python -m rollmill.runs.train.background_eval_main FD`` is started by ``background_eval``. Environments run in this
very process (serial mode), which has one thread and steps back behind others. It ends when no more orders can come.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollmill.core.child import Parent, failure, run_child
from rollmill.core.exits import leave
from rollmill.runs.evaluate.results import Score
from rollmill.runs.evaluate.setup import EvalSetup
from rollmill.runs.policies.load import load_policy
from rollmill.runs.train.background_eval import EvaluatorSetup


def work(setup: EvaluatorSetup, parent: Parent) -> None:
    os.nice(setup.nice)
    os.set_inheritable(setup.orders_fd, False)
    with os.fdopen(setup.orders_fd, encoding="utf-8") as orders:
        for line in orders:
            parent.tell(*_answer(json.loads(line)))


def _answer(order: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Evaluate and return what to tell of it: its kind, and more."""
    begun = time.monotonic()
    try:
        score = _evaluate(order)
    except Exception as error:  # noqa: BLE001 - whatever it is, the run is told
        return "failed", failure(error)
    finally:
        Path(order["checkpoint"]).unlink(missing_ok=True)
    found = {"summary": score.summary(), "by_task": score.by_task(), "suite_score": score.suite_score}
    return "done", {"frames": order["frames"], **found, "seconds": time.monotonic() - begun}


def _evaluate(order: Mapping[str, Any]) -> Score:
    import torch

    torch.set_num_threads(1)
    # The file is the run's own, and so is the code that it names.
    options = {"device": "cpu", "deterministic": order["deterministic"], "trust_code": True}
    policy = load_policy(order["checkpoint"], **options)
    assert policy.spec is not None
    setup = EvalSetup(
        *(policy.require_env(), policy.spec, order["seed"]),
        envs=order["envs"],
        serial=True,
        sampling=policy.sampling,
    )
    (score,) = setup.play(policy, order["episodes"]).scores
    return score


if __name__ == "__main__":
    leave(run_child(work))
