"""The DeepMind Lab adapter, against a small stand-in: the real package cannot be installed for this Python."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollmill.core.errors import ConfigError, EnvError, MissingExtraError
from rollmill.core.fields import Obs
from rollmill.envs.dmlab import ACTIONS, DmLabEnv, LevelCache
from rollmill.envs.make import check_env_settings, make_env
from rollmill.envs.settings import EnvSettings

STAND_IN = '''
import numpy as np


class Lab:
    """The part of Lab's interface that is used: an episode of ten frames, a level made when it is not cached."""

    def __init__(self, level, observations, config=None, renderer="software", level_cache=None):
        self.given = dict(level=level, observations=observations, config=config, renderer=renderer)
        self.shape = (int(config["height"]), int(config["width"]), 3)
        self.cache, self.left, self.made, self.steps, self.closed = level_cache, 0, 0, [], False

    def reset(self, seed=None):
        self.left, self.seed = 10, seed
        if self.cache is not None:
            path = self.given["config"]["pk3"]
            key = f"level/{seed}"
            if not self.cache.fetch(key, path):
                self.made += 1
                with open(path, "w") as file:
                    file.write(key)
                self.cache.write(key, path)

    def is_running(self):
        return self.left > 0

    def observations(self):
        if not self.is_running():
            raise RuntimeError("Environment in wrong status to retrieve observations")
        return {"RGB_INTERLEAVED": np.full(self.shape, self.left, np.uint8)}

    def step(self, action, num_steps=1):
        assert action.dtype == np.intc and action.shape == (7,)
        self.steps.append((action.tolist(), num_steps))
        played = min(num_steps, self.left)
        self.left -= played
        return played

    def close(self):
        self.closed = True
'''


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "deepmind_lab.py").write_text(STAND_IN)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "deepmind_lab", raising=False)
    return folder


def blank(env: DmLabEnv) -> Obs:
    return {"obs": np.zeros((1, *env.spec.observation[0].shape), np.uint8)}


def test_an_episode(lab: Path) -> None:
    env = make_env(EnvSettings(id="dmlab:contributed/dmlab30/rooms_watermaze", args={"width": 8, "height": 6}))
    assert isinstance(env, DmLabEnv)
    assert env.spec.frames_per_step == 4
    assert env.spec.action.nvec == (9,)
    assert env._lab.given["level"] == "contributed/dmlab30/rooms_watermaze"
    assert env._lab.given["config"] == {"width": "8", "height": "6"}
    obs = blank(env)
    assert env.render() is None
    env.reset(2**31 + 3, obs)
    assert env._lab.seed == 3
    assert obs["obs"].max() == 10
    outcomes = [env.step(np.array([action]), obs)[:3] for action in (0, 6, 8)]
    assert outcomes == [(4.0, False, False), (4.0, False, False), (2.0, True, False)]
    assert obs["obs"].max() == 2, "Lab shows nothing after the end: the last image is kept"
    assert env._lab.steps == [([0, 0, 0, 1, 0, 0, 0], 4), ([-20, 0, 0, 1, 0, 0, 0], 4), ([0, 0, 0, 0, 1, 0, 0], 4)]
    with pytest.raises(EnvError, match="call reset"):
        env.step(np.array([0]), obs)
    env.close()
    assert env._lab.closed


def test_the_sets_of_actions(lab: Path) -> None:
    assert [len(actions) for actions in ACTIONS.values()] == [9, 15]
    assert all(len(set(actions)) == len(actions) and {len(a) for a in actions} == {7} for actions in ACTIONS.values())
    assert DmLabEnv(level="x", actions="extended").spec.action.nvec == (15,)
    with pytest.raises(ConfigError, match=r"env.args.actions=all: basic and extended"):
        DmLabEnv(level="x", actions="all")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="must be positive"):
        DmLabEnv(level="x", frame_skip=0)


def test_levels_are_made_once(lab: Path, tmp_path: Path) -> None:
    args: dict[str, Any] = {"level": "x", "level_cache": str(tmp_path / "levels"), "config": {"pk3": tmp_path / "now"}}
    one, two = DmLabEnv(**args), DmLabEnv(**args)
    one.reset(1, blank(one))
    two.reset(1, blank(two))
    two.reset(2, blank(two))
    assert (one._lab.made, two._lab.made) == (1, 1)
    assert (tmp_path / "now").read_text() == "level/2"
    assert not list((tmp_path / "levels").rglob(".draft-*"))


def test_a_level_that_cannot_be_kept_leaves_nothing(tmp_path: Path) -> None:
    cache = LevelCache(tmp_path)
    with pytest.raises(FileNotFoundError):
        cache.write("a/b", str(tmp_path / "not there"))
    assert not cache.fetch("a/b", str(tmp_path / "out"))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_an_image_of_another_size_is_noticed(lab: Path) -> None:
    env = DmLabEnv(level="x", width=8, height=6)
    env._lab.shape = (3, 3, 3)
    with pytest.raises(ValueError, match=r"RGB_INTERLEAVED is uint8 \(3, 3, 3\), expected uint8 \(6, 8, 3\)"):
        env.reset(0, blank(env))


def test_without_the_package_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deepmind_lab", None)
    check_env_settings(EnvSettings(id="dmlab:x"))
    with pytest.raises(MissingExtraError, match="build it from source"):
        DmLabEnv(level="x")
