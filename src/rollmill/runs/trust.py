"""Settings that come out of a file which somebody else may have made: a checkpoint, a store, a model.

Such settings may name code (``env.id=os:system``, ``model.custom``), and building what they name runs it. It is run
only where the user names it, too, in the words or files of the command, or says that all of it is trusted. Whatever
builds an environment or a network by the word of a file gets its settings here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, TypeVar

from rollmill.core.checkpoints import saved_settings
from rollmill.core.config.load import given_keys
from rollmill.core.config.schema import KeyPath, settings
from rollmill.core.fields import PREVIOUS_ACTION, PREVIOUS_REWARD, EnvSpec
from rollmill.core.trust import refuse_code
from rollmill.envs.code_words import code_words, odd_arguments
from rollmill.envs.settings import EnvSettings
from rollmill.models.settings import ModelSettings
from rollmill.runs.settings.train import TrainConfig

T = TypeVar("T")


@settings
class SavedEnv:
    """An environment as a file names it."""

    env: EnvSettings = field(default_factory=EnvSettings)


def stored_env(
    env_id: str, args: Mapping[str, Any], settings: Mapping[str, Any] | None, spec: EnvSpec
) -> dict[str, Any]:
    """Return the environment of a store's episodes, as ``SavedEnv`` reads it.

    ``settings``: what else the store knows of it. Version 0.1 has kept id and arguments alone; what that had added to
    observations shows in their names.
    """
    if settings is None:
        names = [field.name for field in spec.observation]
        settings = {name: True for name in (PREVIOUS_ACTION, PREVIOUS_REWARD) if name in names}
    return {"env": {**settings, "id": env_id, "args": dict(args)}}


def load_saved(
    cls: type[T],
    saved: Mapping[str, Any],
    source: Path,
    *,
    files: Sequence[Path] = (),
    overrides: Sequence[str] = (),
    trust_code: bool = False,
    trains: bool = False,
) -> T:
    """Load settings that ``source`` holds, below what the user gives.

    ``trains``: for a training, which runs more of the code they name. Raises UntrustedCodeError where they name code
    that the user has not named, unless it is trusted.
    """
    config = saved_settings(cls, saved, source, files, overrides)
    if not trust_code:
        given = given_keys(cls, files, overrides)
        refuse_code({key: value for key, value in code_in(config, trains).items() if key not in given}, source)
    return config


def code_in(config: object, trains: bool = False) -> dict[KeyPath, Any]:
    """Return the keys of a configuration whose values name code, a program or a file that can do as much.

    ``trains``: also the code that acting never runs, of learners and observers.
    """
    env: Any = getattr(config, "env", None)
    model: Any = getattr(config, "model", None)
    found: dict[KeyPath, Any] = {}
    if isinstance(env, EnvSettings):
        found |= {("env", *key): value for key, value in code_words(env).items()}
    if isinstance(model, ModelSettings) and model.custom is not None:
        found["model", "custom"] = model.custom
        found |= odd_arguments(model.custom_args, ("model", "custom_args"))
    if trains and isinstance(config, TrainConfig):
        found |= {("learning", "custom"): config.learning.custom} if config.learning.custom else {}
        found |= {("observers", "use"): list(config.observers.use)} if config.observers.use else {}
        found |= {("selfplay", "rule"): config.selfplay.rule} if config.selfplay.own_rule else {}
        coded = [name for name in config.selfplay.anchors if ":" in name]
        found |= {("selfplay", "anchors"): config.selfplay.anchors} if coded else {}
    return found
