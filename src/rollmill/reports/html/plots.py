"""Small plots as SVG: axes, bars, lines, bands, points. Colours come from the page's style sheet by class.

``Plot`` is one plot. ``curves`` draws several lines on axes that hide nothing: losses often begin far above where they
end. Then the axis is logarithmic, or, where that is impossible or does not help, a second plot below shows the later
part. Either is said; no value is cut off.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rollmill.reports.html.document import note
from rollmill.reports.html.elements import NOTHING, Html, element, join
from rollmill.reports.html.style import FILE_STYLE, HUES
from rollmill.reports.html.tables import number

Points = Sequence[tuple[float, float]]

LATE = 0.25
"""Share of the axis after which a curve counts as late."""
FLAT = 0.1
"""Later values that span less than this share of all are pressed flat by the early ones."""
MARGIN = 0.05
WIDE, NARROW = (960, 300), (460, 280)
"""Sizes of a plot that has a whole line of the page: letters keep their size where the page is narrow."""

LETTER = 7
"""Pixels that a digit of a tick is wide, at most."""
_LARGEST = 1e300


def short(value: float) -> str:
    """Write a number for ticks: ``950``, ``12K``, ``4.5M``."""
    for unit, name in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "K")):
        if unit <= abs(value) < 1e15:
            return f"{value / unit:.4g}{name}"
    return f"{value:.4g}"


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return about ``count`` round numbers (steps of 1, 2 or 5) within ``low`` .. ``high``, two or more if possible."""
    if not high > low or not math.isfinite(high - low):
        return [low]
    rough = (high - low) / max(1, count)
    power = 10.0 ** math.floor(math.log10(rough)) if rough > 0 else 0.0
    if power == 0.0:
        return [low]
    steps = [power * k for k in (1, 2, 5, 10)]
    chosen = next(k for k, step in enumerate(steps) if step >= rough * 0.999)
    found: list[float] = []
    for step in reversed(steps[: chosen + 1]):
        first = math.ceil(low / step - 1e-9)
        found = [k * step for k in range(first, first + 3 * count + 3) if k * step <= high + step * 1e-9]
        if len(found) > 1:
            break
    return found or [low]


def log_ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Return round numbers for a logarithmic axis from ``low`` to ``high`` (above 0): powers of ten, finer if few."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for steps in ((1,), (1, 3), (1, 2, 5)):
        found = [k * 10.0**power for power in range(first, last + 1) for k in steps]
        found = [value for value in found if low * 0.999 <= value <= high * 1.001]
        if len(found) >= count:
            return found[:: math.ceil(len(found) / (2 * count))]
    return found if len(found) > 1 else ticks(low, high, count)


def spread(values: Sequence[float], log: bool = False) -> tuple[float, float]:
    """Return a range with a little room around all values."""
    low, high = min(values), max(values)
    if log:
        factor = (high / low) ** MARGIN
        return low / factor, high * factor
    margin = (high - low) * MARGIN
    return low - margin, high + margin


class Plot:
    """One plot. Coordinates of data; ``x`` and ``y`` turn them into pixels of the view box.

    ``log``: the vertical axis is logarithmic; its range must lie above 0.
    """

    def __init__(
        self,
        x_range: tuple[float, float],
        y_range: tuple[float, float],
        *,
        size: tuple[int, int] = (340, 190),
        label: str = "",
        x_title: str = "",
        y_title: str = "",
        log: bool = False,
    ) -> None:
        self.width, self.height = size
        self._log = log
        low, high = (math.log10(y_range[0]), math.log10(y_range[1])) if log else y_range
        self.x_range, self.y_range = _widened(*x_range), _widened(low, high)
        y_low, y_high = self.y_range
        self.y_ticks = log_ticks(10**y_low, 10**y_high) if log else ticks(y_low, y_high, count=4)
        self._left = max(46, 10 + LETTER * max(len(short(value)) for value in self.y_ticks))
        self._right, self._top, self._bottom = 12, 18 if y_title else 10, 36 if x_title else 24
        self._label = label
        self._parts: list[Html] = []
        self._titles(x_title, y_title)

    def x(self, value: float) -> float:
        low, high = self.x_range
        value = min(max(value, low), high)
        return self._left + (value - low) / (high - low) * (self.width - self._left - self._right)

    def y(self, value: float) -> float:
        low, high = self.y_range
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
        self._parts.append(element("text", text, class_=kind, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor))

    def _path(self, kind: str, path: str) -> None:
        self._parts.append(element("path", class_=kind.strip(), d=path))

    def axes(
        self,
        x_labels: Sequence[tuple[float, str]] | None = None,
        names: Sequence[tuple[float, str]] | None = None,
    ) -> Plot:
        """Draw grid lines and numbers; ``x_labels`` instead of numbers below, ``names`` instead of those left."""
        left, right = self._left, self.width - self._right
        for value, text in names or [(value, short(value)) for value in self.y_ticks]:
            y = self.y(value)
            self._path("grid", f"M{left} {y:.1f}H{right}")
            self._text(left - 6, y + 4, text, "tick", "end")
        floor = self.height - self._bottom
        if x_labels is None:
            x_labels = [(value, short(value)) for value in ticks(*self.x_range, count=5)]
        for value, text in x_labels:
            self._text(self.x(value), floor + 15, text, "tick", "middle")
        self._path("axis", f"M{left} {floor}H{right}")
        return self

    def bars(self, edges: Sequence[float], heights: Sequence[float], titles: Sequence[str]) -> Plot:
        """Draw bar k from ``edges[k]`` to ``edges[k + 1]``; ``titles`` appear under the mouse."""
        floor = self.y(0)
        for left, right, height, title in zip(edges, edges[1:], heights, titles):
            if not height:
                continue
            x, width = self.x(left), self.x(right) - self.x(left)
            gap = min(1.0, width * 0.15)
            top = min(self.y(height), floor - 1)  # rare is not never: one pixel at least
            place = {"x": f"{x + gap / 2:.2f}", "y": f"{top:.2f}"}
            size = {"width": f"{max(width - gap, 0.5):.2f}", "height": f"{floor - top:.2f}"}
            self._parts.append(element("rect", element("title", title), class_="bar", **place, **size))
        return self

    def points(self, points: Sequence[Sequence[float]], kind: str = "point") -> Plot:
        # One path of zero-length strokes with round ends: a tenth of the size of as many circles.
        path = "".join(f"M{self.x(x):.1f} {self.y(y):.1f}h0" for x, y in points)
        if path:
            self._path(kind, path)
        return self

    def line(self, points: Points, kind: str = "line") -> Plot:
        if points:
            self._path(kind, "M" + self._corners(points))
        return self

    def curve(self, points: Points, colour: str = "") -> Plot:
        """Draw a line, or a point where there is no more than that; ``colour``: ``c0`` to ``c7`` of the style sheet."""
        draw, kind = (self.line, "line") if len(points) > 1 else (self.points, "point")
        return draw(points, f"{kind} {colour}")

    def band(self, low: Points, high: Points, kind: str = "band") -> Plot:
        """Draw the area between two lines."""
        if low:
            self._path(kind, f"M{self._corners([*low, *reversed(high)])}Z")
        return self

    def _corners(self, points: Points) -> str:
        return "L".join(f"{self.x(x):.1f} {self.y(y):.1f}" for x, y in points)

    def mark(self, value: float, text: str) -> Plot:
        """Draw a vertical line at ``value`` with a word beside it."""
        x = self.x(value)
        after = x < self.width * 0.7
        self._path("mark", f"M{x:.1f} {self._top}V{self.height - self._bottom}")
        self._text(x + (4 if after else -4), self._top + 9, text, "tick", "start" if after else "end")
        return self

    def note(self, x: float, y: float, text: str, before: bool = True) -> Plot:
        """Write a word above the point, ending there (``before``) or beginning there."""
        self._text(self.x(x), self.y(y) - 4, text, "tick", "end" if before else "start")
        return self

    def svg(self) -> Html:
        """Return the plot for a page."""
        return self._element(self.height, *self._parts)

    def file(self, legend: Sequence[str] = ()) -> Html:
        """Return the plot as a file that stands alone, on white; ``legend[k]`` names the lines of colour ``ck``."""
        height = self.height + (22 if legend else 0)
        keys = (
            element("text", name, class_=f"c{k}", x=self._left + 110 * k, y=height - 8) for k, name in enumerate(legend)
        )
        ground = element("rect", width="100%", height="100%", fill="white")
        own = {"xmlns": "http://www.w3.org/2000/svg", "width": str(self.width), "height": str(height)}
        return self._element(height, element("style", Html(FILE_STYLE)), ground, *self._parts, *keys, **own)

    def _element(self, height: int, /, *parts: Html, **own: str) -> Html:
        view = f"0 0 {self.width} {height}"
        return element("svg", *parts, **own, viewBox=view, role="img", aria_label=self._label)


def _widened(low: float, high: float) -> tuple[float, float]:
    """Return a range of some width that is finite, so that it can be divided by."""
    low, high = max(low, -_LARGEST), min(high, _LARGEST)
    if high > low and low + (high - low) / 2 not in (low, high):
        return low, high
    margin = abs(low) * 0.1 or 1.0
    return low - margin, high + margin


def wide(draw: Callable[[tuple[int, int]], Html]) -> Html:
    """Draw a plot as wide as the page, once for wide pages and once for narrow ones; ``draw`` is given its size."""
    return join(element("div", draw(WIDE), class_="wide"), element("div", draw(NARROW), class_="narrow"))


# -- histograms -----------------------------------------------------------------------------------------------


def histogram_plot(
    edges: Sequence[float], counts: Sequence[int], *, label: str, x_title: str, mark: tuple[float, str] | None = None
) -> Html:
    """Draw counts in bins; ``mark``: a value to point out, with a word for it."""
    plot = Plot((edges[0], edges[-1]), (0, max(counts) * 1.12), label=label, x_title=x_title, y_title="count").axes()
    titles = [f"{number(a)} to {number(b)}: {count:,}" for a, b, count in zip(edges, edges[1:], counts)]
    plot.bars(edges, counts, titles)
    if mark is not None:
        plot.mark(*mark)
    return plot.svg()


def choices_plot(labels: Sequence[str], counts: Sequence[int], *, label: str, x_title: str) -> Html:
    """Draw one bar per choice, with its share of all."""
    total = max(1, sum(counts))
    shares = [100 * count / total for count in counts]
    height = max(shares) * 1.12 or 1
    plot = Plot((-0.5, len(counts) - 0.5), (0, height), label=label, x_title=x_title, y_title="% of steps")
    every = max(1, math.ceil(len(labels) * (1 + max(map(len, labels), default=1)) / 44))
    plot.axes([(k, text) for k, text in enumerate(labels) if k % every == 0])
    titles = [f"{text}: {count:,} ({share:.2f} %)" for text, count, share in zip(labels, counts, shares)]
    return plot.bars([k - 0.5 for k in range(len(counts) + 1)], shares, titles).svg()


# -- several curves -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """One curve and its name."""

    label: str
    points: Points


def curves(
    lines: Sequence[Line], label: str, *, x_title: str, y_title: str = "", mark: tuple[float, str] | None = None
) -> Html:
    """Draw the plot (or both), and a legend where there are several curves; nothing without points.

    ``mark``: a place on the axis to point out, with a word for it.
    """
    lines = [Line(line.label, [p for p in line.points if math.isfinite(p[1])]) for line in lines]
    lines = [line for line in lines if line.points]
    if not lines:
        return NOTHING

    def draw(shown: Sequence[Line], log: bool = False) -> Html:
        title = f"{y_title} (logarithmic axis)" if log else y_title
        xs = [x for line in shown for x, _ in line.points]
        plot = Plot(
            *((min(xs), max(xs)), spread(_values(shown), log)),
            label=label,
            x_title=x_title,
            y_title=title.strip(),
            log=log,
        ).axes()
        for k, line in enumerate(shown):
            plot.curve(line.points, f"c{k % len(HUES)}" if len(shown) > 1 else "")
        if mark is not None and min(xs) <= mark[0] <= max(xs):
            plot.mark(*mark)
        return plot.svg()

    keys = legend([line.label for line in lines]) if len(lines) > 1 else NOTHING
    late = _late(lines)
    if not late or not _is_flat(lines, late):
        return join(draw(lines), keys)
    if _log_helps(lines, late):
        return join(draw(lines, log=True), keys)
    start = min(line.points[0][0] for line in late)
    return join(draw(lines), keys, note(f"The same from {short(start)} on:"), draw(late))


def legend(labels: Sequence[str]) -> Html:
    """Show what the colours mean, in their order."""
    keys = (part for k, text in enumerate(labels) for part in (key(k), element("span", text)))
    return element("p", *keys, class_="note legend")


def key(k: int) -> Html:
    """Return a square of the colour of curve ``k``."""
    return element("span", class_=f"key c{k % len(HUES)}")


def _late(lines: Sequence[Line]) -> list[Line]:
    """Return the later part of every curve; empty unless all of them have one worth drawing."""
    first = min(line.points[0][0] for line in lines)
    last = max(line.points[-1][0] for line in lines)
    start = first + LATE * (last - first)
    found = [Line(line.label, [p for p in line.points if p[0] >= start]) for line in lines]
    return found if all(len(line.points) > 1 for line in found) else []


def _values(lines: Sequence[Line]) -> list[float]:
    return [y for line in lines for _, y in line.points]


def _is_flat(lines: Sequence[Line], late: Sequence[Line]) -> bool:
    every, later = _values(lines), _values(late)
    return 0 < max(later) - min(later) < FLAT * (max(every) - min(every))


def _log_helps(lines: Sequence[Line], late: Sequence[Line]) -> bool:
    every, later = _values(lines), _values(late)
    return min(every) > 0 and math.log(max(later) / min(later)) >= FLAT * math.log(max(every) / min(every))
