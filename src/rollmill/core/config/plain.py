"""Settings as plain values (dict, list, str, int, float, bool, None): to write, to compare, to complete."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def to_dict(config: object) -> dict[str, Any]:
    """Return the settings as nested plain values (dict, list, str, int, float, bool, None), in declared order."""
    if not dataclasses.is_dataclass(config) or isinstance(config, type):
        raise TypeError(f"expected settings, got {config!r}")
    return {field.name: plain(getattr(config, field.name)) for field in dataclasses.fields(config) if field.init}


def completed(values: Mapping[str, Any], defaults: object) -> dict[str, Any]:
    """Give settings that an earlier version has saved the defaults of the keys that it did not know.

    ``defaults``: an instance of their class, or a mapping of such instances for blocks that stand together.
    """
    known = dict(defaults) if isinstance(defaults, Mapping) else fields_of(defaults)
    found = dict(values)
    for name, default in known.items():
        if name not in found:
            found[name] = plain(default)
        elif dataclasses.is_dataclass(default) and isinstance(found[name], Mapping):
            found[name] = completed(found[name], default)
    return found


def fields_of(settings: object) -> dict[str, Any]:
    """Return the fields of a dataclass by name, with their values as they are."""
    names = dataclasses.fields(settings)  # type: ignore[arg-type]  # an instance of a settings class
    return {field.name: getattr(settings, field.name) for field in names}


def dump_yaml(config: object) -> str:
    """Return YAML text from which ``load_config`` makes an equal config."""
    from rollmill.core.config.yaml import to_yaml

    return to_yaml(to_dict(config))


def differences(a: object, b: object) -> dict[str, tuple[Any, Any]]:
    """Return where two configs (or dicts made of them) differ: dotted key -> the value in each.

    A side that lacks the key counts as None. A block or mapping that only one side has is reported whole.
    """
    found: dict[str, tuple[Any, Any]] = {}
    _compare(plain(a), plain(b), "", found)
    return found


def changed_settings(config: object) -> dict[str, Any]:
    """Return the settings that differ from their defaults, by dotted key; where the run lives is left out."""
    found = differences(config, type(config)())
    return {key: own for key, (own, _) in found.items() if key == "run.seed" or not key.startswith("run.")}


def _compare(a: Any, b: Any, prefix: str, found: dict[str, tuple[Any, Any]]) -> None:
    for name in dict.fromkeys((*a, *b)):
        left, right = a.get(name), b.get(name)
        if isinstance(left, dict) and isinstance(right, dict):
            _compare(left, right, f"{prefix}{name}.", found)
        elif (name in a) != (name in b) or not _same(left, right):
            found[prefix + name] = (left, right)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, bool) != isinstance(b, bool):  # True == 1 in Python, not in a config
        return False
    return bool(a == b or (a != a and b != b))  # nan differs from itself


def plain(value: Any) -> Any:
    """Return ``value`` with settings as dicts, tuples as lists and paths as text; other objects are refused."""
    if dataclasses.is_dataclass(value):
        return to_dict(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    for kind in (int, float, str):  # subclasses, numpy's floats for one, become the plain kind
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(f"settings hold plain values only, not {type(value).__name__}: {value!r}")
