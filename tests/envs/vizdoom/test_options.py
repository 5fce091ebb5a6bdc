"""What can be chosen of a ViZDoom environment: scenarios, buffers, variables, window, speed."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from installing import require

from rollmill.core.errors import ConfigError, EnvError
from rollmill.core.fields import Array, Obs
from rollmill.envs.batch import random_actions
from rollmill.envs.check.runner import CheckOptions, check_env
from rollmill.envs.make import NAMED, make_env
from rollmill.envs.settings import EnvSettings
from rollmill.envs.vizdoom.env import DoomEnv
from rollmill.envs.vizdoom.scenarios import SCENARIOS

vizdoom = pytest.importorskip("vizdoom")
pytest.importorskip("cv2")
pytestmark = pytest.mark.vizdoom

Build = Callable[..., DoomEnv]


@pytest.fixture
def build() -> Iterator[Build]:
    """DoomEnv, closed at the end."""
    built: list[DoomEnv] = []

    def make(**arguments: Any) -> DoomEnv:
        built.append(DoomEnv(**arguments))
        return built[-1]

    yield make
    for env in built:
        env.close()


def obs_of(env: DoomEnv) -> Obs:
    return {f.name: np.zeros((1, *f.shape), f.dtype) for f in env.spec.observation}


def play(env: DoomEnv, seed: int, steps: int) -> tuple[list[float], Obs]:
    """Rewards of random play until the end or for so many steps, and the last observation."""
    obs, rng, rewards = obs_of(env), np.random.default_rng(seed), []
    env.reset(seed, obs)
    for _ in range(steps):
        reward, terminated, truncated, _ = env.step(random_actions(env.spec, rng, obs, 1), obs)
        rewards.append(reward)
        if terminated or truncated:
            break
    return rewards, obs


def test_every_scenario_has_a_name_in_the_list() -> None:
    named = {name for name, entry in NAMED.items() if entry.target.endswith(":DoomEnv")} - {"doom"}
    assert {f"doom_{name}" for name in SCENARIOS} == named
    for name in SCENARIOS:
        assert NAMED[f"doom_{name}"].args == {"scenario": name}
    assert make_env(EnvSettings(id="doom", args={"scenario": "rocket_basic.cfg"})).spec.name == "doom_rocket_basic"


@pytest.mark.parametrize(
    ("name", "nvec", "tics"),
    [
        ("health_gathering", (5,), 2100),
        ("my_way_home", (3, 3), 2100),
        ("deadly_corridor", (3, 3, 3, 2), 2100),
        ("defend_the_center", (3, 2), 2100),
        ("defend_the_line", (3, 2), 0),
        ("take_cover", (3,), 2100),
        ("predict_position", (3, 2), 300),
        ("deathmatch", (3, 3, 7, 2, 2, 21), 4200),
    ],
)
def test_conventions_of_the_scenarios(name: str, nvec: tuple[int, ...], tics: int) -> None:
    env = DoomEnv(scenario=name)
    assert env.spec.action.nvec == nvec
    assert env._timeout == tics or (tics == 0 and env._timeout > 1e9)


def test_deadly_corridor_is_scaled_and_counts_kills(build: Build) -> None:
    plain, scaled = build(scenario="deadly_corridor", reward_scale=1), build(scenario="deadly_corridor")
    raw, _ = play(plain, 2, 525)
    rewards, _ = play(scaled, 2, 525)
    assert rewards == pytest.approx([0.01 * reward for reward in raw])
    assert raw[-1] < -50  # the death penalty
    assert scaled._statistics()["episode_stats"]["kills"] >= 0


def test_take_cover_pays_a_point_per_tic_and_ends_at_its_timeout(build: Build) -> None:
    rewards, _ = play(build(scenario="take_cover", timeout=42), 0, 100)
    assert rewards == [4.0] * 10 + [2.0]


# -- what is seen -----------------------------------------------------------------------------------


def test_buffers_and_variables_are_fields_of_their_own(build: Build) -> None:
    env = build(
        scenario="defend_the_center",
        buffers=["depth", "labels", "automap"],
        game_variables=["AMMO2", "HEALTH"],
        width=64,
        height=48,
    )
    assert [f.name for f in env.spec.observation] == ["obs", "depth", "labels", "automap", "game_variables"]
    assert [f.shape for f in env.spec.observation] == [(48, 64, 3), (48, 64, 1), (48, 64, 1), (48, 64, 3), (2,)]
    obs = obs_of(env)
    env.reset(0, obs)
    assert obs["game_variables"].tolist() == [[26.0, 100.0]]
    assert all(obs[name].std() > 1 for name in ("obs", "depth", "labels", "automap"))
    assert (obs["labels"] == 255).any()  # the player's own hand
    assert (obs["labels"] == 0).any()
    for _ in range(6):
        env.step(np.array([[0, 1]]), obs)
    assert obs["game_variables"][0, 0] < 26


def test_what_was_seen_last_is_shown_at_the_end(build: Build) -> None:
    env = build(scenario="predict_position", buffers=["depth"], game_variables=["SELECTED_WEAPON_AMMO"])
    obs, before, rng = obs_of(env), obs_of(env), np.random.default_rng(0)
    env.reset(0, obs)
    for _ in range(75):
        before = {name: array.copy() for name, array in obs.items()}
        for array in obs.values():
            array[:] = 7
        if env.step(random_actions(env.spec, rng, obs, 1), obs)[1]:
            break
    else:
        pytest.fail("the rocket has hit nothing")
    for name, array in obs.items():
        assert (array == before[name]).all()


def test_extra_fields_do_not_change_the_game(build: Build) -> None:
    plain, rich = build(scenario="deadly_corridor"), build(scenario="deadly_corridor", buffers=["labels", "automap"])
    rewards, obs = play(plain, 5, 30)
    same, seen = play(rich, 5, 30)
    assert same == rewards
    assert (seen["obs"] == obs["obs"]).all()


def test_a_wide_screen_shows_more(build: Build) -> None:
    wide = build(scenario="basic", wide_aspect_ratio=True)
    play(wide, 0, 1)
    screen = wide.render()
    assert screen is not None
    assert screen.shape == (144, 256, 3)


def test_arrays_that_do_not_fit_are_refused(build: Build) -> None:
    env = build(buffers=["depth"])
    obs = obs_of(env) | {"depth": np.zeros((1, 70, 128, 1), np.uint8)}
    with pytest.raises(EnvError, match=r"depth is uint8 \(70, 128, 1\), expected uint8 \(72, 128, 1\)"):
        env.reset(0, obs)


def test_the_checker_finds_nothing() -> None:
    args = {"buffers": ["depth"], "game_variables": ["HEALTH"], "actions": "continuous"}
    report = check_env(EnvSettings(id="doom_deathmatch", args=args), CheckOptions(steps=15))
    assert [finding for finding in report.findings if finding.rule != "endless"] == []
    assert report.summary["processes"] == 1  # the engine


# -- speed and window -------------------------------------------------------------------------------


def test_real_time_takes_its_time_and_changes_nothing(build: Build) -> None:
    rewards, obs = play(build(scenario="basic"), 3, 10)
    slow = build(scenario="basic", fps=200)
    seen: Obs = obs_of(slow)
    slow.reset(3, seen)  # starts the engine, which takes time, too
    begun = time.monotonic()
    same, seen = play(slow, 3, 10)
    assert time.monotonic() - begun > 0.9 * 4 * len(rewards) / 200
    assert same == rewards
    assert (seen["obs"] == obs["obs"]).all()


def test_real_time_stops_at_the_end(build: Build) -> None:
    fast, slow = build(scenario="predict_position"), build(scenario="predict_position", fps=2000)
    assert play(fast, 2, 80)[0] == pytest.approx(play(slow, 2, 80)[0])


def test_a_window_needs_a_display(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    with pytest.raises(ConfigError, match="no display to show a window on"):
        DoomEnv(visible=True)


def test_a_window_opens_on_a_display(build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require("Xvfb", "xvfb")
    reader, writer = os.pipe()
    server = subprocess.Popen(
        ["Xvfb", "-displayfd", str(writer), "-nolisten", "tcp"], pass_fds=(writer,), stderr=subprocess.DEVNULL
    )
    os.close(writer)
    try:
        with os.fdopen(reader) as answer:
            monkeypatch.setenv("DISPLAY", f":{answer.readline().strip()}")
        env = build(scenario="basic", visible=True)
        rewards, obs = play(env, 3, 5)
        env.close()
        hidden, same = play(build(scenario="basic"), 3, 5)
        assert rewards == hidden
        assert (obs["obs"] == same["obs"]).all()
    finally:
        server.kill()
        server.wait()


# -- the user's own scenario ------------------------------------------------------------------------


def own_cfg(folder: Path, **changes: str) -> Path:
    lines = {
        "doom_scenario_path": str(Path(vizdoom.scenarios_path) / "basic.wad"),
        "doom_map": "map01",
        "living_reward": "-2",
        "episode_timeout": "40",
        "available_buttons": "{ MOVE_LEFT MOVE_RIGHT ATTACK }",
        "screen_format": "CRCGCB",
        "mode": "ASYNC_PLAYER",
    } | changes
    path = folder / "mine.cfg"
    path.write_text("".join(f"{key} = {value}\n" for key, value in lines.items()))
    return path


def test_a_config_file_of_the_user(build: Build, tmp_path: Path) -> None:
    env = build(scenario=str(own_cfg(tmp_path)))
    assert env.spec.name == "doom_mine"
    assert env.spec.action.nvec == (3, 2)
    obs = obs_of(env)
    env.reset(0, obs)
    answers = [env.step(np.array([[0, 0]]), obs) for _ in range(10)]
    assert [answer[0] for answer in answers] == [-8.0] * 10
    assert [answer[2] for answer in answers] == [False] * 9 + [True]
    assert obs["obs"].shape == (1, 72, 128, 3)
    assert obs["obs"].std() > 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"doom_scenario_path": "nowhere.wad"}, "doom_scenario_path is .*nowhere.wad, and there is no such file"),
        ({"doom_game_path": "doom66.wad"}, "doom_game_path is .*doom66.wad"),
        ({"living_reword": "1"}, "does not understand all of .*mine.cfg"),
        ({"available_buttons": "{ }"}, "names no available_buttons"),
    ],
)
def test_a_wrong_config_file_is_refused(tmp_path: Path, changes: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DoomEnv(scenario=str(own_cfg(tmp_path, **changes)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scenario": "absent.cfg"}, "there is no file .*absent.cfg"),
        ({"buffers": ["dept"]}, "buffers: there is no 'dept'; did you mean 'depth'"),
        ({"buffers": "depth"}, r"a list of names is expected, as in \[depth\]"),
        ({"buffers": ["depth", "depth"]}, "stands twice"),
        ({"game_variables": ["HEALT"]}, "game_variables: there is no 'HEALT'; did you mean 'HEALTH'"),
        ({"buttons": ["JUMPP"]}, "buttons: there is no 'JUMPP'"),
        ({"render_width": 320}, "give both, or neither"),
        ({"render_width": 320, "render_height": 240, "wide_aspect_ratio": True}, "contradict each other"),
        ({"fps": -1}, "fps must be at least 0"),
        ({"timeout": -1}, "timeout must be at least 0"),
    ],
)
def test_wrong_options_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DoomEnv(**arguments)


# -- actions in the game ----------------------------------------------------------------------------


def angle_after(env: DoomEnv, action: Array) -> float:
    obs = obs_of(env)
    env.reset(0, obs)
    before = float(obs["game_variables"][0, 0])
    env.step(action, obs)
    return (float(obs["game_variables"][0, 0]) - before + 180) % 360 - 180


def test_delta_buttons_turn_by_degrees(build: Build) -> None:
    common = {
        "scenario": "defend_the_center",
        "buttons": ["TURN_LEFT_RIGHT_DELTA", "ATTACK"],
        "game_variables": ["ANGLE"],
        "frame_skip": 1,
    }
    mixed = build(actions="continuous", **common)
    assert mixed.spec.action.kind == "mixed"
    assert angle_after(mixed, np.array([[0, 5.0]], np.float32)) == pytest.approx(-5, abs=0.1)
    assert angle_after(mixed, np.array([[1, -90.0]], np.float32)) == pytest.approx(12.5, abs=0.1)  # clipped
    steps = build(actions="groups", delta_steps=5, delta_max=10, **common)
    assert steps.spec.action.nvec == (5, 2)
    turns = [angle_after(steps, np.array([[k, 0]])) for k in range(5)]
    assert turns == pytest.approx([10, 5, 0, -5, -10], abs=0.1)
