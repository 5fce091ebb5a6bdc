"""Types and fields in a user's words."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from rollmill.core.config.types import field_docs, type_text


@pytest.mark.parametrize(
    ("tp", "text"),
    [
        (int | None, "int | null"),
        (Literal["rgb", "gray"], "'rgb' | 'gray'"),
        (float | Literal["auto"], "float | 'auto'"),
        (tuple[int, ...], "list of int"),
        (tuple[int, str], "list [int, str]"),
        (list[float], "list of float"),
        (dict[str, Any], "mapping"),
        (dict[str, float], "mapping to float"),
        (Path, "path"),
        (Any, "any"),
        (Annotated[int, "positive"], "int"),
    ],
)
def test_type_text(tp: Any, text: str) -> None:
    assert type_text(tp) == text


@dataclasses.dataclass
class Parent:
    old: int = 1
    """From the
    parent."""


@dataclasses.dataclass
class Child(Parent):
    ä: str = "ü"  # found after letters of two bytes
    bare: int = 0
    many: dict[str, int] = dataclasses.field(default_factory=dict)  # after several lines
    both: int = 2  # not this
    """But this."""


def test_field_docs() -> None:
    assert field_docs(Child) == {
        "old": "From the parent.",
        "ä": "found after letters of two bytes",
        "bare": "",
        "many": "after several lines",
        "both": "But this.",
    }


def test_field_docs_without_source() -> None:
    assert field_docs(dataclasses.make_dataclass("Made", [("x", int)])) == {}
