"""Reads pickled numbers, texts, containers and numpy arrays, and nothing else, whoever has made the file.

A pickle is a program: it names functions and calls them. Here every name is looked up in a table of a few harmless
makers, and any other ends the reading. Not even numpy's own functions are called with what the file says: a made-up
state of an array or a dtype could reach beyond its memory. Notes are taken of what the file says about them
(``_Dtype``, ``_Array``), and arrays are made of the notes when the reading is over.
"""

from __future__ import annotations

import math
import pickle
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

import numpy as np

MAX_DEPTH = 100
_FAULTS: tuple[type[Exception], ...] = (
    *(EOFError, TypeError, ValueError, AttributeError, IndexError, KeyError),
    *(OverflowError, RecursionError, MemoryError, ImportError),
)


def load(file: BinaryIO) -> Any:
    """Read the next object of a file of pickles; UnpicklingError names what is not allowed in it."""
    try:
        return _made(_Reader(file).load(), {}, 0)
    except pickle.UnpicklingError:
        raise
    except _FAULTS as error:
        raise pickle.UnpicklingError(f"{type(error).__name__}: {error}") from error


class _Reader(pickle.Unpickler):
    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file)
        self._makers = _makers()

    def find_class(self, module: str, name: str) -> Any:
        # Old protocols use the names of Python 2; numpy 1 called its inner package ``core``, numpy 2 ``_core``.
        module = "builtins" if module == "__builtin__" else module.replace("numpy.core.", "numpy._core.")
        found = self._makers.get(f"{module}.{name}")
        if found is None:
            raise pickle.UnpicklingError(
                f"it names {module}.{name}; only numbers, texts, lists, dicts and numpy arrays are read"
            )
        return found

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it refers to something outside the file")


def _makers() -> dict[str, Callable[..., Any]]:
    """Return what a file may call. It is made anew for every file: one could set attributes of functions that stay."""
    return {
        "numpy.dtype": lambda code, *_: _Dtype(code),
        "numpy.ndarray": lambda *_: _unknown("ndarray"),
        "numpy._core.multiarray._reconstruct": lambda *_: _Array(),
        "numpy._core.multiarray.scalar": lambda dtype, data: _Array((), dtype, False, data, is_scalar=True),
        "numpy._core.numeric._frombuffer": lambda data, dtype, shape, order: _Array(shape, dtype, order == "F", data),
        "_codecs.encode": _latin,
        "builtins.bytes": lambda: b"",  # the old protocols write others by _codecs.encode
        "builtins.list": lambda items=(): list(items),
        "builtins.set": lambda items=(): set(items),
        "builtins.frozenset": lambda items=(): frozenset(items),
        "builtins.complex": lambda real, imaginary: complex(float(real), float(imaginary)),
        "collections.OrderedDict": OrderedDict,
        "collections.defaultdict": lambda *_: {},
        "collections.deque": lambda items=(), *_: list(items),
    }


def _unknown(name: str) -> Any:
    raise pickle.UnpicklingError(f"it calls {name} itself")


def _latin(text: Any, codec: Any = "latin1") -> bytes:
    """Encode text as the oldest protocols write bytes."""
    if codec not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"it encodes text as {codec!r}")
    return bytes(str(text), "latin1")


class _Dtype:
    """What a file says about a dtype."""

    def __init__(self, code: Any) -> None:
        self.code, self.order = str(code), "="

    def __setstate__(self, state: Any) -> None:
        if any(part is not None for part in state[2:5]):
            raise pickle.UnpicklingError("it has an array of records; one array for each field is read")
        self.order = str(state[1])

    def found(self) -> np.dtype[Any]:
        if self.code.lstrip("<>=|")[:1] not in ("b", "i", "u", "f", "c", "?"):
            what = "an array of objects" if self.code.startswith("O") else f"an array of dtype {self.code}"
            raise pickle.UnpicklingError(f"it has {what}; arrays of numbers are read")
        dtype = np.dtype(self.code)
        if self.order == ">":
            return dtype.newbyteorder(">")
        return dtype.newbyteorder("<") if self.order == "<" else dtype


class _Array:
    """What a file says about an array or a number of numpy's."""

    def __init__(
        self, shape: Any = (), dtype: Any = None, fortran: Any = False, data: Any = b"", is_scalar: bool = False
    ) -> None:
        self.state = shape, dtype, fortran, data
        self.is_scalar = is_scalar

    def __setstate__(self, state: Any) -> None:
        _, *rest = state
        self.state = tuple(rest)

    def made(self) -> Any:
        shape, dtype, fortran, data = self.state
        if not isinstance(dtype, _Dtype):
            raise pickle.UnpicklingError("it has an array without a dtype")
        kind = dtype.found()
        sides = [int(side) for side in shape]
        if not isinstance(data, bytes | bytearray) or min(sides, default=0) < 0:
            raise pickle.UnpicklingError("it has an array without its bytes")
        if len(data) != kind.itemsize * math.prod(sides):
            raise pickle.UnpicklingError(f"it has an array {sides} of {kind} with {len(data)} bytes")
        array = np.frombuffer(data, kind).reshape(sides, order="F" if fortran else "C")
        array = array.astype(kind.newbyteorder("="))
        return array[()] if self.is_scalar else array


def _made(value: Any, seen: dict[int, Any], depth: int) -> Any:
    """Return ``value`` with arrays in the place of notes. What is referred to often is made once."""
    if depth > MAX_DEPTH:
        raise pickle.UnpicklingError(f"it is nested deeper than {MAX_DEPTH}")
    if value is None or isinstance(value, str | bytes | bytearray | int | float | complex):
        return value
    if id(value) not in seen:
        seen[id(value)] = _container(value, seen, depth + 1)
    return seen[id(value)]


def _container(value: Any, seen: dict[int, Any], depth: int) -> Any:
    if isinstance(value, _Array):
        return value.made()
    if isinstance(value, Mapping):
        return {_made(key, seen, depth): _made(inner, seen, depth) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset | deque):
        inner = [_made(item, seen, depth) for item in value]
        return tuple(inner) if isinstance(value, tuple) else inner
    raise pickle.UnpicklingError(
        f"it has a {type(value).__name__}; only numbers, texts, lists, dicts and arrays are read"
    )
