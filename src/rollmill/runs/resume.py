"""What a run goes on from: its newest checkpoint, its saved settings, and which of them may differ by then.

``KINDS`` is the one answer to "may this setting change?", for every kind of run and every stage of a world model.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from rollmill.core.checkpoints import (
    Checkpoints,
    Loaded,
    load_checkpoint,
    require_version,
    restoring,
    saved_settings,
)
from rollmill.core.config.load import load_config
from rollmill.core.config.old_names import renamed
from rollmill.core.config.plain import completed, differences, to_dict
from rollmill.core.diary import Diary
from rollmill.core.errors import CheckpointError, ConfigError, RunFolderError
from rollmill.core.run_folder import Mode, RunFolder
from rollmill.core.run_kind import UNITS
from rollmill.core.shapes import MAPPING, Shape, check_shape
from rollmill.envs.settings import EnvSettings
from rollmill.runs.trust import load_saved

T = TypeVar("T")

CHECKPOINT_FORMAT = 1

# -- kinds of runs, and what may change in each -------------------------------------------------------------------

ALL = ("",)
"""Every key."""

MACHINE = (
    *("device", "threads", "workers", "envs", "mode", "processes", "gpu"),
    *("report_steps", "save_steps", "save_seconds", "tensorboard", "console_seconds"),
)
"""Last words of settings that say how a stage runs, not what comes out."""


@dataclass(frozen=True)
class Kind:
    """A kind of run, as far as its life is concerned."""

    saved_as: str
    """What its checkpoints call it."""
    words: str
    """What people call it."""
    unit: str
    """What its steps are."""
    free: tuple[str, ...] = ()
    """Keys, or blocks of them, that may change without any consequence, besides those of the machine."""
    extends: tuple[str, ...] = ()
    """Keys, or blocks of them, that may change, and it goes on: limits, and what it does after the last step."""


KINDS: Mapping[str, Kind] = {
    # Whether weights, environment and data still fit is compared with themselves when they are loaded.
    "online": Kind("online", "an online run", UNITS["online"], extends=ALL),
    "offline": Kind("offline", "an offline training", UNITS["offline"], extends=ALL),
    "world": Kind("world", "a world model", UNITS["world"], extends=ALL),  # stage by stage: see below
    "collect": Kind("world collect", "a collection", "episodes", extends=("episodes",)),
    "vae": Kind("world vae", "an encoder's training", UNITS["encoder"], extends=("fit.steps",)),
    "encode": Kind("world encode", "an encoding", "shards", free=ALL),  # depends on encoder and images alone
    "dynamics": Kind(
        *("world dynamics", "a dynamics model's fit", UNITS["dynamics"]), extends=("steps", "seconds", "batch_size")
    ),
    "controller": Kind(
        *("world controller", "a controller's search", UNITS["controller"]),
        extends=(
            *("generations", "seconds", "lockstep", "resume"),
            *("evaluate_every", "evaluate_episodes", "final_episodes"),
        ),
    ),
}

STRICT = Kind("", "", "")
"""A stage of a world model that has no row: with any other setting than the machine's it begins anew."""

SETTINGS_AMONG_INPUTS = {"env": EnvSettings(), "environment": EnvSettings()}
"""What a run is made from, where that is settings: an earlier version has saved it without what is newer."""

Answer = Literal["free", "extends", "never"]


def may_change(kind: str, key: str) -> Answer:
    """Return whether a setting of a run may differ from what it was begun with, and what follows from it."""
    rules, words = KINDS.get(kind, STRICT), key.split(".")
    if _among(key, rules.free) or (words[-1] in MACHINE and words[0] != "env"):
        return "free"
    return "extends" if _among(key, rules.extends) else "never"


def _among(key: str, chosen: Sequence[str]) -> bool:
    return any(not name or key == name or key.startswith(f"{name}.") for name in chosen)


@dataclass(frozen=True)
class Changes:
    """In which ways settings and inputs differ from those a run was begun with, in words."""

    extends: list[str] = field(default_factory=list)
    """It goes on where it was."""
    never: list[str] = field(default_factory=list)
    """It cannot go on: it would have to begin anew."""


def compare(
    kind: str,
    before: object,
    now: object,
    inputs_before: Mapping[str, Any] | None = None,
    inputs: Mapping[str, Any] | None = None,
) -> Changes:
    """Return what has changed that matters; ``inputs``: what the run is made from, by name."""
    changes = Changes()
    for key, (old, new) in differences(before, now).items():
        answer = may_change(kind, key)
        if answer != "free":
            getattr(changes, answer).append(f"{key}: {_short(old)} -> {_short(new)}")
    known = inputs_before or {}
    known = completed(known, {name: default for name, default in SETTINGS_AMONG_INPUTS.items() if name in known})
    changes.never.extend(f"another {name}" for name, value in (inputs or {}).items() if known.get(name) != value)
    return changes


def _short(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def refuse_changes(kind: str, loaded: Loaded, config: object, inputs: Mapping[str, Any]) -> None:
    """Raise ConfigError where a run that is continued was begun with other settings, or from something else."""
    if KINDS[kind].extends == ALL:
        return
    # Through the class, so that a setting which is newer than the checkpoint has its default there.
    before = saved_settings(type(config), loaded.state["config"], loaded.path)
    known = loaded.state.get("inputs", inputs)  # encoders of version 0.1 did not say
    never = compare(kind, before, config, known, inputs).never
    if never:
        raise ConfigError(
            f"{loaded.path.parent.parent} was begun with other settings ({', '.join(never)}): set them back, or choose "
            "another folder"
        )


Shapes = Mapping[str, tuple[int, ...]]
"""Of the weights of a network, by name."""


def refuse_other_network(
    loaded: Loaded, saved: Shapes, config: T, network: Sequence[str], shapes: Callable[[T], Shapes]
) -> None:
    """Raise ConfigError, which names settings, if ``saved`` weights do not fit the network ``config`` asks for.

    ``network``: keys, or blocks of them, that make the network; ``shapes`` builds it.
    """
    before = completed(renamed(loaded.state["config"]), type(config)())
    changed = {key: both for key, both in differences(before, config).items() if _among(key, network)}
    if not changed or (asked := shapes(config)) == saved:
        return
    guilty = {
        key: both
        for key, both in changed.items()
        if _among(key, UNBUILT) or _shapes_with(config, key, both[0], shapes) != asked
    } or changed
    words = ", ".join(f"{key} {_short(old)} -> {_short(new)}" for key, (old, new) in guilty.items())
    back = " ".join(shlex.quote(f"{key}={_word(old)}") for key, (old, _) in guilty.items())
    raise ConfigError(
        f"{words}: the shape of the network cannot change, and {loaded.path} has the weights of another one; "
        f"set it back ({back}), or begin a run without --resume and --restore"
    )


UNBUILT = ("model.custom", "model.custom_args")
"""A network of one's own is not built with what a checkpoint says: whose code that is was not asked."""


def _shapes_with(config: T, key: str, value: Any, shapes: Callable[[T], Shapes]) -> Shapes | None:
    """Return the network's shapes if one setting were another; None where that goes with nothing else."""
    values = to_dict(config)
    *blocks, name = key.split(".")
    place = values
    for block in blocks:
        place = place[block]
    place[name] = value
    try:
        return shapes(load_config(type(config), (), (), base=values))
    except ConfigError:
        return None


def _word(value: Any) -> str:
    """Return a value as it is typed on the command line."""
    return value if isinstance(value, str) else json.dumps(value, default=str, separators=(",", ":"))


# -- its checkpoint -----------------------------------------------------------------------------------------------


def find_checkpoint(
    path: Path, mode: Mode, restore: Path | None, check: Callable[[Loaded], Loaded], must_exist: bool = True
) -> Loaded | None:
    """Find the checkpoint a run in the folder ``path`` goes on from, read and verified before anything is changed.

    Returns None for a run that begins: a new one, or one to be resumed that never came to its first training step.
    ``must_exist``: one that did must have a checkpoint.
    """
    if restore is not None:
        return check(load_checkpoint(restore))
    if mode != "resume" or not path.is_dir():
        return None
    RunFolder.create(path, "resume").close()  # first: one that is in use may have no checkpoint yet
    folder = RunFolder(path)
    checkpoints = Checkpoints(folder.checkpoints)
    if checkpoints.newest() is None and (not must_exist or folder.never_began()):
        _require_no_parent(folder)
        return None
    return check(checkpoints.load_newest())


def _require_no_parent(folder: RunFolder) -> None:
    """Raise CheckpointError if a run was to begin with the weights of another one: it must not begin without them."""
    parent = Diary.open(folder.diary).content.get("parent") if folder.diary.exists() else None
    if parent:
        raise CheckpointError(
            f"{folder.path}: the run ended before it had loaded {parent['checkpoint']}: start it again as it was "
            "started, without --resume"
        )


def require_kind(loaded: Loaded, kind: str, shape: Shape) -> Loaded:
    """Return the checkpoint itself. Raises CheckpointError unless a run of this kind wrote it, with this ``shape``."""
    rules, state, path = KINDS[kind], loaded.state, loaded.path
    if not isinstance(state, Mapping) or state.get("kind") != rules.saved_as:
        raise CheckpointError(f"{path}: not a checkpoint of {rules.words}; choose another one")
    if "format" in state:
        require_version(path, state, CHECKPOINT_FORMAT, "format")
    with restoring(path):
        check_shape(state, shape)
    return loaded


def stage_check(stage: str, shape: Mapping[str, Shape]) -> Callable[[Loaded], Loaded]:
    """Return a check that gives a checkpoint of this stage of a world model back.

    It raises CheckpointError unless the checkpoint is one, of this ``shape``.
    """

    def check(loaded: Loaded) -> Loaded:
        state = loaded.state
        if isinstance(state, Mapping) and "facts" in state:  # as version 0.1 wrote it
            with restoring(loaded.path):
                check_shape(state, {"facts": {"settings": MAPPING, "inputs": MAPPING}})
            facts = state["facts"]
            state = {**state, "format": 1, "config": facts["settings"], "inputs": facts["inputs"]}
            loaded = replace(loaded, state=state)
        return require_kind(loaded, stage, {"format": int, "config": MAPPING, "inputs?": MAPPING, **shape})

    return check


# -- its settings -------------------------------------------------------------------------------------------------


def resumed_settings(
    kind: type[T], folder: RunFolder, files: Sequence[Path], overrides: Sequence[str], restore: Path | None = None
) -> T:
    """Return a run's settings, below the given ones: of its ``config.yaml`` or, if that is gone, its checkpoint."""
    if folder.config.is_file():
        return load_config(kind, (folder.config, *files), overrides)
    if not folder.holds_run():
        return load_config(kind, files, overrides)  # there is nothing to resume, as taking the folder will say
    own = restore is not None and restore.resolve().parent == folder.checkpoints.resolve()
    checkpoints = Checkpoints(folder.checkpoints)
    if not own and checkpoints.newest() is None:
        raise RunFolderError(
            f"{folder.config} is missing, and there is no checkpoint, which would have the settings, too: "
            "start the run again without --resume, or choose another name"
        )
    loaded = load_checkpoint(restore) if restore is not None and own else checkpoints.load_newest()
    saved = loaded.state.get("config") if isinstance(loaded.state, Mapping) else None
    if not isinstance(saved, Mapping):
        raise CheckpointError(f"{loaded.path}: it has no settings, and {folder.config} is missing")
    print(f"{folder.config} is missing: the settings are those of {loaded.path}", file=sys.stderr)
    return load_saved(kind, saved, loaded.path, files=files, overrides=overrides, trains=True)
