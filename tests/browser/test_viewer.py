"""``rollmill view`` in a real browser: nothing on the console, no breach of the policy, and what is shown is so."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from experimenting import offline, online, write_run
from running import LIMIT_SECONDS, wait_until

pytest.importorskip("uvicorn")
from browsing import opened
from viewing import (
    Serving,
    cluster_run,
    counting_store,
    launched,
    population_run,
    selfplay_run,
    serving,
    two_views,
)

from rollmill.core.errors import ConfigError
from rollmill.core.identity import Identity
from rollmill.launch.compare.aggregate import band, common
from rollmill.launch.compare.statistics import iqm
from rollmill.launch.progress import read_curve
from rollmill.launch.records import Attempt, LaunchRecords
from rollmill.reports.html.plots import Plot, short, spread, ticks
from rollmill.reports.html.tables import number
from rollmill.reports.store.report import write_report
from rollmill.store.reader import Store
from rollmill.viewer.catalog import Catalog
from rollmill.viewer.episodes import words_in
from rollmill.viewer.export import export
from rollmill.viewer.index import Index
from rollmill.viewer.server import STREAMS

GAMMAS = (0.9, 0.95, 0.99)
STATS = """async ([rows, statistic, rules]) => {
  const { band } = await import("rollmill/stats");
  return band(rows, statistic, rules);
}"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """Three groups of three runs, one of six, and one that runs and has no value yet."""
    root = tmp_path_factory.mktemp("viewer") / "runs"
    for gamma in GAMMAS:
        for seed in range(6 if gamma == 0.99 else 3):
            values = [100 * gamma + seed * k / 10 for k in range(30 + seed)]
            state = "failed" if (gamma, seed) == (0.9, 1) else "finished"
            settings = online(seed, learning={"gamma": gamma})
            write_run(root / "sweep" / f"g{gamma}-s{seed}", settings, values, state)
    write_run(root / "sweep" / "early", online(0, learning={"gamma": 0.5}), [], "interrupted")
    with serving(root) as found:
        yield found


def test_runs_are_rows_of_groups(browser: Any, server: Serving) -> None:
    with opened(browser, server.link) as (page, complaints):
        page.locator("table.runs tbody a").first.wait_for()
        assert "token" not in page.url, "the link's token does not stay in the address"
        assert page.locator("table.runs tbody tr:not(.space)").count() == 4
        head = page.locator("table.runs thead").inner_text()
        assert "learning.gamma" in head
        assert "run.seed" not in head
        page.get_by_role("button", name="unfold gamma-0.9", exact=True).click()
        row = page.locator("table.runs tr.inner", has_text="g0.9-s1")
        assert "failed" in row.inner_text()
        page.get_by_role("button", name="return", exact=False).first.click()
        page.wait_for_url("**sort=-return*")
        page.locator("table.runs tbody tr.space + tr", has_text="gamma-0.99").wait_for()
        assert complaints == []


MANY = """async () => {
  const { state } = await import("rollmill/runs");
  const [first] = state.runs.values();
  for (let k = 0; k < 5000; k += 1) {
    const own = { id: `x${k}`, name: `many/run-${k}`, experiment: "many", group: `run-${k}`, created: `${9999 - k}` };
    state.runs.set(own.id, { ...first, ...own });
  }
  location.hash = "runs?filter=experiment=many";
}"""


def test_thousands_of_rows_scroll_as_one(browser: Any, server: Serving) -> None:
    with opened(browser, server.link) as (page, complaints):
        page.locator("table.runs tbody a").first.wait_for()
        page.evaluate(MANY)
        page.locator(".note", has_text="5,000 runs of 5,013").wait_for()
        rows = page.locator("table.runs tbody tr:not(.space)")
        for share, name in ((0, "run-0"), (0.5, "run-2500"), (1, "run-4999")):
            page.evaluate(
                "at => { const e = document.querySelector('.rows'); e.scrollTop = at * e.scrollHeight; }", share
            )
            page.locator("table.runs a", has_text=name).filter(visible=True).first.wait_for()
            assert rows.count() < 120, "only those that can be seen are there"
        assert complaints == []


@pytest.mark.parametrize(
    ("words", "runs"),
    [
        ("learning.gamma>0.94 state=finished", 9),
        ("env=Cart* learning.gamma=0.9,0.95 seed=0", 2),
        ("name=sweep/g0.9-s1", 1),
        ("fail", 1),
        ("g0.99-*", 6),
        ("state!=finished", 2),
    ],
)
def test_the_filter_has_the_words_of_the_config(browser: Any, server: Serving, words: str, runs: int) -> None:
    with opened(browser, server.link) as (page, complaints):
        page.get_by_label("filter").fill(words)
        page.locator(".note", has_text=f"{runs} run{'s' * (runs != 1)} of 13").wait_for()
        assert complaints == []


def test_a_word_that_means_nothing_is_said(browser: Any, server: Serving) -> None:
    with opened(browser, f"{server.link}#runs?filter=gamma%3E0.9") as (page, complaints):
        page.locator("[role=alert]", has_text="no run has a setting gamma; did you mean learning.gamma?").wait_for()
        assert complaints == []


def test_a_band_of_three_runs_is_called_what_it_is(browser: Any, server: Serving) -> None:
    with opened(browser, f"{server.link}#curves?metrics=episode/return") as (page, complaints):
        legend = page.locator(".chart .legend")
        legend.locator(".entry", has_text="gamma-0.9: n = 3, lowest to highest").wait_for()
        assert legend.locator(".entry", has_text="gamma-0.99: n = 6, 95 %").is_visible()
        note = page.locator(".chart p.note:not(.legend)").inner_text()
        assert "95 % interval of the mean" in note
        assert "1 run without values of episode/return" in note
        drawn = page.evaluate(
            "[...document.querySelector('.plot canvas').getContext('2d').getImageData(0,0,400,200).data]"
        )
        assert sum(value > 0 for value in drawn) > 1000
        assert complaints == []


def test_the_numbers_are_those_of_the_report(browser: Any, server: Serving) -> None:
    """CSV of the plot against Python's own mean and band."""
    with opened(browser, f"{server.link}#curves?metrics=episode/return") as (page, complaints):
        page.locator(".chart .entry", has_text="n = 6").wait_for()
        with page.expect_download() as found:
            page.get_by_role("button", name="CSV").click()
        rows = list(csv.DictReader(io.StringIO(Path(found.value.path()).read_text())))
        assert complaints == []
    root = server.catalog.root
    for gamma, count in ((0.9, 3), (0.99, 6)):
        curves = [read_curve(root / f"sweep/g{gamma}-s{seed}/metrics.jsonl", "episode/return") for seed in range(count)]
        frames, values = common(curves)
        mean, low, high = band(values)
        own = [row for row in rows if row["group"] == f"gamma-{gamma}"]
        assert {row["n"] for row in own} == {str(count)}
        for name, wanted in (("frames", frames), ("episode/return", mean), ("low", low), ("high", high)):
            np.testing.assert_allclose([float(row[name]) for row in own], wanted, rtol=1e-9)


def test_statistics_are_those_of_python(browser: Any, server: Serving) -> None:
    rng = np.random.default_rng(0)
    rules = server.catalog.to_dict()["rules"]
    with opened(browser, server.link) as (page, _):
        page.locator("table.runs tbody a").first.wait_for()
        for count in (1, 2, 4, 5, 9, 40):
            values = rng.normal(size=(count, 7))
            found = page.evaluate(STATS, [values.tolist(), "mean", rules])
            mean, low, high = band(values)
            np.testing.assert_allclose(found["middle"], mean)
            if count > 1:
                np.testing.assert_allclose(found["low"], low)
                np.testing.assert_allclose(found["high"], high)
            found = page.evaluate(STATS, [values.tolist(), "iqm", rules])
            np.testing.assert_allclose(found["middle"], iqm(values.T))
            if count > 1:
                assert all(a <= m <= b for a, m, b in zip(found["low"], found["middle"], found["high"]))


def test_numbers_look_as_in_the_reports(browser: Any, server: Serving) -> None:
    rng = np.random.default_rng(1)
    values = [0.0, 1.0, -1.0, 999.96, 1000.4, 12345.678, 1e15, 1e-5, 0.00012345, 3.14159, -0.5, 1e6, 16777217.0]
    values += [float(v) for v in rng.normal(size=200) * 10.0 ** rng.integers(-8, 16, 200)]
    with opened(browser, server.link) as (page, _):
        page.locator("table.runs tbody a").first.wait_for()
        script = """async (values) => { const f = await import("rollmill/format");
            return values.map((value) => [f.number(value), f.short(value)]); }"""
        found = page.evaluate(script, values)
    assert found == [[number(value), short(value)] for value in values]


AXES = """async (ranges) => {
  const { scale } = await import("rollmill/plot"), { short } = await import("rollmill/format");
  return ranges.map(([low, high, log]) => {
    const [x, y] = [scale([low, high], false, 0), scale([low, high], log, 0.05)];
    return [x.ticks(5).map(short), y.ticks(4).map(short), [x.low, x.high, y.low, y.high]];
  }); }"""


def test_axes_are_those_of_the_reports(browser: Any, server: Serving) -> None:
    """The same numbers stand beside the same values, though one is drawn in the browser and one is in the page."""
    rng = np.random.default_rng(2)
    ends = [(0, 1), (0, 0), (5, 5), (-3, -3), (1, 1), (1000, 1000), (0, 500), (-21.0, 21.0), (1e-9, 3e-9)]
    ends.append((7, 7 + 1e-15))
    scales = 10.0 ** rng.integers(-7, 9, 200)
    ends += [(a * k, (a + w) * k) for a, w, k in zip(rng.normal(size=200), rng.exponential(size=200), scales)]
    ranges = [(float(low), float(high), bool(low > 0 and k % 2)) for k, (low, high) in enumerate(ends)]
    ranges += [(1, 10, True), (1, 1, True), (1000, 1000, True), (0.3, 40, True), (1e-6, 1e6, True), (2, 3, True)]
    with opened(browser, server.link) as (page, _):
        page.locator("table.runs tbody a").first.wait_for()
        found = page.evaluate(AXES, ranges)
    for (low, high, log), (below, beside, limits) in zip(ranges, found):
        plot = Plot((low, high), spread((low, high), log), log=log)
        x_low, x_high = plot.x_range
        assert below == [short(value) for value in ticks(x_low, x_high)], (low, high)
        assert beside == [short(value) for value in plot.y_ticks], (low, high, log)
        y_range = [10**value for value in plot.y_range] if log else plot.y_range
        np.testing.assert_allclose(limits, [x_low, x_high, *y_range], rtol=1e-9, atol=1e-300)


def test_axes_smoothing_and_marks(browser: Any, server: Serving) -> None:
    view = "#curves?metrics=episode/return,time/seconds&x=seconds&smooth=0.6&single=1&logy=1&stat=iqm&filter=gamma-0.99"
    with opened(browser, server.link + view) as (page, complaints):
        page.locator(".chart").nth(1).wait_for()
        assert page.get_by_label("over").input_value() == "seconds"
        assert page.get_by_label("single runs").is_checked()
        assert "thin lines are as measured" in page.locator(".chart p.note:not(.legend)").first.inner_text()
        with page.expect_download() as found:
            page.get_by_role("button", name="SVG").first.click()
        drawn = Path(found.value.path()).read_text()
        assert drawn.startswith("<svg")
        assert drawn.count("<path") > 8
        assert "gamma-0.99: n = 6, 95 %" in drawn
        page.locator(".plot").first.hover()
        wait_until(lambda: page.locator(".chart .legend b").count() >= 2, what="values below the cursor, in both plots")
        page.get_by_label("over").select_option("frames")
        page.get_by_label("marks").check()
        page.wait_for_url(lambda url: "marks=1" in url and "x=seconds" not in url)
        assert complaints == []


def test_marks_stand_where_it_happened(browser: Any, tmp_path: Path) -> None:
    """On any axis: a checkpoint at 200 frames is one at 20 seconds, where a row has both."""
    run = tmp_path / "runs" / "exp" / "run"
    write_run(run, online(), [float(k) for k in range(40)])
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "frames-000000000200.ckpt").write_bytes(b"")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for k, row in enumerate(rows):
        row["sample/env_faults"] = int(k > 30)
        row |= {"eval/return": 1.0} if k == 9 else {}
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    session = {"started": "2026-11-01T10:00:00+00:00", "host": "node7"}
    sessions = [session | {"step_at_start": step} for step in (0, 300)]
    (run / "diary.json").write_text(json.dumps({"created": "2026-11-01T10:00:00+00:00", "sessions": sessions}))
    wanted = {"saved": 20, "resumed": 30, "faults": 32, "eval": 10}
    script = "() => [...document.querySelector('.plot').chart.plot.marks].map(({ x, text }) => [text, x])"
    with serving(tmp_path / "runs") as server:
        for axis, size in (("frames", 10), ("seconds", 1)):
            address = f"{server.link}#curves?metrics=episode/return&marks=1&x={axis}"
            with opened(browser, address) as (page, complaints):
                page.locator(".chart .entry").first.wait_for()
                assert dict(page.evaluate(script)) == {text: size * place for text, place in wanted.items()}
                assert complaints == []


def test_a_part_of_the_axis_is_chosen_by_dragging(browser: Any, server: Serving) -> None:
    with opened(browser, f"{server.link}#curves?metrics=episode/return") as (page, complaints):
        page.locator(".chart .entry").first.wait_for()
        box = page.locator(".plot").bounding_box()
        page.mouse.move(box["x"] + 150, box["y"] + 100)
        page.mouse.down()
        page.mouse.move(box["x"] + 300, box["y"] + 100)
        page.mouse.up()
        page.wait_for_url(lambda url: "range=" in url)
        page.locator(".plot").dblclick()
        page.wait_for_url(lambda url: "range=" not in url)
        assert complaints == []


def test_a_run_that_is_under_way_grows_by_itself(browser: Any, server: Serving) -> None:
    folder = server.catalog.root / "live" / "run"
    write_run(folder, online(0, env="Live-v0"), [1.0, 2.0])
    with opened(browser, f"{server.link}#runs?filter=env%3DLive-v0") as (page, complaints):
        page.locator("table.runs td", has_text="20").first.wait_for()
        with open(folder / "metrics.jsonl", "a") as text:
            text.write(json.dumps({"frames": 123456, "episode/return": 77.5}) + "\n")
        page.locator("table.runs td", has_text="123,456").wait_for()
        assert page.locator("table.runs td", has_text="77.5").is_visible()
        page.evaluate("location.hash = 'curves?filter=env=Live-v0&metrics=episode/return'")
        page.locator(".chart .entry").first.wait_for()
        with open(folder / "metrics.jsonl", "a") as text:
            text.write(json.dumps({"frames": 223456, "episode/return": 99.0}) + "\n")

        def last() -> float:
            numbers = page.evaluate("document.querySelector('.plot').chart.rows()")
            return float(numbers.splitlines()[-1].split(",")[3])

        wait_until(lambda: last() == 223456)
        assert complaints == []


HIDE = """hidden => {
  Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


def test_more_tabs_than_a_browser_has_connections(browser: Any, tmp_path: Path) -> None:
    """Tabs that nobody sees hold no stream; who comes back to one finds what is new."""
    folder = tmp_path / "runs" / "exp" / "run"
    write_run(folder, online(), [1.0, 2.0])
    context = browser.new_context()
    context.set_default_timeout(1000 * LIMIT_SECONDS)
    with serving(tmp_path / "runs") as server:
        pages = [context.new_page() for _ in range(8)]
        for page in pages:
            page.goto(server.link)
            page.locator("table.runs td", has_text="20").first.wait_for()
            page.evaluate(HIDE, True)
        with open(folder / "metrics.jsonl", "a") as text:
            text.write(json.dumps({"frames": 123456, "episode/return": 77.5}) + "\n")
        pages[0].evaluate(HIDE, False)
        pages[0].locator("table.runs td", has_text="123,456").wait_for()
        context.close()


def test_a_tab_too_many_says_so_and_is_told_later(browser: Any, server: Serving) -> None:
    others = [server.follow() for _ in range(STREAMS)]
    with opened(browser, server.link) as (page, _):
        page.locator("#status.bad", has_text="too many tabs are open").wait_for()
        assert page.locator("table.runs tbody a").count(), "what there is, is shown"
        for other in others:
            other.close()
        page.locator("#status:not(.bad)").wait_for()


def test_text_of_others_stays_text(browser: Any, server: Serving) -> None:
    name = "<img src=x onerror=alert(1)>"
    write_run(server.catalog.root / "odd" / name, online(0, env="<script>alert(1)</script>"), [1.0, math.pi])
    with opened(browser, f"{server.link}#runs?filter=experiment=odd") as (page, complaints):
        page.locator("table.runs a", has_text=name).wait_for()
        page.locator("table.runs a", has_text=name).click()
        page.locator(".chart .entry", has_text=name).first.wait_for()
        assert page.locator(".chart .entry").count() == 1, "this run alone"
        assert page.locator("[role=alert]").inner_text() == ""
        assert page.locator("img").count() == 0
        assert complaints == []


def test_the_door_is_closed_without_the_token(browser: Any, server: Serving) -> None:
    page = browser.new_page()
    answer = page.goto(f"http://127.0.0.1:{server.port}/")
    assert answer.status == 403
    assert "open the link that the command has printed" in page.inner_text("body")
    page.close()


NAMES = ["g 1, a*b", 'say "yes"', "back\\slash", "a=b>1", "?", "tags-[1, 2] and 2 more", "a.b", "x/y", "", "é ü", "0.9"]
SPLIT = """async (texts) => {
  const { plain, split } = await import("rollmill/filter");
  const words = (text) => split(text).map((word) => plain(word.characters));
  return texts.map((text) => { try { return words(text); } catch { return null; } });
}"""
FITS = """async (names) => {
  const { parse, quoted } = await import("rollmill/filter");
  const runs = names.map((group) => ({ group, experiment: group, settings: {} }));
  const words = (name) => `experiment=${quoted(name)} group=${quoted(name)}`;
  return names.map((name) => runs.filter(parse(words(name), runs, {})).map((run) => run.group));
}"""


def test_a_name_in_a_filter_means_itself(browser: Any, server: Serving) -> None:
    """Whatever is in it; words are split as Python splits those of the page Data."""
    rng = np.random.default_rng(3)
    texts = ["".join(rng.choice(list('ab" \\,*=\t'), 12)) for _ in range(300)]
    with opened(browser, server.link) as (page, _):
        page.locator("table.runs tbody a").first.wait_for()
        assert page.evaluate(FITS, NAMES) == [[name] for name in NAMES]
        for text, found in zip(texts, page.evaluate(SPLIT, texts)):
            try:
                assert found == words_in(text), text
            except ConfigError:
                assert found is None, text


def test_from_a_group_to_its_curves(browser: Any, tmp_path: Path) -> None:
    """Whose name has blanks and commas, and which another experiment has, too."""
    for experiment in ("one", "two"):
        for seed in range(2):
            for layers in ([1, 2], [3]):
                name = f"{len(layers)} of-s{seed}"
                write_run(tmp_path / "runs" / experiment / name, online(seed, model={"mlp": layers}), [1.0, 2.0])
    with serving(tmp_path / "runs") as server, opened(browser, server.link) as (page, complaints):
        groups = page.locator("table.runs a", has_text="mlp-")
        groups.first.wait_for()
        assert groups.count() == 4
        name = groups.first.inner_text()
        groups.first.click()
        page.locator(".chart .entry").first.wait_for()
        assert page.locator(".chart .entry").count() == 1
        assert page.locator(".side li").count() == 1
        assert name.split("/")[1] in page.locator(".side li").inner_text()
        assert complaints == []


SETTING = """async () => {
  const { state } = await import("rollmill/runs");
  const { valueOf } = await import("rollmill/filter");
  const value = (run) => valueOf(run, "stop.mean_return", state.common);
  return Object.fromEntries([...state.runs.values()].map((run) => [run.name, value(run)]));
}"""


def test_a_run_that_comes_later_has_its_own_settings(browser: Any, tmp_path: Path) -> None:
    """One that has none where all others have the same, for example."""
    root = tmp_path / "runs"
    for seed in range(2):
        write_run(root / "exp" / f"old-{seed}", online(seed, stop={"mean_return": 475}), [1.0])
    with serving(root) as server, opened(browser, server.link) as (page, _):
        page.locator("table.runs tbody a").first.wait_for()
        write_run(root / "exp" / "none", online(stop={"mean_return": None}), [1.0])
        write_run(root / "exp" / "without", online(), [1.0])
        wanted = {"exp/old-0": 475, "exp/old-1": 475, "exp/none": None, "exp/without": None}
        wait_until(lambda: page.evaluate(SETTING).keys() == wanted.keys())
        assert page.evaluate(SETTING) == wanted


@pytest.fixture(scope="module")
def units(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A run that counts frames, and one that counts updates."""
    root = tmp_path_factory.mktemp("units") / "runs"
    write_run(root / "exp" / "online", online(), [1.0, 2.0], metric="eval/return")
    write_run(root / "exp" / "offline", offline(root / "store"), [])
    rows = [{"step": 1000 * k, "unit": "updates", "eval/return": k, "time/seconds": k} for k in range(1, 5)]
    (root / "exp" / "offline" / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with serving(root) as found:
        yield found


AXIS_OF = """[...document.querySelectorAll('.plot')].map(e => e.chart.plot)
  .map(({ xTitle, lines }) => [xTitle, lines.map(({ x }) => x.at(-1))])"""


def test_runs_that_count_differently_have_axes_of_their_own(browser: Any, units: Serving) -> None:
    with opened(browser, f"{units.link}#runs") as (page, complaints):
        page.locator("table.runs td", has_text="4,000 updates").wait_for()
        assert page.locator("table.runs td", has_text="20 frames").count() == 1
        page.evaluate("location.hash = 'runs?filter=name=exp/offline'")
        page.locator("table.runs th", has_text="updates").wait_for()
        for address in ("curves?metrics=eval/return", "compare?runs=" + ",".join(units.catalog.runs)):
            page.evaluate("address => { location.hash = address; }", address)
            page.locator(".chart").nth(1).wait_for()
            assert sorted(page.evaluate(AXIS_OF)) == [["frames", [20]], ["updates", [4000]]]
        page.evaluate("location.hash = 'curves?metrics=eval/return&x=seconds'")
        wait_until(lambda: page.evaluate(AXIS_OF) == [["seconds", [4, 2]]], what="seconds, which all have in common")
        assert complaints == []


def test_a_range_below_zero_on_a_logarithmic_axis(browser: Any, server: Serving) -> None:
    with opened(browser, f"{server.link}#curves?metrics=episode/return&logx=1&range=-50:200") as (page, complaints):
        page.locator(".chart .entry").first.wait_for()
        script = "(({ xs, lines }) => [xs.low, xs.high, xs.share(lines[0].x[0])])"
        low, high, shown = page.evaluate(f"{script}(document.querySelector('.plot').chart.plot)")
        assert (low, high) == pytest.approx((10, 200)), "from the first point on"
        assert 0 <= shown <= 1
        assert complaints == []


def test_numbers_of_any_count_and_one_format_for_each_kind(browser: Any, server: Serving) -> None:
    script = """async () => {
      const [{ extremes }, f] = await Promise.all([import("rollmill/stats"), import("rollmill/format")]);
      const { Plot } = await import("rollmill/plot");
      const many = Array.from({ length: 500_000 }, (_, k) => k % 1000);
      const counts = new Plot({ lines: [{ x: [0, 1], y: [0, 1] }], yWhole: true });
      counts.layout(400, 300);
      const lengths = [59.4, 59.7, 3599, 3600, 90000].map(f.duration);
      return [extremes(many), extremes([]).map(String), lengths, f.rate(8947.4), f.rate(null),
        f.when(1795095696000), f.when("2026-11-19T13:41:36+00:00"), f.when("x"), counts.yTicks]; }"""
    with opened(browser, server.link, timezone_id="Asia/Tokyo", locale="de-DE") as (page, _):
        page.locator("table.runs tbody a").first.wait_for()
        found = page.evaluate(script)
    assert found[:2] == [[0, 999], ["Infinity", "-Infinity"]]
    assert found[2] == ["59 s", "1 min", "1.00 h", "1.00 h", "25.0 h"]
    assert found[3:5] == ["8,947", "-"]
    assert found[5:8] == ["2026-11-19 13:41:36 UTC", "2026-11-19 13:41:36 UTC", "x"]
    assert found[8] == [[0, "0"], [1, "1"]], "nothing between two things"


def test_fixed_columns_stand_before_settings_which_fold(browser: Any, tmp_path: Path) -> None:
    for k in range(2):
        settings = {f"knob_{j:02}": j + 100 * k for j in range(20)}
        write_run(tmp_path / "runs" / "exp" / f"r{k}", online(learning=settings), [1.0])
    with serving(tmp_path / "runs") as server, opened(browser, server.link) as (page, complaints):
        heads = page.locator("table.runs th")
        heads.first.wait_for()
        names = [name.strip() for name in heads.all_inner_texts()]
        fixed = ["run", "state", "env", "frames", "return", "frames/s", "faults", "age"]
        assert [name for name in names if not name.startswith("learning.")] == names[: len(fixed)] == fixed
        more = page.locator("details.more")
        assert more.inner_text() == "8 more settings differ"
        more.locator("summary").click()
        more.locator("span", has_text="learning.knob_19").wait_for()
        assert complaints == []


def test_settings_that_only_one_kind_of_run_has_are_no_columns(browser: Any, tmp_path: Path) -> None:
    """Runs of two kinds differ by hundreds of them, which say nothing and hid what does."""
    for k in range(2):
        settings = {"gamma": 0.9 + 0.05 * k, **{f"a_knob_{j:02}": j for j in range(20)}}
        write_run(tmp_path / "runs" / "exp" / f"r{k}", online(learning=settings), [1.0])
    write_run(tmp_path / "runs" / "exp" / "cloned", offline(tmp_path / "none"), [1.0], metric="eval/return")
    with serving(tmp_path / "runs") as server:
        with opened(browser, server.link) as (page, complaints):
            page.locator("table.runs th", has_text="learning.gamma").wait_for()
            assert page.locator("table.runs th", has_text="knob").count() == 0
            row = page.locator("table.runs tr", has=page.get_by_role("link", name="cloned", exact=True))
            assert row.locator("td").last.inner_text() == "-", "which is not null"
            assert complaints == []
        ids = ",".join(server.id_of(f"exp/{name}") for name in ("r0", "cloned"))
        with opened(browser, f"{server.link}#compare?runs={ids}") as (page, complaints):
            page.locator("section p", has_text="None that all have").wait_for()
            page.locator("summary", has_text="that not all have").click()
            assert page.locator("tr", has_text="a_knob_07").inner_text().split("\t") == ["learning.a_knob_07", "7", "-"]
            assert complaints == []


def test_from_a_world_model_to_the_curves_of_its_stages(browser: Any, tmp_path: Path) -> None:
    world = tmp_path / "runs" / "world" / "car"
    write_run(world, {"collect": {}, "dynamics": {}, "controller": {}}, [])
    (world / "stages").mkdir()
    write_run(world / "vae", {"encoder": {"size": 3}, "images": {}}, [0.5, 0.25], metric="learn/loss")
    with serving(tmp_path / "runs") as server, opened(browser, server.link) as (page, complaints):
        page.get_by_role("link", name="world/car", exact=True).click()
        page.locator(".chart .entry", has_text="vae").wait_for()
        assert complaints == []


def test_who_comes_back_finds_what_was_unfolded_and_chosen(browser: Any, server: Serving) -> None:
    with opened(browser, f"{server.link}#runs?filter=experiment%3Dsweep") as (page, complaints):
        page.get_by_role("button", name="unfold gamma-0.9", exact=True).click()
        page.get_by_label("choose sweep/g0.9-s0").check()
        page.get_by_label("choose sweep/g0.9-s1").check()
        page.get_by_role("button", name="compare 2 runs").click()
        page.locator("section", has_text="Settings that differ").first.wait_for()
        assert page.title() == "Compare: runs"
        page.go_back()
        page.get_by_role("button", name="compare 2 runs").wait_for()
        assert page.get_by_label("choose sweep/g0.9-s0").is_checked()
        assert page.title() == "Runs: runs"
        assert complaints == []


def test_an_answer_that_takes_long_is_waited_for_aloud(browser: Any, everything: Serving) -> None:
    """An empty page would look like one with nothing on it."""
    with opened(browser, everything.link) as (page, complaints):
        page.locator("table.runs a").first.wait_for()
        held: list[Any] | None = []
        page.route("**/api/experiment?*", lambda route: route.continue_() if held is None else held.append(route))
        page.evaluate("location.hash = 'experiments'")
        page.locator("#status", has_text="reading").wait_for()
        waiting, held = held, None
        for route in waiting:
            route.continue_()
        page.locator(".chart .entry").first.wait_for()
        page.locator("#status", has_text=" runs").wait_for()
        assert complaints == []


def test_typing_and_sliding_are_no_steps_back(browser: Any, server: Serving) -> None:
    with opened(browser, f"{server.link}#curves?metrics=episode/return") as (page, complaints):
        page.locator(".chart .entry").first.wait_for()
        before = page.evaluate("history.length")
        page.get_by_label("smoothing").focus()
        for _ in range(3):
            page.keyboard.press("ArrowRight")
        page.wait_for_url("**smooth=0.03*")
        page.get_by_label("filter").fill("gamma-0.9")
        page.wait_for_url("**filter=gamma-0.9*")
        wait_until(lambda: page.locator(".chart .entry").count() == 3)
        assert page.evaluate("history.length") == before
        assert complaints == []


def test_a_link_is_copied_over_http_too(browser: Any, server: Serving) -> None:
    with opened(browser, f"{server.link}#curves?metrics=episode/return") as (page, complaints):
        page.locator(".chart .entry").first.wait_for()
        page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
        seen = "window.copied = document.activeElement.value"
        page.evaluate(f"document.addEventListener('copy', () => {{ {seen}; }})")
        page.get_by_role("button", name="copy link").click()
        page.get_by_role("button", name="copied").wait_for()
        assert page.evaluate("window.copied") == page.url
        assert complaints == []


# -- episodes ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A run with episodes whose picture is the number of their step."""
    run = tmp_path_factory.mktemp("recorded") / "runs" / "exp" / "run"
    write_run(run, online(), [float(k) for k in range(40)])
    counting_store(run / "data", (90, 150, 40))
    with serving(run.parents[1]) as found:
        yield found


def pixel(page: Any, pane: int = 0) -> list[int]:
    """What is in the middle of a frame: step, episode, 7."""
    script = "k => [...document.querySelectorAll('canvas.frame')[k].getContext('2d').getImageData(8, 6, 1, 1).data]"
    return list(page.evaluate(script, pane))[:3]


def test_scrubbing_shows_the_frame_of_that_step(browser: Any, recorded: Serving) -> None:
    store = recorded.ask("/api/runs").json["stores"][0]["id"]
    with opened(browser, f"{recorded.link}#play?e={store}:1&t=5") as (page, complaints):
        page.locator("canvas.frame").wait_for()
        wait_until(lambda: pixel(page) == [5, 1, 7])
        slider = page.get_by_label("step", exact=True)
        for step in (6, 149, 64, 63, 0, 150, 128):
            slider.evaluate("(box, step) => { box.value = step; box.dispatchEvent(new Event('input')); }", step)
            wait_until(lambda step=step: pixel(page) == [step, 1, 7], what=f"frame {step}")
        page.keyboard.press("ArrowRight")
        wait_until(lambda: pixel(page) == [129, 1, 7])
        page.keyboard.press("k")
        wait_until(lambda: pixel(page) == [119, 1, 7])
        page.get_by_role("button", name="largest reward").click()
        wait_until(lambda: pixel(page) == [75, 1, 7])
        page.keyboard.press("End")
        page.locator(".note", has_text="the end: terminated").wait_for()
        page.keyboard.press("Home")
        page.get_by_role("button", name="play", exact=True).click()
        wait_until(lambda: pixel(page)[0] > 3, what="it to play by itself")
        page.keyboard.press("Space")
        assert complaints == []


def test_episodes_go_side_by_side(browser: Any, recorded: Serving) -> None:
    with opened(browser, f"{recorded.link}#data") as (page, complaints):
        for number_ in (0, 2):
            page.get_by_label(f"choose episode {number_}").check()
        page.get_by_role("button", name="play 2 side by side").click()
        page.locator("canvas.frame").nth(1).wait_for()
        page.keyboard.press("j")
        wait_until(lambda: (pixel(page, 0), pixel(page, 1)) == ([10, 0, 7], [10, 2, 7]))
        for _ in range(6):
            page.keyboard.press("j")
        wait_until(lambda: (pixel(page, 0), pixel(page, 1)) == ([70, 0, 7], [40, 2, 7]), what="the shorter one to wait")
        assert complaints == []


def test_jumps_look_at_all_that_are_side_by_side(browser: Any, recorded: Serving) -> None:
    store = recorded.ask("/api/runs").json["stores"][0]["id"]
    with opened(browser, f"{recorded.link}#play?e={store}:0,{store}:1") as (page, complaints):
        page.locator("canvas.frame").nth(1).wait_for()
        for words, step in (("largest reward", 75), ("end", 150), ("largest surprise", 75)):
            page.get_by_role("button", name=words).click()
            page.locator(".note", has_text=f"step {step} of 150").wait_for()
        assert complaints == []


def test_what_is_still_to_come_when_an_episode_stops(browser: Any, tmp_path: Path) -> None:
    """After a truncated one the value of the last observation, after a terminated one nothing."""
    for name, ended in (("terminated", (True, False)), ("truncated", (False, True)), ("cut", (False, False))):
        counting_store(tmp_path / "runs" / name, (30,), ended=ended)
    with serving(tmp_path / "runs") as server:
        stores = {store["name"]: store["id"] for store in server.ask("/api/runs").json["stores"]}
        for name, step in (("terminated", 15), ("truncated", 29), ("cut", 29)):
            with opened(browser, f"{server.link}#play?e={stores[name]}:0") as (page, complaints):
                facts = page.locator(".pane p.note", has_text="return so far")
                for at, sum_ in ((15, "0"), (16, "1")):
                    page.locator("canvas.frame").wait_for()
                    slider = page.get_by_label("step", exact=True)
                    slider.evaluate("(box, at) => { box.value = at; box.dispatchEvent(new Event('input')); }", at)
                    facts.filter(has_text=f"return so far {sum_}").wait_for()
                page.get_by_role("button", name="largest surprise").click()
                page.locator(".note", has_text=f"step {step} of 30").wait_for()
                page.keyboard.press("End")
                facts.filter(has_text=f"the end: {name}, value 5, return so far 1").wait_for()
                assert complaints == []


def test_frames_that_cannot_be_read_leave_no_others_there(browser: Any, recorded: Serving) -> None:
    store = recorded.ask("/api/runs").json["stores"][0]["id"]
    with opened(browser, f"{recorded.link}#play?e={store}:1&t=5") as (page, _):
        page.route("**/api/frames?*part=8*", lambda route: route.fulfill(status=422, body="422: damaged"))
        page.locator("canvas.frame").wait_for()
        wait_until(lambda: pixel(page) == [5, 1, 7])
        slider = page.get_by_label("step", exact=True)
        go = "(box, step) => { box.value = step; box.dispatchEvent(new Event('input')); }"
        slider.evaluate(go, 130)
        page.locator("[role=alert]", has_text="these frames cannot be read").wait_for()
        assert pixel(page) == [0, 0, 0]
        page.keyboard.press("ArrowRight")
        page.locator(".note", has_text="step 131 of 150").wait_for()
        page.locator("[role=alert]", has_text="these frames cannot be read").wait_for()
        slider.evaluate(go, 6)
        wait_until(lambda: pixel(page) == [6, 1, 7])
        assert page.locator(".pane [role=alert]").inner_text() == ""


DRAWN = """() => {
  const { fillText } = CanvasRenderingContext2D.prototype;
  window.drawn = {};
  CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
    (window.drawn[this.canvas.ariaLabel] ??= []).push(text);
    return fillText.call(this, text, ...rest);
  };
}"""


def test_steps_and_versions_have_whole_ticks(browser: Any, recorded: Serving) -> None:
    (store,) = (own["id"] for own in recorded.ask("/api/runs").json["stores"])
    with opened(browser, f"{recorded.link}#play?e={store}:2") as (page, complaints):
        page.evaluate(DRAWN)
        page.set_viewport_size({"width": 3000, "height": 900})  # room for many ticks
        page.wait_for_function("window.drawn['policy version']?.length > 20")
        words = page.evaluate("window.drawn['policy version']")
        assert all(float(word).is_integer() for word in words if word), words
        assert complaints == []


def test_the_player_without_episodes_has_nothing_to_press(browser: Any, recorded: Serving) -> None:
    with opened(browser, f"{recorded.link}#play") as (page, complaints):
        page.locator("p", has_text="Choose episodes on the page").wait_for()
        assert not page.get_by_role("button", name="largest reward").is_visible()
        page.locator("#page").get_by_role("link", name="Data").click()
        page.locator("table.episodes a").first.click()
        page.get_by_role("button", name="largest reward").wait_for()
        assert complaints == []


def test_one_of_several_images_is_chosen(browser: Any, tmp_path: Path) -> None:
    two_views(tmp_path / "runs" / "store", 20)
    with serving(tmp_path / "runs") as server:
        (store,) = server.ask("/api/runs").json["stores"]
        with opened(browser, f"{server.link}#play?e={store['id']}:0&t=3") as (page, complaints):
            page.locator("canvas.frame").wait_for()
            first = page.get_by_label("image").input_value()
            wait_until(lambda: pixel(page) == [3, {"left": 100, "right": 200}[first], 7])
            other = "right" if first == "left" else "left"
            page.get_by_label("image").select_option(other)
            wait_until(lambda: pixel(page) == [3, {"left": 100, "right": 200}[other], 7])
            page.keyboard.press("ArrowRight")
            page.wait_for_url(lambda url: "t=4" in url and f"image={other}" in url)
            assert complaints == []


def test_who_leaves_the_player_stays_away(browser: Any, recorded: Serving) -> None:
    """The address of the player is written a moment later, unless another page is shown by then."""
    store = recorded.ask("/api/runs").json["stores"][0]["id"]
    with opened(browser, f"{recorded.link}#play?e={store}:1") as (page, complaints):
        page.wait_for_url("**t=0")  # the clock that is installed does not know of what waits for the page's own
        page.clock.install()
        page.keyboard.press("j")
        page.evaluate("location.hash = 'runs'")
        page.locator("table.runs a").first.wait_for()
        page.clock.run_for(1000)
        assert page.url.endswith("#runs")
        assert complaints == []


def test_what_was_chosen_in_one_store_is_not_played_of_another(browser: Any, everything: Serving) -> None:
    with opened(browser, f"{everything.link}#data") as (page, complaints):
        page.get_by_label("choose episode 2").check()
        play = page.get_by_role("button", name="play", exact=True)
        assert play.is_enabled()
        page.get_by_label("store").select_option(index=1)
        page.wait_for_url("**store=*")
        wait_until(lambda: play.is_disabled())
        assert not page.get_by_label("choose episode 2").is_checked()
        assert complaints == []


def test_an_older_answer_does_not_take_the_place_of_a_newer_choice(browser: Any, everything: Serving) -> None:
    """The table of one store comes after that of another, which was chosen later; and after the page was left."""
    stores = {store["name"]: store["id"] for store in everything.ask("/api/runs").json["stores"]}
    first, second = stores["exp/b/data"], stores["exp/b/eval/newest"]
    held: list[Any] = []
    with opened(browser, f"{everything.link}#runs") as (page, complaints):
        page.locator("table.runs a").first.wait_for()
        page.route(f"**/api/episodes?store={first}*", lambda route: held.append(route))
        page.evaluate("id => { location.hash = `data?store=${id}`; }", first)
        wait_until(lambda: page.evaluate("1") and held, what="the slow store to be asked for")
        page.evaluate("id => { location.hash = `data?store=${id}`; }", second)
        page.locator(".note", has_text="6 of 6 episodes").wait_for()
        with page.expect_response(lambda answer: f"episodes?store={first}" in answer.url):
            held.pop().continue_()
        page.evaluate("new Promise((done) => setTimeout(done))")
        assert page.locator(".note", has_text="6 of 6 episodes").is_visible()
        assert page.locator("table.episodes tbody tr").count() == 6
        page.evaluate("id => { location.hash = `data?store=${id}`; }", first)
        wait_until(lambda: page.evaluate("1") and held, what="the slow store to be asked for again")
        page.evaluate("location.hash = 'runs'")
        page.locator("table.runs a").first.wait_for()
        with page.expect_response(lambda answer: f"episodes?store={first}" in answer.url):
            held.pop().continue_()
        page.evaluate("new Promise((done) => setTimeout(done))")
        assert page.locator("table.runs").is_visible()
        assert complaints == []


def test_news_leave_unfolded_what_was_unfolded(browser: Any, tmp_path: Path) -> None:
    root = tmp_path / "runs"
    write_run(root / "exp" / "run", online(), [1.0])
    write_report(Store(counting_store(root / "store", (3, 4))))
    with serving(root) as server, opened(browser, f"{server.link}#data") as (page, complaints):
        page.locator("details.checks summary").click()
        page.locator("details.checks li").first.wait_for()
        write_run(root / "exp" / "new", online(), [1.0])
        page.locator("#status", has_text="2 runs").wait_for()
        page.locator("details.checks[open]").wait_for()
        assert "UTC" in page.locator("details.checks summary").inner_text()
        assert complaints == []


def test_from_a_point_of_a_curve_to_its_episodes(browser: Any, recorded: Serving) -> None:
    with opened(browser, f"{recorded.link}#curves?metrics=episode/return") as (page, complaints):
        page.locator(".chart .entry").first.wait_for()
        box = page.locator(".plot").bounding_box()
        page.mouse.click(box["x"] + box["width"] * 0.55, box["y"] + 100)
        page.locator("p", has_text="was played by version 1. No checkpoint of that time is left.").wait_for()
        page.get_by_role("link", name="episodes recorded there (data)").click()
        page.wait_for_url("**near=*")
        page.locator("table.episodes tbody tr").first.wait_for()
        first = page.locator("table.episodes tbody tr").first.locator("a")
        assert first.inner_text() == "1", "its frames, 100 to 249, hold the place"
        assert "those nearest to 2" in page.locator(".note", has_text="nearest").inner_text()
        first.click()
        page.locator("canvas.frame").wait_for()
        wait_until(lambda: pixel(page) == [0, 1, 7])
        assert complaints == []


def test_the_filter_of_episodes_is_the_stores(browser: Any, recorded: Serving) -> None:
    with opened(browser, f"{recorded.link}#data?filter=length_min%3D50") as (page, complaints):
        page.locator(".note", has_text="2 of 3 episodes").wait_for()
        assert page.locator("table.episodes tbody tr").count() == 2
        assert complaints == []


# -- wide and narrow --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """Something for every page to show."""
    root = tmp_path_factory.mktemp("everything") / "runs"
    launched(root / "grid", gammas=[0.9 + k / 1000 for k in range(10)], seeds=2)
    for k, name in enumerate(("a_run_of_a_longer_name", "b")):
        write_run(root / "exp" / name, online(k), [float(k) for k in range(40)])
        counting_store(root / "exp" / name / "data", (9, 15, 4))
        counting_store(root / "exp" / name / "eval" / "newest", (4, 5, 6, 7, 8, 9))
    population_run(root / "pop" / "three")
    cluster_run(root / "cl" / "two")
    selfplay_run(root / "play" / "one")
    with serving(root) as found:
        yield found


VIEWS = {
    "runs": ("runs", "table.runs a"),
    "curves": ("curves?metrics=episode/return", ".chart .entry"),
    "two plots": ("curves?metrics=episode/return,time/seconds&single=1", ".chart .entry"),
    "compare": ("compare?runs={grid/g0.9-s0},{grid/g0.909-s0}", "section"),
    "compare alike": ("compare?runs={exp/a_run_of_a_longer_name},{exp/b}", "section:last-of-type"),
    "data": ("data?store={exp/b/data}", "table.episodes a"),
    "episodes": ("play?e={exp/b/data}:1,{exp/b/data}:0", "canvas.frame"),
    "experiments": ("experiments", ".chart .entry"),
    "populations": ("populations?run={pop/three}", ".chart .entry"),
    "games": ("populations?run={play/one}", "table.matrix td"),
    "clusters": ("clusters", ".chart .entry"),
}
BROKEN = """() => [...document.querySelectorAll("#view td, #view th.brief, #view button, #view .entry")].filter((e) => {
  if (!e.textContent.trim() || e.textContent.length > 20 || !e.checkVisibility()) return false;
  const range = document.createRange();
  range.selectNodeContents(e);
  const rects = [...range.getClientRects()].filter((r) => r.width > 1);
  const height = Math.max(...rects.map((r) => r.bottom)) - Math.min(...rects.map((r) => r.top));
  return height > 1.8 * Math.max(...rects.map((r) => r.height));
}).map((e) => e.textContent)"""
"""A few letters that stand in more than one line."""


@pytest.mark.parametrize("view", VIEWS)
def test_every_page_fits_wide_and_narrow(browser: Any, everything: Serving, view: str) -> None:
    told = everything.ask("/api/runs").json
    address, there = VIEWS[view]
    for known in (*told["runs"], *told["stores"]):
        address = address.replace(f"{{{known['name']}}}", known["id"])
    with opened(browser, f"{everything.link}#{address}") as (page, complaints):
        page.locator(there).first.wait_for()
        for width, scheme in ((400, "light"), (1300, "dark"), (1900, "light")):
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(color_scheme=scheme)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert page.evaluate(BROKEN) == []
        assert complaints == []


def test_a_plot_alone_has_the_whole_width(browser: Any, everything: Serving) -> None:
    size = {"width": 1900, "height": 900}
    with opened(browser, f"{everything.link}#curves?metrics=episode/return", viewport=size) as (page, _):
        page.locator(".chart .entry").first.wait_for()
        assert page.locator(".plot canvas").first.bounding_box()["width"] > 1400


# -- side by side, and launches ---------------------------------------------------------------------------------------


def test_runs_are_chosen_and_compared(browser: Any, server: Serving) -> None:
    with opened(browser, f"{server.link}#runs?filter=seed%3D0") as (page, complaints):
        page.get_by_label("choose sweep/g0.9-s0").check()
        page.get_by_label("choose sweep/g0.95-s0").check()
        page.get_by_role("button", name="compare 2 runs").click()
        settings = page.locator("section", has_text="Settings that differ").first
        settings.wait_for()
        row = settings.locator("tr", has_text="learning.gamma").inner_text()
        assert row.split() == ["learning.gamma", "0.9", "0.95"]
        assert "run.seed" not in settings.inner_text()
        page.locator(".chart .entry", has_text="sweep/g0.95-s0").wait_for()
        assert complaints == []


def test_what_differs_in_the_code_is_said(browser: Any, tmp_path: Path) -> None:
    for name, commit, dirty, torch in (("a", "1111111111111", False, "2.12"), ("b", "2222222222222", True, "2.13")):
        write_run(tmp_path / "runs" / "exp" / name, online(), [1.0])
        diary = {"created": "2026-11-01T10:00:00+00:00", "git": {"commit": commit, "dirty": dirty}}
        diary |= {"versions": {"torch": torch, "numpy": "2.4"}, "sessions": []}
        (tmp_path / "runs" / "exp" / name / "diary.json").write_text(json.dumps(diary))
    with serving(tmp_path / "runs") as server:
        ids = ",".join(run["id"] for run in server.ask("/api/runs").json["runs"])
        with opened(browser, f"{server.link}#compare?runs={ids}") as (page, complaints):
            page.locator("code", has_text="git diff 111111111111 222222222222").wait_for()
            assert page.locator("p", has_text="files differed from it").inner_text().endswith("(exp/b).")
            assert page.locator("tr", has_text="torch").locator("td.differs").all_inner_texts() == ["2.12", "2.13"]
            assert page.locator("tr", has_text="numpy").locator("td.differs").count() == 0
            assert complaints == []


def test_evaluations_are_paired_by_seed(browser: Any, tmp_path: Path) -> None:
    for name, lengths in (("a", (4, 4, 4)), ("b", (6, 6))):
        write_run(tmp_path / "runs" / "exp" / name, online(), [1.0])
        counting_store(tmp_path / "runs" / "exp" / name / "eval" / "newest", lengths)
    with serving(tmp_path / "runs") as server:
        ids = ",".join(run["id"] for run in server.ask("/api/runs").json["runs"])
        with opened(browser, f"{server.link}#compare?runs={ids}") as (page, complaints):
            section = page.locator("section", has_text="Evaluation newest, 2 seeds that all have")
            section.wait_for()
            assert section.locator("tbody tr").count() == 2 + 2
            assert section.locator("tbody tr").first.inner_text().split() == ["mean", "1.5", "1.5"]
            assert section.locator("tbody tr").nth(1).inner_text().split()[-2:] == ["-", "0"], "too few for an interval"
            assert complaints == []


def test_evaluations_of_one_name_are_paired(browser: Any, tmp_path: Path) -> None:
    """Not the best of one run with the newest of another."""
    evaluated = {"a": ("best", "newest"), "b": ("best", "newest", "other"), "c": ("other",)}
    for name, evaluations in evaluated.items():
        write_run(tmp_path / "runs" / "exp" / name, online(), [1.0])
        for k, evaluation in enumerate(evaluations):
            counting_store(tmp_path / "runs" / "exp" / name / "eval" / evaluation, (4,) * (2 + k))
    with serving(tmp_path / "runs") as server:
        ids = {run["name"]: run["id"] for run in server.ask("/api/runs").json["runs"]}
        with opened(browser, f"{server.link}#compare?runs={ids['exp/a']},{ids['exp/b']}") as (page, complaints):
            page.locator("h2", has_text="Evaluation newest, 3 seeds that all have").wait_for()
            page.get_by_label("evaluation").select_option("best")
            page.locator("h2", has_text="Evaluation best, 2 seeds that all have").wait_for()
            page.evaluate("ids => { location.hash = `compare?runs=${ids}`; }", f"{ids['exp/a']},{ids['exp/c']}")
            page.locator("p", has_text="exp/a: best, newest; exp/c: other").wait_for()
            assert complaints == []


def test_how_a_launch_stands(browser: Any, tmp_path: Path) -> None:
    launched(tmp_path / "runs" / "grid", gammas=(0.5, 0.9, 0.99), seeds=3)
    with serving(tmp_path / "runs") as server, opened(browser, f"{server.link}#experiments") as (page, complaints):
        page.locator("td", has_text="to_come").wait_for()
        assert page.locator("tr", has_text="to_come").inner_text().split()[1] == "waiting"
        assert page.locator("tr", has_text="to_come").locator("a").count() == 0, "there is nothing to see of it yet"
        assert page.locator("tr", has_text="g0.5-s0").locator("a").count() == 1
        assert page.locator("section", has_text="What matters").locator("td", has_text="learning.gamma").is_visible()
        assert page.locator(".chart .entry").count() >= 3
        assert complaints == []


def test_attempts_and_every_run_over_its_parameters(browser: Any, tmp_path: Path) -> None:
    experiment = tmp_path / "runs" / "grid"
    launched(experiment, gammas=(0.5, 0.9, 0.99), seeds=3)
    records = LaunchRecords(experiment)
    attempt = Attempt(1, 1.79e9, Identity("node7", "boot", 1, 1), "", "new", reason="it <b>broke", tail="last words")
    records.write_attempt("to_come", attempt)
    records.log_path("to_come", 1).write_text("what it wrote")
    with serving(tmp_path / "runs") as server, opened(browser, f"{server.link}#experiments") as (page, complaints):
        page.locator("summary", has_text="1 attempt").click()
        page.locator("li", has_text="not ended: it <b>broke").wait_for()
        page.get_by_role("button", name="log", exact=True).click()
        page.locator("pre", has_text="what it wrote").wait_for()
        with open(records.log_path("to_come", 1), "a") as text:
            text.write(" and has written since")
        records.write_attempt("to_come", replace(attempt, number=2))  # which is news
        page.locator("summary", has_text="2 attempts").wait_for()
        page.locator("pre", has_text="what it wrote and has written since").wait_for()
        records.write_attempt("to_come", replace(attempt, ended=1.79e9 + 5, exit_code=1))
        page.locator("li", has_text="with exit code 1: it <b>broke").first.wait_for()
        with page.expect_download() as found:
            chart = page.locator(".chart", has_text="Every run over its parameters")
            chart.get_by_role("button", name="SVG").click()
        drawn = Path(found.value.path()).read_text()
        chart.locator(".plot").hover()
        page.locator(".chart", has_text="Score over seconds").locator(".plot").hover()
        page.locator(".chart .entry", has_text="seconds ").first.wait_for()
        assert chart.locator(".entry").count() == 0, "a place between two axes has no value"
        assert drawn.count("<path") == 9 + 2, "a line for each run, an axis for gamma and one for the score"
        assert ">0.99</text>" in drawn
        assert 'paint-order="stroke">0.99<' in drawn, "words that stand on lines can be read"
        assert complaints == []


def test_whose_weights_went_where(browser: Any, tmp_path: Path) -> None:
    population_run(tmp_path / "runs" / "pop" / "three")
    with serving(tmp_path / "runs") as server, opened(browser, f"{server.link}#populations") as (page, complaints):
        tree = page.locator(".chart", has_text="Lineage")
        with page.expect_download() as found:
            tree.get_by_role("button", name="CSV").click()
        copies = Path(found.value.path()).read_text().splitlines()
        assert copies == ["round,frames,member,from", "1,1000,2,0", "2,2000,0,1", "2,2000,2,1"]
        places = page.evaluate("document.querySelector('.plot').chart.plot.points[0].x")
        assert places == [1000, 2000 - 0.012 * 2000, 2000], "copies of one round stand beside each other"
        row = page.locator("section", has_text="Members").locator("tbody tr").nth(2).inner_text()
        assert row.split() == ["2", "12", "±", "0.5", "20", "2", "0.1", "→", "0.005"], "as it was judged last"
        assert page.locator(".chart", has_text="learning.learning_rate").locator(".entry").count() == 3
        decisions = page.locator("section", has_text="Decisions, the newest first").locator("tbody tr")
        assert decisions.first.inner_text().startswith("2\t2\tfrom 1")
        assert complaints == []


def test_who_wins_against_whom(browser: Any, tmp_path: Path) -> None:
    selfplay_run(tmp_path / "runs" / "play" / "one")
    with serving(tmp_path / "runs") as server, opened(browser, f"{server.link}#populations") as (page, complaints):
        matrix = page.locator("table.matrix tr")
        matrix.first.wait_for()
        assert matrix.first.inner_text().split("\t") == ["", "model 0", "model 1", "still"]
        assert matrix.nth(3).inner_text().split("\t") == ["model 2", "", "0.75", "1.00"]
        ratings = page.locator("section", has_text="Ratings").locator("tbody tr")
        assert ratings.first.inner_text().split("\t")[1] == "model 2"
        assert complaints == []


def test_how_nodes_stand(browser: Any, tmp_path: Path) -> None:
    cluster_run(tmp_path / "runs" / "cl" / "two")
    with serving(tmp_path / "runs") as server, opened(browser, f"{server.link}#clusters") as (page, complaints):
        rows = page.locator("section", has_text="Nodes").locator("tbody tr")
        rows.first.wait_for()
        assert rows.nth(0).inner_text().split()[:3] == ["0", "local-0", "sampling"]
        second = rows.nth(1).inner_text().split("\t")
        assert second[:5] == ["1", "-", "not there", "-", "1003"], "the newest incarnation, from the metrics"
        assert second[5] == "2", "both of its starts were seen"
        page.locator(".entry", has_text="segments that never arrived: 3").wait_for()
        with page.expect_download() as found:
            page.locator(".chart", has_text="Updates that segments").get_by_role("button", name="SVG").click()
        assert "1 anew" in Path(found.value.path()).read_text()
        page.locator("pre", has_text="node local-1 is gone").wait_for()
        assert complaints == []


def test_more_groups_than_colours_can_be_told_apart(browser: Any, tmp_path: Path) -> None:
    """Dashes of lines and marks of points stand in the legend, in the list of groups and in the file, too."""
    experiment = tmp_path / "runs" / "grid"
    launched(experiment, gammas=[0.9 + k / 1000 for k in range(10)], seeds=2)
    signs = "elements => elements.map(e => [...e.attributes].map(a => a.value).slice(1).join(' '))"
    with serving(tmp_path / "runs") as server:
        with opened(browser, f"{server.link}#curves?metrics=episode/return") as (page, complaints):
            page.locator(".legend .entry").nth(9).wait_for()
            legend = page.locator(".legend svg.key > *").evaluate_all(signs)
            assert len(set(legend)) == 10
            assert page.locator(".side svg.key > *").evaluate_all(signs)[:10] == legend
            drawn = page.evaluate("document.querySelector('.plot').chart.plot.lines.map(({hue, dash}) => hue + dash)")
            assert len(set(drawn)) == 10
            with page.expect_download() as found:
                page.get_by_role("button", name="SVG").click()
            keys = Path(found.value.path()).read_text().partition('class="key"')[2]
            assert complaints == []
        assert keys.count("stroke-dasharray") == 2, "groups nine and ten"
        with opened(browser, f"{server.link}#experiments") as (page, complaints):
            page.locator(".legend .entry").nth(9).wait_for()
            assert len(set(page.locator(".legend svg.key > *").evaluate_all(signs))) == 10
            assert complaints == []


# -- the copy without a server ------------------------------------------------------------------------------------


def test_a_copy_needs_no_server(browser: Any, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "exp" / "<b>run"
    write_run(run, online(), [float(k) for k in range(40)])
    counting_store(run / "data", (90, 150, 40))
    launched(tmp_path / "runs" / "grid & co", gammas=(0.5, 0.9), seeds=3)
    population_run(tmp_path / "runs" / "pop" / "three")
    cluster_run(tmp_path / "runs" / "cl" / "two")
    copied = export(Catalog(tmp_path / "runs", Index(None)), tmp_path / "copy", episodes=1)
    assert (copied.runs, copied.episodes) == (9, 1)
    address = f"file://{copied.path}"
    with opened(browser, f"{address}#runs") as (page, complaints):
        page.locator("#status", has_text="9 runs, a copy without a server").wait_for()
        page.locator("table.runs a", has_text="<b>run").wait_for()
        page.evaluate("location.hash = 'curves?metrics=episode/return'")
        page.locator(".chart .entry", has_text="gamma-0.5: n = 3, lowest to highest").wait_for()
        page.evaluate("location.hash = 'curves?marks=1&metrics=episode/return&filter=experiment=exp'")
        page.locator(".chart .entry", has_text="<b>run").wait_for()
        page.evaluate("location.hash = 'experiments'")
        page.locator("td", has_text="to_come").wait_for()
        page.evaluate("location.hash = 'populations'")
        page.locator(".chart", has_text="Lineage").wait_for()
        page.evaluate("location.hash = 'clusters'")
        page.locator("section", has_text="Nodes").locator("tbody tr").first.wait_for()
        page.evaluate("location.hash = 'data'")
        page.locator("table.episodes a", has_text="2").first.click()
        page.locator("canvas.frame").wait_for()
        wait_until(lambda: pixel(page) == [0, 2, 7])
        page.keyboard.press("j")
        wait_until(lambda: pixel(page) == [10, 2, 7])
        assert complaints == []


def test_what_a_copy_lacks_is_said(browser: Any, tmp_path: Path) -> None:
    counting_store(tmp_path / "runs" / "store", (5, 6))
    copied = export(Catalog(tmp_path / "runs", Index(None)), tmp_path / "copy", episodes=1)
    with opened(browser, f"file://{copied.path}#data") as (page, _):
        page.locator("table.episodes a", has_text="0").first.click()
        page.locator("#status", has_text="what you ask for is not in it").wait_for()


def test_what_could_not_be_copied_is_named(browser: Any, tmp_path: Path) -> None:
    counting_store(tmp_path / "runs" / "sound", (5, 6))
    counting_store(tmp_path / "runs" / "broken", (5,))
    (tmp_path / "runs" / "broken" / "store.json").write_text("{")
    copied = export(Catalog(tmp_path / "runs", Index(None)), tmp_path / "copy", episodes=0)
    with opened(browser, f"file://{copied.path}#data") as (page, _):
        page.locator("#status", has_text="broken: ").wait_for()
        page.get_by_label("store").select_option("sound")
        page.locator(".note", has_text="2 of 2 episodes").wait_for()
        page.locator("#status", has_text="could not be copied: broken: ").wait_for()
