"""What of ``info`` is kept: names, kinds, what is missing and what does not fit."""

import numpy as np
import pytest

from rollmill.core.fields import Field
from rollmill.envs.info import flat, info_field, info_fields, note_info, texts, word_for, write_info
from rollmill.envs.settings import EnvSettings


@pytest.mark.parametrize(
    ("word", "field"),
    [
        ("lives", Field("lives", "float64")),
        ("player/health", Field("player/health", "float64")),
        ("at:3", Field("at", "float64", (3,))),
        ("map:4x5", Field("map", "float64", (4, 5))),
        ("room:text", Field("room:text", "uint8", (64,))),
        ("room:text200", Field("room:text", "uint8", (200,))),
        ("at:3?", Field("at", "float64", (3,))),
    ],
)
def test_a_word_says_what_a_row_holds(word, field):
    assert info_field(word) == field


@pytest.mark.parametrize("word", ["", "3lives", "at:", "at:3y", "room:string", "at:0", "map:100x100", "a b"])
def test_other_words_are_refused(word):
    with pytest.raises(ValueError, match="info: "):
        info_field(word)


def test_one_name_stands_once():
    with pytest.raises(ValueError, match="room is given twice"):
        info_fields(["room:text", "room"])


def test_settings_refuse_what_no_row_can_hold():
    with pytest.raises(ValueError, match="'at:y' is none of NAME"):
        EnvSettings(info=("at:y",))
    for key in ("previous_action", "previous_reward"):
        with pytest.raises(ValueError, match=f"{key} is for single environments"):
            EnvSettings(vector=True, **{key: True})


def written(word, info, agents=2):
    field = info_field(word)
    out = np.full((agents, *field.shape), 7, field.dtype)
    write_info(field, flat(info), out)
    return out


def test_numbers_arrays_and_texts_are_written_for_every_agent():
    assert written("lives", {"lives": True}).tolist() == [1.0, 1.0]
    assert written("at:2", {"at": [1, 2]}).tolist() == [[1, 2], [1, 2]]
    assert written("p/q", {"p": {"q": 2.5}}).tolist() == [2.5, 2.5]
    assert texts(written("room:text", {"room": "häll"})).tolist() == ["häll", "häll"]


def test_what_is_missing_says_so():
    assert np.isnan(written("lives", {})).all()
    assert np.isnan(written("at:2", None)).all()
    assert texts(written("room:text", {})).tolist() == ["", ""]


@pytest.mark.parametrize(
    ("word", "value", "reason"),
    [
        ("lives", "three", "not a number; give env.info lives:text"),
        ("lives", [1, 2], r"shape \(2,\), env.info says \(\)"),
        ("at:2", [1, 2, 3], r"shape \(3,\), env.info says \(2,\)"),
        ("room:text4", "cellar", "6 bytes, 4 are kept; give env.info room:text6"),
    ],
)
def test_what_does_not_fit_is_named(word, value, reason):
    with pytest.raises(ValueError, match=reason):
        written(word, {word.partition(":")[0]: value})


def test_words_are_found_from_values():
    assert word_for("a", 1) == "a"
    assert word_for("a", np.float32(1)) == "a"
    assert word_for("a", np.zeros((2, 3))) == "a:2x3"
    assert word_for("a", "x" * 50) == "a:text100"
    assert word_for("a", object()) is None
    assert word_for("a", [[1], [2, 3]]) is None
    assert word_for("a", np.zeros(5000)) is None
    assert word_for("no name", 1) is None


def test_the_longest_text_counts_and_a_change_of_kind_has_no_word():
    found = {}
    for info in ({"room": "x", "n": 1, "z": None}, {"room": "x" * 50, "n": [1, 2]}, {"room": "x", "n": 1}):
        note_info(found, info)
    assert found == {"room": "room:text100", "n": ""}
