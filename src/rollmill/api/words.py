"""From keywords of Python to the words that all settings are made of, and back in what errors say."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from rollmill.core.errors import ConfigError, RunFolderError
from rollmill.core.given import give
from rollmill.launch.experiment import flat
from rollmill.launch.plan import override

Env: TypeAlias = str | Callable[..., Any] | Mapping[str, Any]
"""A name of an environment, a callable that makes one, or the whole block: ``{"id": ..., "args": {...}}``."""

Files: TypeAlias = str | Path | Sequence[str | Path]
"""Settings files, by their path or the name under which they come with the package (``"cartpole"``)."""


def env_words(env: Env | None) -> dict[str, Any]:
    """Return the settings of an environment."""
    if env is None:
        return {}
    if not isinstance(env, str | Mapping) and not callable(env):
        raise ConfigError(f"env: expected a name, or a callable that makes an environment, got {env!r}")
    return {"env": env} if isinstance(env, Mapping) else {"env.id": env}


def setting_words(*layers: Mapping[str, Any]) -> tuple[str, ...]:
    """Turn ``{"learning": {"gamma": 0.9}, "stop.frames": 10}`` into ``learning.gamma=0.9``, ``stop.frames=10``; later
    win.

    Classes and functions among the values get a name (``core.given``), by which worker processes know them, too.
    """
    return tuple(override(key, _named(value)) for layer in layers for key, value in flat(layer).items())


def _named(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_named(item) for item in value]
    return give(value) if callable(value) else value


def files_of(config: Files) -> tuple[Path, ...]:
    return tuple(Path(file) for file in ([config] if isinstance(config, str | Path) else config))


@contextlib.contextmanager
def said_in_python() -> Iterator[None]:
    """Let errors that speak of a command line speak of Python's keywords instead."""
    try:
        yield
    except (ConfigError, RunFolderError) as error:
        text = str(error).replace("command line '", "'")
        error.args = (re.sub(r"--(resume|overwrite)\b", r"\1=True", text),)
        raise
