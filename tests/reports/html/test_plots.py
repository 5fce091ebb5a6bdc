"""Plots hide nothing: no value is cut off, an axis that is not linear says so, and one has numbers to read it by."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from rollmill.reports.html.plots import Line, Plot, curves, histogram_plot, log_ticks, ticks, wide


def heights(text: str, kind: str = "line") -> list[list[float]]:
    """Pixel heights of every drawn line, from above."""
    paths = re.findall(rf'<path class="{kind}[^"]*" d="M([^"]*)"', text)
    return [[float(point.split()[1]) for point in path.split("L")] for path in paths]


def drawn(*lines: Line) -> str:
    return curves(lines, "loss", x_title="updates", y_title="loss")


def test_curves_have_colours_and_a_legend() -> None:
    text = drawn(Line("training", [(0, 3.0), (1, 2.0)]), Line("held <out>", [(0, 3.0), (1, 2.5)]))
    assert 'class="line c0"' in text
    assert 'class="line c1"' in text
    assert '<span class="key c1"></span><span>held &lt;out&gt;</span>' in text
    assert "legend" not in drawn(Line("training", [(0, 3.0), (1, 2.0)]))
    assert drawn(Line("training", []), Line("held out", [(0, float("nan"))])) == ""


@pytest.mark.parametrize("late", [[1.0, 3.0, 0.5, 2.0, 0.7], [1.0, 0.9, 0.5, 0.4, 0.3]])
def test_values_that_begin_far_above_get_a_logarithmic_axis(late: list[float]) -> None:
    points = [(0.0, 10_000.0), *((k + 10.0, y) for k, y in enumerate(late))]
    text = drawn(Line("training", points))
    assert "logarithmic axis" in text
    (line,) = heights(text)
    assert [line.index(y) for y in sorted(line)] == [points.index(p) for p in sorted(points, key=lambda p: -p[1])]
    assert len(set(line)) == len(points), "every value has a place of its own"


def test_where_logarithms_do_not_help_the_later_part_is_drawn_once_more() -> None:
    points = [(0.0, 100.0), *((10.0 + k, -0.1 * k) for k in range(5))]
    text = drawn(Line("training", points))
    assert "logarithmic" not in text
    whole, later = heights(text)
    assert len(whole) == 6, "the first value is there"
    assert len(later) == 5
    assert max(later) - min(later) > 100, "and the later ones fill a plot"
    assert "The same from 10 on" in text


def test_the_highest_value_is_never_cut_off() -> None:
    values = [50.0] * 3 + [10.0 + k / 10 for k in range(97)]
    text = drawn(Line("training", [(float(k), y) for k, y in enumerate(values)]))
    first = heights(text)[0]
    assert first[0] == min(first)
    assert first[0] < min(first[3:])


def test_a_place_is_pointed_out() -> None:
    lines = [Line("held out", [(0, 1.0), (10, 2.0)])]
    assert ">best<" in curves(lines, "loss", x_title="updates", mark=(4, "best"))
    assert ">best<" not in curves(lines, "loss", x_title="updates", mark=(40, "best"))


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0.5, 2e4, [1, 10, 100, 1000, 10_000]), (2, 40, [3, 10, 30]), (0.9, 12, [1, 2, 5, 10]), (10.2, 10.9, None)],
)
def test_ticks_of_a_logarithmic_axis(low: float, high: float, expected: list[float] | None) -> None:
    found = log_ticks(low, high)
    assert all(low * 0.99 <= tick <= high * 1.01 for tick in found)
    assert len(found) >= 3
    if expected is not None and len(expected) >= 4:
        assert found == pytest.approx(expected)


def test_a_logarithmic_plot_puts_equal_factors_equally_far_apart() -> None:
    plot = Plot((0, 1), (1, 100), log=True)
    assert plot.y(1) - plot.y(10) == pytest.approx(plot.y(10) - plot.y(100))
    assert plot.y(0) == plot.y(1), "what has no logarithm lies at the edge"


def test_ticks_are_round_numbers_within_the_range() -> None:
    assert ticks(0, 10) == [0, 2, 4, 6, 8, 10]
    assert ticks(-1, 1, 4) == [-1, -0.5, 0, 0.5, 1]
    assert ticks(3, 3) == [3]
    assert ticks(-1e308, 1e308) == [-1e308]
    assert len(ticks(1e9, 1e9 + 1e-3)) >= 1


def test_plots_of_extreme_values_stay_finite() -> None:
    for edges in ([5.0, 5.0], [-1e308, 1e308], [1e9, 1e9 + 1e-7]):
        text = histogram_plot(edges, [3], label="x", x_title="x", mark=(edges[0], "mean"))
        assert "nan" not in text
        assert "inf" not in text
        ElementTree.fromstring(text)


def test_an_axis_has_two_numbers_at_least() -> None:
    for low, high in ((0.9, 6.4), (0.0, 1.9), (3.9, 9.1), (-1.2, 0.7), (1.1, 1.9)):
        found = ticks(low, high, 4)
        assert len(found) >= 2, (low, high)
        assert all(low <= tick <= high for tick in found)


def test_a_value_that_never_changes_is_read_off_the_axis() -> None:
    """A learning rate of 0.0001 on an axis from -1 to 1 looks like 0."""
    text = curves([Line("rate", [(0, 1e-4), (10, 1e-4)])], "rate", x_title="frames")
    assert ">0.0001<" in text
    assert ">-0.5<" not in text
    assert ">0<" in curves([Line("zero", [(1, 0.0), (10, 0.0)])], "zero", x_title="frames")


def test_long_numbers_have_room_beside_the_axis() -> None:
    plot = Plot((0, 1), (0.0039151, 0.0039249)).axes()
    (grid,) = set(re.findall(r'class="grid" d="M(\d+) ', plot.svg()))
    longest = max(map(len, re.findall(r'text-anchor="end">([^<]*)<', plot.svg())))
    assert longest >= 8
    assert int(grid) - 6 >= 6 * longest


def test_a_large_plot_is_drawn_for_wide_and_for_narrow_pages() -> None:
    text = wide(lambda size: Plot((0, 1), (0, 1), size=size).axes().svg())
    assert re.findall(r'<div class="(\w+)"><svg viewBox="0 0 (\d+) ', text) == [("wide", "960"), ("narrow", "460")]


def test_a_plot_in_a_file_of_its_own_has_its_colours_with_it() -> None:
    plot = Plot((0, 1), (0, 1), label="<b>").axes().line([(0, 0), (1, 1)], "line c1")
    root = ElementTree.fromstring(plot.file(["one", "two & more"]))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert ".line.c1" in (root[0].text or "")
    assert "var(" not in (root[0].text or "")
    assert [e.text for e in root if e.get("class") in ("c0", "c1")] == ["one", "two & more"]
