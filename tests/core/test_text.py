from __future__ import annotations

from typing import Any

import pytest

from rollmill.core.text import closest, columns, counted, cut, nearest, show

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


def test_cells_stand_one_below_the_other() -> None:
    rows = [("run", "frames", "why"), ("a", "1,000", ""), ("long name", "5", "no idea")]
    assert columns(rows) == ["run        frames  why", "a          1,000", "long name  5       no idea"]
    assert columns(rows[1:], right=True) == ["a          1,000", "long name      5  no idea"]


def test_long_texts_are_cut_in_the_middle() -> None:
    assert cut("abc", 3) == "abc"
    assert cut("a" * 6 + "b" * 6, 4) == "aa [... 8 characters left out ...] bb"


def test_one_of_them_is_not_several() -> None:
    assert [counted(n, "session") for n in (0, 1, 1200)] == ["0 sessions", "1 session", "1,200 sessions"]
