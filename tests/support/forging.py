"""Forged states: a real one with a field missing, or of another kind."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np

Place = tuple[str | int, ...]


def places(tree: Any, at: Place = ()) -> Iterator[Place]:
    """The places of a tree; one for many that are alike: the first of a list, of some arrays, of some parameters."""
    if isinstance(tree, dict):
        alike = len(tree) > 2 and len({_kind(value) for value in tree.values()}) == 1
        for name in list(tree)[:1] if alike else tree:
            yield (*at, name)
            yield from places(tree[name], (*at, name))
    elif isinstance(tree, list) and tree:
        yield (*at, 0)
        yield from places(tree[0], (*at, 0))


def _kind(value: Any) -> str:
    return type(value).__name__ if isinstance(value, np.ndarray | dict) else repr(value)


def without(tree: Any, place: Place) -> Any:
    """The tree without what is at a place."""
    forged = copy.deepcopy(tree)
    del _parent(forged, place)[place[-1]]
    return forged


def retyped(tree: Any, place: Place) -> Any:
    """The tree with something of another kind at a place."""
    forged = copy.deepcopy(tree)
    parent = _parent(forged, place)
    old = parent[place[-1]]
    parent[place[-1]] = {"forged": 7} if old is None else 7 if isinstance(old, str | dict | list) else "forged"
    return forged


def forgeries(tree: Any) -> Iterator[tuple[str, Any]]:
    """(what was done, forged tree); a list that lost an entry is no forgery."""
    for place in places(tree):
        name = ".".join(map(str, place))
        yield f"{name} retyped", retyped(tree, place)
        if isinstance(place[-1], str):
            yield f"{name} missing", without(tree, place)


def _parent(tree: Any, place: Place) -> Any:
    for name in place[:-1]:
        tree = tree[name]
    return tree
