"""``rollmill checkpoint``: list, save, prune and export what a run has saved."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rollmill.cli.options import Json
from rollmill.core.checkpoints import Checkpoint
from rollmill.core.errors import ConfigError
from rollmill.core.text import bytes_text, columns, counted
from rollmill.launch.listing import find_run
from rollmill.launch.table import duration
from rollmill.monitor.console import number_text
from rollmill.runs.checkpoints.saved import Saved, export_checkpoint, list_saved, remove, surplus

_ROOT = Path("runs")


def list_all(run: str, /, root: Path = _ROOT, json_: Json = False) -> int:
    """List the checkpoints and the pool of a run, the oldest first: ``rollmill checkpoint list default/pole``.

    Args:
        run: A run's folder, ``experiment/run``, or its name where there is one such run.
        root: Folder of all experiments.
        json_: Print JSON.
    """
    folder = find_run(run, root)
    found = list_saved(folder)
    if json_:
        print(json.dumps([saved.to_dict() for saved in found]))
        return 0
    if not found:
        print(f"{folder} has saved nothing yet")
        return 0
    print("\n".join(columns([(found[-1].unit, "metric", "", "size", "saved", "file"), *(_cells(s) for s in found)])))
    return 0


def _cells(saved: Saved) -> tuple[str, ...]:
    metric = "-" if saved.metric is None else f"{saved.by} {number_text(saved.metric)}"
    ago = f"{duration(max(0.0, time.time() - saved.changed))} ago"
    return f"{saved.step:,}", metric, " ".join(saved.roles), bytes_text(saved.bytes), ago, str(saved.file)


def save(run: str, /, root: Path = _ROOT, timeout: float = 60.0, json_: Json = False) -> int:
    """Have a training that is running write a checkpoint now: ``rollmill checkpoint save default/pole``.

    It is written after the training step under way, and stays for ever, as a milestone.

    Args:
        run: A run's folder, ``experiment/run``, or its name where there is one such run.
        root: Folder of all experiments.
        timeout: Seconds to wait for it.
        json_: Print JSON.
    """
    from rollmill.runs.train.save_requests import ask_to_save

    path = ask_to_save(find_run(run, root), timeout)
    print(json.dumps({"checkpoint": str(path)}) if json_ else path)
    return 0


def prune(
    run: str,
    /,
    keep_last: int = 3,
    keep_best: int = 1,
    milestones: bool = False,
    root: Path = _ROOT,
    dry_run: bool = False,
    yes: bool = False,
    json_: Json = False,
) -> int:
    """Remove checkpoints of a run, running or not: ``rollmill checkpoint prune default/pole --keep-last 1``.

    It asks first. The newest always stays.

    Args:
        run: A run's folder, ``experiment/run``, or its name where there is one such run.
        keep_last: Newest checkpoints to keep, 1 at least.
        keep_best: Checkpoints with the best metric to keep besides.
        milestones: Remove milestones, too, and what was saved by hand.
        root: Folder of all experiments.
        dry_run: Only say what would be removed.
        yes: Do not ask.
        json_: Print JSON; the question goes to stderr.
    """
    folder = find_run(run, root)
    found = surplus(folder, keep_last, keep_best, milestones=not milestones)
    nbytes = sum(checkpoint.path.stat().st_size for checkpoint in found)
    removing = bool(found) and not dry_run
    if removing and not yes and not _agreed(found, nbytes):
        print("nothing was removed", file=sys.stderr)
        return 1
    if removing:
        remove(folder, found)
    if json_:
        print(json.dumps({"removed": [str(c.path) for c in found], "bytes": nbytes, "dry_run": dry_run}))
        return 0
    word = "would remove" if dry_run else "removed"
    for checkpoint in found:
        print(f"{word} {checkpoint.path}")
    print(f"{word} {counted(len(found), 'checkpoint')}, {bytes_text(nbytes)}")
    return 0


def _agreed(found: Sequence[Checkpoint], nbytes: int) -> bool:
    for checkpoint in found:
        print(checkpoint.path, file=sys.stderr)
    question = f"remove {counted(len(found), 'checkpoint')}, {bytes_text(nbytes)}? [y/N] "
    print(question, end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def export(
    target: str,
    /,
    out: Path,
    best: bool = False,
    model: int | None = None,
    half: bool = False,
    root: Path = _ROOT,
    overwrite: bool = False,
    json_: Json = False,
) -> int:
    """Write the part of a checkpoint that plays: ``rollmill checkpoint export default/pole --out pole.ckpt``.

    Weights, configuration and spaces; no optimizer, no replay buffer, no environments. ``rollmill eval`` and
    ``rollmill watch`` play it, ``--restore`` does not begin from it. Of an offline run the weights that act are taken.

    Args:
        target: A checkpoint file, or a run: its folder, ``experiment/run``, or its name.
        out: The file to write.
        best: Take the checkpoint with the best metric instead of the newest.
        model: Take the model of this id from the run's pool.
        half: Round weights to float16, for half the size; the policy still computes in float32.
        root: Folder of all experiments.
        overwrite: Replace a file that exists.
        json_: Print JSON.
    """
    if not out.suffix:
        raise ConfigError(f"--out {out}: the name of a file, such as {out}.ckpt")
    source = Path(target) if Path(target).is_file() else find_run(target, root)
    taken = export_checkpoint(source, out, best=best, model=model, overwrite=overwrite, half=half)
    nbytes = out.stat().st_size
    if json_:
        print(json.dumps({"file": str(out), "bytes": nbytes, "checkpoint": str(taken)}))
    else:
        print(f"{out}  {bytes_text(nbytes)}, from {taken}")
    return 0
