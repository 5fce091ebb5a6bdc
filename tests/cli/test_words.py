"""Words of a command line, and what is said about those that nobody understands."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmill.cli.arguments import Variants
from rollmill.cli.evaluate import evaluate
from rollmill.cli.help import explain
from rollmill.cli.options import Configs, Json
from rollmill.cli.tree import Verb
from rollmill.cli.words import call, parse
from rollmill.core.errors import ConfigError

PROG = "rollmill train"


def verb(
    overrides: tuple[str, ...],
    target: Path,
    others: tuple[str, ...] = (),
    /,
    out: Path | None = None,
    episodes: int | None = None,
    until: Literal["a", "b"] = "a",
    best: bool | None = None,
    names: tuple[str, ...] = ("first",),
    config: Configs = (),
    fast: bool = False,
    text: str = "",
    json_: Json = False,
) -> int:
    """Do it: ``rollmill verb x``.

    Args:
        overrides: Settings, for example a=1.
        target: What it is done to.
        others: More of them.
        out: Where ``it`` goes.
        episodes: How many.
        until: When to stop.
        best: Whether.
        names: Some names.
        config: A file.
        fast: Hurry.
        text: Some text.
        json_: Print JSON.
    """
    given = {"overrides": overrides, "target": str(target), "others": others, "episodes": episodes, "fast": fast}
    print(json.dumps({**given, "out": str(out), "config": [str(path) for path in config], "names": names}))
    return 7


@dataclass
class Boat:
    length: int = 4
    """How long."""
    sails: int = 1
    """How many."""


@dataclass
class Car:
    length: int = 3
    """How long from bumper to bumper."""
    doors: int = 5
    """How many."""


def build(
    kind: str, /, options: Annotated[dict[str, Any], Variants(lambda: {"boat": Boat, "car": Car})], fast: bool = False
) -> int:
    """Build it.

    Args:
        kind: What.
        fast: Hurry.
    """
    print(json.dumps([kind, options, fast]))
    return 0


def plain(store: str, /, workers: int = 0) -> int:
    """Look.

    Args:
        store: What to look at.
        workers: How many.
    """
    return 0


def test_words_become_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["a=1", "run", "more", "--episodes", "3", "b.c=2", "-f", "x=1.yaml", "--names", "p", "q"]
    assert call(verb, words, PROG) == 7
    assert json.loads(capsys.readouterr().out) == {
        "overrides": ["a=1", "b.c=2"],
        "target": "run",
        "others": ["more"],
        "episodes": 3,
        "fast": False,
        "out": "None",
        "config": ["x=1.yaml"],
        "names": ["p", "q"],
    }


def test_help_speaks_of_what_a_user_types(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = explain(verb, PROG, {"inner": Verb("", "one of its own")})
    assert text.startswith("usage: rollmill train [OPTIONS] TARGET [OTHER ...] [KEY=VALUE ...]\n")
    for wanted in ("--out PATH", "--episodes INT", "--best {true,false}", "--names [STR ...]", "-f, --config FILE"):
        assert wanted in text
    for ugly in ("None", "``", "(default: )", "False)", "STR [STR", "overrides"):
        assert ugly not in text
    assert "(default: a)" in text
    assert "(default: first)" in text
    assert "Where `it` goes." in text
    assert "Settings, for example a=1." in text
    assert text.endswith("\n  inner  one of its own")
    assert max(map(len, text.splitlines())) <= 80
    assert explain(only_settings, PROG, {}).startswith("usage: rollmill train [OPTIONS] [KEY=VALUE ...]\n\nGo.\n")


@dataclass(frozen=True)
class Amounts:
    """Options that belong together."""

    out: Path
    """Where ``it`` goes."""
    episodes: int | None = None
    """How many."""
    overrides: tuple[str, ...] = ()


def with_options(store: Path, /, options: Amounts, json_: Json = False) -> int:
    """Do it.

    Args:
        store: From where.
        json_: Print JSON.
    """
    assert options == Amounts(Path("x"), 3, ("a=1",))
    assert (store, json_) == (Path("s"), True)
    return 5


def test_the_fields_of_a_dataclass_are_options() -> None:
    assert call(with_options, ["s", "--episodes", "3", "a=1", "--out", "x", "--json"], PROG) == 5
    text = explain(with_options, PROG, {})
    assert text.startswith("usage: rollmill train --out PATH [OPTIONS] STORE [KEY=VALUE ...]\n")
    assert "\n  --episodes INT          How many.\n" in text
    with pytest.raises(ConfigError, match="--out PATH is missing: Where `it` goes"):
        call(with_options, ["s"], PROG)


@pytest.mark.parametrize(
    ("function", "words", "answer"),
    [
        (verb, "x --episods 3", "no option --episods; did you mean '--episodes'?"),
        (evaluate, "x --videos here", "no option --videos; it is called --report-videos now"),
        (verb, "--episods 3 x", "no option --episods; did you mean '--episodes'?"),
        (verb, "x --learning.gamma=0.9", "words without dashes: rollmill train learning.gamma=0.9"),
        (verb, "x --batch-size 32", "words without dashes: rollmill train batch_size=32"),
        (verb, "x --seed", "words without dashes: rollmill train seed=VALUE"),
        (verb, "x --target y", "no option --target; it is a word without dashes: rollmill train TARGET [OTHER ...]"),
        (verb, "x --rate 3", "words without dashes: rollmill train rate=3"),
        (plain, "x --seed 3", "no option --seed (see"),
        (plain, "x y", "'y' is a word too many"),
        (plain, "x -y", "no option -y (see"),
        (plain, "", "STORE is missing: What to look at (see"),
    ],
)
def test_a_word_that_nobody_understands(function: Any, words: str, answer: str) -> None:
    with pytest.raises(ConfigError) as caught:
        call(function, words.split(), PROG)
    assert answer in str(caught.value)
    assert str(caught.value).endswith("(see `rollmill train --help`)")
    assert "\n" not in str(caught.value)


def only_settings(overrides: tuple[str, ...], /, fast: bool = False) -> int:
    """Go.

    Args:
        overrides: Settings.
        fast: Hurry.
    """
    return len(overrides)


@pytest.mark.parametrize(
    ("prog", "word", "answer"),
    [
        ("rollmill train", "CartPole-v1", "rollmill train env=CartPole-v1"),
        ("rollmill offline", "dt", "rollmill offline KEY=VALUE"),
        ("rollmill train", "doom.yaml", "a file with settings is given as -f doom.yaml"),
    ],
)
def test_a_word_without_a_key(prog: str, word: str, answer: str) -> None:
    assert call(only_settings, ["a=1", "--fast"], prog) == 1
    with pytest.raises(ConfigError, match=answer):
        call(only_settings, ["a=1", word], prog)


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("x --episodes", "--episodes: a value is expected: --episodes INT"),
        ("x --episodes --fast", "--episodes: a value is expected: --episodes INT"),
        ("x --episodes three", "--episodes three: a whole number is expected"),
        ("x --episodes 3.5", "--episodes 3.5: a whole number is expected"),
        ("x --until c", "--until c: one of a, b is expected"),
        ("x --best ture", "--best ture: one of true, false is expected; did you mean 'true'?"),
        ("x --fast=yes", "--fast=yes: --fast takes no value"),
    ],
)
def test_a_value_that_does_not_fit(words: str, answer: str) -> None:
    with pytest.raises(ConfigError) as caught:
        call(verb, words.split(), PROG)
    assert str(caught.value) == answer


def test_how_values_may_be_written() -> None:
    words = "--episodes=-4 --best True --until b --names -1 -x=3 --fast -- -run --json"
    with pytest.raises(ConfigError, match="no option -x"):
        parse(verb, words.split(), PROG)
    given = parse(verb, words.replace("-x=3 ", "").split(), PROG).arguments
    assert given == {
        "overrides": (),
        "target": Path("-run"),
        "others": ("--json",),  # behind a double dash nothing is an option
        "episodes": -4,
        "best": True,
        "until": "b",
        "names": ("-1",),
        "fast": True,
    }


def test_underscores_in_flags_and_values_behind_an_equals_sign() -> None:
    def one(*, shard_mb: int = 3) -> int:
        return shard_mb

    assert call(one, ["--shard_mb=4"], PROG) == 4


def test_key_value_words_are_told_from_flags_and_paths() -> None:
    words = ["a=1", "--fast", "-f", "x=y.yaml", "b.c=[1, 2]", "--out", "p=q.ckpt", "--config=z=1.yaml", "run/dir"]
    given = parse(verb, words, PROG).arguments
    assert given["overrides"] == ("a=1", "b.c=[1, 2]")
    assert given["config"] == (Path("x=y.yaml"), Path("z=1.yaml"))
    assert (given["out"], given["target"]) == (Path("p=q.ckpt"), Path("run/dir"))


KEYS = st.sampled_from(["env=toy_target", "learning.gamma=0.5", "run.name=a=b", "env.args={a: 1}", "stop.frames="])
FLAGS = st.sampled_from([["--fast"], ["--json"], ["-f", "a=b.yaml"], ["--episodes", "3"], ["folder/run"]])


@given(st.lists(st.one_of(KEYS, FLAGS)))
def test_key_value_words_may_stand_anywhere(parts: list[Any]) -> None:
    words = [word for part in parts for word in ([part] if isinstance(part, str) else part)]
    found = parse(verb, ["first", *words], PROG).arguments
    assert list(found["overrides"]) == [part for part in parts if isinstance(part, str)]
    assert len(found.get("config", ())) == parts.count(["-f", "a=b.yaml"])
    assert len(found.get("others", ())) == parts.count(["folder/run"])


def test_options_of_several_kinds_stand_once_and_the_verb_gets_what_was_typed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert call(build, ["car", "--doors", "3", "--fast"], PROG) == 0
    assert json.loads(capsys.readouterr().out) == ["car", {"doors": 3}, True]
    assert call(build, ["boat"], PROG) == 0
    assert json.loads(capsys.readouterr().out) == ["boat", {}, False]
    text = " ".join(explain(build, PROG, {}).split())
    assert "--length INT boat: How long. (default: 4) car: How long from bumper to bumper. (default: 3)" in text
    assert "--sails INT boat: How many. (default: 1)" in text
    with pytest.raises(ConfigError, match="a whole number is expected"):
        call(build, ["car", "--doors", "x"], PROG)
