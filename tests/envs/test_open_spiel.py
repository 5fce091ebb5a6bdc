"""OpenSpiel's games as environments."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyspiel")

from driving import Drive

from rollmill.core.errors import ConfigError, EnvError, MissingExtraError
from rollmill.core.fields import MASK_FIELD, EnvSpec, Obs
from rollmill.envs.batch import random_actions
from rollmill.envs.make import check_env_settings, make_env
from rollmill.envs.open_spiel import OpenSpielEnv
from rollmill.envs.settings import EnvSettings
from rollmill.envs.turns import TURN_FIELD


def views(spec: EnvSpec) -> Obs:
    return {f.name: np.full((spec.agents, *f.shape), 77, f.dtype) for f in spec.observation}


def test_tic_tac_toe() -> None:
    env = OpenSpielEnv(game="tic_tac_toe")
    obs = views(env.spec)
    env.reset(0, obs)
    for moves in ([0, 8], [8, 4], [1, 8], [8, 5]):
        reward, over, _, _ = env.step(np.array(moves), obs)
        assert (reward.tolist(), over) == ([0, 0], False)
    assert obs[MASK_FIELD].tolist() == [[0, 0, 1, 1, 0, 0, 1, 1, 1], [1, 0, 0, 0, 0, 0, 0, 0, 0]]
    assert obs[TURN_FIELD][:, 0].tolist() == [1, 0]
    reward, over, truncated, _ = env.step(np.array([2, 0]), obs)
    assert (reward.tolist(), over, truncated) == ([1, -1], True, False)
    with pytest.raises(EnvError, match="call reset"):
        env.step(np.array([2, 0]), obs)


def test_chance_comes_from_the_seed_and_players_see_their_own_cards() -> None:
    env = OpenSpielEnv(game="kuhn_poker", players=3)
    assert env.spec.agents == 3
    seen = []
    for seed in (1, 1, 2, 3, 4, 5):
        obs = views(env.spec)
        env.reset(seed, obs)
        seen.append(obs["obs"].copy())
    assert (seen[0] == seen[1]).all()
    assert any((seen[0] != other).any() for other in seen[2:])
    assert len(np.unique(seen[0], axis=0)) == 3


def test_games_in_which_all_move_at_once() -> None:
    env = OpenSpielEnv(game="matrix_rps")
    obs = views(env.spec)
    env.reset(0, obs)
    assert obs[TURN_FIELD][:, 0].tolist() == [1, 1]
    assert obs[MASK_FIELD].tolist() == [[1, 1, 1], [1, 1, 1]]
    reward, over, _, _ = env.step(np.array([1, 0]), obs)
    assert (reward.tolist(), over) == ([1, -1], True)


@pytest.mark.parametrize("game", ["kuhn_poker", "leduc_poker", "goofspiel", "connect_four", "liars_dice"])
def test_returns_are_those_of_the_game(game: str) -> None:
    env = OpenSpielEnv(game=game)
    obs, rng = views(env.spec), np.random.default_rng(0)
    for seed in range(8):
        env.reset(seed, obs)
        total, over = np.zeros(2), False
        while not over:
            reward, over, _, _ = env.step(random_actions(env.spec, rng, obs, 2), obs)
            total += reward
        assert total.tolist() == pytest.approx(env._state.returns())


def test_in_a_batch() -> None:
    drive = Drive("openspiel:leduc_poker", envs=range(3), steps=50).reset().walk(50)
    assert not drive.faults
    assert drive.rows["terminated"][:50].any()


def test_what_is_not_allowed_is_a_fault_of_the_episode_and_not_of_the_process() -> None:
    env = OpenSpielEnv(game="tic_tac_toe")
    obs = views(env.spec)
    env.reset(0, obs)
    env.step(np.array([4, 0]), obs)
    with pytest.raises(ValueError, match="player 1 chose 4, which is not allowed here"):
        env.step(np.array([0, 4]), obs)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"game": "chess_"}, "OpenSpiel has no such game; did you mean 'chess'"),
        ({"game": "kuhn_poker", "colour": 3}, r"cannot be built with \{'colour': 3\}"),
        ({"game": "mfg_garnet"}, "mean-field"),
        ({"game": "connect_four", "observation": "information_state"}, "shows its observation only"),
        ({"game": "kuhn_poker", "observation": "all"}, "expected auto, information_state, observation"),
        ({"game": "coin_game"}, "no form that a network can read"),
        ({"game": "phantom_ttt_ir"}, "no form|draws its own"),
    ],
)
def test_what_cannot_be_used_is_refused(args: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        OpenSpielEnv(**args)


def test_the_name_brings_the_game() -> None:
    env = make_env(EnvSettings(id="openspiel:kuhn_poker", args={"players": 3}))
    assert env.spec.agents == 3
    env = make_env(EnvSettings(id="openspiel", args={"game": "kuhn_poker(players=3)"}))
    assert env.spec.agents == 3
    with pytest.raises(ConfigError, match=r"env.args.game"):
        make_env(EnvSettings(id="openspiel"))


def test_without_the_package_the_install_command_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspiel", None)
    with pytest.raises(MissingExtraError, match=r'pip install "rollmill\[openspiel\]"'):
        OpenSpielEnv(game="kuhn_poker")
    check_env_settings(EnvSettings(id="kuhn_poker"))
