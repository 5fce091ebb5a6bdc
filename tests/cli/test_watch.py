"""``rollmill watch``, through the command; and the page as a browser sees it."""

from __future__ import annotations

import re
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from running import LIMIT_SECONDS, SERIAL, Call, Run, train_here, wait_until

CHROMIUM = shutil.which("chromium")
FLAGS = ["no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking", "disable-sync"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = ("env=showing_envs:Shown", "stop.batches=1", "model.encoder=mlp")
    return train_here(tmp_path_factory.mktemp("run"), *SERIAL, *words)[1].path


def test_in_the_terminal(call: Call, run: Path) -> None:
    shown = call("watch", str(run), "--terminal", "--episodes", "1", "--fps", "0", "env=showing_envs:Shown")
    assert shown.code == 0, shown.err
    assert shown.out.count("\033[H") >= 5
    assert "episode 0  step 0" in shown.out
    assert shown.out.endswith("\033[?1049l")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--terminal", "--browser"), "--terminal and --browser exclude each other"),
        (("--terminal", "--json"), "--json and --terminal exclude each other"),
        (("--browser", "--trust-code", "env.args.broken=none"), "renders no RGB images"),
        (
            ("--browser", "env=CartPole-v1"),
            "cannot play in CartPole-v1, whose observations differ",
        ),
        (("--browser", "--trust-code", "env.policies=[0, 1]"), r"env.policies=[0, 1] does not fit: shown has 1 agents"),
    ],
)
def test_refused(call: Call, run: Path, words: tuple[str, ...], reason: str) -> None:
    refused = call("watch", str(run), *words)
    assert refused.code == 2
    assert reason in refused.err


def test_in_the_browser(run: Path, rollmill: Run) -> None:
    """Images arrive, nothing is complained about, Ctrl-C ends it and leaves nothing."""
    pytest.importorskip("av")
    command = rollmill("watch", str(run), "--browser", "--trust-code")
    command.wait_for_text("(Ctrl-C ends it)")
    url = re.search(r"http://127\.0\.0\.1:\d+/\?token=\S+", command.text)
    assert url is not None
    if CHROMIUM is not None:
        # In a thread of its own: tests before this one may have left an event loop running in this one.
        with ThreadPoolExecutor(1) as aside:
            aside.submit(look_at, url.group()).result()
    command.press_ctrl_c()
    assert command.wait() == 0, command.text
    command.assert_nothing_left()
    assert signal.SIGINT.name not in command.text


def test_the_address_as_json(call: Call, run: Path) -> None:
    pytest.importorskip("av")
    shown = call("watch", str(run), "--browser", "--json", "--episodes", "1", "--fps", "0", "--trust-code")
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=\S+", str(shown.json["url"]))


def look_at(url: str) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=[f"--{flag}" for flag in FLAGS], timeout=1000 * LIMIT_SECONDS
        )
        page = browser.new_page()
        page.set_default_timeout(1000 * LIMIT_SECONDS)
        said: list[str] = []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(url)
        # Not wait_for_function: from its second look on it evaluates text in the page, whose policy forbids that.
        wait_until(lambda: page.evaluate("document.getElementById('image').naturalWidth") >= 320)
        page.locator("#text", has_text="episode").wait_for()
        browser.close()
        assert said == []
