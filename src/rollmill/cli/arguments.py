"""What a verb takes, read from its function: the one description that parsing, help and shell completion share.

Parameters before the ``/`` are words, all others are options. A parameter whose type is a dataclass stands for the
fields of it, so options that some other function wants together are written once, in their dataclass; a field with
``option=False`` in its metadata is none: the verb works it out. Where what is wanted depends on another option, a
parameter stands for the fields of several dataclasses (``Variants``). A parameter or field called ``overrides`` or
``filters`` takes the KEY=VALUE words.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from rollmill.core.config.schema import keys_of
from rollmill.core.config.types import alternatives, field_docs

KEY_VALUE = ("overrides", "filters")
Mark = TypeVar("Mark")
_SILENT_DEFAULTS = ("None", "False", "", "()")


@dataclass(frozen=True)
class Spelling:
    """Stands in a type: how an option is written, where its name in Python does not say it."""

    alias: str = ""
    """A second name, for example ``-f``."""
    value: str = ""
    """What stands for its value in help."""
    one_each: bool = False
    """Of several values, each has the option's name before it."""
    choices: tuple[str, ...] = ()
    """All values there are, where they come from a table."""


@dataclass(frozen=True)
class Variants:
    """Stands in the type of a mapping: options of several dataclasses, of which the verb will use one.

    The verb is given those that were typed. An option of several of them is written once.
    """

    kinds: Callable[[], Mapping[str, type]]
    """The dataclasses, by what they are for."""


@dataclass(frozen=True)
class Argument:
    """A word or an option of a verb."""

    name: str
    """Of the parameter, or of the field."""
    type: Any
    default: Any
    """``MISSING`` where it must be given."""
    about: str
    is_word: bool
    block: str
    """The parameter whose dataclass has this field; empty for a parameter."""

    @property
    def flag(self) -> str:
        return f"--{self.name.strip('_').replace('_', '-')}"

    @property
    def flags(self) -> tuple[str, ...]:
        return tuple(sorted(filter(None, (self.spelling.alias, self.flag)), key=len))

    @property
    def spelling(self) -> Spelling:
        return _mark(self.type, Spelling) or Spelling()

    @property
    def label(self) -> str:
        """What messages call it."""
        return self.name.strip("_").upper() if self.is_word else self.flag

    @property
    def is_key_value(self) -> bool:
        return self.name in KEY_VALUE

    @property
    def is_switch(self) -> bool:
        """An option without a value."""
        return alternatives(self.type) == (bool,)

    @property
    def takes_several(self) -> bool:
        return get_origin(self._inner) is tuple

    @property
    def kind(self) -> Any:
        """The type of one value."""
        return get_args(self._inner)[0] if self.takes_several else self._inner

    @property
    def choices(self) -> tuple[str, ...]:
        """All values it may have; empty where there are too many to name."""
        if get_origin(self.kind) is Literal:
            return tuple(map(str, get_args(self.kind)))
        if self.spelling.choices:
            return self.spelling.choices
        return ("true", "false") if self.kind is bool and not self.is_switch else ()

    @property
    def value_text(self) -> str:
        """What stands for a value in help: ``INT``, ``{a,b}``, or the name of a word."""
        if self.is_key_value:
            return "KEY=VALUE"
        if self.spelling.value:
            return self.spelling.value
        if self.choices:
            return "{" + ",".join(self.choices) + "}"
        return self.label if self.is_word else self.kind.__name__.upper()

    @property
    def usage(self) -> str:
        """How it is typed: ``STORE``, ``[RUN ...]``, ``-f, --config FILE``."""
        if self.is_word:
            name = f"{_singular(self.value_text)} ..." if self.takes_several else self.value_text
            return name if self.default is MISSING and not self.takes_several else f"[{name}]"
        several = self.takes_several and not self.spelling.one_each
        value = "" if self.is_switch else f" [{self.value_text} ...]" if several else f" {self.value_text}"
        return f"{', '.join(self.flags)}{value}"

    @property
    def default_text(self) -> str:
        """The default as help shows it; empty where there is nothing to say."""
        if self.default is MISSING or str(self.default) in _SILENT_DEFAULTS:
            return ""
        values = self.default if isinstance(self.default, tuple) else (self.default,)
        return " ".join(map(str, values))

    @property
    def about_text(self) -> str:
        """What it is for, and its default, as help shows them."""
        return f"{self.about} (default: {self.default_text})" if self.default_text else self.about

    @property
    def _inner(self) -> Any:
        return next(part for part in alternatives(self.type) if part is not NoneType)


@functools.cache
def arguments_of(function: Callable[..., int]) -> tuple[Argument, ...]:
    """Return the words of a verb in their order, then its options; KEY=VALUE words are the last of the words."""
    found = list(_read(function))
    words = [argument for argument in found if argument.is_word]
    words.sort(key=lambda argument: argument.is_key_value)
    return (*words, *(argument for argument in found if not argument.is_word))


def _read(function: Callable[..., int]) -> Iterator[Argument]:
    hints = get_type_hints(function, include_extras=True)
    _, about = documentation(function)
    for name, parameter in inspect.signature(function).parameters.items():
        if dataclasses.is_dataclass(hints[name]):
            yield from _fields(name, hints[name])
            continue
        if variants := _mark(hints[name], Variants):
            yield from _of_variants(name, variants.kinds())
            continue
        default = MISSING if parameter.default is parameter.empty else parameter.default
        is_word = parameter.kind is parameter.POSITIONAL_ONLY
        yield Argument(name, hints[name], default, about.get(name, ""), is_word, "")


def _fields(block: str, cls: Any) -> Iterator[Argument]:
    docs = field_docs(cls)
    hidden = {field.name for field in dataclasses.fields(cls) if not field.metadata.get("option", True)}
    for key in keys_of(cls).values():
        if key.name in hidden:
            continue
        about = docs[key.name].replace("``", "`")
        yield Argument(key.name, key.type, key.default(), about, key.name in KEY_VALUE, block)


def _of_variants(block: str, kinds: Mapping[str, type]) -> Iterator[Argument]:
    """Yield every option that one of the classes has, with what it is for in each class that has it."""
    found: dict[str, dict[str, Argument]] = {}
    for kind, cls in kinds.items():
        for argument in _fields(block, cls):
            found.setdefault(argument.name, {})[kind] = argument
    for same in found.values():
        about: dict[str, list[str]] = {}
        for kind, argument in same.items():
            about.setdefault(argument.about_text, []).append(kind)
        text = " ".join(f"{', '.join(names)}: {said}" for said, names in about.items())
        yield dataclasses.replace(next(iter(same.values())), default=None, about=text)


def _mark(tp: Any, kind: type[Mark]) -> Mark | None:
    """Return the mark of this kind in an annotated type; None without one."""
    marks = tp.__metadata__ if get_origin(tp) is Annotated else ()
    return next((mark for mark in marks if isinstance(mark, kind)), None)


def documentation(function: Callable[..., int]) -> tuple[str, dict[str, str]]:
    """Split a docstring into the text before ``Args:``, and a text for each parameter."""
    text, _, listed = (inspect.getdoc(function) or "").replace("``", "`").partition("\nArgs:\n")
    entries = re.findall(r"^    (\w+): (.*(?:\n {5,}.*)*)", listed, re.MULTILINE)
    return text.strip(), {name: " ".join(about.split()) for name, about in entries}


def _singular(name: str) -> str:
    """Return what one word of several stands for: ``POLICY`` for ``POLICIES``."""
    return f"{name[:-3]}Y" if name.endswith("IES") else name.removesuffix("S")
