"""The user's own code by name: ``module:Name`` or ``path/to/file.py:Name``.

Importing runs that code, with the rights of whoever starts the run; a config that names it is code, too. Whose word
counts for it is decided in ``runs.trust``.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from rollmill.core import given
from rollmill.core.errors import ConfigError, MissingExtraError, RollmillError, error_text
from rollmill.core.text import nearest


def import_object(target: str, key: str, fits: Callable[[Any], bool] = callable) -> Any:
    """Import what ``target`` names; raises ConfigError, which names the config ``key`` and lists what there is instead.

    ``fits`` tells which attributes of the module could be meant at all. A module that cannot be imported is a
    ConfigError, too: one line where a package is missing, else with the traceback from the module on.
    """
    source, _, name = target.rpartition(":")
    if not source or not name:
        raise ConfigError(f'{key}={target}: expected "module:Name" or "path/to/file.py:Name"')
    if source == given.MAIN and (own := given.find(name)) is not None and fits(own):
        return own
    module = import_module(source, key, target)
    found = getattr(module, name, None)
    if found is None and source == given.MAIN:
        raise ConfigError(
            f"{key}={target}: what a notebook or script defines exists in its own process only. Give the object itself "
            f"there (rollmill.train({key}={name})), or put it into a file ({key}=path/to/file.py:{name})"
        )
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


def check_custom(custom: str | None, custom_args: Mapping[str, Any]) -> None:
    """Check settings with the keys ``custom`` and ``custom_args``; raises ValueError where these make no sense."""
    if custom is not None and not all(custom.rpartition(":")[::2]):
        raise ValueError(f'custom must read "module:Class" or "path/to/file.py:Class", not {custom!r}')
    if custom_args and custom is None:
        raise ValueError("custom_args are given but custom is not")


def check_arguments(found: type, label: str, given: Mapping[str, object], custom_args: Mapping[str, Any]) -> None:
    """Raise ConfigError unless a class can be called with what all of its kind are ``given``, and its ``custom_args``.

    ``label`` is what the user has written: ``model.custom=module:Class``.
    """
    signature = inspect.signature(found)
    try:
        signature.bind(*given.values(), **custom_args)
    except TypeError as error:
        accepted = [str(parameter) for parameter in list(signature.parameters.values())[len(given) :]]
        raise ConfigError(
            f"{label} is called with ({', '.join([*given, '**custom_args'])}): {error}; "
            f"its further parameters: {', '.join(accepted) or 'none'}"
        ) from error


def import_module(source: str, key: str, target: str = "") -> ModuleType:
    """Import a module or file of the user's; ``target`` is what they have written, if that is more than the module."""
    target = target or source
    try:
        if not source.endswith(".py"):
            return _load_module(source, key)
        path = Path(source).resolve()
        if not path.is_file():
            raise ConfigError(f"{key}: there is no file {path}")
        return run_file(path, "custom")
    except RollmillError:
        raise
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"{key}={target} cannot be imported: {error} ({_last_place(error)})") from error
    except Exception as error:  # whatever user code raises
        raise ConfigError(f"{key}={target} cannot be imported: {error_text(error)}\n{_own_part(error)}") from error


def is_installed(package: str) -> bool:
    """Return whether a package could be imported, without importing it."""
    if package in sys.modules:
        return sys.modules[package] is not None
    return importlib.util.find_spec(package) is not None


def _last_place(error: BaseException) -> str:
    """Return where it was raised: the last line of the traceback that is not the import system's."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen")]
    return f"{frames[-1].filename}, line {frames[-1].lineno}"


def _own_part(error: BaseException) -> str:
    """Return the traceback without what led to the module: our lines, and those of the import system."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, importlib.__file__):
        trace = trace.tb_next
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith("<frozen importlib"):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace)).rstrip()


def run_file(path: Path, kind: str) -> ModuleType:
    """Run a Python file as a module ``rollmill_KIND_STEM``, and return that."""
    name = f"rollmill_{kind}_{path.stem}"
    module_spec = importlib.util.spec_from_file_location(name, path)
    assert module_spec is not None
    assert module_spec.loader is not None  # both hold for every .py file
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[name] = module  # dataclasses and pickling look the module up by name
    module_spec.loader.exec_module(module)
    return module


def look_here() -> None:
    """Let modules be found in the current folder, too, as for a Python script."""
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())


def _load_module(source: str, key: str) -> ModuleType:
    ours = source.partition(".")[0] == __name__.partition(".")[0]
    # Not for our own: an optional package that is not installed would be looked for in whatever folder this is.
    if not ours:
        look_here()
    try:
        return importlib.import_module(source)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{source}.".startswith(f"{error.name}."):
            raise  # the module exists, something it imports does not
        raise ConfigError(
            f"{key}: no module named {source!r} (searched: the current folder and sys.path); "
            "a file can be given as path/to/file.py:Name"
        ) from error
