from __future__ import annotations

import json
import re
import struct
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from storing import make_episode, small_schema, write_episodes

from rollmill.cli.main import main
from rollmill.core.errors import StoreError
from rollmill.core.fields import ActionSpec, EnvSpec, Field
from rollmill.reports.html.elements import escape
from rollmill.reports.store import page as render
from rollmill.reports.store.checks import checks
from rollmill.reports.store.contact_sheet import contact_sheets, pick_by_return
from rollmill.reports.store.report import write_report
from rollmill.reports.store.statistics import describe
from rollmill.store.episode import Episode, EpisodeInfo
from rollmill.store.format.schema import StoreSchema
from rollmill.store.reader import Store
from rollmill.store.writer import StoreWriter

SCHEMA = small_schema()
HOSTILE = "<script>alert('x')</script>\"&\x00\x1b]<!--"


def view_schema(name: str = "view", **options: Any) -> StoreSchema:
    spec = EnvSpec(
        name, (Field("screen", "uint8", (12, 16, 3)),), ActionSpec("continuous", (), (), (2,), (-1.0,) * 2, (1.0,) * 2)
    )
    return StoreSchema.for_env(spec, **options)


def view_episode(schema: StoreSchema, steps: int, k: int, **info: Any) -> Episode:
    """Every pixel of image t of episode k is (k, t, 0)."""
    rng = np.random.default_rng(k)
    screen = np.zeros((steps + 1, 12, 16, 3), np.uint8)
    screen[..., 0] = k
    screen[..., 1] = np.arange(steps + 1)[:, None, None]
    columns = {
        "obs:screen": screen,
        "action": rng.normal(size=(steps, 2)).astype(np.float32),
        "reward": np.full(steps, k, np.float32),
        "global_step": 50 * k + np.arange(steps),
        "version": np.full(steps, k),
    }
    return Episode(columns, EpisodeInfo(uid=k, **info), terminated=True)


def write_views(path: Path, count: int = 30, schema: StoreSchema | None = None, **info: Any) -> Store:
    schema = schema or view_schema()
    with StoreWriter(path, schema) as writer:
        for k in range(count):
            writer.add_episode(view_episode(schema, 8, k, worker=k % 3, **info))
    return Store(path)


def parse(page: Path) -> ElementTree.Element:
    """The page as XML: every element is closed, every text escaped."""
    text = page.read_text(encoding="utf-8")
    assert text.startswith("<!DOCTYPE html>\n")
    return ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>\n"))


def words(root: ElementTree.Element) -> str:
    return " ".join(root.itertext())


def test_the_page_and_its_metrics(tmp_path: Path) -> None:
    store = write_views(tmp_path / "data")
    done = write_report(store)
    assert done.html == tmp_path / "data" / "report.html"
    root = parse(done.html)
    sections = [title.text for title in root.iter("h2")]
    wanted = ["Checks", "Returns over time", "Episodes", "Actions and rewards", "Images"]
    assert sections == [*wanted, "Policy versions", "Side by side", "Columns", "Shards"]
    metrics = json.loads(done.json.read_text())
    assert metrics == json.loads(json.dumps(done.metrics))
    assert metrics["rows"]["steps"] == 240
    assert "240" in words(root)
    assert "returns rise with the global step: rank correlation +1.00 over 30 whole episodes" in words(root)
    Store(tmp_path / "data")  # the report lies beside the shards and disturbs nobody


@pytest.mark.filterwarnings("error")
def test_a_store_without_images_and_one_without_anything(tmp_path: Path) -> None:
    write_episodes(tmp_path / "small", SCHEMA, [5, 9])
    StoreWriter(tmp_path / "empty", SCHEMA).close()
    for name in ("small", "empty"):
        done = write_report(Store(tmp_path / name), tmp_path / f"{name}.html")
        assert "Images" not in [title.text for title in parse(done.html).iter("h2")]
        assert done.json == tmp_path / f"{name}.json"


def test_names_from_data_cannot_become_markup(tmp_path: Path) -> None:
    path = tmp_path / "<b>store</b>"
    schema = view_schema(HOSTILE, env_kwargs={HOSTILE: HOSTILE}, created_by=HOSTILE)
    with StoreWriter(path, schema) as writer:
        for k in range(4):
            names = {"policy": f"{k % 2}{HOSTILE}", "env_id": f"{k // 2}{HOSTILE}"}
            writer.add_episode(view_episode(schema, 5, k, **names))
    done = write_report(Store(path), tmp_path / "out.html")
    root = parse(done.html)
    text = done.html.read_text(encoding="utf-8")
    assert root.findall(".//script") == []
    assert "<script" not in text
    assert "<!--" not in text
    assert "<b>store" not in text
    assert "\x00" not in text
    assert "\x1b" not in text
    assert "".join(root.itertext()).count("<script>alert('x')</script>") >= 6
    assert json.loads(done.json.read_text())["store"]["env_id"] == HOSTILE


def test_half_a_character_does_not_break_the_page(tmp_path: Path) -> None:
    done = write_report(write_views(tmp_path / "data", 2, view_schema(env_kwargs={"x": "\ud800"})))
    assert json.loads(done.json.read_text())["store"]["env_kwargs"] == {"x": "\ud800"}
    parse(done.html)
    assert escape("a\ud800b") == "a\ufffdb"


class Links(HTMLParser):
    """Collects everything that makes a browser load something, and open tags."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.handlers: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.handlers += [name for name, _ in attrs if name.startswith("on")]
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "data", "action", "srcset")]


def test_nothing_is_loaded_from_elsewhere(tmp_path: Path) -> None:
    done = write_report(write_views(tmp_path / "data", 5))
    text = done.html.read_text()
    found = Links()
    found.feed(text)
    assert found.links
    assert found.links[0] == "data:,", "an empty icon, so that no browser asks for one"
    assert all(link.startswith("data:image/png;base64,") for link in found.links[1:])
    assert found.handlers == []
    assert not found.tags & {"script", "iframe", "object", "embed", "form", "base", "a"}
    without_images = re.sub(r'src="data:[^"]*"', "", text)
    assert not re.search(r"https?:|url\(|@import|//[a-z]", without_images)
    assert "default-src &#x27;none&#x27;" in text


def png_pixels(data: bytes) -> np.ndarray[Any, Any]:
    """The first pixel of a PNG that we made: its first line is stored as it is."""
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", data[16:24])
    assert (width, height) == (16, 12)
    start = data.index(b"IDAT") + 4
    size = struct.unpack(">I", data[start - 8 : start - 4])[0]
    return np.frombuffer(zlib.decompress(data[start : start + size])[1:4], np.uint8)


def test_contact_sheets_show_low_median_and_high_returns(tmp_path: Path) -> None:
    store = write_views(tmp_path, 5)
    assert pick_by_return(store) == {"lowest return": 0, "median return": 2, "highest return": 4}
    problems: list[str] = []
    (sheet,) = contact_sheets(store, problems)
    assert [strip.episode for strip in sheet.strips] == [0, 2, 4]
    for strip in sheet.strips:
        assert [shot.step for shot in strip.shots] == [0, 2, 4, 6, 8]
        for shot in strip.shots:
            assert png_pixels(shot.png).tolist() == [strip.episode, shot.step, 0]
    assert problems == []


def test_one_episode_is_shown_once(tmp_path: Path) -> None:
    assert pick_by_return(write_views(tmp_path, 1)) == {"lowest return": 0}


def test_a_damaged_image_is_a_problem_not_the_end(tmp_path: Path) -> None:
    store = write_views(tmp_path, 3)
    path = store.shards[0].path
    data = bytearray(path.read_bytes())
    offset, length, _ = store._indexes[0].places[0].item()
    data[offset + 12 + length // 2] ^= 1
    path.write_bytes(data)
    done = write_report(Store(tmp_path))
    assert any("image of episode 0" in problem for problem in done.metrics["problems"])
    assert "checksum" in words(parse(done.html))
    assert "Problems" in [title.text for title in parse(done.html).iter("h2")]
    assert checks(done.metrics)[0][0] == "bad"


def test_long_tables_are_cut_and_say_so(tmp_path: Path) -> None:
    schema = small_schema()
    with StoreWriter(tmp_path, schema) as writer:
        for k in range(150):
            info = EpisodeInfo(uid=k, worker=k)
            writer.add_episode(make_episode(schema, 3, k, info))
    done = write_report(Store(tmp_path))
    assert done.metrics["groups"]["worker"]["total"] == 150
    assert "100 more rows" in words(parse(done.html))


def test_checks_name_what_is_wrong(tmp_path: Path) -> None:
    metrics = describe(write_views(tmp_path, 3))
    assert {level for level, _ in checks(metrics)} == {"good", "unknown"}
    metrics["episodes"] |= {"partial": 1, "partial_end": 1, "unfinished": 2}
    metrics["rewards"]["non_finite"] = 4
    metrics["actions"]["components"] = [{"other": 5, "never": 6}]
    metrics["order"]["step_goes_back"] = 7
    metrics["duplicates"] |= {"copies": 8, "same_uid": 9, "not_compared": 10, "groups": [[0, 1]], "group_count": 1}
    metrics["problems"] = ["broken"]
    metrics["arrow_of_time"] |= {"verdict": "falling", "reason": "it falls"}
    said = [f"{level} {text}" for level, text in checks(metrics)]
    for start in (
        "bad 1 problems",
        "bad arrow of time: it falls",
        "bad the global step goes back within 7",
        "warn 8 of 3 episodes repeat another one (numbers 0 = 1); 9 have the uid of another one; 10 more could not",
        "warn 1 episodes (33.3 %) are partial",
        "warn 2 more episodes were never finished",
        "bad 4 rewards",
        "bad 5 actions",
        "warn 6 choices",
    ):
        assert any(text.startswith(start) for text in said), start


def test_no_rise_is_expected_of_a_policy_that_never_changed(tmp_path: Path) -> None:
    metrics = describe(write_views(tmp_path, 3))
    metrics["arrow_of_time"] |= {"verdict": "flat", "reason": "flat"}
    assert checks(metrics)[1][0] == "warn"
    metrics["versions"] = metrics["versions"][:1]
    assert checks(metrics)[1][0] == "good"


def test_every_kind_of_action_is_drawn(tmp_path: Path) -> None:
    metrics = describe(write_views(tmp_path, 3))
    part = {"start": 0, "counts": [3] * 1000, "other": 0, "never": 0, "evenness": 1.0}
    none = {**part, "counts": [0, 0]}
    metrics["actions"] = {"kind": "multi_discrete", "rows": 3, "components": [part, none] * 15}
    page = render.render(metrics, [], "x.json")
    root = ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>\n"))
    assert "6 more components" in words(root)
    assert "No value lies within the action space" in words(root)


def test_only_the_last_parts_are_left_out_where_few_have_ended() -> None:
    """At the beginning, too, long episodes may be few: they belong to the curve."""
    counts = (2, 3, 40, 40, 40, 40, 1)
    parts = [
        {"frames": [100 * k, 100 * k + 100], "played": played, "return": {"kept": 1.0 * k, "played": 1.0 * k}}
        for k, played in enumerate(counts)
    ]
    drawn = render.part_plot(parts, "return")
    (path,) = re.findall(r'class="line" d="M([^"]*)"', drawn)
    assert len(path.split("L")) == 6


def test_the_report_needs_the_name_of_a_page_and_a_place_for_it(tmp_path: Path) -> None:
    store = write_views(tmp_path / "data", 1)
    with pytest.raises(StoreError, match=r"ends in \.html"):
        write_report(store, tmp_path / "report.json")
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be written"):
        write_report(store, tmp_path / "file" / "report.html")


def test_the_command_writes_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_views(tmp_path / "data", 25)
    page = tmp_path / "out" / "page.html"
    assert main(["data", "report", str(tmp_path / "data"), "--out", str(page), "--max-episodes", "10"]) == 0
    said = capsys.readouterr().out
    assert "good  arrow of time: returns rise" in said
    assert str(page) in said
    assert main(["data", "report", str(tmp_path / "data"), "--out", str(page), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["looked_at"] == {"episodes": 25, "of": 25, "read": 25}


def test_the_command_fails_if_something_is_damaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = write_views(tmp_path, 3)
    path = store.shards[0].path
    path.write_bytes(path.read_bytes()[:-40])
    assert main(["data", "report", str(tmp_path)]) == 1
    assert "BAD" in capsys.readouterr().out
    assert (tmp_path / "report.html").exists()
