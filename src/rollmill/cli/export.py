"""``rollmill export`` writes policies for other programs."""

from __future__ import annotations

import json
from pathlib import Path

from rollmill.cli.options import Json
from rollmill.runs.checkpoints.export import SUFFIX, Format, export_policy


def export(
    target: Path,
    /,
    to: Format,
    out: Path | None = None,
    policy: int | None = None,
    best: bool = False,
    overwrite: bool = False,
    encoder: Path | None = None,
    dynamics: Path | None = None,
    trust_code: bool = False,
    json_: Json = False,
) -> int:
    """Write a trained policy for other programs: ``rollmill export runs/default/pole --to onnx``.

    A JSON file beside it says what goes in, what comes out, and how observations are normalised (which is inside).

    Args:
        target: A run folder (online, offline, world model), a checkpoint or controller file, or policy:NAME.
        to: safetensors (weights), onnx (the network, for ONNX Runtime), torch-export (the same for PyTorch).
        out: The file; unset: policy.safetensors, policy.onnx or policy.pt2 in the current folder.
        policy: Which policy, where the agents of a game have several (unset: the first), or which member of a
            population (unset: the best); counted from 0.
        best: Take a run's best checkpoint instead of the newest: by its checkpoints.best_metric.
        overwrite: Replace files that exist.
        encoder: Of a controller of a world model: its encoder, where that is no longer where it was.
        dynamics: Of a controller: its dynamics model, likewise.
        trust_code: Run the code that the checkpoint names (a network of your own).
        json_: Print JSON.
    """
    out = out or Path(f"policy{SUFFIX[to]}")
    done = export_policy(
        target,
        to,
        out,
        policy=policy,
        best=best,
        overwrite=overwrite,
        trust_code=trust_code,
        encoder=encoder,
        dynamics=dynamics,
    )
    if json_:
        facts = {"file": str(done.path), "card": str(done.card), "bytes": done.nbytes}
        print(json.dumps({**facts, "checkpoint": str(done.checkpoint)}))
    else:
        print(f"{done.path}  {done.nbytes / 1e6:.2f} MB, from {done.checkpoint}\n{done.card}")
    return 0
