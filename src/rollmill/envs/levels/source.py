"""Whose levels are whose: each environment, with the arguments and versions that decide its levels, has a folder."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rollmill.core.errors import ConfigError
from rollmill.core.protocols import Env
from rollmill.envs.levels.env import KeepsLevels, LevelEnv
from rollmill.envs.levels.store import LevelStore
from rollmill.envs.settings import EnvSettings

NAME_CHARACTERS, HASH_DIGITS = 60, 10
FORMAT = 1
"""Of what our environments save: levels that were saved in another way are kept apart."""


def open_store(
    settings: EnvSettings, maker: object, args: Mapping[str, Any], packages: Sequence[str] = ()
) -> LevelStore:
    """Open the store in which the levels of the environments are kept that ``maker`` builds with ``args``.

    ``packages``: distributions whose versions decide the levels, where the maker names none itself.
    """
    free: frozenset[str] = getattr(maker, "level_free", frozenset())
    about = {
        "format": FORMAT,
        "env": settings.id,
        "args": {name: value for name, value in args.items() if name not in free},
        "packages": _versions(getattr(maker, "level_packages", packages)),
    }
    text = json.dumps(about, sort_keys=True, default=str)
    readable = re.sub(r"[^\w.-]+", "-", settings.id).strip("-.")[-NAME_CHARACTERS:]
    name = f"{readable}-{hashlib.sha256(text.encode()).hexdigest()[:HASH_DIGITS]}"
    folder = Path(settings.levels.folder).expanduser() / name
    return LevelStore(folder, settings.levels.max_bytes, json.loads(text))


def keep_levels(env: Env, store: LevelStore, name: str) -> Env:
    """Return the environment, with its levels from the store; raises ConfigError if it cannot save them."""
    if isinstance(env, KeepsLevels):
        return LevelEnv(env, store)
    env.close()
    raise ConfigError(
        f"env.levels.folder: the levels of {name} cannot be kept, it has no save_level and load_level; "
        "env.levels.count draws from a fixed set of seeds, which any environment can do"
    )


def _versions(packages: Sequence[str]) -> dict[str, str]:
    from importlib import metadata  # megabytes, with the parser of e-mails: only where levels are kept

    found = {}
    for package in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found
