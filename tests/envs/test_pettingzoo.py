"""PettingZoo's parallel environments as lanes: agents that leave, different spaces, what is refused."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from rollmill.core.errors import ConfigError, EnvError, MissingExtraError
from rollmill.core.fields import EnvSpec, Obs
from rollmill.envs.make import make_env
from rollmill.envs.settings import EnvSettings

pytest.importorskip("pettingzoo")

from driving import Drive
from running import SUPPORT

from rollmill.envs.pettingzoo import PettingZooEnv

ZOO = SUPPORT / "zoo_envs.py"
LEAVING = f"{ZOO}:Leaving"


def views(spec: EnvSpec) -> Obs:
    return {f.name: np.full((spec.agents, *f.shape), 77, f.dtype) for f in spec.observation}


def test_every_agent_is_a_lane_until_it_leaves() -> None:
    env = PettingZooEnv(env=LEAVING)
    assert env.spec.agents == 3
    obs = views(env.spec)
    env.reset(2**40 + 5, obs)
    assert obs["obs"].tolist() == [[0, 0], [0, 1], [0, 2]]
    rows = [(*env.step(np.array([0, 1, 0]), obs), obs["obs"].tolist()) for _ in range(4)]
    assert [row[0].tolist() for row in rows] == [[1, 1, 1], [1, 1, 1], [0, 1, 1], [0, 0, 1]]
    assert [row[1].tolist() for row in rows] == [[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 0]]
    assert [row[2].tolist() for row in rows] == [[0, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 1]]
    assert rows[1][4] == [[2, 0], [2, 1], [2, 2]], "whoever is done still sees where it ended"
    assert rows[3][4] == [[0, 0], [0, 0], [4, 2]], "then nothing"
    assert env._env.log[0] == {"a0": 10, "a1": 11, "a2": 10}
    assert env._env.log[3] == {"a2": 10}, "those who left are not asked"
    assert env._env.seed == 5
    with pytest.raises(EnvError, match="call reset"):
        env.step(np.array([0, 1, 0]), obs)


def test_in_a_batch_the_rows_of_those_who_left_do_not_count() -> None:
    drive = Drive(f"pettingzoo:{LEAVING}", envs=range(1), steps=6).reset()
    for _ in range(6):
        drive.step(np.zeros(3, np.int64))
    rows = drive.rows
    assert rows["valid"][:6].tolist() == [[1, 1, 1], [1, 1, 1], [0, 1, 1], [0, 0, 1], [0, 0, 0], [1, 1, 1]]
    assert np.nan_to_num(rows["episode_return"][1:4]).tolist() == [[2, 0, 0], [0, 3, 0], [0, 0, 4]]
    assert rows["first"][5].tolist() == [1, 1, 1]
    assert not drive.faults


def test_different_spaces_are_filled_up() -> None:
    env = PettingZooEnv(env=LEAVING, sizes=True, pad=True, agent_field=True)
    obs = views(env.spec)
    env.reset(0, obs)
    assert obs["obs"].tolist() == [[0, 0, 0, 0], [0, 1, 9, 0], [0, 2, 9, 9]]
    assert obs["action_mask"].tolist() == [[1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    assert obs["agent"].tolist() == np.eye(3).tolist()
    env.step(np.array([1, 2, 3]), obs)
    assert env._env.log[0] == {"a0": 11, "a1": 12, "a2": 13}


def test_simple_spread() -> None:
    pytest.importorskip("mpe2")
    env = make_env(EnvSettings(id="pettingzoo:mpe2.simple_spread_v3", args={"N": 2, "max_cycles": 3}))
    assert env.spec.agents == 2
    obs, again = views(env.spec), views(env.spec)
    env.reset(4, obs)
    env.step(np.array([1, 2]), obs)
    env.reset(4, again)
    env.step(np.array([1, 2]), again)
    np.testing.assert_array_equal(obs["obs"], again["obs"])
    env.step(np.array([0, 0]), obs)
    _, terminated, truncated, _ = env.step(np.array([0, 0]), obs)
    assert truncated.all()
    assert not terminated.any()
    assert env.render() is None
    env.close()


def test_an_image_where_it_was_asked_for() -> None:
    pytest.importorskip("mpe2")
    env = make_env(EnvSettings(id="mpe_simple_spread", args={"render_mode": "rgb_array"}))
    env.reset(0, views(env.spec))
    image = env.render()
    assert image is not None
    assert image.dtype == np.uint8
    assert image.shape[-1] == 3
    env.close()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"env": LEAVING, "sizes": True}, r"observation spaces of its agents differ \(a0: .*, a1: .*pad=true"),
        ({"env": f"{ZOO}:not_parallel"}, "built a object, which is no environment of PettingZoo"),
        ({"env": LEAVING, "agents": 0}, "no possible_agents"),
        ({"env": "pettingzoo.mpe.simple_spread_v9"}, "cannot be imported: MPE has been moved"),
        ({"env": "no_such_module"}, "env.args.env=no_such_module: there is no such module"),
        ({"env": "json"}, "the module has neither parallel_env nor env"),
        ({"env": LEAVING, "colour": 1}, r"env.args={'colour': 1}: .*unexpected keyword argument 'colour'"),
        ({"env": "mpe2.simple_spread_v3", "continuous_actions": True, "pad": True}, "Discrete actions; agent agent_0"),
    ],
)
def test_what_cannot_be_used_is_refused(args: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PettingZooEnv(**args)


def test_agents_that_join_later_and_agents_that_vanish_are_errors() -> None:
    env = PettingZooEnv(env=LEAVING, late=True)
    with pytest.raises(EnvError, match=r"join later .* a2"):
        env.reset(0, views(env.spec))
    env = PettingZooEnv(env=LEAVING, silent=True)
    env.reset(0, views(env.spec))
    with pytest.raises(ValueError, match="agent 'a1' is missing"):
        env.step(np.zeros(3, np.int64), views(env.spec))


def test_without_the_package_the_install_command_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pettingzoo", None)
    with pytest.raises(MissingExtraError, match=r'pip install "rollmill\[pettingzoo\]"'):
        PettingZooEnv(env=LEAVING)
