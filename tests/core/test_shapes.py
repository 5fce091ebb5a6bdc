"""Declared shapes: what fits, and how the first thing that does not is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rollmill.core.shapes import ANY, ARRAY, BYTES, FLOATS, INTS, MAPPING, ArrayOf, ShapeError, check_shape


@pytest.mark.parametrize(
    ("value", "shape"),
    [
        (3, int),
        (3, float),
        (3.5, float),
        ("x", str),
        (True, bool),
        (None, None),
        (None, (int, None)),
        (object(), ANY),
        (np.zeros((2, 3)), ArrayOf("f", 2)),
        (np.zeros(2, np.int8), INTS),
        (np.zeros((), bool), ARRAY),
        ([], [int]),
        ([1, 2], [int]),
        ([1, "x"], [int, str]),
        ({}, MAPPING),
        ({"a": 1}, {"a": int, "b?": str}),
        ({"a": 1, "b": "x", "c": None}, {"a": int, "b?": str}),
        ({"any": [1.5]}, {str: [float]}),
        ({"a": {"b": 1}}, ({"a": {"b": int}}, None)),
    ],
)
def test_what_fits(value: Any, shape: Any) -> None:
    check_shape(value, shape)


@pytest.mark.parametrize(
    ("value", "shape", "message"),
    [
        ("3", int, "expected a whole number, got '3'"),
        (True, int, "expected a whole number, got true"),
        (1, bool, "expected true or false, got 1"),
        (3.0, int, "expected a whole number, got 3.0"),
        (None, float, "expected a number, got null"),
        (0, None, "expected null, got 0"),
        ([1], (float, None), "expected a number or null, got a list of 1"),
        ({}, [int], "expected a list, got a mapping"),
        ([1], [int, str], "expected a list of 2, got a list of 1"),
        (np.zeros(3), INTS, r"expected an array of whole numbers, got an array float64 \[3\]"),
        (np.zeros(3), ArrayOf("f", 2), r"expected an array of numbers with 2 axes, got an array float64 \[3\]"),
        ([0], BYTES, "expected an array of whole numbers with 1 axes, got a list of 1"),
        ("x", FLOATS, "expected an array of numbers, got 'x'"),
        ({"a": [{"b": "x"}]}, {"a": [{"b": int}]}, "field a.0.b: expected a whole number, got 'x'"),
        ({"a": {}}, {"a": {"b": ANY}}, "field a.b: it is missing"),
        ({"a": None}, {"a?": int}, "field a: expected a whole number, got null"),
        ({"\033[2J\n": 1}, {str: str}, r"field '\\x1b\[2J\\n': expected text, got 1"),
    ],
)
def test_what_does_not_fit_is_named(value: Any, shape: Any, message: str) -> None:
    with pytest.raises(ShapeError, match=f"^{message}$"):
        check_shape(value, shape)
