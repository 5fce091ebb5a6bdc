"""Shares as colours."""

from __future__ import annotations

from xml.etree import ElementTree

from rollmill.reports.html.heat_map import heat_map

SHARES = [[None, 0.75, 0.5], [0.25, None, 1.0], [0.5, 0.0, None]]
NAMES = ["runs/<a>", "a name that is a good deal longer than there is room", "c"]


def test_strong_colours_are_far_from_a_half() -> None:
    drawn = ElementTree.fromstring(heat_map(NAMES, SHARES, "Shares"))
    cells = drawn.findall("rect")
    told = {cell.findtext("title"): cell for cell in cells}
    assert len(cells) == 6, "nobody plays against themselves"
    kinds = {title: (cell.get("class"), float(cell.get("fill-opacity") or 9)) for title, cell in told.items()}
    assert kinds["runs/<a> against c: 50.0%"] == ("s0", 0.0)
    assert kinds["c against runs/<a>: 50.0%"] == ("s0", 0.0)
    better, worse = kinds[f"runs/<a> against {NAMES[1]}: 75.0%"], kinds[f"{NAMES[1]} against runs/<a>: 25.0%"]
    assert (better[0], worse[0]) == ("s0", "s1")
    assert better[1] == worse[1]
    assert 0.2 < better[1] < kinds[f"{NAMES[1]} against c: 100.0%"][1] < 0.7, "numbers can be read on every cell"


def test_names_are_numbered_and_fit() -> None:
    drawn = ElementTree.fromstring(heat_map(NAMES, SHARES, "Shares"))
    texts = [text.text or "" for text in drawn.findall("text")]
    assert texts[:3] == ["1", "2", "3"]
    assert "1 runs/<a>" in texts
    assert max(map(len, texts)) <= 28
    assert [text for text in texts if text.startswith(("0.", "1."))] == [
        "0.75",
        "0.50",
        "0.25",
        "1.00",
        "0.50",
        "0.00",
    ]
