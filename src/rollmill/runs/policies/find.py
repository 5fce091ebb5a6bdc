"""Which checkpoints a path means: a file, the newest (best, every, a past) one of a run folder, a pattern."""

from __future__ import annotations

import contextlib
import glob
from collections.abc import Sequence
from pathlib import Path

from rollmill.core.checkpoints import Checkpoints
from rollmill.core.errors import CheckpointError, ConfigError
from rollmill.core.fields import EnvSpec
from rollmill.core.model_pool import ModelPool
from rollmill.core.run_folder import RunFolder
from rollmill.core.run_kind import FOLDERS
from rollmill.core.text import nearest
from rollmill.core.tree_file import read_header
from rollmill.worldmodel.files import CONTROLLER

TRAINED = Path(__file__).parents[2] / "trained"
"""Policies that come with the package, each with a card beside it (``tools/trained_policies.py``)."""
SHIPPED = "policy:"


def shipped_policy(target: Path) -> Path:
    """Return for ``policy:NAME`` the file of that name that comes with the package; anything else as it is."""
    word = str(target)
    if not word.startswith(SHIPPED) or target.exists():
        return target
    names = sorted(path.stem for path in TRAINED.glob("*.ckpt"))
    name = word.removeprefix(SHIPPED)
    if name not in names:
        hint = nearest(name, names)
        hint = hint or f"there are {', '.join(names)}"
        raise ConfigError(f"{word}: no policy of this name comes with rollmill; {hint}")
    return TRAINED / f"{name}.ckpt"


def find_targets(words: Sequence[str | Path]) -> list[str]:
    """Replace patterns (``runs/*/doom*``) among words by what they match. Raises ConfigError if one finds nothing."""
    found: dict[str, None] = {}
    for word in map(str, words):
        if not glob.has_magic(word) or Path(word).exists():
            found[word] = None
            continue
        matches = sorted(glob.glob(word, recursive=True))
        usable = [name for name in matches if Path(name).is_file() or RunFolder(Path(name)).checkpoints.is_dir()]
        if not usable:
            what = "matches neither a checkpoint nor a run folder" if matches else "matches nothing"
            raise ConfigError(f"{word}: {what}")
        found.update(dict.fromkeys(usable))
    return list(found)


def find_checkpoints(target: Path, best: bool = False, every: bool = False) -> list[Path]:
    """Return the files a path means, oldest first; nothing is read but names (and, for ``best``, headers)."""
    target = shipped_policy(target)
    folder = RunFolder(target)
    try:
        if target.is_file():
            return [target]
        is_run = folder.checkpoints.is_dir()
    except OSError as error:  # no permission, a name that is too long
        raise CheckpointError(f"{target}: {error.strerror or error}") from error
    if not is_run:
        raise CheckpointError(f"{target}: neither a checkpoint nor a run folder with checkpoints")
    checkpoints = Checkpoints(folder.checkpoints)
    if every:
        paths = [checkpoint.path for checkpoint in checkpoints.list()]
        if not paths:
            raise CheckpointError(f"{target}: no checkpoint yet")
        return paths
    found = checkpoints.best() if best else checkpoints.newest()
    if found is None:
        unknown = "no checkpoint has a known return, or checkpoints.best_metric; leave out --best"
        what = unknown if best else "no checkpoint yet"
        raise CheckpointError(f"{target}: {what}")
    return [found.path]


def exists(path: Path) -> bool:
    """Return whether there is something. Raises CheckpointError if nobody may know."""
    try:
        return path.exists()
    except OSError as error:  # no permission, a name that is too long
        raise CheckpointError(f"{path}: {error.strerror or error}") from error


def find_controller(target: Path) -> Path | None:
    """Find the controller of a world model that a path means: its file, the folder of its search, or of the model."""
    if not exists(target):
        return None
    if target.is_dir():
        places = (target / CONTROLLER.name, target / FOLDERS["controller"] / CONTROLLER.name)
        return next((file for file in places if file.is_file()), None)
    try:
        header = read_header(target)
    except CheckpointError:  # reading it as a checkpoint says what is wrong
        return None
    return target if CONTROLLER.is_in(header) else None


def find_version(run: Path, frames: int) -> Path:
    """Find the newest checkpoint of a run that is not beyond ``frames``. Raises ConfigError if there is none."""
    find_checkpoints(run)  # or it is no run
    found = Checkpoints(RunFolder(run).checkpoints).list()
    past = [checkpoint.path for checkpoint in found if checkpoint.step <= frames]
    if not past:
        raise ConfigError(f"{run}@{frames}: the oldest checkpoint that is kept is at {found[0].step:,} frames")
    return past[-1]


def require_fit(saved: EnvSpec, found: EnvSpec) -> None:
    """Raise ConfigError unless a policy made for ``saved`` can play in ``found``; names and frames may differ."""
    for what, is_same in (
        ("observations", saved.observation == found.observation),
        ("actions", saved.action == found.action),
        ("agents", saved.agents == found.agents),
    ):
        if not is_same:
            raise ConfigError(
                f"the policy was trained in {saved.name}, {_spaces(saved)}; it cannot play in {found.name}, "
                f"whose {what} differ: {_spaces(found)}"
            )


def _spaces(spec: EnvSpec) -> str:
    """Return a spec as text, ``(obs uint8[8, 8, 3]; discrete actions [3]; 1 agent)``, bounds left out."""
    fields = ", ".join(f"{field.name} {field.dtype}{list(field.shape)}" for field in spec.observation)
    size = [*spec.action.nvec, *spec.action.shape]
    return f"({fields}; {spec.action.kind} actions {size}; {spec.agents} agent{'' if spec.agents == 1 else 's'})"


def checkpoint_name(checkpoint: Path) -> str:
    """Return a name that is short and the same everywhere: ``<run>/<file>``, or ``<run>/model <id>`` of a pool."""
    path = checkpoint.absolute()
    if path.parent.name == RunFolder(Path()).pool.name:
        with contextlib.suppress(CheckpointError):  # whose index is damaged; the file is called by its name then
            for entry in ModelPool(path.parent).entries():
                if entry.file == path.name:
                    return f"{path.parent.parent.name}/model {entry.id}"
    return f"{path.parent.parent.name}/{path.name}" if _inside_run(path) else path.name


def record_folder(checkpoint: Path) -> Path:
    """Return where the episodes of a checkpoint go by default: ``<run>/eval/<checkpoint>``."""
    return (checkpoint.parent.parent if _inside_run(checkpoint) else checkpoint.parent) / "eval" / checkpoint.stem


def _inside_run(checkpoint: Path) -> bool:
    return checkpoint.parent.name == RunFolder(Path()).checkpoints.name
