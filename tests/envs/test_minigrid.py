"""MiniGrid: what the agent sees, in all forms; seeds; missions."""

from __future__ import annotations

import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rollmill.core.errors import ConfigError, EnvError, MissingExtraError
from rollmill.core.fields import EnvSpec, Obs
from rollmill.envs.make import check_env_settings, make_env
from rollmill.envs.settings import EnvSettings

pytest.importorskip("minigrid")

from rollmill.envs.minigrid import COLOURS, KINDS, WORDS, MiniGridEnv

TASK = "MiniGrid-DoorKey-5x5-v0"


def views(spec: EnvSpec) -> Obs:
    return {f.name: np.full((1, *f.shape), 7, f.dtype) for f in spec.observation}


def original(task: str, seed: int) -> Any:
    env = gym.make(task)
    return env, env.reset(seed=seed)[0]


def test_one_hot_says_what_the_symbols_say() -> None:
    env, (theirs, seen) = MiniGridEnv(task=TASK), original(TASK, 3)
    obs = views(env.spec)
    env.reset(3, obs)
    for action in (2, 1, 2, 3, 0, 2, 5):
        image, direction = obs["image"][0], obs["direction"][0]
        assert set(np.unique(image)) <= {0, 255}
        parts = np.split(image, [KINDS, KINDS + COLOURS], axis=-1)
        np.testing.assert_array_equal(np.stack([part.argmax(-1) for part in parts], -1), seen["image"])
        assert all((part.sum(-1, dtype=int) == 255).all() for part in parts)
        assert direction.tolist() == np.eye(4, dtype=int)[seen["direction"]].tolist()
        outcome = env.step(np.array([action]), obs)
        seen, *expected = theirs.step(action)
        assert list(outcome[:3]) == expected[:3]
    env.close()


def test_symbols_and_images() -> None:
    _, seen = original(TASK, 5)
    symbols, image = MiniGridEnv(task=TASK, view="symbols"), MiniGridEnv(task=TASK, view="rgb", tile_size=4)
    obs = views(symbols.spec)
    symbols.reset(5, obs)
    np.testing.assert_array_equal(obs["image"][0], seen["image"])
    obs = views(image.spec)
    image.reset(5, obs)
    assert obs["image"].shape == (1, 28, 28, 3)
    assert len(np.unique(obs["image"])) > 5
    whole = image.render()
    assert whole is not None
    assert whole.shape == (160, 160, 3)


def test_the_mission_in_words() -> None:
    env = MiniGridEnv(task="MiniGrid-Fetch-5x5-N2-v0", mission_words=8)
    _, seen = original("MiniGrid-Fetch-5x5-N2-v0", 11)
    obs = views(env.spec)
    env.reset(11, obs)
    rows = obs["mission"][0]
    assert [WORDS[row.argmax()] for row in rows if row.any()] == seen["mission"].split()
    assert (rows.sum(-1)[: len(seen["mission"].split())] == 1).all()


def test_words_that_do_not_fit_are_an_error() -> None:
    env = MiniGridEnv(task=TASK, mission_words=3)
    with pytest.raises(EnvError, match="the mission has 13 words"):
        env.reset(0, views(env.spec))
    env = MiniGridEnv(task=TASK, mission_words=30)
    with pytest.raises(EnvError, match="not known: 'xyzzy'"):
        env._write_mission(views(env.spec)["mission"][0], "go to the xyzzy")


def test_names_lead_here() -> None:
    assert isinstance(make_env(EnvSettings(id=TASK)), MiniGridEnv)
    memory = make_env(EnvSettings(id="minigrid_memory"))
    assert memory.spec.name == "MiniGrid-MemoryS7-v0"
    assert memory.spec.action.nvec == (3,)
    assert make_env(EnvSettings(id="minigrid_memory", args={"actions": 0})).spec.action.nvec == (7,)
    bigger = make_env(EnvSettings(id="BabyAI-GoToRedBall-v0", args={"agent_view_size": 5}))
    assert bigger.spec.observation[0].shape == (5, 5, 21)
    check_env_settings(EnvSettings(id=TASK, args={"view": "rgb"}))
    with pytest.raises(ConfigError, match="has no vectorised form"):
        check_env_settings(EnvSettings(id=TASK, vector=True))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"task": "MiniGrid-DorKey-5x5-v0"}, "MiniGrid has no task .*DoorKey-5x5"),
        ({"task": TASK, "view": "symbol"}, "env.args.view=symbol: one_hot, symbols and rgb"),
        ({"task": TASK, "tile_size": 0}, "tile_size must be at least 1"),
        ({"task": TASK, "actions": 8}, "env.args.actions=8: the task has 7"),
        ({"task": TASK, "colour": 1}, r"env.args={'colour': 1}: .*unexpected keyword argument 'colour'"),
    ],
)
def test_what_cannot_be_is_refused(args: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MiniGridEnv(**args)


def test_without_the_package_the_install_command_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minigrid", None)
    with pytest.raises(MissingExtraError, match=r'MiniGrid.* needs minigrid .*pip install "rollmill\[minigrid\]"'):
        make_env(EnvSettings(id=TASK))
