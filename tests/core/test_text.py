from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from rollmill.core.text import closest, columns, cut, field_docs, nearest, show, type_text

ENVS = ["doom_basic", "doom_battle", "doom_health_gathering", "CartPole-v1"]


def test_nearest_names_the_known_word() -> None:
    assert nearest("dom_basic", ENVS) == "did you mean 'doom_basic'?"


def test_nearest_is_empty_when_nothing_is_near() -> None:
    assert nearest("humanoid", ENVS) == ""
    assert nearest("doom", []) == ""


@pytest.mark.parametrize("word", ["DOOM_BASIC", "doom-basic", "Doom_Basic"])
def test_case_and_dashes_do_not_count(word: str) -> None:
    assert closest(word, ENVS) == ["doom_basic"]


def test_several_names_that_are_about_as_near() -> None:
    assert nearest("stop", ["step", "stup", "learning_rate"]) == "did you mean 'step' or 'stup'?"


def test_a_much_better_match_stands_alone() -> None:
    assert closest("gama", ["gamma", "game_over_penalty", "lambda"]) == ["gamma"]


@pytest.mark.parametrize(
    ("value", "text"), [(None, "null"), (True, "true"), ("a", "'a'"), (0, "0"), (1.0, "1.0"), ([1], "[1]")]
)
def test_show_uses_the_words_of_yaml(value: Any, text: str) -> None:
    assert show(value) == text


def test_show_is_short() -> None:
    assert len(show("x" * 500)) == 80


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


def test_cells_stand_one_below_the_other() -> None:
    rows = [("run", "frames", "why"), ("a", "1,000", ""), ("long name", "5", "no idea")]
    assert columns(rows) == ["run        frames  why", "a          1,000", "long name  5       no idea"]
    assert columns(rows[1:], right=True) == ["a          1,000", "long name      5  no idea"]


def test_long_texts_are_cut_in_the_middle() -> None:
    assert cut("abc", 3) == "abc"
    assert cut("a" * 6 + "b" * 6, 4) == "aa [... 8 characters left out ...] bb"
