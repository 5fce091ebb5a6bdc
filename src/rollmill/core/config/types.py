"""Types of settings in a user's words, and the text that stands beside each field of a settings class."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import textwrap
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from rollmill.core.text import show


def alternatives(tp: Any) -> tuple[Any, ...]:
    """Return the types that a type allows: ``(int, NoneType)`` for ``int | None``, a plain type itself."""
    if get_origin(tp) is Annotated:
        return alternatives(get_args(tp)[0])
    if get_origin(tp) in (Union, UnionType):
        return tuple(part for arg in get_args(tp) for part in alternatives(arg))
    return (tp,)


def choices(tp: Any) -> tuple[Any, ...]:
    """Return the values of every ``Literal`` in a type, those inside lists included."""
    if get_origin(tp) is Literal:
        return get_args(tp)
    return tuple(choice for arg in get_args(tp) for choice in choices(arg))


def type_text(tp: Any) -> str:
    """Return a type in a user's words: ``int | null``, ``'rgb' | 'gray'``, ``list of int``."""
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
