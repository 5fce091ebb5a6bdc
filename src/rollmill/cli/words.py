"""From the words of a command line to a call of a verb's function; what does not fit is refused in one line."""

from __future__ import annotations

import inspect
import math
import re
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import MISSING
from pathlib import Path
from typing import Any

from rollmill.cli.arguments import Argument, arguments_of
from rollmill.core.config.types import alternatives
from rollmill.core.errors import ConfigError
from rollmill.core.terminal import clean_output
from rollmill.core.text import closest, did_you_mean, nearest

_KEY_VALUE = re.compile(r"[A-Za-z_][\w.]*=")
_OLD_FLAGS = {"--videos": "--report-videos", "--films": "--video-count"}
"""What an option was called -> what it is called now."""
_HAS_ENV = ("rollmill train", "rollmill collect", "rollmill world controller")
"""Verbs for which a word without a key may be an environment."""


def call(function: Callable[..., int], words: Sequence[str], prog: str) -> int:
    """Call a verb's function with what the words say; raises ConfigError where they do not fit it.

    ``prog`` is how the verb is typed: ``rollmill data info``.
    """
    bound = parse(function, words, prog)
    with clean_output():
        return function(*bound.args, **bound.kwargs)


def parse(function: Callable[..., int], words: Sequence[str], prog: str) -> inspect.BoundArguments:
    """Parse words into the arguments of a verb's function."""
    _refuse_empty(words)
    arguments = arguments_of(function)
    given = _sort(words, arguments, prog)
    values: dict[str, Any] = {}
    blocks: dict[str, dict[str, Any]] = {}
    for argument in arguments:
        place = blocks.setdefault(argument.block, {}) if argument.block else values
        if argument in given:
            place[argument.name] = _value(argument, given[argument])
        elif argument.default is MISSING:
            raise ConfigError(f"{_missing(argument)} (see `{prog} --help`)")
    signature = inspect.signature(function, eval_str=True)
    for name, fields in blocks.items():
        (kind,) = alternatives(signature.parameters[name].annotation)
        values[name] = kind(**fields)
    plain = [name for name, parameter in signature.parameters.items() if parameter.kind is parameter.POSITIONAL_ONLY]
    first = [values.pop(name) for name in plain if name in values]
    return signature.bind(*first, **values)


# -- which word belongs to what ------------------------------------------------------------------------------------


def _sort(words: Sequence[str], arguments: Sequence[Argument], prog: str) -> dict[Argument, list[str]]:
    """Give every argument its words; KEY=VALUE words may stand anywhere between the others."""
    options = {flag: argument for argument in arguments if not argument.is_word for flag in argument.flags}
    settings = next((argument for argument in arguments if argument.is_key_value), None)
    given: dict[Argument, list[str]] = {settings: []} if settings else {}
    own_words = [argument for argument in arguments if argument.is_word and not argument.is_key_value]
    loose: list[str] = []
    rest = deque(words)
    while rest:
        word = rest.popleft()
        if word == "--":
            loose += rest
            break
        if _is_flag(word):
            option = options.get(_flag_of(word))
            if option is None:
                near_by = (rest[0] if rest else "", ("--help", *options), own_words)
                reason = _about_flag(word, *near_by, prog, settings is not None)
                raise ConfigError(f"{reason} (see `{prog} --help`)")
            given.setdefault(option, []).extend(_values_behind(word, option, rest, settings is not None))
        elif settings and _KEY_VALUE.match(word):
            given[settings].append(word)
        else:
            loose.append(word)
    _hand_out(loose, own_words, given)
    if loose:
        raise ConfigError(f"{_about_word(loose[0], prog, settings is not None)} (see `{prog} --help`)")
    return given


def _values_behind(word: str, option: Argument, rest: deque[str], takes_settings: bool) -> list[str]:
    """Take the values of an option from the words behind it."""
    _, equals, value = word.partition("=")
    if option.is_switch:
        if equals:
            raise ConfigError(f"{word}: {option.flag} takes no value")
        return []
    if equals:
        return [value]
    several = option.takes_several and not option.spelling.one_each
    values: list[str] = []
    while rest and not _is_flag(rest[0]) and rest[0] != "--":
        # the first one is a value whatever it looks like: a path may have an equals sign in it
        if values and (not several or (takes_settings and _KEY_VALUE.match(rest[0]))):
            break
        values.append(rest.popleft())
    if not values and not several:
        raise ConfigError(f"{option.flag}: a value is expected: {option.usage}")
    return values


def _hand_out(loose: list[str], arguments: Sequence[Argument], given: dict[Argument, list[str]]) -> None:
    """Give the words that stand alone to the arguments that are words; those that are left stay in ``loose``."""
    for argument in arguments:
        count = len(loose) if argument.takes_several else 1
        if loose or (argument.takes_several and argument.default is MISSING):
            given[argument] = loose[:count]
            del loose[:count]


def _is_flag(word: str) -> bool:
    """Return whether a word is a flag, as ``--json`` and ``-f`` are; a negative number, ``-`` and ``--`` are none."""
    if not word.startswith("-") or word in ("-", "--"):
        return False
    try:
        float(word)
    except ValueError:
        return True
    return False


def _flag_of(word: str) -> str:
    return word.partition("=")[0].replace("_", "-")


# -- from text to values -------------------------------------------------------------------------------------------


def _value(argument: Argument, texts: Sequence[str]) -> Any:
    if argument.is_switch:
        return True
    if argument.takes_several:
        return tuple(_one(argument, text) for text in texts)
    return _one(argument, texts[-1])


def _one(argument: Argument, text: str) -> Any:
    label = f"{argument.label} {text}"
    if argument.choices:
        value = text.lower() if argument.kind is bool else text
        if value not in argument.choices:
            hint = nearest(text, argument.choices)
            raise ConfigError(f"{label}: one of {', '.join(argument.choices)} is expected{hint and f'; {hint}'}")
        return value == "true" if argument.kind is bool else value
    if argument.kind in (int, float):
        return _number(argument.kind, text, label)
    return Path(text) if argument.kind is Path else text


def _number(kind: type, text: str, label: str) -> int | float:
    """Parse a number. NaN passes every comparison, and no counter holds more than 64 bits: both are refused."""
    try:
        number = int(text) if kind is int else float(text)
    except ValueError:
        raise ConfigError(f"{label}: a {'whole ' if kind is int else ''}number is expected") from None
    if isinstance(number, float) and not math.isfinite(number):
        raise ConfigError(f"{label}: a finite number is expected")
    if isinstance(number, int) and abs(number) >= 2**63:
        raise ConfigError(f"{label}: 64 bits do not hold it")
    return number


# -- what is said about words that do not fit ----------------------------------------------------------------------


def _refuse_empty(words: Sequence[str]) -> None:
    """Refuse an empty word, a variable of a shell that was not set; as a path it would mean the current folder."""
    for before, word in zip(("", *words), words):
        flag, equals, value = word.partition("=")
        if word.startswith("-") and equals and not value:
            raise ConfigError(f"{flag}: the value is empty")
        if not word:
            raise ConfigError(f"{f'{before}: ' if before.startswith('-') else ''}a word of the command line is empty")


def _missing(argument: Argument) -> str:
    sentence = argument.about.partition(". ")[0].rstrip(".")
    return f"{argument.usage} is missing{f': {sentence}' if sentence else ''}"


def _about_flag(
    word: str, following: str, flags: Sequence[str], words: Sequence[Argument], prog: str, takes_settings: bool
) -> str:
    """Say what to write instead of a flag that there is not.

    ``following`` is the word behind it, ``words`` are what the verb takes without dashes.
    """
    flag, _, value = word.partition("=")
    if (now := _OLD_FLAGS.get(flag)) in flags:
        return f"no option {flag}; it is called {now} now"
    if flag.removeprefix("--").replace("-", "_") in [argument.name for argument in words]:
        return f"no option {flag}; it is a word without dashes: {prog} {' '.join(a.usage for a in words)}"
    names = {known.lstrip("-"): known for known in flags}  # dashes are no likeness
    near = did_you_mean(names[name] for name in closest(flag.lstrip("-"), names))
    if near or not takes_settings or not flag.startswith("--"):
        return f"no option {flag}{near and f'; {near}'}"
    value = value or ("VALUE" if not following or following.startswith("-") else following)
    key = flag.removeprefix("--").replace("-", "_")
    return f"no option {flag}; settings are words without dashes: {prog} {key}={value}"


def _about_word(word: str, prog: str, takes_settings: bool) -> str:
    """Say what to write instead of a word that has no place."""
    if not takes_settings or word.startswith("-"):
        return f"{word!r} is a word too many"
    if word.endswith((".yaml", ".yml")):
        return f"{word!r}: a file with settings is given as -f {word}"
    example = f"env={word}" if prog in _HAS_ENV else "KEY=VALUE"
    return f"{word!r}: settings are words of the form KEY=VALUE: {prog} {example}"
