"""Values of Python as bytes, and back, without pickle: for environments that save their levels.

Known are None, truth values, numbers, text, lists, tuples, sets, mappings, numpy arrays and scalars, numpy's random
generators, and objects and enumerations of modules that the caller names. What was one object is one object again.
Objects are made without running their constructors, and their attributes are set: a file can say which values an
object of a known class has, and nothing else.
"""

from __future__ import annotations

import base64
import enum
import importlib
import json
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

Node = list[Any]
"""A value that is no plain one: what it is, and what it is made of. What it is made of are plain values and, as whole
numbers, other nodes; a whole number that is meant is a list of one. Most of what levels are made of are other nodes."""

PLAIN = frozenset({type(None), bool, float, str})
SEQUENCES: Mapping[str, type] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
COMPRESSION = 1
_MISSING = object()


def encode(value: Any, modules: Sequence[str] = (), known: Sequence[Any] = ()) -> bytes:
    """Return the value as bytes; raises TypeError for what cannot be written.

    ``modules``: packages whose objects may be. ``known``: objects that whoever decodes has, too, and that are only
    referred to.
    """
    writer = _Writer(modules, known)
    root = writer.value(value)
    text = json.dumps({"root": root, "nodes": writer.nodes, "shapes": writer.shapes}, separators=(",", ":"))
    return zlib.compress(text.encode(), COMPRESSION)


def decode(data: bytes, modules: Sequence[str] = (), known: Sequence[Any] = ()) -> Any:
    """Return the value that ``encode`` was given; raises ValueError for anything else."""
    try:
        tree = json.loads(zlib.decompress(data))
        return _Reader(tree, modules, known).value(tree["root"])
    except (zlib.error, json.JSONDecodeError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"no snapshot: {type(error).__name__}: {error}") from error


def _is_of(module: str, modules: Sequence[str]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in modules)


class _Writer:
    def __init__(self, modules: Sequence[str], known: Sequence[Any]) -> None:
        self._modules = modules
        self.nodes: list[Node] = [["known", k] for k in range(len(known))]
        self.shapes: list[Node] = []
        """Classes with the names of their objects' attributes: most objects are like others."""
        self._numbers = {id(value): k for k, value in enumerate(known)}
        self._shape_numbers: dict[tuple[Any, ...], int] = {}
        self._held: list[Any] = []  # or an id would be given again

    def value(self, value: Any) -> Any:
        if type(value) in PLAIN:
            return value
        if type(value) is int:
            return [value]
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = len(self.nodes)
            self._held.append(value)
            self.nodes.append([])
            self.nodes[number] = self._node(value)
        return number

    def _node(self, value: Any) -> Node:
        name = type(value).__name__
        if SEQUENCES.get(name) is type(value):
            return [name, *map(self.value, _in_order(value))]
        if type(value) is dict:
            return ["dict", *([self.value(key), self.value(inner)] for key, inner in value.items())]
        if isinstance(value, np.ndarray | np.generic):
            array = np.ascontiguousarray(value)
            kind = "array" if isinstance(value, np.ndarray) else "scalar"
            if array.dtype.hasobject:
                raise TypeError(f"an array of {array.dtype} cannot be written")
            return [kind, array.dtype.str, list(np.shape(value)), base64.b64encode(array.tobytes()).decode()]
        if isinstance(value, np.random.Generator):
            return ["generator", self.value(_plain_state(value.bit_generator.state))]
        return self._object(value)

    def _object(self, value: Any) -> Node:
        kind = type(value)
        if not _is_of(kind.__module__, self._modules):
            raise TypeError(f"a {kind.__module__}.{kind.__qualname__} cannot be written")
        where = [kind.__module__, kind.__qualname__]
        if isinstance(value, enum.Enum):
            return ["enum", *where, value.name]
        attributes = vars(value)
        shape = (*where, *attributes)
        number = self._shape_numbers.setdefault(shape, len(self.shapes))
        if number == len(self.shapes):
            self.shapes.append(list(shape))
        return ["object", number, *(self.value(inner) for inner in attributes.values())]


class _Reader:
    def __init__(self, tree: Mapping[str, Any], modules: Sequence[str], known: Sequence[Any]) -> None:
        self._nodes: list[Node] = tree["nodes"]
        self._shapes: list[Node] = tree["shapes"]
        self._modules, self._known = modules, known
        self._made: list[Any] = [_MISSING] * len(self._nodes)
        self._classes: dict[int, type] = {}
        self._make: dict[str, Callable[[int, Node], Any]] = {
            **dict.fromkeys(SEQUENCES, self._sequence),
            "dict": self._dict,
            "array": self._array,
            "scalar": self._array,
            "generator": self._generator,
            "enum": self._enum,
            "object": self._object,
            "known": lambda _number, node: self._known[node[1]],
        }

    def value(self, value: Any) -> Any:
        return self._values((value,))[0]

    def _values(self, items: Sequence[Any]) -> list[Any]:
        """Read the items in one loop: a level is thousands of values."""
        made, found = self._made, []
        for item in items:
            if type(item) is int:
                known = made[item]
                found.append(self._build(item) if known is _MISSING else known)
            else:
                found.append(item[0] if type(item) is list else item)
        return found

    def _build(self, number: int) -> Any:
        node = self._nodes[number]
        made = self._made[number] = self._make[node[0]](number, node)
        return made

    def _sequence(self, number: int, node: Node) -> Any:
        if node[0] != "list":
            return SEQUENCES[node[0]](self._values(node[1:]))
        made: list[Any] = []
        self._made[number] = made  # it may hold what refers to it
        made += self._values(node[1:])
        return made

    def _dict(self, number: int, node: Node) -> dict[Any, Any]:
        made: dict[Any, Any] = {}
        self._made[number] = made
        for pair in node[1:]:
            key, value = self._values(pair)
            made[key] = value
        return made

    def _array(self, _number: int, node: Node) -> Any:
        kind, dtype, shape, text = node
        array = np.frombuffer(base64.b64decode(text), np.dtype(dtype)).reshape(shape)
        return array.copy() if kind == "array" else array[()]

    def _generator(self, _number: int, node: Node) -> np.random.Generator:
        state = self.value(node[1])
        made = np.random.Generator({"PCG64": np.random.PCG64}[state["bit_generator"]]())
        made.bit_generator.state = state
        return made

    def _enum(self, _number: int, node: Node) -> Any:
        return self._class(node[1], node[2])[node[3]]  # type: ignore[index]

    def _object(self, number: int, node: Node) -> Any:
        shape = node[1]
        if shape not in self._classes:
            self._classes[shape] = self._class(*self._shapes[shape][:2])
        made: Any = object.__new__(self._classes[shape])
        self._made[number] = made
        made.__dict__ = dict(zip(self._shapes[shape][2:], self._values(node[2:]), strict=True))
        return made

    def _class(self, module: str, name: str) -> type:
        if not _is_of(module, self._modules):
            raise ValueError(f"no snapshot: {module}.{name} is none of {', '.join(self._modules) or 'no package'}")
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        if not isinstance(found, type):
            raise ValueError(f"no snapshot: {module}.{name} is no class")
        return found


def _in_order(items: Any) -> Iterable[Any]:
    """Return the items of a list or tuple, and those of a set in an order that is always the same."""
    return sorted(items, key=repr) if isinstance(items, set | frozenset) else items


def _plain_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of a bit generator with Python's numbers."""
    return {
        name: _plain_state(inner) if isinstance(inner, Mapping) else int(inner) if not isinstance(inner, str) else inner
        for name, inner in state.items()
    }
