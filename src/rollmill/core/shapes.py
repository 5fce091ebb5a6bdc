"""The declared shape of what a file holds, and the check that it has this shape.

A checkpoint may be whole and still not be what a reader expects: another version has written it, or somebody by hand.
Whoever loads a state declares its shape beside the code that writes it and checks it first. Shapes are plain values:

    int, float, str, bool, None   a value of this kind; a float may be a whole number
    ANY                           whatever it is
    ArrayOf("f", 2)               a numpy array of one of these kinds (``dtype.kind``), with so many axes
    (float, None)                 one of several
    [int]                         a list of any length; ``[int, str]``: of just these
    {str: int}                    a mapping with any names
    {"a": int, "b?": str}         a mapping with these keys, ``b`` only where it is known; others are not looked at
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from rollmill.core.text import show

Shape: TypeAlias = Any


class ShapeError(ValueError):
    """A value does not have the declared shape: ``reason``, for what is at ``at`` (``learners.0.version``)."""

    def __init__(self, at: str, reason: str) -> None:
        super().__init__(f"field {at}: {reason}" if at else reason)
        self.at, self.reason = at, reason


@dataclass(frozen=True)
class ArrayOf:
    """A numpy array; ``axes`` None: any number of them."""

    kinds: str = "biufc"
    axes: int | None = None


class _Any:
    """The shape of everything."""


ANY = _Any()
ARRAY = ArrayOf()
FLOATS, INTS, FLAGS = ArrayOf("f"), ArrayOf("iu"), ArrayOf("b")
BYTES = ArrayOf("u", 1)
"""A random generator's state, for one."""
MAPPING = {str: ANY}

_KINDS = {"b": "true or false", "i": "whole numbers", "u": "whole numbers", "f": "numbers", "c": "complex numbers"}
_WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false", None: "null"}
_SIMPLE = re.compile(r"[\w.:/-]{1,80}", re.ASCII)


def check_shape(value: Any, shape: Shape, at: str = "") -> None:
    """Raise a ShapeError that names the first field (below ``at``) which is missing or of another kind."""
    if not _fits_kind(value, shape):
        raise ShapeError(at, f"expected {_words(shape)}, got {_got(value)}")
    if isinstance(shape, tuple):
        check_shape(value, next(one for one in shape if _fits_kind(value, one)), at)
    elif isinstance(shape, list):
        places = shape if len(shape) > 1 else shape * len(value)
        for number, (inner, inner_shape) in enumerate(zip(value, places, strict=True)):
            check_shape(inner, inner_shape, _below(at, str(number)))
    elif isinstance(shape, dict):
        _check_mapping(value, shape, at)


def _check_mapping(value: Mapping[str, Any], shape: Mapping[Any, Shape], at: str) -> None:
    if str in shape:
        for name, inner in value.items():
            check_shape(inner, shape[str], _below(at, name))
        return
    for key, inner_shape in shape.items():
        name = key.removesuffix("?")
        if name in value:
            check_shape(value[name], inner_shape, _below(at, name))
        elif name == key:
            raise ShapeError(_below(at, name), "it is missing")


def _fits_kind(value: Any, shape: Shape) -> bool:
    """Return whether the value itself is of this kind; what is in it is not looked at."""
    if shape is ANY:
        return True
    if isinstance(shape, tuple):
        return any(_fits_kind(value, one) for one in shape)
    if isinstance(shape, list):
        return isinstance(value, list) and len(shape) in (1, len(value))
    if isinstance(shape, dict):
        return isinstance(value, Mapping)
    if isinstance(shape, ArrayOf):
        is_array = isinstance(value, np.ndarray) and value.dtype.kind in shape.kinds
        return is_array and shape.axes in (None, value.ndim)
    if shape is None or value is None:
        return value is shape
    if isinstance(value, bool) or shape is bool:
        return isinstance(value, bool) and shape is bool
    return isinstance(value, (int, float) if shape is float else shape)


def _below(at: str, name: str) -> str:
    shown = name if _SIMPLE.fullmatch(name) else show(name)
    return f"{at}.{shown}" if at else shown


def _words(shape: Shape) -> str:
    if isinstance(shape, tuple):
        return " or ".join(dict.fromkeys(map(_words, shape)))
    if isinstance(shape, ArrayOf):
        kinds = " or ".join(dict.fromkeys(_KINDS[kind] for kind in shape.kinds))
        what = "an array" if shape.kinds == ARRAY.kinds else f"an array of {kinds}"
        return what + (f" with {shape.axes} axes" if shape.axes is not None else "")
    if isinstance(shape, list):
        return "a list" if len(shape) == 1 else f"a list of {len(shape)}"
    return "a mapping" if isinstance(shape, dict) else _WORDS[shape]


def _got(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array {value.dtype} {list(value.shape)}"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return "a mapping" if isinstance(value, Mapping) else show(value)
