"""From the words of a command line to a call of a verb's function.

A function's parameters are its flags; those before the ``/`` are words without a flag. If the first of them is called
``overrides`` or ``filters``, the verb takes KEY=VALUE words, which may stand anywhere between the others.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Sequence
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import tyro

from rollmill.core.errors import ConfigError
from rollmill.core.terminal import clean_output
from rollmill.core.text import alternatives, closest, did_you_mean

_OVERRIDE = re.compile(r"[A-Za-z_][\w.]*=")
_TAKES_PATH = ("-f", "--config", "--restore", "--out", "--policy", "--record", "--csv", "--video")
_KEY_VALUE = ("overrides", "filters")
_HAS_ENV = ("rollmill train", "rollmill collect", "rollmill world controller")
"""Verbs for which a word without a key may be an environment."""
_SILENT_DEFAULTS = ("None", "False", "", "''")


def split_overrides(words: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """Take KEY=VALUE words out, wherever they stand between the flags."""
    flags: list[str] = []
    overrides: list[str] = []
    for word, before in zip(words, ("", *words)):
        is_override = _OVERRIDE.match(word) and before not in _TAKES_PATH
        (overrides if is_override else flags).append(word)
    return flags, tuple(overrides)


def call(function: Callable[..., int], words: Sequence[str], prog: str) -> int:
    """Call a verb's function with what the words say; ConfigError where they do not fit it.

    ``prog`` is how the verb is typed: ``rollmill data info``. The parser itself ends the process for ``--help``, and
    where a flag has a value of the wrong type.
    """
    _refuse_empty(words)
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    takes_settings = bool(parameters) and parameters[0].name in _KEY_VALUE
    rest, settings = split_overrides(words) if takes_settings else (list(words), ())
    flags = ["--help", *(f"--{_flag_name(p)}" for p in parameters if p.kind is not p.POSITIONAL_ONLY)]
    for word, following in zip(rest, [*rest[1:], ""]):
        if _is_flag(word) and _flag_of(word) not in flags:
            raise ConfigError(f"{_about_flag(word, following, flags, prog, takes_settings)} (see `{prog} --help`)")
    form = _form(function, parameters, takes_settings)
    options = (tyro.conf.FlagCreatePairsOff,)
    (values, named), unknown = tyro.cli(form, args=rest, prog=prog, config=options, return_unknown_args=True)
    stray = [*unknown, *(values[-1] if takes_settings else ())]
    if stray:
        raise ConfigError(f"{_about_word(stray[0], prog, takes_settings)} (see `{prog} --help`)")
    given = (settings, *values[:-1]) if takes_settings else values
    for name, value in signature.bind(*given, **named).arguments.items():
        _refuse_odd(name, value)
    with clean_output():
        return function(*given, **named)


def _refuse_empty(words: Sequence[str]) -> None:
    """An empty word is a variable of a shell that was not set; as a path it would mean the current folder."""
    for before, word in zip(("", *words), words):
        flag, equals, value = word.partition("=")
        if word.startswith("-") and equals and not value:
            raise ConfigError(f"{flag}: the value is empty")
        if not word:
            raise ConfigError(f"{f'{before}: ' if before.startswith('-') else ''}a word of the command line is empty")


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


def _is_flag(word: str) -> bool:
    return word.startswith("--") and word != "--" and not word.startswith("--tyro-")  # the parser's own


def _flag_of(word: str) -> str:
    return word.partition("=")[0].replace("_", "-")


def _about_flag(word: str, following: str, flags: Sequence[str], prog: str, takes_settings: bool) -> str:
    """What to write instead of a flag that there is not; ``following`` is the word behind it."""
    flag, _, value = word.partition("=")
    near = did_you_mean(closest(flag, flags))
    if near or not takes_settings:
        return f"no option {flag}{near and f'; {near}'}"
    value = value or ("VALUE" if not following or following.startswith("-") else following)
    key = flag.removeprefix("--").replace("-", "_")
    return f"no option {flag}; settings are words without dashes: {prog} {key}={value}"


def _about_word(word: str, prog: str, takes_settings: bool) -> str:
    """What to write instead of a word that has no place."""
    if not takes_settings or word.startswith("-"):
        return f"{word!r} is a word too many"
    if word.endswith((".yaml", ".yml")):
        return f"{word!r}: a file with settings is given as -f {word}"
    example = f"env={word}" if prog in _HAS_ENV else "KEY=VALUE"
    return f"{word!r}: settings are words of the form KEY=VALUE: {prog} {example}"


# -- what the parser is told ------------------------------------------------------------------------------------


def _form(function: Callable[..., int], parameters: list[inspect.Parameter], settings: bool) -> Callable[..., Any]:
    """A function with the same parameters that returns what it is given, for the parser: with names in its help that
    mean something to a user. KEY=VALUE words stand last: what lands there is no setting, and is refused.
    """

    def form(*values: Any, **named: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return values, named

    hints = get_type_hints(function, include_extras=True)
    plain = [p for p in parameters if p.kind is p.POSITIONAL_ONLY]
    flags = [p.replace(kind=p.KEYWORD_ONLY) for p in parameters if p.kind is not p.POSITIONAL_ONLY]
    if settings:
        plain = [*plain[1:], plain[0].replace(default=())]
    own = [*plain, *flags]
    form.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]
    form.__annotations__ = {p.name: _annotation(p, hints[p.name]) for p in own}
    form.__doc__ = (inspect.getdoc(function) or "").replace("``", "`")
    return form


def _annotation(parameter: inspect.Parameter, hint: Any) -> Any:
    """The type of a parameter, with the name of its value and the default as help shows them."""
    plain, marks = (hint.__origin__, hint.__metadata__) if get_origin(hint) is Annotated else (hint, ())
    about = tyro.conf.arg(metavar=_metavar(parameter, plain), help_behavior_hint=_default_text)
    return Annotated[(plain, about, *marks)]  # marks that say something else come later and win


def _default_text(label: str) -> str:
    return "" if label in _SILENT_DEFAULTS else f"(default: {label})"


def _metavar(parameter: inspect.Parameter, hint: Any) -> str | None:
    """What stands for the value in help; None leaves it to the parser (``INT``, ``PATH``)."""
    parts = [part for part in alternatives(hint) if part is not NoneType]
    several = get_origin(parts[0]) is tuple
    if parameter.kind is parameter.POSITIONAL_ONLY:
        return _positional(parameter, several, parts[0])
    if several:
        return f"[{_kind(get_args(parts[0])[0])} ...]"
    return None if len(parts) == len(alternatives(hint)) else _kind(parts[0])


def _positional(parameter: inspect.Parameter, several: bool, kind: Any) -> str:
    if parameter.name in _KEY_VALUE:
        return "[KEY=VALUE ...]"
    name = _kind(kind) if get_origin(kind) is Literal else parameter.name.upper()
    if several:
        name = f"{name.removesuffix('S')} ..."
    return name if parameter.default is inspect.Parameter.empty and not several else f"[{name}]"


def _kind(tp: Any) -> str:
    choices = (True, False) if tp is bool else get_args(tp) if get_origin(tp) is Literal else ()
    return "{" + ",".join(map(str, choices)) + "}" if choices else tp.__name__.upper()


def _flag_name(parameter: inspect.Parameter) -> str:
    return parameter.name.strip("_").replace("_", "-")
