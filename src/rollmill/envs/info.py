"""What of an environment's ``info`` is kept for every row: numbers, short texts and small arrays of fixed shapes.

A row has a fixed layout, so each name says what it holds: ``lives`` (a number), ``room:text`` (up to 64 bytes, or
``room:text200``), ``position:3``, ``map:4x5``. Dicts within ``info`` are reached by ``/``: ``player/health``.

A word that was found by looking at some steps ends in ``?``: what later does not fit it is cut, or left out, instead of
being a fault of the environment.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rollmill.core.fields import Array, Field

TEXT_BYTES = 64
MOST_NUMBERS = 4096
"""Numbers in one array: what is larger belongs into the observation."""
TEXT = ":text"
"""Ends the name of a field that holds text, as UTF-8 with zeros behind it."""

LOOSE = "?"
"""Ends a word whose values need not fit. Alone: other names that occur are to be told of."""

_WORD = re.compile(r"([A-Za-z_][\w./-]*)(?::(?:text(\d*)|(\d+(?:x\d+)*)))?\??", re.ASCII)
_OWN = "episode_stats"
"""Numbers about a whole episode, which are kept with it anyway."""


def info_field(word: str) -> Field:
    """Return the field that a word of ``env.info`` means; raises ValueError if it means none."""
    match = _WORD.fullmatch(word)
    if match is None:
        raise ValueError(
            f"info: {word!r} is none of NAME (a number), NAME:text, NAME:text200 (up to 200 bytes), NAME:3, NAME:2x3"
        )
    name, text, shape = match.groups()
    if text is not None:
        return _sized(Field(name + TEXT, "uint8", (int(text or TEXT_BYTES),)), word)
    return _sized(Field(name, "float64", tuple(map(int, shape.split("x"))) if shape else ()), word)


def info_fields(words: Sequence[str]) -> tuple[Field, ...]:
    """Return the fields of all words; raises ValueError if two of them have one name."""
    fields = tuple(info_field(word) for word in words if word != LOOSE)
    names = [field.name.removesuffix(TEXT) for field in fields]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"info: {twice} is given twice")
    return fields


def _sized(field: Field, word: str) -> Field:
    count = int(np.prod(field.shape))
    if not 1 <= count <= MOST_NUMBERS:
        raise ValueError(f"info: {word!r} has {count} entries; 1 to {MOST_NUMBERS} are possible")
    return field


def flat(info: Mapping[str, Any] | None, prefix: str = "") -> dict[str, Any]:
    """Return ``info`` without dicts in it: their keys are joined by ``/``."""
    found: dict[str, Any] = {}
    for key, value in (info or {}).items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            found |= flat(value, f"{name}/") if name != _OWN else {}
        else:
            found[name] = value
    return found


def write_info(field: Field, info: Mapping[str, Any], out: Array) -> None:
    """Write one field of all agents, ``[agents, *shape]``; what ``info`` lacks is NaN, or an empty text.

    Raises ValueError for what does not fit; a text is then cut, an array NaN.
    """
    name = field.name.removesuffix(TEXT)
    value = info.get(name)
    if name != field.name:
        out[...] = 0
        text = ("" if value is None else str(value)).encode()
        kept = text[: out.shape[1]].decode(errors="ignore").encode()  # no half of a letter
        out[:, : len(kept)] = np.frombuffer(kept, np.uint8)
        if len(text) > out.shape[1]:
            raise ValueError(
                f"info[{name!r}] has {len(text)} bytes, {out.shape[1]} are kept; give env.info {name}:text{len(text)}"
            )
        return
    out[...] = np.nan
    if value is None:
        return
    found = np.asarray(value)
    if found.dtype.kind not in "fiub":
        raise ValueError(f"info[{name!r}] is {value!r:.80}, not a number; give env.info {name}:text")
    if found.shape != field.shape:
        raise ValueError(f"info[{name!r}] has the shape {found.shape}, env.info says {field.shape}")
    out[...] = found


def word_for(name: str, value: Any) -> str | None:
    """Return the word of ``env.info`` that fits a value; None where it is nothing that can be kept."""
    if _WORD.fullmatch(name) is None or ":" in name:
        return None
    if isinstance(value, str):
        return f"{name}{TEXT}{max(TEXT_BYTES, 2 * len(value.encode()))}"
    try:
        found = np.asarray(value)
    except ValueError:  # a list of lists of unlike lengths
        return None
    if found.dtype.kind not in "fiub" or found.size > MOST_NUMBERS or not found.size:
        return None
    return f"{name}:{'x'.join(map(str, found.shape))}" if found.shape else name


def note_info(found: dict[str, str], info: Mapping[str, Any] | None) -> None:
    """Add what one ``info`` says to the words found so far: of texts the longest counts, kinds must not change."""
    for name, value in flat(info).items():
        if value is None:
            continue
        word, before = word_for(name, value) or "", found.get(name)
        if before is None or before == word:
            found[name] = word
        elif TEXT in before and TEXT in word:
            found[name] = max(before, word, key=lambda w: info_field(w).shape)
        else:
            found[name] = ""


def texts(rows: Array) -> Array:
    """Read the texts of a field, ``[n]`` of str, from its bytes ``[n, size]``."""
    return np.array([bytes(row).rstrip(b"\0").decode() for row in rows], dtype=np.str_)
