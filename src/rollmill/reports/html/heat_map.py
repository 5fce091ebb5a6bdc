"""A table of shares as colours: who wins against whom."""

from __future__ import annotations

from collections.abc import Sequence

from rollmill.reports.html.elements import Html, element

CELL = 46
_ABOVE, _BELOW = "s0", "s1"
"""Classes of the style sheet for shares above and below a half."""
_LETTER = 7
_LONGEST = 28


def heat_map(names: Sequence[str], shares: Sequence[Sequence[float | None]], label: str) -> Html:
    """Draw a row for each of ``names``; ``shares[k][j]`` is between 0 and 1, None where there is nothing.

    A half has no colour; the further from it, the stronger. Columns have the numbers of the rows.
    """
    rows = [_shortened(f"{k + 1} {name}") for k, name in enumerate(names)]
    left = 10 + _LETTER * max(map(len, rows))
    width, height = left + CELL * len(rows) + 2, 24 + CELL * len(rows)
    parts = [_text(left + CELL * (k + 0.5), 15, str(k + 1), "middle") for k in range(len(rows))]
    for k, (name, own) in enumerate(zip(rows, shares, strict=True)):
        top = 22 + CELL * k
        parts.append(_text(left - 8, top + CELL / 2 + 4, name, "end"))
        for j, share in enumerate(own):
            if share is not None:
                title = f"{names[k]} against {names[j]}: {share:.1%}"
                parts += _cell(left + CELL * j, top, share, title)
    return element("svg", *parts, viewBox=f"0 0 {width} {height}", role="img", aria_label=label)


def _cell(x: float, y: float, share: float, title: str) -> list[Html]:
    """Return a rectangle and its number; it is never so dark that the number cannot be read."""
    rect = element(
        "rect",
        element("title", title),
        class_=_ABOVE if share >= 0.5 else _BELOW,
        x=f"{x + 1:.0f}",
        y=f"{y + 1:.0f}",
        width=CELL - 2,
        height=CELL - 2,
        fill_opacity=f"{abs(share - 0.5) * 1.3:.3f}",
    )
    return [rect, _text(x + CELL / 2, y + CELL / 2 + 4, f"{share:.2f}", "middle", "value")]


def _text(x: float, y: float, text: str, anchor: str, kind: str = "tick") -> Html:
    return element("text", text, class_=kind, x=f"{x:.0f}", y=f"{y:.0f}", text_anchor=anchor)


def _shortened(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"
