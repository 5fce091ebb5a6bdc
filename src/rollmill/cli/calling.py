"""From the words of a command line to the call of a verb's function: parsed and checked."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import tyro

from rollmill.core.errors import ConfigError
from rollmill.core.terminal import clean_output


def call(function: Callable[..., int], words: Sequence[str], prog: str) -> int:
    """Call a verb's function with the words of the command line; returns its exit code."""
    _refuse_empty(words)
    if isinstance(function, functools.partial):
        function = functools.partial(_guarded(function.func), *function.args)
    else:
        function = _guarded(function)
    return tyro.cli(function, args=words, prog=prog, config=(tyro.conf.FlagCreatePairsOff,))


def _refuse_empty(words: Sequence[str]) -> None:
    """An empty word is a variable of a shell that was not set; as a path it would mean the current folder."""
    for before, word in zip(("", *words), words):
        flag, equals, value = word.partition("=")
        if word.startswith("-") and equals and not value:
            raise ConfigError(f"{flag}: the value is empty")
        if not word:
            raise ConfigError(f"{f'{before}: ' if before.startswith('-') else ''}a word of the command line is empty")


def _guarded(function: Callable[..., int]) -> Callable[..., int]:
    signature = inspect.signature(function)

    @functools.wraps(function)
    def guarded(*words: Any, **flags: Any) -> int:
        for name, value in signature.bind(*words, **flags).arguments.items():
            _refuse_odd(name, value)
        with clean_output():
            return function(*words, **flags)

    return guarded


def _refuse_odd(name: str, value: Any) -> None:
    """Numbers that are no quantities: NaN passes every comparison, and no counter holds more than 64 bits."""
    if isinstance(value, tuple | list):
        for item in value:
            _refuse_odd(name, item)
    flag = f"--{name.strip('_').replace('_', '-')}"
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{flag} {value}: a finite number is expected")
    if isinstance(value, int) and abs(value) >= 2**63:
        raise ConfigError(f"{flag} {value}: 64 bits do not hold it")
