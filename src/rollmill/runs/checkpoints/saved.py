"""What a run has saved: its checkpoints and the models of its pool, and what can be done with them from outside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rollmill.core import tree_file
from rollmill.core.checkpoints import Checkpoint, Checkpoints, Loaded, load_checkpoint, save_guarded
from rollmill.core.errors import CheckpointError, ConfigError
from rollmill.core.model_pool import ModelPool
from rollmill.core.run_folder import RunFolder
from rollmill.core.steps import FRAMES, place, unit_of
from rollmill.envs.settings import EnvSettings
from rollmill.envs.tasks.scores import usual_metric
from rollmill.runs.policies import online_state
from rollmill.runs.policies.find import find_checkpoints

HALF_MAX = float(np.finfo(np.float16).max)


@dataclass(frozen=True)
class Saved:
    """One file, as far as its name and its header tell."""

    file: Path
    step: int
    unit: str
    """What the run counts."""
    metric: float | None
    """As it was logged; None where it is not known."""
    by: str
    """The name of that metric."""
    roles: tuple[str, ...]
    """Why it is kept: newest, best, milestone; models of the pool: pool and their id."""
    bytes: int
    changed: float
    """Seconds since 1970."""

    def to_dict(self) -> dict[str, Any]:
        rest = {name: value for name, value in asdict(self).items() if name not in ("step", "unit")}
        return {**place(self.step, self.unit), **rest, "file": str(self.file), "roles": list(self.roles)}


def list_saved(path: Path) -> list[Saved]:
    """List everything in a run's folder, oldest first: checkpoints, then the pool."""
    folder = RunFolder(path)
    checkpoints, pool = Checkpoints(folder.checkpoints), ModelPool(folder.pool)
    newest, best = checkpoints.newest(), checkpoints.best()
    found = []
    for checkpoint in checkpoints.list():
        roles = {"newest": checkpoint == newest, "best": checkpoint == best, "milestone": checkpoint.milestone}
        found.append(_saved(checkpoint.path, checkpoint.step, [name for name, has in roles.items() if has]))
    for entry in pool.entries():
        roles_in_pool = ["pool", str(entry.id), *(["milestone"] if entry.milestone else [])]
        found.append(_saved(pool.path_of(entry), entry.frames, roles_in_pool))
    return found


def _saved(path: Path, step: int, roles: Sequence[str]) -> Saved:
    status = path.stat()
    metric, by, unit = None, "", FRAMES
    try:
        header = tree_file.read_header(path)
        metric, by = header["metric"], _best_metric(header["state"])
        unit = unit_of(header)
    except (CheckpointError, ConfigError, KeyError, TypeError, ValueError):
        roles = [*roles, "damaged"]
    if metric is not None and by.startswith("-"):
        metric = -metric
    return Saved(path, step, unit, metric, by.removeprefix("-"), tuple(roles), status.st_size, status.st_mtime)


def _best_metric(state: Mapping[str, Any]) -> str:
    config = state.get("config", {})
    if named := config.get("checkpoints", {}).get("best_metric"):
        return str(named)
    if state.get("kind") != "online":
        return "eval/return"
    env = config.get("env", {})
    return usual_metric(EnvSettings(**{key: env[key] for key in ("id", "tasks", "task") if key in env}))


def surplus(path: Path, keep_last: int, keep_best: int, milestones: bool) -> tuple[Checkpoint, ...]:
    """Return the checkpoints of a run that these rules do not keep.

    The newest one always stays, so a run that goes on is not disturbed.
    """
    if keep_last < 1:
        raise ConfigError("at least the newest checkpoint must stay: without it the run cannot be resumed")
    if keep_best < 0:
        raise ConfigError("the number of the best cannot be negative")
    folder = RunFolder(path).checkpoints
    if not folder.is_dir():
        raise CheckpointError(f"{path}: no run folder with checkpoints")
    return Checkpoints(folder, keep_last, keep_best).surplus(milestones)


def remove(path: Path, which: Sequence[Checkpoint]) -> None:
    checkpoints = Checkpoints(RunFolder(path).checkpoints)
    for checkpoint in which:
        checkpoints.remove(checkpoint)


def export_checkpoint(
    target: Path, out: Path, *, best: bool, model: int | None, overwrite: bool, half: bool = False
) -> Path:
    """Write what a policy needs to play, and nothing more, into one file; returns what it was taken from.

    ``half``: weights are rounded to float16, for half the size. Who loads them computes in float32 as before.
    """
    if out.exists() and not overwrite:
        raise ConfigError(f"{out} exists already; choose another name, or --overwrite")
    if model is not None and best:
        raise ConfigError("--best and --model contradict each other")
    if model is not None:
        loaded = ModelPool(RunFolder(target).pool).by_id(model)
    else:
        loaded = load_checkpoint(find_checkpoints(target, best)[0])
    out.parent.mkdir(parents=True, exist_ok=True)
    content = _playable_part(loaded)
    save_guarded(out.absolute(), _halved(content) if half else content, min_free_mb=0)
    return loaded.path


def _halved(tree: Any, name: str = "") -> Any:
    """Return the same with weights in float16, where they fit. Biases and moments are few, and moments may be large."""
    if isinstance(tree, Mapping):
        return {key: _halved(part, key) for key, part in tree.items()}
    if isinstance(tree, list):
        return [_halved(part, name) for part in tree]
    is_weight = isinstance(tree, np.ndarray) and tree.dtype == np.float32 and "weight" in name.rpartition(".")[2]
    return tree.astype(np.float16) if is_weight and np.abs(tree).max(initial=0) < HALF_MAX else tree


def _playable_part(loaded: Loaded) -> dict[str, Any]:
    if isinstance(loaded.state, Mapping) and loaded.state.get("kind") == "offline":
        from rollmill.runs.policies import offline  # imports torch

        return offline.playable_part(loaded)
    return online_state.playable_part(loaded)
