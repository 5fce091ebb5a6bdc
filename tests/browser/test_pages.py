"""The pages of a short run in a real browser: TensorBoard's, the report of the run and the report of its data."""

from __future__ import annotations

import itertools
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsing import opened
from experimenting import online, write_run
from running import ROOT, SERIAL, load_tool, train_here, wait_until

from rollmill.launch.boards import free_port, secret_path, start_board
from rollmill.launch.compare.aggregate import aggregate
from rollmill.launch.compare.page import render
from rollmill.reports.html.document import card, document, grid, paragraph
from rollmill.runs.watch.page import PageScreen
from rollmill.runs.watch.screen import Shown


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = ("env=toy_target", "stop.frames=2000", "report.every_frames=100", "report.tensorboard=true")
    _, folder = train_here(tmp_path_factory.mktemp("pages"), *SERIAL, *words, "recording.keep=all")
    return folder.path


@pytest.mark.parametrize("width", [1200, 400])
def test_the_report_of_a_run(browser: Any, run: Path, width: int) -> None:
    with opened(browser, f"file://{run}/report.html") as (page, complaints):
        page.set_viewport_size({"width": width, "height": 900})
        curve = page.locator('svg[aria-label="Return"] path.line')
        assert curve.bounding_box()["width"] > 100
        assert page.locator("svg path.line").count() >= 12
        assert page.locator("h2", has_text="Workers and policies").is_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= width, "nothing is cut off at the side"
        page.locator("summary", has_text="more curves").click()
        assert page.locator('svg[aria-label="learn/value_mean"] path.line').is_visible()
        page.locator("summary", has_text="config.yaml").click()
        assert page.locator("pre", has_text="batch_size: 32").is_visible()
        page.get_by_role("link", name="Report of the recorded data").click()
        page.locator("h2", has_text="Returns over time").wait_for()
        assert complaints == []


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six values of each of two parameters, three seeds: what fills the tables of a page."""
    folder = tmp_path_factory.mktemp("experiment")
    for rate, gamma, seed in itertools.product((1e-4, 3e-4, 5e-4, 1e-3, 2e-3, 5e-3), (0.9, 0.95, 0.99), range(3)):
        settings = online(
            seed, learning={"learning_rate": rate, "gamma": gamma}, model={"size_of_hidden_layers": gamma}
        )
        values = [1e5 * rate * k + gamma * 100 + seed for k in range(30 + seed)]
        write_run(folder / f"run-{rate}-{gamma}-{seed}", settings, values)
    page = folder / "report.html"
    page.write_text(render(aggregate(folder)))
    return page


CUT = "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth).map(e => e.innerText)"


@pytest.mark.parametrize("width", [1400, 1100])
def test_no_column_of_an_experiment_is_cut_off(browser: Any, experiment: Path, run: Path, width: int) -> None:
    for path in (experiment, run / "report.html"):
        with opened(browser, f"file://{path}") as (page, complaints):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate(CUT) == []
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert complaints == []


def test_seeds_and_means_of_an_experiment_are_drawn(browser: Any, experiment: Path) -> None:
    with opened(browser, f"file://{experiment}") as (page, _):
        assert page.locator("h3", has_text="What matters").is_visible()
        mean = page.locator('.wide svg[aria-label^="curves of all groups"] path.line').first.bounding_box()
        seeds = [seed.bounding_box() for seed in page.locator(".wide path.seed, .grid3 path.seed").all()]
        assert len(seeds) >= 3 * 3
        assert all(seed["width"] > 100 for seed in seeds)
        assert mean["width"] < page.locator('.wide svg[aria-label^="curves of all groups"]').bounding_box()["width"]


def test_a_large_plot_has_letters_to_read_on_a_narrow_page(browser: Any, experiment: Path) -> None:
    with opened(browser, f"file://{experiment}") as (page, _):
        for width in (1200, 500):
            page.set_viewport_size({"width": width, "height": 900})
            plot = page.locator('svg[aria-label^="curves of all groups"]:visible')
            assert plot.count() == 1
            assert plot.locator("text").first.bounding_box()["height"] > 9


def test_watching_in_the_browser(browser: Any) -> None:
    pytest.importorskip("av", reason="PyAV is not installed")
    screen = PageScreen("toy <b>")
    try:
        screen.show(Shown(np.full((60, 80, 3), 200, np.uint8), "<i>run</i>", 1, 7, 2.5, False))
        with opened(browser, screen.url) as (page, complaints):
            page.wait_for_function("document.getElementById('text').textContent.includes('step 7')")
            assert page.locator("h1").inner_text() == "toy <b>"
            assert page.locator("#text").inner_text().startswith("<i>run</i>")
            page.wait_for_function("document.getElementById('image').naturalWidth > 0")
            assert page.evaluate("getComputedStyle(document.querySelector('main')).maxWidth") == "1160px", "has style"
            assert complaints == []
    finally:
        screen.close()


def test_playing_in_the_browser(browser: Any) -> None:
    """Keys of a real keyboard: held, let go, with shift, and none that mean nothing."""
    pytest.importorskip("av", reason="PyAV is not installed")
    screen = PageScreen("a game", keys=("up", "shift", "7", "a"), legend="keys: up 0")
    try:
        screen.show(Shown(np.full((60, 80, 3), 200, np.uint8), "you", 1, 7, 2.5, False))
        with opened(browser, screen.url) as (page, complaints):
            page.locator("p", has_text="keys: up 0").wait_for()
            for key in ("ArrowUp", "Shift", "q"):
                page.keyboard.down(key)
            wait_until(lambda: screen.pressed() == {"up", "shift"})
            page.keyboard.down("Digit7")
            wait_until(lambda: "7" in screen.pressed())
            for key in ("ArrowUp", "Shift", "Digit7"):
                page.keyboard.up(key)
            wait_until(lambda: not screen.pressed())
            page.keyboard.press("a")
            wait_until(lambda: screen.pressed() == {"a"})
            wait_until(lambda: not screen.pressed())
            assert complaints == []
    finally:
        screen.close()


@pytest.fixture(scope="module")
def tensorboard(run: Path) -> Iterator[str]:
    """Address of a TensorBoard that shows the run's experiment."""
    pytest.importorskip("tensorboard")
    port, path = free_port("127.0.0.1", 0), secret_path()
    address = f"http://127.0.0.1:{port}{path}/"
    process = start_board(run.parent, "127.0.0.1", port, path)

    def answers() -> bool:
        assert process.poll() is None, "TensorBoard has ended"
        try:
            return bool(urllib.request.urlopen(address, timeout=60).read())
        except OSError:
            return False

    try:
        wait_until(answers, what="TensorBoard to answer")
        yield address
    finally:
        process.kill()
        process.wait()


def test_tensorboard(browser: Any, tensorboard: str) -> None:
    with opened(browser, f"{tensorboard}?darkMode=false#timeseries") as (page, complaints):
        page.locator("card-view").first.wait_for()
        page.wait_for_function("document.body.innerText.includes('run/tb')")  # the run is listed
        page.get_by_role("combobox", name="Filter tags").fill("episode/return$")
        card = page.locator("card-view:visible", has_text="episode/return")
        card.wait_for()
        card.locator("line-chart").first.wait_for()
        assert card.locator("line-chart").first.bounding_box()["width"] > 100
        card.locator("tb-data-table", has_text="run/tb").wait_for()  # the curve's last point, so it has points
        # TensorBoard looks for its fonts beside the path that it was given; the system's are taken instead.
        assert [words for words in complaints if "404 (NOT FOUND)" not in words] == []


def test_cards_below_each_other_do_not_touch(browser: Any, tmp_path: Path) -> None:
    one, two = (card(paragraph(text), title=text) for text in ("one", "two"))
    (tmp_path / "page.html").write_text(document("run", "cards", one, grid([one, two]), two))
    with opened(browser, (tmp_path / "page.html").as_uri()) as (page, _):
        boxes = [box.bounding_box() for box in page.locator("main > .card, main > .grid2, main > .grid3").all()]
        gaps = [low["y"] - high["y"] - high["height"] for high, low in itertools.pairwise(boxes)]
        assert len(gaps) == 2
        assert min(gaps) >= 12


def test_a_picture_of_a_page_ends_below_a_whole_plot(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not where a screen does: a plot that is cut in half says nothing."""
    monkeypatch.syspath_prepend(ROOT / "tools")
    pictures = load_tool("pictures")
    monkeypatch.setattr(pictures, "IMAGES", tmp_path)
    cards = "".join(f"<div class='card' style='height:{height}px'></div>" for height in (300, 400, 700))
    page = tmp_path / "page.html"
    page.write_text(f"<body style='margin:0'><main>{cards}</main></body>")
    pictures.photograph(browser, page, "whole")
    with pictures.Image.open(tmp_path / "whole.png") as picture:
        assert picture.size == (pictures.WIDTH, 700)
