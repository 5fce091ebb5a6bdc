"""Episodes on kept levels are those on generated ones, frame by frame, for every environment that can keep them."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from level_envs import Mazes, id_of

from rollmill.core.errors import ConfigError
from rollmill.core.protocols import Env
from rollmill.envs.levels.env import KeepsLevels, LevelEnv
from rollmill.envs.levels.settings import LevelSettings
from rollmill.envs.levels.store import LevelStore
from rollmill.envs.make import level_store, make_env
from rollmill.envs.settings import EnvSettings


class Dice(gym.Env):
    """Of somebody else: shows a number that its level decides, then numbers of chance."""

    observation_space = gym.spaces.Box(0, 1, (1,))
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        level = (options or {}).get("level")
        drawn = self.np_random.random()
        self._number = drawn if level is None else float(level)
        return np.array([self._number], np.float32), {}

    def save_level(self) -> bytes:
        return repr(self._number).encode()

    def step(self, action: int) -> Any:
        return np.array([self.np_random.random()], np.float32), 0.0, False, False, {}


CASES: dict[str, tuple[str, dict[str, Any], int, int]] = {
    "BossLevel": ("BabyAI-BossLevel-v0", {"mission_words": 40}, 8, 120),
    "KeyCorridor": ("MiniGrid-KeyCorridorS6R3-v0", {"view": "rgb"}, 8, 60),
    "Dynamic-Obstacles": ("MiniGrid-Dynamic-Obstacles-8x8-v0", {}, 5, 30),
    "PutNextCarrying": ("BabyAI-PutNextS5N2Carrying-v0", {}, 5, 30),
    "CarRacing": ("car_racing", {"frame_skip": 4, "domain_randomize": True}, 3, 60),
    "treasure hunt": ("treasure_hunt", {"map_random": True, "rewards": {"route": 1.0}}, 2, 40),
    "Gymnasium": (f"{__name__}:Dice", {}, 3, 5),
    "own": (id_of(), {}, 3, 4),
}


def built(name: str, folder: Path | None) -> Env:
    identity, args, _, _ = CASES[name]
    return make_env(EnvSettings(id=identity, args=args, levels=LevelSettings(folder=str(folder or ""))))


def blank(env: Env) -> dict[str, Any]:
    return {field.name: np.zeros((1, *field.shape), field.dtype) for field in env.spec.observation}


@pytest.mark.parametrize("name", CASES)
def test_an_episode_on_a_kept_level_is_the_generated_one(name: str, tmp_path: Path) -> None:
    _, _, seeds, steps = CASES[name]
    with contextlib.redirect_stdout(io.StringIO()):
        plain, maker, player = built(name, None), built(name, tmp_path), built(name, tmp_path)
        for seed in range(seeds):
            maker.reset(seed, blank(maker))
            ours, theirs = blank(plain), blank(player)
            plain.reset(seed, ours)
            player.reset(seed, theirs)
            assert isinstance(player, LevelEnv)
            assert player._kept
            rng = np.random.default_rng(seed)
            for _ in range(steps):
                for field in ours:
                    np.testing.assert_array_equal(ours[field], theirs[field])
                action = plain.spec.action
                chosen = rng.integers(min(action.nvec) // 2 or 1, size=1) if action.nvec else rng.uniform(-1, 1, (1, 3))
                came, seen = plain.step(chosen, ours), player.step(chosen, theirs)
                assert came[:3] == seen[:3]
                if came[1] or came[2]:
                    break
        for env in (plain, maker, player):
            env.close()


def test_a_level_is_generated_once_and_said_to_be_kept(tmp_path: Path) -> None:
    env = LevelEnv(Mazes(length=1), LevelStore(tmp_path))
    found = []
    for _ in range(2):
        env.reset(5, blank(env))
        found.append(env.step(np.array([0]), blank(env))[3]["episode_stats"])
    assert [stats["level_kept"] for stats in found] == [0, 1]
    assert [stats["steps"] for stats in found] == [1, 1]
    assert env.generated == 1


def test_a_damaged_level_is_generated_anew(tmp_path: Path) -> None:
    env = LevelEnv(Mazes(), LevelStore(tmp_path))
    first, second = blank(env), blank(env)
    env.reset(5, first)
    (path,) = tmp_path.glob("??/*.level")
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    env.reset(5, second)
    np.testing.assert_array_equal(first["obs"], second["obs"])
    assert env.generated == 2
    assert len(list(tmp_path.glob("??/*.damaged"))) == len(list(tmp_path.glob("??/*.level"))) == 1


def test_an_environment_that_cannot_save_levels_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the levels of toy_target cannot be kept"):
        make_env(EnvSettings(levels=LevelSettings(folder=str(tmp_path / "levels"))))
    assert not list(tmp_path.iterdir())
    assert not isinstance(make_env(EnvSettings()), KeepsLevels)


def test_what_decides_a_level_decides_its_folder(tmp_path: Path) -> None:
    def folder(**args: Any) -> str:
        levels = LevelSettings(folder=str(tmp_path))
        return level_store(EnvSettings(id="MiniGrid-Empty-Random-6x6-v0", args=args, levels=levels)).folder.name

    assert folder() == folder(view="rgb", mission_words=9)
    assert folder() != folder(max_steps=50)
    assert level_store(EnvSettings(id=id_of(), levels=LevelSettings(folder=str(tmp_path)))).folder.parent == tmp_path
