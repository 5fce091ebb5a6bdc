"""The user's own code that no other process can import: what a notebook cell or a script defines.

``give`` puts such an object under a name, ``__main__:Name``, which settings hold like any other. Every process that is
started from here gets all that was given, pickled by value, and ``core.imports`` finds it there under the same name.
The code never goes to disk: whoever wants to continue such a run gives the object again.
"""

from __future__ import annotations

import base64
import functools
import json
import pickle
import re
import sys
from typing import Any

from rollmill.core.errors import ConfigError, error_text

MAIN = "__main__"

_objects: dict[str, Any] = {}
_packed: dict[str, dict[str, str]] = {}
"""By name, ready to be sent: the code as text, or why there is none. Filled when the first process is started."""


def give(thing: Any) -> str:
    """Keep ``thing``, and return the name by which ``import_object`` finds it, here and in processes that start later.

    Where others can import it by themselves, the name is where it lies, ``module:Name``, and nothing is kept.
    """
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", "")
    if module not in (None, MAIN) and name and getattr(sys.modules.get(module), name, None) is thing:
        return f"{module}:{name}"
    name = _short_name(thing)
    _objects[name] = thing
    _packed.pop(name, None)
    return f"{MAIN}:{name}"


def _short_name(thing: Any) -> str:
    """Return the name that a function, a class, a partial of one, or an object that can be called goes by."""
    while isinstance(thing, functools.partial):
        thing = thing.func
    name = str(getattr(thing, "__name__", None) or type(thing).__name__)
    return re.sub(r"\W+", "_", name).strip("_") or "own"


def find(name: str) -> Any:
    """Return what was given under a name, in this process or in the one that has started it; None where nothing was."""
    if name not in _objects and name in _packed:
        _objects[name] = _unpack(name)
    return _objects.get(name)


def require_sendable(target: str) -> None:
    """Raise ConfigError if a run's processes could not be given what ``target`` names."""
    source, _, name = target.rpartition(":")
    if source == MAIN and name in _objects:
        _refuse_unsent(name, _pack(name))


def packed() -> str:
    """Return all that was given, as text for a process that is about to start."""
    return json.dumps({name: _pack(name) for name in {**_packed, **_objects}})


def receive(text: str) -> None:
    """Take over what the parent of this process was given; each thing is unpacked when it is asked for."""
    _packed.update(json.loads(text))


def _pack(name: str) -> dict[str, str]:
    if name not in _packed:
        import cloudpickle

        try:
            _packed[name] = {"code": base64.b64encode(cloudpickle.dumps(_objects[name])).decode()}
        except Exception as error:  # noqa: BLE001 - whatever the user's objects raise; told to whoever needs this one
            _packed[name] = {"problem": error_text(error)}
    return _packed[name]


def _unpack(name: str) -> Any:
    entry = _packed[name]
    _refuse_unsent(name, entry)
    try:
        return pickle.loads(base64.b64decode(entry["code"]))  # noqa: S301 - from our own parent, never from a file
    except Exception as error:  # whatever the user's objects raise
        raise ConfigError(f"{MAIN}:{name} cannot be made in another process: {error_text(error)}") from error


def _refuse_unsent(name: str, entry: dict[str, str]) -> None:
    if "problem" in entry:
        raise ConfigError(
            f"{MAIN}:{name} cannot be sent to worker processes ({entry['problem']}). Have it make what cannot be "
            "copied when it is called, put it into a file (path/to/file.py:Name), or use sampling.mode=serial, which "
            "needs no other process"
        )
