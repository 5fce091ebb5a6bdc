from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmill.core.config.yaml import parse_mapping, parse_value, read_mapping, to_yaml
from rollmill.core.errors import ConfigError


def problem(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_mapping(text, "a.yaml")
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1e6", 1e6),
        ("2.5e-4", 2.5e-4),
        ("1E+3", 1000.0),
        ("-.5", -0.5),
        ("3.", 3.0),
        (".inf", math.inf),
        ("-.INF", -math.inf),
        ("12", 12),
        ("010", 10),
        ("0x1F", 31),
        ("0o17", 15),
        ("1_000_000", 1_000_000),
        ("-1_000", -1000),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("doom_basic", "doom_basic"),
        ("module:make", "module:make"),
        ("[1, a, {b: 2}]", [1, "a", {"b": 2}]),
        ("{a: 1, b: [x]}", {"a": 1, "b": ["x"]}),
        ("'1e6'", "1e6"),
        ('"3"', "3"),
        ("!!str 3", "3"),
        ("!!float 3", 3.0),
        ("", ""),
        ("   ", ""),
        ("a=b=c", "a=b=c"),
    ],
)
def test_what_a_value_means(text: str, value: Any) -> None:
    found = parse_value(text, "test")
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("text", ["on", "off", "yes", "no", "y", "2026-11-15", "12:30:45", "2026_11_15", "1_0"])
def test_the_traps_of_yaml_stay_text(text: str) -> None:
    assert parse_value(text, "test") == text


def test_nan() -> None:
    assert math.isnan(parse_value(".nan", "test"))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[1, 2", "not valid YAML"),
        ("#3", "comment"),
        ("!!python/name:os.system x", "tag !!python/name:os.system is not supported"),
        ("!mine 3", "tag !mine is not supported"),
        ("!!set {a, b}", "tag !!set is not supported"),
        ("!!int abc", "'abc' is not a value for the tag !!int"),
        ("9" * 5000, "digits"),
        ('"\\ud800"', "holds half of a surrogate pair"),
        ('{"\\udfff": 1}', "a key holds half of a surrogate pair"),
        ("\x01", "not valid YAML"),
    ],
)
def test_refused_values(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=r"^command line 'k='") as caught:
        parse_value(text, "command line 'k='")
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_lines_are_kept_by_path() -> None:
    found = parse_mapping("a: 1\n\nb:\n  c: 2\n  d: {e: 3}\n", "a.yaml")
    assert found.data == {"a": 1, "b": {"c": 2, "d": {"e": 3}}}
    assert found.lines == {("a",): 1, ("b",): 3, ("b", "c"): 4, ("b", "d"): 5, ("b", "d", "e"): 5}


def test_every_duplicate_key_is_named_with_both_lines() -> None:
    text = "a: 1\nb:\n  c: 1\n  c: 2\na: 3\nlist: [{x: 1, x: 2}]\n"
    assert problem(text).splitlines() == [
        "a.yaml: key 'b.c' is set twice, in line 3 and in line 4; keep one of them",
        "a.yaml: key 'a' is set twice, in line 1 and in line 5; keep one of them",
        "a.yaml: key 'list.0.x' is set twice, in line 6 and in line 6; keep one of them",
    ]


def test_keys_are_text() -> None:
    assert parse_mapping("1: a\ntrue: b\nnull: c\n", "a.yaml").data == {"1": "a", "true": "b", "null": "c"}


def test_a_list_cannot_be_a_key() -> None:
    assert "line 1: a key must be a word, found a list" in problem("? [a]\n: 1\n")


def test_aliases_are_read_as_copies() -> None:
    data = parse_mapping("a: &x {n: [1]}\nb: *x\n", "a.yaml").data
    assert data["a"] == data["b"]
    assert data["a"] is not data["b"]


def test_an_alias_to_itself_is_refused() -> None:
    assert problem("a: &x [1, *x]\n") == "a.yaml, line 1: a.1: contains itself through an alias"


def test_aliases_cannot_grow_without_bounds() -> None:
    layers = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    assert problem("\n".join(["a0: &a0 [1]", *layers])).startswith("a.yaml: more than 1,000,000 characters")
    long = f"a: &a {'x' * 10_000}\nb: [{', '.join(['*a'] * 200)}]"
    assert "with aliases written out" in problem(long)


@pytest.mark.parametrize("depth", [65, 300, 5000])
def test_nesting_has_a_largest_depth(depth: int) -> None:
    for text in ("a: " + "[" * depth + "]" * depth, "{a: " * depth + "1" + "}" * depth):
        assert problem(text).endswith("not valid YAML: nested more than 64 deep")
    deepest = "[" * 63 + "]" * 63
    assert parse_mapping(f"a: {deepest}\nb: {deepest}", "a.yaml").data["b"]


def test_text_has_a_largest_size(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("#" * 1_000_001)
    with pytest.raises(ConfigError, match="it has more than 1,000,000 bytes"):
        read_mapping(tmp_path / "a.yaml")
    assert "more than 1,000,000 characters" in problem("#" * 1_000_001)


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.yaml")
    with pytest.raises(ConfigError, match="it is a FIFO, not a file"):
        read_mapping(tmp_path / "a.yaml")
    with pytest.raises(ConfigError, match="it is a device, not a file"):
        read_mapping(Path("/dev/zero"))


def test_merge_keys_are_refused() -> None:
    assert "line 2: b.<<: merge keys are not supported" in problem("a: &x {n: 1}\nb: {<<: *x}\n")


def test_syntax_errors_name_the_place() -> None:
    message = problem("a: 1\n b: 2\n")
    assert message.startswith("a.yaml, line 2, column 3: not valid YAML:")
    assert "\n" not in message
    assert "single document" in problem("a: 1\n---\nb: 2\n")


@pytest.mark.parametrize(("text", "kind"), [("- a\n", "a list"), ("\nword\n", "a single value")])
def test_the_top_level_must_be_a_mapping(text: str, kind: str) -> None:
    assert f"expected settings as 'key: value' lines, found {kind}" in problem(text)


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "---\n"])
def test_an_empty_file_holds_no_settings(text: str, tmp_path: Path) -> None:
    path = tmp_path / "empty.yaml"
    path.write_text(text)
    assert read_mapping(path).data == {}


def test_a_missing_file_names_its_neighbours(tmp_path: Path) -> None:
    for name in ("doom_basic.yaml", "cartpole.yaml", "notes.txt"):
        (tmp_path / name).touch()
    with pytest.raises(ConfigError, match=r"no such file; did you mean '.*/doom_basic\.yaml'\?"):
        read_mapping(tmp_path / "dom_basic.yaml")
    with pytest.raises(ConfigError, match=r"YAML files in .*: cartpole\.yaml, doom_basic\.yaml$"):
        read_mapping(tmp_path / "zzz")
    with pytest.raises(ConfigError, match=r"the folder .*/nowhere does not exist either"):
        read_mapping(tmp_path / "nowhere" / "a.yaml")


def test_a_missing_file_in_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there are no YAML files in"):
        read_mapping(tmp_path / "a.yaml")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_mapping(tmp_path)
    (tmp_path / "latin.yaml").write_bytes("name: \u00e9t\u00e9".encode("latin-1"))
    with pytest.raises(ConfigError, match="not a UTF-8 text file"):
        read_mapping(tmp_path / "latin.yaml")


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
tricky = st.sampled_from(["1e6", "yes", "on", "null", "~", "", " ", "0x1F", "1_000", "<<", "2026-11-15", "- a", "a: b"])
values = st.recursive(
    scalars | tricky,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text() | tricky, inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None)
@given(st.dictionaries(st.text() | tricky, values, max_size=5))
def test_what_is_written_is_read_back(data: dict[str, Any]) -> None:
    text = to_yaml(data)
    for ours in (False, True):
        found = parse_mapping(text, "test", ours)
        assert found.data == data
        assert repr(found.data) == repr(data)  # 1, 1.0 and True are equal to Python; keys keep their order
        assert found == parse_mapping(text, "test")


def test_the_fast_reader_refuses_in_the_same_words() -> None:
    for text in ("a: [", "a: &x [*x]", "a: 1\na: 2", "- 1", "a: !!int x", "a: \ud800"):
        with pytest.raises(ConfigError) as slow:
            parse_mapping(text, "test")
        with pytest.raises(ConfigError) as fast:
            parse_mapping(text, "test", ours=True)
        assert str(fast.value) == str(slow.value)


def test_other_readers_understand_it_too() -> None:
    data = {"lr": 1e-05, "big": 1e22, "on": "off", "text": "1e-3", "none": None, "sizes": [64, 64]}
    assert yaml.safe_load(to_yaml(data)) == data


def test_shape_of_the_text() -> None:
    text = to_yaml({"b": {"sizes": [64, 64], "args": {}}, "a": 1e-05, "name": "x " * 100})
    assert text == f"b:\n  sizes: [64, 64]\n  args: {{}}\na: 1.0e-05\nname: '{'x ' * 100}'\n"
