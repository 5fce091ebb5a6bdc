"""The user's own code by name: ``module:Name`` or ``path/to/file.py:Name``.

Importing runs that code, with the rights of whoever starts the run; a config that names it is code, too. Whose word
counts for it is decided in ``runs.trust``.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from rollmill.core.errors import ConfigError
from rollmill.core.text import nearest


def import_object(target: str, key: str, fits: Callable[[Any], bool] = callable) -> Any:
    """What ``target`` names. ConfigError (naming the config ``key``) lists what there is instead.

    ``fits`` tells which attributes of the module could be meant at all.
    """
    source, _, name = target.rpartition(":")
    if not source or not name:
        raise ConfigError(f'{key}={target}: expected "module:Name" or "path/to/file.py:Name"')
    module = _load_file(source, key) if source.endswith(".py") else _load_module(source, key)
    found = getattr(module, name, None)
    if found is None or not fits(found):
        own = {n: v for n, v in vars(module).items() if getattr(v, "__module__", None) == module.__name__}
        names = sorted(n for n, v in own.items() if not n.startswith("_") and fits(v))
        hint = nearest(name, names)
        problem = "has no" if found is None else "has nothing fitting under the name"
        raise ConfigError(
            f"{key}={target}: {source} {problem} {name!r}{f'; {hint}' if hint else ''} "
            f"(it has: {', '.join(names) or 'none'})"
        )
    return found


def module_command(module: str, *words: str) -> list[str]:
    """The command line that runs a module of ours in a process of its own.

    ``-P``: Python would look into the current folder first, for every module, and that may be somebody else's folder.
    """
    return [sys.executable, "-P", "-m", module, *words]


def _load_file(source: str, key: str) -> ModuleType:
    path = Path(source).resolve()
    if not path.is_file():
        raise ConfigError(f"{key}: there is no file {path}")
    name = f"rollmill_custom_{path.stem}"
    module_spec = importlib.util.spec_from_file_location(name, path)
    assert module_spec is not None
    assert module_spec.loader is not None  # both hold for every .py file
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[name] = module  # dataclasses and pickling look the module up by name
    module_spec.loader.exec_module(module)
    return module


def _load_module(source: str, key: str) -> ModuleType:
    ours = source.partition(".")[0] == __name__.partition(".")[0]
    # Not for our own: an optional package that is not installed would be looked for in whatever folder this is.
    if not ours and os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())  # as for a Python script
    try:
        return importlib.import_module(source)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{source}.".startswith(f"{error.name}."):
            raise  # the module exists, something it imports does not
        raise ConfigError(
            f"{key}: no module named {source!r} (searched: the current folder and sys.path); "
            "a file can be given as path/to/file.py:Name"
        ) from error
