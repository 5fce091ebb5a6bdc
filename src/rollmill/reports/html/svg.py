"""Small plots as SVG text: axes, bars, lines, bands, points. Colours come from the page's style sheet by class.

Every text goes through ``escape``; every element is closed, so pages are well-formed XML too.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Sequence

_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffe\uffff\ud800-\udfff]")

_LARGEST = 1e300


def escape(text: object) -> str:
    """Text for HTML, attributes included; characters that no page may hold become a replacement character."""
    return html.escape(_CONTROL.sub("\ufffd", str(text)), quote=True)


def number(value: float) -> str:
    """Four digits that matter, with separators of thousands: ``12,345``, ``0.01234``, ``1.2e-07``."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    size = abs(value)
    if size >= 1e15 or size < 1e-4:
        return f"{value:.3g}"
    if size >= 1000:
        return f"{value:,.0f}"
    decimals = max(0, 3 - math.floor(math.log10(size)))
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def short(value: float) -> str:
    """For ticks: ``950``, ``12K``, ``4.5M``."""
    for unit, name in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "K")):
        if unit <= abs(value) < 1e15:
            return f"{value / unit:.4g}{name}"
    return f"{value:.4g}"


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About ``count`` round numbers (steps of 1, 2 or 5) within ``low`` .. ``high``."""
    if not high > low or not math.isfinite(high - low):
        return [low]
    rough = (high - low) / max(1, count)
    power = 10.0 ** math.floor(math.log10(rough)) if rough > 0 else 0.0
    if power == 0.0:
        return [low]
    step = power * next(k for k in (1, 2, 5, 10) if power * k >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    found = [k * step for k in range(first, first + 3 * count + 3) if k * step <= high + step * 1e-9]
    return found or [low]


def log_ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Round numbers for a logarithmic axis from ``low`` to ``high`` (both above 0): powers of ten, finer if few."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for steps in ((1,), (1, 3), (1, 2, 5)):
        found = [k * 10.0**power for power in range(first, last + 1) for k in steps]
        found = [value for value in found if low * 0.999 <= value <= high * 1.001]
        if len(found) >= count:
            return found[:: math.ceil(len(found) / (2 * count))]
    return found if len(found) > 1 else ticks(low, high, count)


class Plot:
    """One plot. Coordinates of data; ``x`` and ``y`` turn them into pixels of the view box.

    ``log``: the vertical axis is logarithmic; its range must lie above 0.
    """

    def __init__(
        self,
        x_range: tuple[float, float],
        y_range: tuple[float, float],
        *,
        width: int = 340,
        height: int = 190,
        label: str = "",
        x_title: str = "",
        y_title: str = "",
        log: bool = False,
    ) -> None:
        self.width, self.height = width, height
        self._log = log
        low, high = (math.log10(y_range[0]), math.log10(y_range[1])) if log else y_range
        self._x_range, self._y_range = _widened(*x_range), _widened(low, high)
        self._left, self._right, self._top, self._bottom = 46, 12, 18 if y_title else 10, 36 if x_title else 24
        self._label = label
        self._parts: list[str] = []
        self._titles(x_title, y_title)

    def x(self, value: float) -> float:
        low, high = self._x_range
        value = min(max(value, low), high)
        return self._left + (value - low) / (high - low) * (self.width - self._left - self._right)

    def y(self, value: float) -> float:
        low, high = self._y_range
        if self._log:
            value = math.log10(value) if value > 0 else low
        value = min(max(value, low), high)
        return self.height - self._bottom - (value - low) / (high - low) * (self.height - self._top - self._bottom)

    def _titles(self, x_title: str, y_title: str) -> None:
        if x_title:
            middle = (self._left + self.width - self._right) / 2
            self._text(middle, self.height - 5, x_title, "title", "middle")
        if y_title:
            self._text(4, 11, y_title, "title", "start")

    def _text(self, x: float, y: float, text: str, kind: str, anchor: str) -> None:
        self._parts.append(f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>')

    def axes(self, x_labels: Sequence[tuple[float, str]] | None = None) -> Plot:
        """Grid lines and numbers; ``x_labels`` instead of numbers below."""
        left, right = self._left, self.width - self._right
        low, high = self._y_range
        for value in log_ticks(10**low, 10**high) if self._log else ticks(low, high, count=4):
            y = self.y(value)
            self._parts.append(f'<path class="grid" d="M{left} {y:.1f}H{right}"/>')
            self._text(left - 6, y + 4, short(value), "tick", "end")
        floor = self.height - self._bottom
        if x_labels is None:
            x_labels = [(value, short(value)) for value in ticks(*self._x_range, count=5)]
        for value, text in x_labels:
            self._text(self.x(value), floor + 15, text, "tick", "middle")
        self._parts.append(f'<path class="axis" d="M{left} {floor}H{right}"/>')
        return self

    def bars(self, edges: Sequence[float], heights: Sequence[float], titles: Sequence[str]) -> Plot:
        """Bar k from ``edges[k]`` to ``edges[k + 1]``; ``titles`` appear under the mouse."""
        floor = self.y(0)
        for left, right, height, title in zip(edges, edges[1:], heights, titles):
            if not height:
                continue
            x, width = self.x(left), self.x(right) - self.x(left)
            gap = min(1.0, width * 0.15)
            top = min(self.y(height), floor - 1)  # rare is not never: one pixel at least
            self._parts.append(
                f'<rect class="bar" x="{x + gap / 2:.2f}" y="{top:.2f}" width="{max(width - gap, 0.5):.2f}" '
                f'height="{floor - top:.2f}"><title>{escape(title)}</title></rect>'
            )
        return self

    def points(self, points: Sequence[Sequence[float]], kind: str = "point") -> Plot:
        # One path of zero-length strokes with round ends: a tenth of the size of as many circles.
        path = "".join(f"M{self.x(x):.1f} {self.y(y):.1f}h0" for x, y in points)
        if path:
            self._parts.append(f'<path class="{kind}" d="{path}"/>')
        return self

    def line(self, points: Sequence[tuple[float, float]], kind: str = "line") -> Plot:
        if points:
            path = "L".join(f"{self.x(x):.1f} {self.y(y):.1f}" for x, y in points)
            self._parts.append(f'<path class="{kind}" d="M{path}"/>')
        return self

    def band(self, low: Sequence[tuple[float, float]], high: Sequence[tuple[float, float]], kind: str = "band") -> Plot:
        """The area between two lines."""
        if low:
            corners = [*low, *reversed(high)]
            path = "L".join(f"{self.x(x):.1f} {self.y(y):.1f}" for x, y in corners)
            self._parts.append(f'<path class="{kind}" d="M{path}Z"/>')
        return self

    def mark(self, value: float, text: str) -> Plot:
        """A vertical line at ``value`` with a word beside it."""
        x = self.x(value)
        after = x < self.width * 0.7
        self._parts.append(f'<path class="mark" d="M{x:.1f} {self._top}V{self.height - self._bottom}"/>')
        self._text(x + (4 if after else -4), self._top + 9, text, "tick", "start" if after else "end")
        return self

    def note(self, x: float, y: float, text: str, before: bool = True) -> Plot:
        """A word above the point, ending there (``before``) or beginning there."""
        self._text(self.x(x), self.y(y) - 4, text, "tick", "end" if before else "start")
        return self

    def __str__(self) -> str:
        return (
            f'<svg viewBox="0 0 {self.width} {self.height}" role="img" aria-label="{escape(self._label)}">'
            f"{''.join(self._parts)}</svg>"
        )


def _widened(low: float, high: float) -> tuple[float, float]:
    """A range of some width that is finite, so that it can be divided by."""
    low, high = max(low, -_LARGEST), min(high, _LARGEST)
    if high > low and low + (high - low) / 2 not in (low, high):
        return low, high
    margin = max(abs(low) * 0.1, 1.0)
    return low - margin, high + margin


def histogram_plot(
    edges: Sequence[float], counts: Sequence[int], *, label: str, x_title: str, mark: tuple[float, str] | None = None
) -> str:
    """Counts in bins; ``mark``: a value to point out, with a word for it."""
    plot = Plot((edges[0], edges[-1]), (0, max(counts) * 1.12), label=label, x_title=x_title, y_title="count").axes()
    titles = [f"{number(a)} to {number(b)}: {count:,}" for a, b, count in zip(edges, edges[1:], counts)]
    plot.bars(edges, counts, titles)
    if mark is not None:
        plot.mark(*mark)
    return str(plot)


def choices_plot(labels: Sequence[str], counts: Sequence[int], *, label: str, x_title: str) -> str:
    """One bar per choice, with its share of all."""
    total = max(1, sum(counts))
    shares = [100 * count / total for count in counts]
    plot = Plot(
        (-0.5, len(counts) - 0.5),
        (0, max(shares) * 1.12 or 1),
        label=label,
        x_title=x_title,
        y_title="% of steps",
    )
    every = max(1, math.ceil(len(labels) * (1 + max(map(len, labels), default=1)) / 44))
    plot.axes([(k, text) for k, text in enumerate(labels) if k % every == 0])
    titles = [f"{text}: {count:,} ({share:.2f} %)" for text, count, share in zip(labels, counts, shares)]
    plot.bars([k - 0.5 for k in range(len(counts) + 1)], shares, titles)
    return str(plot)
