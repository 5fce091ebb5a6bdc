"""Playing by hand: which keys become which steps, what is kept, and where keys may come from."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from linking import cookie_of
from running import Run
from showing_envs import Shown as ShownEnv

from rollmill.core.errors import ConfigError
from rollmill.core.seeds import Seeds
from rollmill.core.slots import OBS
from rollmill.envs.keys import Keyboard
from rollmill.envs.make import make_env
from rollmill.envs.settings import EnvSettings
from rollmill.runs.evaluate.render_env import make_shown, with_images
from rollmill.runs.watch.page import MOST_BODY, PageScreen
from rollmill.runs.watch.play import POLICY, Game, PlayOptions, play
from rollmill.runs.watch.run import Pace
from rollmill.runs.watch.screen import Shown, WindowScreen
from rollmill.sampling.schedule import EpisodeSchedule
from rollmill.store.format.schema import StoreSchema
from rollmill.store.reader import Store
from rollmill.store.writer import StoreWriter

SHOWN = EnvSettings(id="showing_envs:Shown")


class Fingers:
    """A screen whose keys are pressed as told, again and again; it is closed when all is done ``times``."""

    def __init__(self, keys: Sequence[str], times: int = 1000) -> None:
        self._keys, self._left = list(keys) * times, 0
        self.shown: list[Shown] = []

    @property
    def closed(self) -> bool:
        return not self._keys

    def pressed(self) -> frozenset[str]:
        return frozenset(self._keys.pop(0).split())

    def show(self, shown: Shown) -> None:
        self.shown.append(shown)

    def close(self) -> None:
        return None


def game(screen: Fingers, settings: EnvSettings = SHOWN, writer: StoreWriter | None = None, **options: Any) -> Game:
    env = ShownEnv() if settings is SHOWN else make_shown(with_images(settings))
    return Game(env, settings, PlayOptions(**options), Keyboard.of(env), screen, Pace(0.0), lambda: False, writer)


def test_keys_become_steps_and_time_stands_still_without_them() -> None:
    screen = Fingers(["2", "", "x", "1", ""])
    outcome = game(screen).episode(0)
    assert outcome is not None
    seed = EpisodeSchedule(Seeds(1).branch("evaluation"), 1).env_seed(0, 0)
    assert outcome["steps"] == 4 + seed % 5, "the episode of an evaluation with this seed"
    rewards = np.diff([shown.so_far for shown in screen.shown])
    assert rewards.tolist() == ([2, 1] * 4)[: outcome["steps"]]
    assert [shown.step for shown in screen.shown] == list(range(outcome["steps"] + 1))
    assert screen.shown[-1].over


def test_an_action_for_doing_nothing() -> None:
    screen = Fingers(["", "1"])
    game(screen, idle=2).episode(0)
    assert np.diff([shown.so_far for shown in screen.shown])[:4].tolist() == [2, 1, 2, 1]


def test_the_mask_is_kept() -> None:
    """The second flash is not ready: the same keys walk."""
    screen = Fingers(["shift right", "shift right"], times=2)
    played = game(screen, EnvSettings(id="treasure_hunt"))
    assert played.episode(0) is None, "the screen was closed before the end"
    world = played.env.env.world  # type: ignore[attr-defined]
    assert world.flashes[0] == 1
    assert world.step_no[0] == 4


def test_what_the_environment_says_of_an_episode() -> None:
    outcome = game(Fingers(["up", "down"]), EnvSettings(id="treasure_hunt", args={"max_step": 5})).episode(0)
    assert outcome is not None
    assert (outcome["steps"], outcome["terminated"]) == (5, False)
    assert outcome["stats"]["treasures_placed"] == 13


def test_a_limit_of_steps_ends_it() -> None:
    settings = EnvSettings(id="treasure_hunt", max_episode_steps=3)
    screen = Fingers(["up", "down"])
    outcome = game(screen, settings).episode(0)
    assert outcome is not None
    assert (outcome["steps"], outcome["terminated"]) == (3, False)
    assert screen.shown[-1].over


def test_whole_episodes_are_kept_with_what_was_seen(tmp_path: Path) -> None:
    env = ShownEnv()
    schema = StoreSchema.for_env(env.spec, env_id="showing_envs:Shown")
    with StoreWriter(tmp_path / "store", schema) as writer:
        played = game(Fingers(["2", "0", "1"]), writer=writer)
        outcomes = [played.episode(number) for number in range(2)]
        unfinished = game(Fingers(["2"], times=2), writer=writer)
        assert unfinished.episode(7) is None
    with Store(tmp_path / "store") as store:
        assert len(store) == 2
        for episode, outcome in zip(store.episodes, outcomes, strict=True):
            assert outcome is not None
            assert episode.rewards.sum() == outcome["return"]
            assert episode.actions[:3].tolist() == episode.rewards[:3].tolist()
            assert len(episode.columns[f"{OBS}obs"]) == outcome["steps"] + 1
            assert episode.info.policy == POLICY


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"episodes": -1}, "--episodes must be 0"),
        ({"seed": -1}, "--seed must not"),
        ({"fps": 0.0}, "--fps must be above 0"),
        ({"port": 70000}, "--port must be"),
        ({"port": 80, "where": "window"}, "--port is for the browser"),
    ],
)
def test_what_is_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        PlayOptions(**options)


def test_an_idle_action_that_does_not_exist() -> None:
    with pytest.raises(ConfigError, match=r"--idle 3: shown has the actions 0 to 2"):
        play(SHOWN, PlayOptions(idle=3), lambda line, values: None)


def test_nothing_begins_where_the_store_is_of_another_environment(tmp_path: Path) -> None:
    schema = StoreSchema.for_env(make_env(EnvSettings(id="toy_target")).spec)
    StoreWriter(tmp_path / "store", schema).close()
    with pytest.raises(Exception, match="store"):
        play(SHOWN, PlayOptions(out=tmp_path / "store"), lambda line, values: None)


# -- the window ----------------------------------------------------------------------------------------------


def test_keys_of_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """Held until they are released, tapped ones once, and none when somebody looks elsewhere."""
    pygame = pytest.importorskip("pygame")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    screen = WindowScreen("a game")
    screen.show(Shown(np.zeros((40, 60, 3), np.uint8), "you", 0, 0, 0.0, False))
    try:
        screen.pressed()
        post(pygame, pygame.KEYDOWN, pygame.K_UP, pygame.K_LSHIFT)
        assert screen.pressed() == {"up", "shift"} == screen.pressed()
        post(pygame, pygame.KEYUP, pygame.K_UP)
        assert screen.pressed() == {"shift"}
        post(pygame, pygame.KEYDOWN, pygame.K_KP7)
        post(pygame, pygame.KEYUP, pygame.K_KP7)
        assert screen.pressed() == {"shift", "7"}
        assert screen.pressed() == {"shift"}
        pygame.event.post(pygame.event.Event(pygame.WINDOWFOCUSLOST))
        assert screen.pressed() == set()
        pygame.event.post(pygame.event.Event(pygame.QUIT))
        assert screen.pressed() == set()
        assert screen.closed
    finally:
        screen.close()


def post(pygame: Any, kind: int, *keys: int) -> None:
    for key in keys:
        pygame.event.post(pygame.event.Event(kind, key=key))


# -- the page ------------------------------------------------------------------------------------------------


@pytest.fixture
def page() -> Iterator[PageScreen]:
    pytest.importorskip("av")
    screen = PageScreen("a game", keys=("up", "shift", "7"), legend="keys: <b>up</b> 0")
    yield screen
    screen.close()


def press(page: PageScreen, body: Any, **other: str) -> int:
    line = http.client.HTTPConnection("127.0.0.1", page.port, timeout=120)
    here = f"127.0.0.1:{page.port}"
    headers = {"Host": here, "Origin": f"http://{here}", "Content-Type": "application/json"}
    headers["Cookie"] = cookie_of(page.url)
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    line.request("POST", other.pop("path", "/keys"), text, headers | {k.replace("_", "-"): v for k, v in other.items()})
    code = line.getresponse().status
    line.close()
    return code


def test_keys_of_the_page(page: PageScreen) -> None:
    assert press(page, {"held": ["up", "q", "shift"]}) == 204
    assert page.pressed() == {"up", "shift"} == page.pressed()
    assert press(page, {"held": ["shift", "7"]}) == 204
    assert press(page, {"held": []}) == 204
    assert page.pressed() == {"7"}, "tapped between two looks"
    assert page.pressed() == set()


def test_keys_are_taken_from_the_page_itself_only(page: PageScreen) -> None:
    held = {"held": ["up"]}
    for headers in (
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Host": "evil.example", "Origin": "http://evil.example"},
        {"Content_Type": "text/plain"},
        {"Content_Type": "application/x-www-form-urlencoded"},
        {"Cookie": ""},
    ):
        assert press(page, held, **headers) == 403
    assert press(page, held, path="/status") == 404
    for wrong in (b"", b"{", b"[]", {"held": "up"}, {"held": [1]}, {}, b" " * (MOST_BODY + 1), b"\xff"):
        assert press(page, wrong) == 400
    assert page.pressed() == set()


def test_the_legend_is_text(page: PageScreen) -> None:
    line = http.client.HTTPConnection("127.0.0.1", page.port, timeout=120)
    line.request("GET", "/", headers={"Cookie": cookie_of(page.url)})
    body = line.getresponse().read()
    line.close()
    assert b"keys: &lt;b&gt;up&lt;/b&gt; 0" in body


# -- the command ---------------------------------------------------------------------------------------------


def test_a_game_in_the_browser(rollmill: Run, tmp_path: Path) -> None:
    pytest.importorskip("av")
    words = ("--episodes", "1", "--browser", "--json", "--fps", "1000", "--out", str(tmp_path / "store"))
    command = rollmill("envs", "play", "treasure_hunt", "env.args.treasure_num=0", "env.args.max_step=30", *words)
    command.wait_for_text('"url"')
    found = re.search(r"http://127\.0\.0\.1:(\d+)/\?token=[\w-]+", command.text)
    assert found is not None
    port = int(found.group(1))
    here = f"127.0.0.1:{port}"
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    headers = {"Host": here, "Origin": f"http://{here}", "Content-Type": "application/json"}
    headers["Cookie"] = cookie_of(found.group())
    line.request("POST", "/keys", json.dumps({"held": ["up"]}), headers)
    assert line.getresponse().status == 204
    line.close()
    assert command.wait() == 0, command.text
    outcome = json.loads(command.text.splitlines()[-1])
    assert outcome["steps"] <= 30
    assert "score" in outcome["stats"]
    with Store(tmp_path / "store") as store:
        episode = store.episodes[0]
        assert episode.actions.tolist() == [2] * outcome["steps"]
        north = episode.columns[f"{OBS}vector"][:, 1]
        assert len(north) == outcome["steps"] + 1
        assert (np.diff(north[:4]) > 0).all(), "each row holds what was seen before the step"
    command.assert_nothing_left()


def test_ctrl_c_ends_it(rollmill: Run) -> None:
    pytest.importorskip("av")
    command = rollmill("envs", "play", "treasure_hunt", "--browser")
    command.wait_for_text("(Ctrl-C ends it)")
    command.press_ctrl_c()
    assert command.wait() == 0, command.text
    assert "shift+right 8" in command.text
    command.assert_nothing_left()


def test_what_cannot_be_played_is_told(rollmill: Run) -> None:
    command = rollmill("envs", "play", "Pendulum-v1", "--browser")
    assert command.wait() == 2
    assert "continuous actions: keys are for one agent" in command.text
