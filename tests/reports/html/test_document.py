"""Pages say which kind they are, and never take the place of another kind."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from xml.etree import ElementTree

import pytest

from rollmill.core.errors import RunFolderError
from rollmill.reports.html.document import (
    card,
    content_policy,
    document,
    grid,
    kind_of,
    note,
    place_for,
    section,
    shares,
    tiles,
    write_page,
)
from rollmill.reports.html.elements import NOTHING
from rollmill.reports.html.style import STYLE


def test_a_page_is_well_formed_and_says_its_kind(tmp_path: Path) -> None:
    text = document("experiment", "a < b", tiles([("1", "run")]))
    root = ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>\n"))
    assert root.findtext("head/title") == "a < b"
    page = write_page(tmp_path / "report.html", "experiment", text)
    assert page == tmp_path / "report.html"
    assert kind_of(page) == "experiment"


def test_a_page_of_the_same_kind_is_replaced(tmp_path: Path) -> None:
    for title in ("old", "new"):
        assert write_page(tmp_path / "report.html", "run", document("run", title)) == tmp_path / "report.html"
    assert "<title>new</title>" in (tmp_path / "report.html").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


@pytest.mark.parametrize("there", [document("comparison", "t"), "<html>by hand</html>", ""])
def test_whatever_else_lies_there_stays(tmp_path: Path, there: str) -> None:
    report = tmp_path / "report.html"
    report.write_text(there)
    for _ in range(2):
        assert write_page(report, "run", document("run", "t")) == tmp_path / "report-run.html"
    assert report.read_text() == there


HEAD_0_1 = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<meta http-equiv="Content-Security-Policy" content="default-src &#x27;none&#x27;; img-src data:"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<title>{}</title>
<style>
"""


@pytest.mark.parametrize(
    ("title", "kind"),
    [
        ("target: run report", "run"),
        ("World model car", "world"),
        ("Encoder vae", "encoder"),
        ("Experiment demo", "experiment"),
        ("CartPole-v1: data", "store"),
        ("doom_basic, dt", "offline"),
        ("package.module:Env", "comparison"),
    ],
)
def test_pages_of_version_0_1_are_told_by_their_titles(tmp_path: Path, title: str, kind: str) -> None:
    page = tmp_path / "report.html"
    page.write_text(HEAD_0_1.format(title))
    assert kind_of(page) == kind
    page.write_text(HEAD_0_1.format(title).replace("Content-Security-Policy", "refresh"))
    assert kind_of(page) is None, "somebody else's"


def test_a_name_that_is_taken_as_well_is_passed_over(tmp_path: Path) -> None:
    for name in ("report.html", "report-run.html", "report-run-2.html"):
        (tmp_path / name).write_text("mine")
    assert place_for(tmp_path / "report.html", "run") == tmp_path / "report-run-3.html"


def test_a_folder_in_its_place_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "report.html").mkdir()
    with pytest.raises(RunFolderError, match="cannot be written: Is a directory"):
        write_page(tmp_path / "report.html", "run", document("run", "t"))


def test_folders_on_the_way_to_a_page_are_made(tmp_path: Path) -> None:
    assert write_page(tmp_path / "a" / "b.html", "run", document("run", "t")).is_file()


def test_a_browser_may_apply_no_other_style_and_run_nothing() -> None:
    """The style sheet is named by its hash, so neither attributes nor another sheet count."""
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in content_policy()
    assert "unsafe-inline" not in content_policy()
    assert "script-src" not in content_policy(), "default-src 'none' is what counts"
    assert content_policy(script_src="'self'").endswith("script-src 'self'")
    page = document("run", "t", shares([("a", 1), ("b", 2)]))
    assert f"<style>{STYLE}</style>" in page
    assert " style=" not in page


def test_parts_with_nothing_in_them_are_left_out() -> None:
    for part in (section("t"), section("t", card(NOTHING)), card(title="t"), grid([NOTHING, card()]), note("")):
        assert part == ""


def test_shares_keep_the_colour_of_their_place() -> None:
    text = shares([("never", 0), ("some", 1), ("most", 3)])
    assert 's0"' not in text
    assert '<rect class="s1" x="0.000" width="25.000"' in text
    assert '<rect class="s2" x="25.000" width="75.000"' in text
    assert "<td>25.0 %</td>" in text
    assert shares([("never", 0)]) == "<p>-</p>"
