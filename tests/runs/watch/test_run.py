"""Watching: what is shown, at which pace, and where."""

from __future__ import annotations

import http.client
import io
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from linking import cookie_of
from running import SERIAL, saved_state, train_here

from rollmill.core.checkpoints import Checkpoints
from rollmill.core.errors import ConfigError
from rollmill.core.run_folder import RunFolder
from rollmill.runs.evaluate.options import EvalOptions
from rollmill.runs.evaluate.run import evaluate
from rollmill.runs.watch.page import VIEWERS, PageScreen
from rollmill.runs.watch.run import Pace, Player, WatchOptions, watch
from rollmill.runs.watch.screen import Shown, TerminalScreen, half_blocks

pytest.importorskip("av")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    words = ("env=showing_envs:Shown", "stop.batches=1", "model.encoder=mlp", "model.memory=gru")
    return train_here(tmp_path_factory.mktemp("run"), *SERIAL, *words)[1]


def frame(level: int = 90, text: str = "run/frames") -> Shown:
    return Shown(np.full((40, 60, 3), level, np.uint8), text, 1, 2, 3.0, False)


# -- the player ----------------------------------------------------------------------------------------------


def test_episodes_are_those_of_an_evaluation(run: RunFolder) -> None:
    """Whole ones, numbered, an image for each step, large although the agent's own are small."""
    rates: list[float] = []
    shown = list(Player(run.path, WatchOptions(episodes=2, trust_code=True)).frames(rates.append))
    assert rates == [30 / 4]
    assert {s.image.shape for s in shown} == {(480, 640, 3)}
    assert [s.image[0, 0, 0] for s in shown] == [10 * s.step for s in shown]
    ends = [s for s in shown if s.over]
    assert [s.episode for s in ends] == [0, 1]
    assert all(4 <= s.step <= 8 for s in ends)
    assert shown[0].text.startswith("run/frames-0000")
    again = list(Player(run.path, WatchOptions(episodes=2, trust_code=True)).frames(rates.append))
    assert [s.text for s in again] == [s.text for s in shown]


def test_random_play_is_that_of_an_evaluation(run: RunFolder) -> None:
    options = EvalOptions(episodes=3, workers=1, envs=1, random=True, trust_code=True)
    random = evaluate(run.path, options).random
    assert random is not None
    player = Player(run.path, WatchOptions(episodes=3, random=True, trust_code=True))
    ends = [shown for shown in player.frames(lambda rate: None) if shown.over]
    assert [shown.step for shown in ends] == random.lengths
    assert {shown.policy for shown in ends} == {"random"}


def test_a_run_in_training_is_followed(run: RunFolder) -> None:
    player = Player(run.path, WatchOptions(episodes=2, seed=3, trust_code=True))
    names = []
    for shown in player.frames(lambda rate: None):
        names.append(shown.policy)
        if shown.over and shown.episode == 0:
            newer = Checkpoints(run.checkpoints, keep_last=0).save(saved_state(run), 10_000_000, None)
    assert names[0] != names[-1] == f"run/{newer.stem}"
    newer.unlink()


def test_a_random_policy(run: RunFolder) -> None:
    shown = list(Player(run.path, WatchOptions(episodes=1, random=True, trust_code=True)).frames(lambda rate: None))
    assert {s.policy for s in shown} == {"random"}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"episodes": -1}, "--episodes must be 0"),
        ({"seed": -1}, "--seed must not"),
        ({"fps": -1.0}, "--fps must be"),
        ({"port": 65536}, "--port must be"),
        ({"port": 80, "where": "terminal"}, "--port is for the browser"),
        ({"random": True, "deterministic": True}, "--random and --deterministic exclude each other"),
        ({"random": True, "best": True}, "--random and --best exclude each other"),
    ],
)
def test_what_is_refused(options: dict[str, object], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        watch(Path("never looked at"), WatchOptions(**options), print)  # type: ignore[arg-type]


def test_the_best_of_a_single_file(run: RunFolder) -> None:
    file = Checkpoints(run.checkpoints).newest()
    assert file is not None
    with pytest.raises(ConfigError, match="--best chooses among a run's checkpoints"):
        watch(file.path, WatchOptions(best=True, where="terminal", episodes=1), print)


def test_no_window_without_a_display(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="--window: there is no display"):
        watch(run.path, WatchOptions(where="window", trust_code=True), print)


def test_the_pace_is_kept_and_lost_time_not_made_up_for() -> None:
    now, slept = [0.0], []

    def sleep(seconds: float) -> None:
        slept.append(round(seconds, 6))
        now[0] += seconds

    pace = Pace(10.0, lambda: now[0], sleep)
    pace.wait()
    pace.wait()
    now[0] += 5.0  # a slow step
    pace.wait()
    pace.wait(extra=1.0)
    assert slept == [0.1, 0.1, 1.1]
    pace.fps = 0.0
    pace.wait()
    assert len(slept) == 3


# -- the terminal --------------------------------------------------------------------------------------------


def test_half_blocks_hold_two_pixels_each() -> None:
    image = np.arange(2 * 4 * 3, dtype=np.uint8).reshape(2, 4, 3)
    text = half_blocks(image, columns=4, lines=1)
    found = re.findall(r"\033\[38;2;(\d+);(\d+);(\d+);48;2;(\d+);(\d+);(\d+)m\u2580", text)
    np.testing.assert_array_equal(np.array(found, int)[:, :3], image[0])
    np.testing.assert_array_equal(np.array(found, int)[:, 3:], image[1])
    assert half_blocks(np.zeros((100, 300, 3), np.uint8), 60, 40).count("\n") == 10  # 60 x 20 pixels
    assert half_blocks(np.zeros((300, 100, 3), np.uint8), 60, 40).count("\n") == 40


def test_the_terminal_is_left_as_it_was() -> None:
    stream = io.StringIO()
    screen = TerminalScreen(stream, (30, 10))
    screen.show(frame())
    screen.close()
    text = stream.getvalue()
    assert text.startswith("\033[?1049h\033[?25l")
    assert text.endswith("\033[?25h\033[?1049l")
    assert "run/frames  episode 1  step 2 " in text


# -- the page ------------------------------------------------------------------------------------------------


@pytest.fixture
def page() -> Iterator[PageScreen]:
    screen = PageScreen('toy <b>"x"</b>')
    yield screen
    screen.close()


def ask(
    page: PageScreen, path: str, method: str = "GET", host: str = "", cookies: str | None = None
) -> tuple[int, bytes, http.client.HTTPMessage]:
    line = http.client.HTTPConnection("127.0.0.1", page.port, timeout=120)
    shown = cookie_of(page.url) if cookies is None else cookies
    line.request(method, path, headers={"Host": host or f"127.0.0.1:{page.port}", "Cookie": shown})
    answer = line.getresponse()
    body = answer.read()
    line.close()
    return answer.status, body, answer.headers


def test_the_page_shows_what_happens_and_nothing_else(page: PageScreen) -> None:
    assert page.url.startswith(f"http://127.0.0.1:{page.port}/?token=")
    code, body, headers = ask(page, "/")
    assert code == 200
    assert b"<b>" not in body
    assert b"toy &lt;b&gt;&quot;x&quot;" in body
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    page.show(frame(text="<i>run</i>"))
    assert json.loads(ask(page, "/status")[1])["text"].startswith("<i>run</i>  episode 1"), "set by textContent"
    assert b"innerHTML" not in ask(page, "/page.js")[1]
    for path in ("/../etc/passwd", "//etc/passwd", "/page"):
        assert ask(page, path)[0] == 404
    assert ask(page, "/", method="HEAD")[:2] == (200, b"")
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        assert ask(page, "/", method=method)[0] == 501
    for host in ("evil.example", f"evil.example:{page.port}", "10.0.0.1"):
        assert ask(page, "/status", host=host)[0] == 403


def test_only_who_has_the_link_may_watch(page: PageScreen) -> None:
    for path in ("/", "/page.js", "/status", "/stream", "/?token=x"):
        code, body, headers = ask(page, path, cookies="")
        assert (code, b"open the link" in body, headers["Set-Cookie"]) == (403, True, None)
    code, _, headers = ask(page, f"/?{urlsplit(page.url).query}", cookies="")
    assert (code, headers["Set-Cookie"].endswith("HttpOnly; SameSite=Strict")) == (200, True)
    assert ask(page, "/status", cookies=headers["Set-Cookie"].partition(";")[0])[0] == 200


def test_through_a_tunnel_with_another_port(page: PageScreen) -> None:
    """``ssh -L 6000:127.0.0.1:PORT``: the browser says localhost:6000."""
    for host in ("localhost:6000", "127.0.0.1:6000", "localhost"):
        assert ask(page, f"/?{urlsplit(page.url).query}", host=host, cookies="")[0] == 200
        assert ask(page, "/status", host=host)[0] == 200


def test_the_stream_is_of_images(page: PageScreen) -> None:
    import av

    page.show(frame(200))
    line = http.client.HTTPConnection("127.0.0.1", page.port, timeout=120)
    line.request("GET", "/stream", headers={"Cookie": cookie_of(page.url)})
    answer = line.getresponse()
    assert answer.getheader("Content-Type") == "multipart/x-mixed-replace; boundary=image"
    head = b"".join(answer.readline() for _ in range(4))
    length = int(re.search(rb"Content-Length: (\d+)", head).group(1))  # type: ignore[union-attr]
    jpeg = answer.read(length)
    with av.open(io.BytesIO(jpeg), format="mjpeg") as file:
        image = next(file.decode(video=0)).to_ndarray(format="rgb24")
    assert image.shape == (240, 360, 3)  # enlarged
    np.testing.assert_allclose(image, 200, atol=4)
    line.close()


def test_only_so_many_may_watch(page: PageScreen) -> None:
    assert all(page.admit() for _ in range(VIEWERS))
    assert ask(page, "/stream")[0] == 503
    page.leave()
    assert page.admit()


def test_a_port_in_use_is_named(page: PageScreen) -> None:
    with pytest.raises(ConfigError, match=f"--port {page.port}: cannot listen on 127.0.0.1: Address already in use"):
        PageScreen("x", page.port)


def test_closing_ends_streams_and_the_server() -> None:
    page = PageScreen("x")
    ended = threading.Event()

    def view() -> None:
        seen = 0
        while (found := page.next_image(seen)) is not None:
            seen = found[0]
        ended.set()

    thread = threading.Thread(target=view)
    thread.start()
    page.show(frame())
    page.close()
    assert ended.wait(120)
    thread.join()
    with pytest.raises(ConnectionRefusedError):
        ask(page, "/", cookies="")
