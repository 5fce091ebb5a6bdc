"""Settings: frozen dataclasses, filled from YAML files and ``key=value`` overrides.

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
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from types import NoneType
from typing import (
    TYPE_CHECKING,
    Any,
    TypeVar,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

from rollmill.core.errors import ConfigError
from rollmill.core.opening import MOST_DEPTH
from rollmill.core.other_names import keys_called
from rollmill.core.text import alternatives, choices, closest, cut, did_you_mean, field_docs, show, type_text

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic_core import ErrorDetails

T = TypeVar("T")
KeyPath = tuple[str, ...]

_NUMBER = re.compile(r"[-+.eE_\d]*\d[-+.eE_\d]*")
MOST_PROBLEMS = 50
"""Unknown keys that are told at once: a file with more was not written for us."""
LARGEST = 3.4e38
"""Of numbers with a fraction: networks, environments and timers compute with 32 bits."""
# How the names of pydantic's errors end when a value has the wrong type (as against: breaks a limit).
_WRONG_TYPE = ("_type", "_parsing", "_from_float", "literal_error", "none_required", "missing", "too_long")


@overload
def settings(cls: type[T], /) -> type[T]: ...
@overload
def settings(*, shorthand: str | None = None) -> Callable[[type[T]], type[T]]: ...
@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(dataclasses.field, dataclasses.Field))
def settings(cls: Any = None, /, *, shorthand: str | None = None) -> Any:
    """Make a class a settings dataclass: frozen, keyword-only, unknown keys forbidden.

    ``shorthand`` names the key that a single value stands for: with ``@settings(shorthand="id")``,
    ``env: doom_basic`` means ``env.id: doom_basic`` and leaves the other ``env.*`` keys alone.
    A ``ValueError`` in ``__post_init__`` is how a class refuses values that contradict each other.
    """

    def decorate(plain: type[T]) -> type[T]:
        made: Any = dataclass(frozen=True, kw_only=True)(plain)
        made.__pydantic_config__ = {"extra": "forbid"}
        if shorthand is not None:
            if shorthand not in made.__dataclass_fields__:
                raise TypeError(f"{plain.__qualname__}: shorthand {shorthand!r} is not one of its fields")
            made.__shorthand__ = shorthand
        return made  # type: ignore[no-any-return]

    return decorate if cls is None else decorate(cls)


# ---------------------------------------------------------------------------------------------- loading


def load_config(
    cls: type[T],
    files: Sequence[Path],
    overrides: Sequence[str],
    base: Mapping[str, Any] | None = None,
) -> T:
    """Settings from YAML files, stacked left to right, then ``key.sub=value`` overrides.

    ``base``: plain values from ``to_dict`` (a checkpoint's config) that lie below everything else.

    Mappings are merged key by key, free ones too; any other value replaces the earlier one, which is then
    not checked any more. A free mapping that is set anywhere replaces its default. Raises ``ConfigError``
    with one line for each problem found.
    """
    stack = _Stack(cls)
    if base is not None:
        stack.add(_Layer("the saved config", copy.deepcopy(dict(base)), {}))
    _add_layers(stack, files, overrides)
    stack.take_out_odd_values()
    _fill_defaults(cls, stack.tree, None)
    config, invalid = _validate(cls, stack)
    problems = stack.problems + invalid
    if config is None or problems:
        raise ConfigError("\n".join(problems))
    return config


def given_keys(cls: type, files: Sequence[Path], overrides: Sequence[str]) -> frozenset[KeyPath]:
    """The leaves that files and overrides set; whatever else a config holds comes from its base, or is a default."""
    stack = _Stack(cls)
    _add_layers(stack, files, overrides)
    return frozenset(stack.sources)


def _add_layers(stack: _Stack, files: Sequence[Path], overrides: Sequence[str]) -> None:
    readers = [functools.partial(_file_layer, Path(path)) for path in files]
    readers += [functools.partial(_override_layer, text) for text in overrides]
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


@dataclass(frozen=True)
class _Layer:
    source: str
    data: dict[str, Any]
    lines: Mapping[KeyPath, int]

    def where(self, path: KeyPath) -> str:
        """The source of one key, with the line of the nearest key above it that has one."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.lines:
                return f"{self.source}, line {self.lines[path[:end]]}"
        return self.source


def _file_layer(path: Path) -> _Layer:
    from rollmill.core.yaml_io import read_mapping

    found = read_mapping(path)
    return _Layer(str(path), found.data, found.lines)


def _override_layer(text: str) -> _Layer:
    from rollmill.core.yaml_io import parse_value

    source = f"command line '{cut(text, 200)}'"
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
    return _Layer(source, data, {})


class _Stack:
    """Layers merged into one tree of plain values, with the source of every leaf."""

    def __init__(self, root: type) -> None:
        self.root = root
        self.tree: dict[str, Any] = {}
        self.sources: dict[KeyPath, str] = {}
        self.problems: list[str] = []

    def add(self, layer: _Layer) -> None:
        self._merge_block(self.root, self.tree, layer.data, (), layer)

    def source(self, path: KeyPath) -> str:
        """Where the value at ``path`` came from: the nearest key at or above it that has a source."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.sources:
                return self.sources[path[:end]]
        return "defaults"

    def sources_below(self, path: KeyPath, limit: int = 4) -> str:
        """Where the values of a block came from, in one phrase."""
        found = list(dict.fromkeys(where for key, where in self.sources.items() if key[: len(path)] == path))
        more = f"; and {len(found) - limit} more" if len(found) > limit else ""
        return "; ".join(found[:limit]) + more or "the defaults"

    def take_out_odd_values(self) -> None:
        """Refuse numbers that are no quantities, and text that no system takes: nobody who uses settings expects them.

        Free mappings are for others to judge. The default takes its place, so that the rest can be checked.
        """
        self._take_out(self.root, self.tree, ())

    def _take_out(self, cls: type, tree: dict[str, Any], path: KeyPath) -> None:
        for name, key in _keys(cls).items():
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

    def _merge_block(self, cls: type, tree: dict[str, Any], data: Any, path: KeyPath, layer: _Layer) -> None:
        keys = _keys(cls)
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
                    expected = f"expected a block with the keys {', '.join(_keys(key.block))}"
                    self.problems.append(f"{layer.where(here)}: {'.'.join(here)}: {expected}; got {show(value)}")

    def _merge_leaf(
        self, tree: dict[str, Any], name: str, value: Any, here: KeyPath, layer: _Layer, free: bool
    ) -> None:
        if free and isinstance(value, dict) and (value or isinstance(tree.get(name), dict)):
            below = self._mapping_at(tree, name, here)
            for inner, inner_value in value.items():
                self._merge_leaf(below, inner, inner_value, (*here, inner), layer, free)
        else:
            self._put(tree, name, value, here, layer)

    def _mapping_at(self, tree: dict[str, Any], name: str, here: KeyPath) -> dict[str, Any]:
        """The mapping at a key, made anew where there is none or another value is in its place."""
        if not isinstance(tree.get(name), dict):
            if name in tree:
                self._forget(here)
            tree[name] = {}
        below: dict[str, Any] = tree[name]
        return below

    def _put(self, tree: dict[str, Any], name: str, value: Any, here: KeyPath, layer: _Layer) -> None:
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
    """NaN, infinity or a number that float32 or 64 bits do not hold, in a value or in one of its items."""
    if isinstance(value, dict | list):
        items = value.values() if isinstance(value, dict) else value
        return next((odd for item in items if (odd := _odd_number(item)) is not None), None)
    if isinstance(value, float):
        return value if not abs(value) <= LARGEST else None
    return value if isinstance(value, int) and abs(value) >= 2**63 else None


def _fill_defaults(cls: type, tree: dict[str, Any], instance: object | None) -> None:
    """Give blocks the default values of their *instance* where the layers say nothing.

    Pydantic would take the defaults of the class, but the owner of a block may have others:
    ``eval: Eval = field(default_factory=lambda: Eval(episodes=100))``.
    """
    for key in _keys(cls).values():
        if key.block is None:
            if instance is not None and key.name not in tree:
                tree[key.name] = _plain(getattr(instance, key.name))
            continue
        default = key.default() if instance is None else getattr(instance, key.name)
        if key.name not in tree:
            if default is MISSING and key.is_required and key.is_optional:
                continue  # pydantic reports it
            tree[key.name] = None if default is None else {}
        if isinstance(tree[key.name], dict):
            _fill_defaults(key.block, tree[key.name], _instance(default))


def _instance(default: Any) -> object | None:
    return None if default is MISSING or default is None else default


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


# ------------------------------------------------------------------------------------ checks and messages


def _validate(cls: type[T], stack: _Stack) -> tuple[T | None, list[str]]:
    """The config, or None and what is wrong with it."""
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
    """Building one takes far longer than using it, and a launch loads the same settings for every run."""
    from pydantic import TypeAdapter

    return TypeAdapter(cls)


def _owner(root: type, location: tuple[int | str, ...]) -> tuple[KeyPath, _Key | None]:
    """The key a pydantic location belongs to: list positions and names of alternatives are cut off."""
    path: KeyPath = ()
    key: _Key | None = None
    block: type | None = root
    for part in location:
        if block is None or part not in _keys(block):
            break
        key = _keys(block)[str(part)]
        path = (*path, key.name)
        block = key.block
    if key is not None and key.entry_type is not None and len(location) > len(path):
        # every entry of a free mapping has a source of its own
        key = dataclasses.replace(key, name=str(location[len(path)]), type=key.entry_type)
        path = (*path, key.name)
    return path, key


def _explain(stack: _Stack, error: ErrorDetails) -> str:
    """One line for what pydantic says about one key."""
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
    """What to write instead; ``refused`` is the wrong part of ``value`` (an item of a list, say)."""
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


def _unknown_key(root: type, cls: type, path: KeyPath, name: str, value: Any) -> str:
    """The message for a key that ``cls``, the block at ``path``, does not have."""
    rest: KeyPath = ()
    while isinstance(value, dict) and len(value) == 1:  # a.b=1 is about a.b, not about a
        ((inner, value),) = value.items()
        rest = (*rest, inner)
    full = cut(".".join((*path, name, *rest)), 200)
    known = list(_dotted_keys(root))
    if full in known:  # only a name with a dot in it gets here
        parent, _, last = full.rpartition(".")
        return f"unknown key '{full}'; in a file, write '{last}:' below '{parent}:'"
    hint = did_you_mean(_keys_near(known, list(_keys(cls)), path, name, rest))
    return f"unknown key '{full}'; {hint or 'known here: ' + ', '.join(_keys(cls))}"


def _keys_near(known: list[str], siblings: list[str], path: KeyPath, name: str, rest: KeyPath) -> list[str]:
    """The dotted keys that may have been meant by ``path.name.rest``, where ``name`` is what is wrong."""
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
    similar = closest(full.rpartition(".")[2], last_names.values())
    return [key for key in known if last_names[key] in similar][:3] or closest(full, known)


# ------------------------------------------------------------------------------------------------ schema


@dataclass(frozen=True)
class _Key:
    """One field of a settings class; ``block`` is the settings class below it, if any."""

    name: str
    type: Any
    field: dataclasses.Field[Any]
    block: type | None

    @property
    def is_free(self) -> bool:
        return any(part is dict or get_origin(part) is dict for part in alternatives(self.type))

    @property
    def entry_type(self) -> Any:
        """The type of the values of a free mapping; None where the key may hold other things, too."""
        parts = [part for part in alternatives(self.type) if part is not NoneType]
        return get_args(parts[0])[1] if [get_origin(part) for part in parts] == [dict] else None

    @property
    def is_required(self) -> bool:
        return self.field.default is MISSING and self.field.default_factory is MISSING

    @property
    def is_optional(self) -> bool:
        return NoneType in alternatives(self.type)

    def default(self) -> Any:
        """The default value; ``MISSING`` for a required key, and for a block that starts from its class."""
        if self.field.default_factory is not MISSING and self.field.default_factory is not self.block:
            return self.field.default_factory()
        return self.field.default


@functools.cache
def _keys(cls: type) -> dict[str, _Key]:
    """The keys of a settings class by name, in declared order."""
    hints = get_type_hints(cls, include_extras=True)
    keys = {}
    for field in dataclasses.fields(cls):
        if not field.init:
            continue
        blocks = [part for part in alternatives(hints[field.name]) if dataclasses.is_dataclass(part)]
        if len(blocks) > 1:
            raise TypeError(f"{cls.__qualname__}.{field.name}: a key can hold one settings class, not several")
        block = blocks[0] if blocks and isinstance(blocks[0], type) else None
        keys[field.name] = _Key(field.name, hints[field.name], field, block)
    return keys


def _dotted_keys(cls: type, prefix: str = "") -> Iterator[str]:
    """All keys of the tree, blocks included."""
    for key in _keys(cls).values():
        yield prefix + key.name
        if key.block is not None:
            yield from _dotted_keys(key.block, f"{prefix}{key.name}.")


# ------------------------------------------------------------------------------------- out, compare, describe


def to_dict(config: object) -> dict[str, Any]:
    """The settings as nested plain values (dict, list, str, int, float, bool, None), in declared order."""
    if not dataclasses.is_dataclass(config) or isinstance(config, type):
        raise TypeError(f"expected settings, got {config!r}")
    return {field.name: _plain(getattr(config, field.name)) for field in dataclasses.fields(config) if field.init}


def completed(values: Mapping[str, Any], defaults: object) -> dict[str, Any]:
    """Settings as an earlier version has saved them: keys that it did not know have their defaults."""
    found = dict(values)
    for field in dataclasses.fields(defaults):  # type: ignore[arg-type]  # an instance of a settings class
        default = getattr(defaults, field.name)
        if field.name not in found:
            found[field.name] = _plain(default)
        elif dataclasses.is_dataclass(default) and isinstance(found[field.name], Mapping):
            found[field.name] = completed(found[field.name], default)
    return found


def dump_yaml(config: object) -> str:
    """YAML text from which ``load_config`` makes an equal config."""
    from rollmill.core.yaml_io import to_yaml

    return to_yaml(to_dict(config))


def differences(a: object, b: object) -> dict[str, tuple[Any, Any]]:
    """Where two configs (or dicts made of them) differ: dotted key -> the value in each.

    A side that lacks the key counts as None. A block or mapping that only one side has is reported whole.
    """
    found: dict[str, tuple[Any, Any]] = {}
    _compare(_plain(a), _plain(b), "", found)
    return found


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


def _plain(value: Any) -> Any:
    """``value`` with settings as dicts, tuples as lists and paths as text; other objects are refused."""
    if dataclasses.is_dataclass(value):
        return to_dict(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    for kind in (int, float, str):  # subclasses, numpy's floats for one, become the plain kind
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(f"settings hold plain values only, not {type(value).__name__}: {value!r}")


@dataclass(frozen=True)
class KeyInfo:
    """What help says about one key. ``default`` is a plain value; it means nothing when ``required``."""

    key: str
    type: str
    default: Any
    required: bool
    doc: str


def describe(cls: type) -> list[KeyInfo]:
    """Every leaf of a settings class in declared order; a block that may be null is listed as well."""
    return list(_describe(cls, "", None))


def _describe(cls: type, prefix: str, instance: object | None) -> Iterator[KeyInfo]:
    docs = field_docs(cls)
    for key in _keys(cls).values():
        default = key.default() if instance is None else getattr(instance, key.name)
        if key.block is None or key.is_optional:
            required = default is MISSING and key.is_required
            # an optional block that starts from its class is there, with nothing set
            plain = {} if default is MISSING else _plain(default)
            yield KeyInfo(
                key=prefix + key.name,
                type=type_text(key.type),
                default=None if required else plain,
                required=required,
                doc=docs.get(key.name, ""),
            )
        if key.block is not None:
            yield from _describe(key.block, f"{prefix}{key.name}.", _instance(default))
