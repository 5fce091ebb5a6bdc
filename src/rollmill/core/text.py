"""Words for messages and help: the nearest known name, values and types as a user writes them, field docs."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import textwrap
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

_NEAR = 0.6  # similarity below which a suggestion misleads more than it helps
_TIE = 0.1  # names this much less similar than the best one are still worth naming


def columns(rows: Sequence[Sequence[str]], right: bool = False) -> list[str]:
    """A line for each row, its cells one below the other; ``right``: all but the first end at the same place."""
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        padded = (c.rjust(w) if right and k else c.ljust(w) for k, (c, w) in enumerate(zip(row, widths, strict=True)))
        lines.append("  ".join(padded).rstrip())
    return lines


def closest(word: str, known: Iterable[str], limit: int = 3) -> list[str]:
    """The known names nearest to ``word``, best first; empty when nothing is near.

    Case and ``-`` against ``_`` do not count as differences.
    """
    wanted = _fold(word)
    scored = []
    for name in dict.fromkeys(known):
        folded = _fold(name)
        if folded == wanted:
            return [name]
        matcher = SequenceMatcher(None, wanted, folded)
        # the two bounds are cheap and spare the real comparison for most names
        if matcher.real_quick_ratio() >= _NEAR and matcher.quick_ratio() >= _NEAR:
            scored.append((matcher.ratio(), name))
    best = max((score for score, _ in scored), default=0.0)
    near = [(score, name) for score, name in scored if score >= max(_NEAR, best - _TIE)]
    near.sort(key=lambda entry: (-entry[0], entry[1]))
    return [name for _, name in near[:limit]]


def nearest(word: str, known: Iterable[str]) -> str:
    """``did you mean 'doom_basic'?`` for a mistyped word, or an empty string when nothing is near."""
    return did_you_mean(closest(word, known))


def did_you_mean(names: Iterable[str]) -> str:
    """``did you mean 'a' or 'b'?``, or an empty string without names."""
    quoted = [f"'{name}'" for name in names]
    return f"did you mean {' or '.join(quoted)}?" if quoted else ""


def show(value: Any, limit: int = 80) -> str:
    """Return a plain value in YAML's words (``null``, ``true``), shortened to about ``limit`` characters."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def bytes_text(value: float) -> str:
    """Return text such as ``12.3 MB``, in units of 1000."""
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "KB")):
        if value >= unit * 0.9995:
            return f"{three_digits(value / unit)} {name}"
    return f"{value:.0f} B"


def three_digits(value: float) -> str:
    """Return text such as ``1.23``, ``12.3``, ``123``."""
    return f"{value:.2f}" if abs(value) < 9.995 else f"{value:.1f}" if abs(value) < 99.95 else f"{value:.0f}"


def cut(text: str, limit: int) -> str:
    """At most about ``limit`` characters of a text: its beginning and its end, and how much is missing between them."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]} [... {len(text) - 2 * half:,} characters left out ...] {text[-half:]}"


def _fold(name: str) -> str:
    return name.lower().replace("-", "_")


def alternatives(tp: Any) -> tuple[Any, ...]:
    """``int | None`` gives ``(int, NoneType)``; a plain type gives itself."""
    if get_origin(tp) is Annotated:
        return alternatives(get_args(tp)[0])
    if get_origin(tp) in (Union, UnionType):
        return tuple(part for arg in get_args(tp) for part in alternatives(arg))
    return (tp,)


def choices(tp: Any) -> tuple[Any, ...]:
    """The values of every ``Literal`` in a type, those inside lists included."""
    if get_origin(tp) is Literal:
        return get_args(tp)
    return tuple(choice for arg in get_args(tp) for choice in choices(arg))


def type_text(tp: Any) -> str:
    """A type in a user's words: ``int | null``, ``'rgb' | 'gray'``, ``list of int``."""
    texts = []
    for part in alternatives(tp):
        origin, args = get_origin(part), get_args(part)
        if origin is Literal:
            texts += [show(choice) for choice in args]
        elif origin is tuple and args[-1] is not Ellipsis:
            texts.append(f"list [{', '.join(type_text(arg) for arg in args)}]")
        elif origin in (tuple, list):
            texts.append(f"list of {type_text(args[0])}")
        elif origin is dict or part is dict:
            texts.append("mapping" if not args or args[1] is Any else f"mapping to {type_text(args[1])}")
        elif dataclasses.is_dataclass(part):
            texts.append("block")
        else:
            names: dict[Any, str] = {NoneType: "null", Path: "path", Any: "any"}
            texts.append(names.get(part, getattr(part, "__name__", str(part))))
    return " | ".join(texts)


@functools.cache
def field_docs(cls: type) -> dict[str, str]:
    """Return the text after each field in the class source: a string on the next line, or a trailing comment."""
    docs: dict[str, str] = {}
    for owner in reversed(cls.__mro__):
        if not dataclasses.is_dataclass(owner):
            continue
        try:
            source = textwrap.dedent(inspect.getsource(owner))
        except (OSError, TypeError):  # made in a prompt or by exec: there is no file to read
            continue
        body = ast.parse(source).body[0]
        assert isinstance(body, ast.ClassDef)
        for node, after in zip(body.body, [*body.body[1:], None]):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                docs[node.target.id] = _text_after(source, node, after)
    return docs


def _text_after(source: str, node: ast.AnnAssign, after: ast.stmt | None) -> str:
    if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
        return " ".join(after.value.value.split())
    assert node.end_lineno is not None
    line = source.split("\n")[node.end_lineno - 1].encode()  # ast counts columns in bytes
    rest = line[node.end_col_offset :].decode().strip()
    return rest.lstrip("#").strip() if rest.startswith("#") else ""
