"""Layers of settings: files and overrides, stacked into one tree that knows the source of every leaf."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_origin

from rollmill.core.config.old_names import OLD_NAMES, is_saved, renamed
from rollmill.core.config.other_names import keys_called
from rollmill.core.config.schema import KeyPath, dotted_keys, keys_of
from rollmill.core.config.shipped import find_file
from rollmill.core.config.types import alternatives
from rollmill.core.errors import ConfigError
from rollmill.core.opening import MOST_DEPTH
from rollmill.core.text import closest, cut, did_you_mean, show

MOST_PROBLEMS = 50
"""Unknown keys that are told at once: a file with more was not written for us."""
LARGEST = 3.4e38
"""Of numbers with a fraction: networks, environments and timers compute with 32 bits."""
_ALIKE = 0.85
"""Similarity from which on a name of another block is worth naming: nobody means ``cluster.nodes`` by ``env.nope``."""


@dataclass(frozen=True)
class Layer:
    source: str
    data: dict[str, Any]
    lines: Mapping[KeyPath, int]

    def where(self, path: KeyPath) -> str:
        """Return the source of one key, with the line of the nearest key above it that has one."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.lines:
                return f"{self.source}, line {self.lines[path[:end]]}"
        return self.source


def file_layer(path: Path) -> Layer:
    from rollmill.core.config.yaml import read_mapping

    path = find_file(path)
    found = read_mapping(path)
    return Layer(str(path), renamed(found.data) if is_saved(path) else found.data, found.lines)


def override_layer(text: str) -> Layer:
    from rollmill.core.config.yaml import parse_value

    source = f"command line '{''.join(c if c.isprintable() else repr(c)[1:-1] for c in cut(text, 200))}'"
    if unprintable := next((c for c in text if c < " " or c == "\x7f"), ""):  # YAML would fold a line break to a space
        raise ConfigError(f"{source}: {unprintable!r} in it; only YAML's double quotes, with escapes, can hold it")
    key, equals, value = text.partition("=")
    path = [part.strip() for part in key.split(".")]
    if not equals:
        raise ConfigError(f"{source}: an override is written key.sub=value; did you mean '{key.strip()}=VALUE'?")
    if len(path) > MOST_DEPTH:
        raise ConfigError(f"{source}: a key of {len(path)} parts; {MOST_DEPTH} are the most")
    if not all(path):
        raise ConfigError(f"{source}: the part before '=' must be a key; an override is written key.sub=value")
    data = parse_value(value, source)
    for part in reversed(path):
        data = {part: data}
    return Layer(source, data, {})


class Stack:
    """Layers merged into one tree of plain values, with the source of every leaf."""

    def __init__(self, root: type) -> None:
        self.root = root
        self.tree: dict[str, Any] = {}
        self.sources: dict[KeyPath, str] = {}
        self.problems: list[str] = []

    def add(self, layer: Layer) -> None:
        self._merge_block(self.root, self.tree, layer.data, (), layer)

    def source(self, path: KeyPath) -> str:
        """Return where the value at ``path`` came from: the nearest key at or above it that has a source."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.sources:
                return self.sources[path[:end]]
        return "defaults"

    def sources_below(self, path: KeyPath, limit: int = 4) -> str:
        """Return where the values of a block came from, in one phrase."""
        found = list(dict.fromkeys(where for key, where in self.sources.items() if key[: len(path)] == path))
        more = f"; and {len(found) - limit} more" if len(found) > limit else ""
        return "; ".join(found[:limit]) + more or "the defaults"

    def take_out_odd_values(self) -> None:
        """Refuse numbers that are no quantities, and text that no system takes: nobody who uses settings expects them.

        Free mappings are for others to judge. The default takes its place, so that the rest can be checked.
        """
        self._take_out(self.root, self.tree, ())

    def _take_out(self, cls: type, tree: dict[str, Any], path: KeyPath) -> None:
        for name, key in keys_of(cls).items():
            here, value = (*path, name), tree.get(name)
            if key.block is not None and isinstance(value, dict):
                self._take_out(key.block, value, here)
            elif _takes_numbers(key.type) and (odd := _odd_number(value)) is not None:
                limit = "a finite number" if isinstance(odd, float) and not math.isfinite(odd) else "a smaller number"
                self._refuse(tree, here, f"{limit} is expected, got {show(odd)}")
            elif isinstance(value, str) and "\0" in value:
                self._refuse(tree, here, f"a null character, got {show(value)}")

    def _refuse(self, tree: dict[str, Any], here: KeyPath, reason: str) -> None:
        self.problems.append(f"{self.sources_below(here)}: {'.'.join(here)}: {reason}")
        del tree[here[-1]]

    def _merge_block(self, cls: type, tree: dict[str, Any], data: Any, path: KeyPath, layer: Layer) -> None:
        keys = keys_of(cls)
        for name, value in data.items():
            here = (*path, name)
            key = keys.get(name)
            if key is None:
                if len(self.problems) < MOST_PROBLEMS:  # what a name may mean takes its time
                    problem = _unknown_key(self.root, cls, path, name, value)
                    self.problems.append(f"{layer.where(here)}: {problem}")
                elif len(self.problems) == MOST_PROBLEMS:
                    self.problems.append(f"{layer.source}: there are more unknown keys")
            elif key.block is None:
                self._merge_leaf(tree, name, _widen(key.type, value), here, layer, key.is_free)
            else:
                shorthand = getattr(key.block, "__shorthand__", None)
                if shorthand and isinstance(value, str | int | float | list):
                    value = {shorthand: value}
                if isinstance(value, dict):
                    below = self._mapping_at(tree, name, here)
                    self._merge_block(key.block, below, value, here, layer)
                elif value is None and key.is_optional:
                    self._put(tree, name, None, here, layer)
                else:
                    expected = f"expected a block with the keys {', '.join(keys_of(key.block))}"
                    self.problems.append(f"{layer.where(here)}: {'.'.join(here)}: {expected}; got {show(value)}")

    def _merge_leaf(self, tree: dict[str, Any], name: str, value: Any, here: KeyPath, layer: Layer, free: bool) -> None:
        if free and isinstance(value, dict) and (value or isinstance(tree.get(name), dict)):
            below = self._mapping_at(tree, name, here)
            for inner, inner_value in value.items():
                self._merge_leaf(below, inner, inner_value, (*here, inner), layer, free)
        else:
            self._put(tree, name, value, here, layer)

    def _mapping_at(self, tree: dict[str, Any], name: str, here: KeyPath) -> dict[str, Any]:
        """Return the mapping at a key, made anew where there is none or another value is in its place."""
        if not isinstance(tree.get(name), dict):
            if name in tree:
                self._forget(here)
            tree[name] = {}
        below: dict[str, Any] = tree[name]
        return below

    def _put(self, tree: dict[str, Any], name: str, value: Any, here: KeyPath, layer: Layer) -> None:
        if name in tree:
            self._forget(here)
        tree[name] = value
        self.sources[here] = layer.where(here)

    def _forget(self, path: KeyPath) -> None:
        for key in [key for key in self.sources if key[: len(path)] == path]:
            del self.sources[key]


def _takes_numbers(tp: Any) -> bool:
    return any(part in (int, float) or any(map(_takes_numbers, get_args(part))) for part in alternatives(tp))


def _odd_number(value: Any) -> int | float | None:
    """Return the NaN, infinity or number beyond float32 or 64 bits in a value or one of its items; None without one."""
    if isinstance(value, dict | list):
        items = value.values() if isinstance(value, dict) else value
        return next((odd for item in items if (odd := _odd_number(item)) is not None), None)
    if isinstance(value, float):
        return value if not abs(value) <= LARGEST else None
    return value if isinstance(value, int) and abs(value) >= 2**63 else None


def _widen(tp: Any, value: Any) -> Any:
    """Turn floats without a fraction (``1e6``) into integers where the type wants an integer."""
    parts = alternatives(tp)
    if isinstance(value, float) and value.is_integer() and int in parts and float not in parts:
        return int(value)
    for part in parts:
        origin, args = get_origin(part), get_args(part)
        if origin in (tuple, list) and isinstance(value, list):
            fixed = origin is tuple and args[-1] is not Ellipsis
            types = args if fixed else args[:1] * len(value)
            return [_widen(t, v) for t, v in zip(types, value)] + value[len(types) :]
        if origin is dict and isinstance(value, dict):
            return {name: _widen(args[1], inner) for name, inner in value.items()}
    return value


def _unknown_key(root: type, cls: type, path: KeyPath, name: str, value: Any) -> str:
    """Return the message for a key that ``cls``, the block at ``path``, does not have."""
    rest: KeyPath = ()
    while isinstance(value, dict) and len(value) == 1:  # a.b=1 is about a.b, not about a
        ((inner, value),) = value.items()
        rest = (*rest, inner)
    full = cut(".".join((*path, name, *rest)), 200)
    known = list(dotted_keys(root))
    if full in known:  # only a name with a dot in it gets here
        parent, _, last = full.rpartition(".")
        return f"unknown key '{full}'; in a file, write '{last}:' below '{parent}:'"
    if (now := OLD_NAMES.get(name)) in keys_of(cls):
        return f"unknown key '{full}'; it is called '{'.'.join((*path, str(now), *rest))}' now"
    hint = did_you_mean(_keys_near(known, list(keys_of(cls)), path, name, rest))
    return f"unknown key '{full}'; {hint or 'known here: ' + ', '.join(keys_of(cls))}"


def _keys_near(known: list[str], siblings: list[str], path: KeyPath, name: str, rest: KeyPath) -> list[str]:
    """Return the dotted keys that may have been meant by ``path.name.rest``, where ``name`` is what is wrong."""
    last_names = {key: key.rpartition(".")[2] for key in known}
    exact = [key for key in known if last_names[key] == name] if not rest else []
    if exact:  # the right name in the wrong block
        return exact[:3]
    if elsewhere := keys_called((name, *rest)[-1], known):
        return elsewhere[:3]
    full = ".".join((*path, name, *rest))
    near: list[str] = []
    for sibling in closest(name, siblings):
        start = ".".join((*path, sibling))
        below = [key for key in known if key.startswith(start + ".")] if rest else []
        near += closest(full, below, limit=1) or [start]
    if near:
        return near
    similar = closest(full.rpartition(".")[2], last_names.values(), near=_ALIKE)
    return [key for key in known if last_names[key] in similar][:3] or closest(full, known, near=_ALIKE)
