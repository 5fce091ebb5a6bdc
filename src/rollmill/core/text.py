"""Words for messages and help: the nearest known name, columns, values as a user writes them.

Every command imports this before it does anything: what takes long to import is imported where it is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

TYPE_CHECKING = False  # as in ``rollmill/__init__.py``
if TYPE_CHECKING:
    from typing import Any

_NEAR = 0.6  # similarity below which a suggestion misleads more than it helps
_TIE = 0.1  # names this much less similar than the best one are still worth naming


def columns(rows: Sequence[Sequence[str]], right: bool = False) -> list[str]:
    """Return a line for each row, its cells one below the other; ``right``: all but the first end at the same place."""
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        padded = (c.rjust(w) if right and k else c.ljust(w) for k, (c, w) in enumerate(zip(row, widths, strict=True)))
        lines.append("  ".join(padded).rstrip())
    return lines


def closest(word: str, known: Iterable[str], limit: int = 3, near: float = _NEAR) -> list[str]:
    """Return the known names nearest to ``word``, best first; empty when none has the similarity ``near`` (1: the
    same).

    Case and ``-`` against ``_`` do not count as differences.
    """
    from difflib import SequenceMatcher

    wanted = _fold(word)
    scored = []
    for name in dict.fromkeys(known):
        folded = _fold(name)
        if folded == wanted:
            return [name]
        matcher = SequenceMatcher(None, wanted, folded)
        # the two bounds are cheap and spare the real comparison for most names
        if matcher.real_quick_ratio() >= near and matcher.quick_ratio() >= near:
            scored.append((matcher.ratio(), name))
    best = max((score for score, _ in scored), default=0.0)
    found = [(score, name) for score, name in scored if score >= max(near, best - _TIE)]
    found.sort(key=lambda entry: (-entry[0], entry[1]))
    return [name for _, name in found[:limit]]


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ``did you mean 'doom_basic'?`` for a mistyped word, or an empty string when nothing is near."""
    return did_you_mean(closest(word, known))


def did_you_mean(names: Iterable[str]) -> str:
    """Return ``did you mean 'a' or 'b'?``, or an empty string without names."""
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


def counted(count: int, what: str) -> str:
    """Return text such as ``1 session``, ``2 sessions``."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def three_digits(value: float) -> str:
    """Return text such as ``1.23``, ``12.3``, ``123``."""
    return f"{value:.2f}" if abs(value) < 9.995 else f"{value:.1f}" if abs(value) < 99.95 else f"{value:.0f}"


def cut(text: str, limit: int) -> str:
    """Shorten a text to about ``limit`` characters: its beginning and its end, and how much is missing between them."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]} [... {len(text) - 2 * half:,} characters left out ...] {text[-half:]}"


def _fold(name: str) -> str:
    return name.lower().replace("-", "_")
