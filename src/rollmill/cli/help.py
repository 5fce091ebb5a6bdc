"""What ``--help`` prints, for a verb and for a verb that has verbs of its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from rollmill.cli.tree import Verb, command
from rollmill.core.text import columns

TYPE_CHECKING = False  # as in ``rollmill/__init__.py``
if TYPE_CHECKING:
    pass

_FIRST = "rollmill train -f cartpole_fast"
_WIDEST = 100
_SPACE = "\x00"
_COLUMN = 26
"""Where the explanation of an option begins."""


def usage(name: Sequence[str], verb: Verb) -> str:
    """Return the help of a verb that wants one of its own verbs behind it, or of the whole program."""
    prog = command(name)
    lines = [f"usage: {prog} VERB ...", "", *([f"{_sentence(verb.summary)}", ""] if verb.summary else [])]
    lines += _list(verb.verbs)
    lines += ["", f"`{prog} VERB --help` explains a verb.", *([] if name else [f"To begin with: {_FIRST}"])]
    return "\n".join(lines)


def explain(function: Callable[..., int], prog: str, verbs: Mapping[str, Verb]) -> str:
    """Return the help of a verb that can be run: what it does, its words and options, and its own verbs, if any."""
    import shutil
    from dataclasses import MISSING

    from rollmill.cli.arguments import arguments_of, documentation

    arguments = arguments_of(function)
    words = [argument for argument in arguments if argument.is_word]
    width = min(shutil.get_terminal_size().columns, _WIDEST)
    needed = [argument for argument in arguments if argument.default is MISSING and not argument.is_word]
    typed = [f"`{text}`" for text in (*(a.usage for a in needed), "[OPTIONS]", *(a.usage for a in words))]
    lines = [line.replace("`", "") for line in _wrap(f"{prog} {' '.join(typed)}", width, " " * 7, "usage: ")]
    for paragraph in documentation(function)[0].split("\n\n"):
        lines += ["", *_wrap(paragraph, width)]
    if words:
        lines += ["", "words:"]
        for argument in words:
            lines += _entry(argument.usage, argument.about_text, width)
    lines += ["", "options:", *_entry("-h, --help", "Show this text.", width)]
    for argument in arguments[len(words) :]:
        lines += _entry(argument.usage, argument.about_text, width)
    if verbs:
        lines += ["", "verbs of its own:", *_list(verbs)]
    return "\n".join(lines)


def _list(verbs: Mapping[str, Verb]) -> Iterator[str]:
    return (f"  {line}" for line in columns([(name, verb.summary) for name, verb in verbs.items()]))


def _entry(head: str, about: str, width: int) -> list[str]:
    """Put an option and what it is for side by side, or below each other where it is long."""
    lines = _wrap(about, width, " " * _COLUMN)
    if len(head) + 4 <= _COLUMN and lines:
        return [f"  {head}".ljust(_COLUMN) + lines[0].lstrip(), *lines[1:]]
    return [f"  {head}", *lines]


def _wrap(text: str, width: int, indent: str = "", first: str | None = None) -> list[str]:
    """Break a text into lines of this width; a command in backticks stays whole, where a line holds it."""
    import textwrap

    def whole(found: re.Match[str]) -> str:
        return found[0].replace(" ", _SPACE) if len(indent) + len(found[0]) < width else found[0]

    wrapper = textwrap.TextWrapper(width, initial_indent=indent if first is None else first, subsequent_indent=indent)
    wrapper.break_on_hyphens = wrapper.break_long_words = False
    return [line.replace(_SPACE, " ") for line in wrapper.wrap(re.sub("`[^`]*`", whole, " ".join(text.split())))]


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
