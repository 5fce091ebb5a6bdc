"""Small games as environments: whose turn it is, what waiting rows carry, and that chances are those of the rules."""

from __future__ import annotations

import numpy as np
import pytest
from driving import Drive

from rollmill.core.errors import ConfigError, EnvError
from rollmill.core.fields import MASK_FIELD, Array, Obs
from rollmill.envs.batch import random_actions
from rollmill.envs.games.env import TreeEnv, game_tree
from rollmill.envs.games.exploit import value
from rollmill.envs.games.rules import MatrixGame
from rollmill.envs.games.tree import grow
from rollmill.envs.make import make_env
from rollmill.envs.settings import EnvSettings


def blank(env: TreeEnv) -> Obs:
    return {f.name: np.full((2, *f.shape), 9, f.dtype) for f in env.spec.observation}


def play(env: TreeEnv, seed: int, obs: Obs, rng: np.random.Generator) -> tuple[Array, int]:
    """Returns of both players, and the steps of an episode of random moves."""
    env.reset(seed, obs)
    total, steps, over = np.zeros(2), 0, False
    while not over:
        reward, over, _, _ = env.step(random_actions(env.spec, rng, obs, 2), obs)
        total += reward
        steps += 1
    return total, steps


def test_a_game_of_kuhn_poker() -> None:
    env = TreeEnv(game="kuhn_poker")
    obs = blank(env)
    env.reset(0, obs)
    cards = obs["obs"][:, 2:5].argmax(axis=1)
    assert obs["obs"][:, :2].tolist() == [[1, 0], [0, 1]], "each knows who it is"
    assert len(set(cards.tolist())) == 2
    assert obs["obs"][:, 5:].sum() == 0
    assert obs[MASK_FIELD].tolist() == [[1, 1], [1, 0]], "the first player moves; the other one has nothing to choose"
    reward, over, _, _ = env.step(np.array([0, 0]), obs)
    assert (reward.tolist(), over) == ([0, 0], False)
    assert obs[MASK_FIELD].tolist() == [[1, 0], [1, 1]]
    env.step(np.array([0, 1]), obs)
    reward, over, truncated, _ = env.step(np.array([1, 0]), obs)
    assert over
    assert not truncated
    assert reward.tolist() == ([2, -2] if cards[0] > cards[1] else [-2, 2]), "the one who waits is paid, too"
    assert (obs["obs"][0, 5:] == obs["obs"][1, 5:]).all(), "both have seen the moves"
    with pytest.raises(EnvError, match="call reset"):
        env.step(np.array([0, 0]), obs)


def test_who_waits_has_a_row_that_counts_and_brings_the_reward() -> None:
    drive = Drive("kuhn_poker", envs=range(1), steps=12).reset().walk(12)
    rows = drive.rows
    ends = np.flatnonzero(rows["terminated"][:12, 0])
    assert ends.size >= 2
    assert (rows["terminated"][:, 0] == rows["terminated"][:, 1]).all()
    assert (rows["reward"][ends, 0] == -rows["reward"][ends, 1]).all()
    assert np.abs(rows["reward"][ends]).min() >= 1
    assert rows["valid"][:12].sum(axis=0).tolist() == [12 - sum(ends < 11)] * 2, "only final observations do not count"
    assert not drive.faults


@pytest.mark.parametrize("game", ["kuhn_poker", "leduc_poker"])
def test_random_play_wins_what_the_tree_says(game: str) -> None:
    env = TreeEnv(game=game)
    obs, rng = blank(env), np.random.default_rng(4)
    games = [play(env, seed, obs, rng)[0] for seed in range(6000)]
    returns = np.array(games)
    assert np.abs(returns.sum(axis=1)).max() == 0
    error = returns[:, 0].std() / np.sqrt(len(games))
    assert abs(returns[:, 0].mean() - value(env.tree, env.tree.uniform())) < 4 * error


def test_a_seed_fixes_the_cards() -> None:
    env = TreeEnv(game="leduc_poker")
    obs, other = blank(env), blank(env)
    for seed in range(20):
        env.reset(seed, obs)
        env.reset(seed, other)
        assert (obs["obs"] == other["obs"]).all()
    played = [play(env, 7, obs, np.random.default_rng(1)) for _ in range(2)]
    assert played[0][0].tolist() == played[1][0].tolist()


def test_matrix_games_are_over_after_one_step_of_both() -> None:
    env = make_env(EnvSettings(id="matrix_game", args={"payoff": [[1, 2, 3], [4, 5, 6]]}))
    assert isinstance(env, TreeEnv)
    obs = blank(env)
    env.reset(0, obs)
    assert obs[MASK_FIELD].tolist() == [[1, 1, 0], [1, 1, 1]]
    reward, over, _, _ = env.step(np.array([1, 2]), obs)
    assert (reward.tolist(), over) == ([6, -6], True)


def test_what_is_not_allowed_is_a_fault() -> None:
    env = TreeEnv(game="leduc_poker")
    obs = blank(env)
    env.reset(0, obs)
    with pytest.raises(ValueError, match="player 0 chose 0, which is not allowed here"):
        env.step(np.array([0, 0]), obs)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"game": "poker"}, "env.args.game=poker: expected one of kuhn_poker"),
        ({"payoff": [[1, 2], [3]]}, "env.args.payoff"),
        ({"payoff": [1, 2]}, "expected rows of numbers"),
        ({"payoff": [[float("nan")]]}, "expected rows of numbers"),
    ],
)
def test_what_is_no_game_is_refused(args: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TreeEnv(**args)  # type: ignore[arg-type]


def test_rules_whose_views_hide_too_much_are_refused() -> None:
    class Forgetful(MatrixGame):
        """The second move is the first player's, too, who cannot tell it from the first one."""

        def player(self, state: tuple[int, ...]) -> int:
            return min(0, super().player(state))

    with pytest.raises(ValueError, match="look the same to player 0"):
        grow(Forgetful([[0.0, 1.0], [1.0, 0.0]]))
    assert game_tree("two_by_two").sets == 2
