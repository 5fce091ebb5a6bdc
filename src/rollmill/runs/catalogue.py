"""What there is to take: trained models and stores of episodes, with how each was made."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rollmill.core.diary import Diary
from rollmill.core.errors import ConfigError, RollmillError, StoreError
from rollmill.core.run_folder import RunFolder, is_run
from rollmill.core.run_kind import FOLDERS
from rollmill.core.steps import FRAMES
from rollmill.launch.listing import describe, fits, run_folders
from rollmill.runs.policies.find import SHIPPED, TRAINED
from rollmill.store.format.schema import STORE_FILE
from rollmill.store.info import describe_store
from rollmill.worldmodel.files import CONTROLLER, DYNAMICS, ENCODER

WORLD_FILES = (ENCODER.name, DYNAMICS.name, CONTROLLER.name)


@dataclass(frozen=True)
class Model:
    """Something trained."""

    name: str
    """What other commands take for it: ``policy:NAME``, or its folder."""
    kind: str
    env: str
    trained: int | None
    """How far, in ``unit``."""
    unit: str
    score: float | None
    """Mean return: of its card, of its last evaluation, or of its last training episodes."""
    made_by: str
    """The command; empty where nobody has written it down."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class DataSet:
    """A store of episodes."""

    path: str
    env: str
    episodes: int
    steps: int
    bytes: int
    mean_return: float | None
    made_by: str
    """The command, where the run or the store knows it; else the program."""
    problems: int
    problem: str = ""
    """Why nothing else is known of it."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def list_models(root: Path, words: Sequence[str] = ()) -> list[Model]:
    """List models below ``root`` and those that come with the package, as far as every word fits."""
    found = [_shipped(card) for card in sorted(TRAINED.glob("*.json"))]
    if root.is_dir():
        found += [_model(folder, root) for folder in run_folders(root) for folder in _with_stages(folder)]
    return [model for model in found if fits((model.name, model.kind, model.env), model.name, words)]


def list_stores(root: Path, words: Sequence[str] = ()) -> list[DataSet]:
    """List all stores below ``root``, those in runs included, as far as every word fits."""
    if not root.is_dir():
        raise ConfigError(f"{root}: there is no such folder")
    found = [_store(folder) for folder in _stores(root)]
    return [data for data in found if fits((data.path, data.env), data.path, words)]


def _with_stages(folder: Path) -> list[Path]:
    """Return the folders of a run that hold something trained: its own, and those of a world model's stages."""
    places = [folder, *(folder / name for name in FOLDERS.values())]
    return [place for place in places if _is_model(place)]


def _is_model(folder: Path) -> bool:
    checkpoints = RunFolder(folder).checkpoints
    return any((folder / name).is_file() for name in WORLD_FILES) or (
        checkpoints.is_dir() and any(checkpoints.glob("*.ckpt"))
    )


def _model(folder: Path, root: Path) -> Model:
    row = describe(folder, root)
    return Model(str(folder), row.kind, row.env, row.frames, row.unit, row.mean_return, _command(folder))


def _shipped(card: Path) -> Model:
    told = json.loads(card.read_text(encoding="utf-8"))
    name, steps = f"{SHIPPED}{card.stem}", told.get("frames", told.get("updates"))
    unit = FRAMES if "frames" in told else "updates"
    kind = "online" if unit == FRAMES else "offline"
    return Model(name, kind, told["environment"], steps, unit, told["mean_return"], told["command"])


def _command(run: Path) -> str:
    """Return how a run was started: by its own diary, or by that of the run it is a part of."""
    for folder in (run, run.parent):
        try:
            return str(Diary.open(RunFolder(folder).diary).content.get("command", ""))
        except (RollmillError, OSError):
            continue
    return ""


def _stores(root: Path) -> list[Path]:
    found = sorted(path.parent for path in root.rglob(STORE_FILE) if not path.is_symlink())
    return [path for path in found if not any(part.startswith(".") for part in path.relative_to(root).parts)]


def _store(folder: Path) -> DataSet:
    try:
        told = describe_store(folder)
    except StoreError as error:  # one of many: the others are listed, too
        return DataSet(str(folder), "?", 0, 0, 0, None, "", 1, str(error))
    made = _command(folder.parent) if is_run(folder.parent) else str(told.made.get("command", told.created_by))
    return DataSet(
        str(folder),
        told.env_id,
        told.episodes,
        told.rows,
        told.bytes,
        told.returns.mean,
        made,
        len(told.problems),
    )
