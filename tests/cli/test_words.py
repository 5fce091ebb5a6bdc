"""Words of a command line, and what is said about those that nobody understands."""

import json
from pathlib import Path
from typing import Any, Literal

import pytest
import tyro
from hypothesis import given
from hypothesis import strategies as st

from rollmill.cli.options import Configs, Json
from rollmill.cli.words import call, split_overrides
from rollmill.core.errors import ConfigError

PROG = "rollmill train"


def verb(
    overrides: tuple[str, ...],
    target: tyro.conf.Positional[Path],
    others: tyro.conf.Positional[tuple[str, ...]] = (),
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


def plain(store: tyro.conf.Positional[str], /, workers: int = 0) -> int:
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


def test_help_speaks_of_what_a_user_types(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        call(verb, ["--help"], PROG)
    text = capsys.readouterr().out
    assert text.startswith("usage: rollmill train [-h] [OPTIONS] TARGET [OTHER ...] [KEY=VALUE ...]\n")
    for wanted in ("--out PATH", "--episodes INT", "--best {True,False}", "--names [STR ...]", "-f FILE"):
        assert wanted in text
    for ugly in ("None", "``", "(default: )", "False)", "STR [STR", "overrides"):
        assert ugly not in text
    assert "(default: a)" in text
    assert "(default: first)" in text
    assert "Where `it` goes." in text
    assert "Settings, for example a=1." in text


@pytest.mark.parametrize(
    ("function", "words", "answer"),
    [
        (verb, "x --episods 3", "no option --episods; did you mean '--episodes'?"),
        (verb, "--episods 3 x", "no option --episods; did you mean '--episodes'?"),
        (verb, "x --learning.gamma=0.9", "words without dashes: rollmill train learning.gamma=0.9"),
        (verb, "x --batch-size 32", "words without dashes: rollmill train batch_size=32"),
        (verb, "x --seed", "words without dashes: rollmill train seed=VALUE"),
        (plain, "x --seed 3", "no option --seed (see"),
        (plain, "x y", "'y' is a word too many"),
        (plain, "x -y", "'-y' is a word too many"),
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


def test_underscores_in_flags_and_values_behind_an_equals_sign() -> None:
    def one(*, shard_mb: int = 3) -> int:
        return shard_mb

    assert call(one, ["--shard_mb=4"], PROG) == 4


def test_key_value_words_are_told_from_flags_and_paths() -> None:
    words = ["a=1", "--json", "-f", "x=y.yaml", "b.c=[1, 2]", "--restore", "p=q.ckpt", "--config=z=1.yaml", "run/dir"]
    flags, overrides = split_overrides(words)
    assert flags == ["--json", "-f", "x=y.yaml", "--restore", "p=q.ckpt", "--config=z=1.yaml", "run/dir"]
    assert overrides == ("a=1", "b.c=[1, 2]")


KEYS = st.sampled_from(["env=toy_target", "learning.gamma=0.5", "run.name=a=b", "env.args={a: 1}", "stop.frames="])
FLAGS = st.sampled_from([["--json"], ["--resume"], ["-f", "a=b.yaml"], ["--seed", "3"], ["folder/run"]])


@given(st.lists(st.one_of(KEYS, FLAGS)))
def test_key_value_words_may_stand_anywhere(parts: list[Any]) -> None:
    words = [word for part in parts for word in ([part] if isinstance(part, str) else part)]
    flags, overrides = split_overrides(words)
    assert list(overrides) == [part for part in parts if isinstance(part, str)]
    assert flags == [word for part in parts if not isinstance(part, str) for word in part]
