"""Loads settings: frozen dataclasses, filled from YAML files and ``key=value`` overrides.

Words
-----
settings   a dataclass made with ``@settings``; its fields are *keys*.
block      a settings class used as a field of another: the keys below it are dotted, ``env.id``.
leaf       a key that holds a value instead of a block. A ``dict`` field is a leaf: a *free mapping*.
layer      one file or one override; layers are stacked, later ones win.
source     what an error names: a file with its line, or the text on the command line.

Loading is: read the layers -> stack them into one tree, noting the source of every leaf -> let pydantic
check the tree -> turn what is wrong into one line per problem. Env workers import settings classes too,
so pydantic and YAML are imported by the functions that need them.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_origin

from rollmill.core.config.layers import Layer, Stack, file_layer, override_layer
from rollmill.core.config.old_names import renamed
from rollmill.core.config.plain import plain
from rollmill.core.config.schema import Key, KeyPath, instance_of, keys_of
from rollmill.core.config.types import alternatives, choices, type_text
from rollmill.core.errors import ConfigError
from rollmill.core.text import closest, did_you_mean, show

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic_core import ErrorDetails

T = TypeVar("T")

_NUMBER = re.compile(r"[-+.eE_\d]*\d[-+.eE_\d]*")
# How the names of pydantic's errors end when a value has the wrong type (as against: breaks a limit).
_WRONG_TYPE = ("_type", "_parsing", "_from_float", "literal_error", "none_required", "missing", "too_long")


def load_config(
    cls: type[T],
    files: Sequence[Path],
    overrides: Sequence[str],
    base: Mapping[str, Any] | None = None,
) -> T:
    """Load settings from YAML files, stacked left to right, then ``key.sub=value`` overrides.

    ``base``: plain values from ``to_dict`` (a checkpoint's config) that lie below everything else.

    Mappings are merged key by key, free ones too; any other value replaces the earlier one, which is then
    not checked any more. A free mapping that is set anywhere replaces its default. Raises ``ConfigError``
    with one line for each problem found.
    """
    stack = Stack(cls)
    if base is not None:
        stack.add(Layer("the saved config", renamed(copy.deepcopy(dict(base))), {}))
    _add_layers(stack, files, overrides)
    stack.take_out_odd_values()
    _fill_defaults(cls, stack.tree, None)
    config, invalid = _validate(cls, stack)
    problems = stack.problems + invalid
    if config is None or problems:
        raise ConfigError("\n".join(problems))
    return config


def given_keys(cls: type, files: Sequence[Path], overrides: Sequence[str]) -> frozenset[KeyPath]:
    """Return the leaves that files and overrides set; all other values come from the base, or are defaults."""
    stack = Stack(cls)
    _add_layers(stack, files, overrides)
    return frozenset(stack.sources)


def _add_layers(stack: Stack, files: Sequence[Path], overrides: Sequence[str]) -> None:
    readers = [functools.partial(file_layer, Path(path)) for path in files]
    readers += [functools.partial(override_layer, text) for text in overrides]
    unread: list[str] = []
    for read in readers:
        try:
            layer = read()
        except ConfigError as exc:
            unread.append(str(exc))
        else:
            stack.add(layer)
    if unread:  # the values cannot be judged while a layer is missing
        raise ConfigError("\n".join(unread + stack.problems))


def _fill_defaults(cls: type, tree: dict[str, Any], instance: object | None) -> None:
    """Give blocks the default values of their *instance* where the layers say nothing.

    Pydantic would take the defaults of the class, but the owner of a block may have others:
    ``eval: Eval = field(default_factory=lambda: Eval(episodes=100))``.
    """
    for key in keys_of(cls).values():
        if key.block is None:
            if instance is not None and key.name not in tree:
                tree[key.name] = plain(getattr(instance, key.name))
            continue
        default = key.default() if instance is None else getattr(instance, key.name)
        if key.name not in tree:
            if default is MISSING and key.is_required and key.is_optional:
                continue  # pydantic reports it
            tree[key.name] = None if default is None else {}
        if isinstance(tree[key.name], dict):
            _fill_defaults(key.block, tree[key.name], instance_of(default))


def _validate(cls: type[T], stack: Stack) -> tuple[T | None, list[str]]:
    """Return the config, or None and what is wrong with it."""
    from pydantic import ValidationError

    # JSON is where pydantic's strict mode means what we want: lists become tuples and text becomes paths,
    # but "3" is no integer, 1 is no boolean and true is no number.
    text = json.dumps(stack.tree)
    try:
        return _adapter(stack.root).validate_json(text, strict=True), []
    except ValidationError as exc:
        # A union is refused once for each of its types, a list once for each item: one line per key will do.
        errors = {_owner(cls, error["loc"])[0]: error for error in reversed(exc.errors(include_url=False))}
        return None, [_explain(stack, error) for error in reversed(errors.values())]


@functools.cache
def _adapter(cls: type) -> TypeAdapter[Any]:
    """Return pydantic's validator of a class; it is kept, since building one takes far longer than using it, and a
    launch loads the same settings for every run.
    """
    from pydantic import TypeAdapter

    return TypeAdapter(cls)


def _owner(root: type, location: tuple[int | str, ...]) -> tuple[KeyPath, Key | None]:
    """Find the key a pydantic location belongs to: list positions and names of alternatives are cut off."""
    path: KeyPath = ()
    key: Key | None = None
    block: type | None = root
    for part in location:
        if block is None or part not in keys_of(block):
            break
        key = keys_of(block)[str(part)]
        path = (*path, key.name)
        block = key.block
    if key is not None and key.entry_type is not None and len(location) > len(path):
        # every entry of a free mapping has a source of its own
        key = dataclasses.replace(key, name=str(location[len(path)]), type=key.entry_type)
        path = (*path, key.name)
    return path, key


def _explain(stack: Stack, error: ErrorDetails) -> str:
    """Return one line for what pydantic says about one key."""
    path, key = _owner(stack.root, error["loc"])
    dotted = ".".join(path) or "configuration"
    if error["type"] in ("value_error", "assertion_error"):
        reason = " ".join(str(error["ctx"]["error"]).split())
        return f"{dotted}: {reason} (values from {stack.sources_below(path)})"
    if error["type"] == "missing" and len(error["loc"]) == len(path):
        return f"{dotted}: required, but no file and no override sets it; add {dotted}=VALUE"
    where = stack.source(tuple(str(part) for part in error["loc"]))
    if key is None or not error["type"].endswith(_WRONG_TYPE):
        place = ".".join(str(part) for part in error["loc"]) or dotted
        return f"{where}: {place}: {error['msg']}, got {show(error['input'])}"
    value = functools.reduce(lambda tree, name: tree[name], path, stack.tree)
    hint = _hint(key.type, value, error["input"])
    return f"{where}: {dotted}: expected {type_text(key.type)}, got {show(value)}" + (hint and f"; {hint}")


def _hint(tp: Any, value: Any, refused: Any) -> str:
    """Say what to write instead; ``refused`` is the wrong part of ``value`` (an item of a list, say)."""
    parts = set(alternatives(tp))
    if isinstance(refused, str) and (near := closest(refused, map(str, choices(tp)))):
        return did_you_mean(near)
    if value is None:
        return "null is for optional keys only"
    if bool in parts:
        return "write true or false"
    if any(get_origin(part) in (tuple, list) for part in parts) and not isinstance(value, list | dict):
        return f"write a list: [{value}]"
    if isinstance(value, str) and parts & {int, float} and _NUMBER.fullmatch(value):
        return "remove the quotes"
    if isinstance(value, int | float) and parts & {str, Path}:
        return f'put quotes around it: "{show(value)}" (on the command line \'"{show(value)}"\')'
    return ""
