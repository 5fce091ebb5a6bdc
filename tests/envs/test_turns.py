"""Players who take turns (AEC): whose move it is, rewards of those who wait, agents that leave."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("pettingzoo")

from driving import Drive
from running import SUPPORT

from rollmill.core.errors import ConfigError, EnvError
from rollmill.core.fields import MASK_FIELD, Array, EnvSpec, Obs
from rollmill.envs.pettingzoo import PettingZooEnv
from rollmill.envs.turns import TURN_FIELD

AUCTION = f"{SUPPORT / 'zoo_envs.py'}:Auction"
CONNECT_FOUR = "pettingzoo.classic.connect_four_v3"


def views(spec: EnvSpec) -> Obs:
    return {f.name: np.full((spec.agents, *f.shape), 77, f.dtype) for f in spec.observation}


def test_who_waits_has_one_action_and_is_paid() -> None:
    env = PettingZooEnv(env=AUCTION)
    obs = views(env.spec)
    env.reset(3, obs)
    assert obs[TURN_FIELD][:, 0].tolist() == [1, 0, 0]
    assert obs[MASK_FIELD].tolist() == [[1, 1, 1, 1], [1, 0, 0, 0], [1, 0, 0, 0]]
    env.step(np.array([2, 3, 3]), obs)  # only the one who moves is heard
    assert obs["observation"].tolist() == [[2, 1]] * 3
    reward, terminated, _, _ = env.step(np.array([3, 1, 3]), obs)
    assert reward.tolist() == [0, -1, 0]
    assert terminated.tolist() == [False, True, False], "who bids less than the one before has left"
    assert obs[TURN_FIELD][:, 0].tolist() == [0, 0, 1], "and the turn goes to the one behind"


def test_the_last_one_to_stay_is_paid_while_the_other_one_moves() -> None:
    env = PettingZooEnv(env=AUCTION)
    obs = views(env.spec)
    env.reset(0, obs)
    for moves, paid, over in (
        ([1, 0, 0], [0, 0, 0], [False, False, False]),
        ([0, 0, 0], [0, -1, 0], [False, True, False]),
        ([0, 0, 0], [3, 0, -1], [True, False, True]),
    ):
        reward, terminated, truncated, _ = env.step(np.array(moves), obs)
        assert reward.tolist() == paid
        assert terminated.tolist() == over
        assert not truncated.any()
    with pytest.raises(EnvError, match="call reset"):
        env.step(np.array([0, 0, 0]), obs)


def test_masks_in_infos_are_used() -> None:
    env = PettingZooEnv(env=AUCTION, free=False)
    obs = views(env.spec)
    env.reset(0, obs)
    env.step(np.array([2, 0, 0]), obs)
    assert obs[MASK_FIELD].tolist() == [[1, 0, 0, 0], [0, 0, 1, 1], [1, 0, 0, 0]]


def test_connect_four() -> None:
    """The first player fills a column; the second one, who waits, loses by it."""
    env = PettingZooEnv(env=CONNECT_FOUR)
    assert env.spec.agents == 2
    assert {f.name: f.shape for f in env.spec.observation} == {
        "observation": (6, 7, 2),
        "action_mask": (7,),
        "turn": (1,),
    }
    obs = views(env.spec)
    env.reset(1, obs)
    for k in range(6):
        reward, over, _, _ = env.step(np.array([2, 5]), obs)
        assert (reward.tolist(), over.any()) == ([0, 0], False)
        assert obs[TURN_FIELD][:, 0].tolist() == [k % 2, 1 - k % 2]
    mine, theirs = obs["observation"][0, :, :, 0], obs["observation"][1, :, :, 1]
    assert (mine == theirs).all(), "both see the board, each from its own side"
    assert mine[:, 2].sum() == 3
    reward, over, _, _ = env.step(np.array([2, 0]), obs)
    assert reward.tolist() == [1, -1]
    assert over.all()
    env.close()


def test_a_full_column_is_forbidden() -> None:
    env = PettingZooEnv(env=CONNECT_FOUR)
    obs = views(env.spec)
    env.reset(1, obs)
    for _ in range(6):
        env.step(np.array([3, 3]), obs)
    assert obs[MASK_FIELD].tolist() == [[1, 1, 1, 0, 1, 1, 1], [1, 0, 0, 0, 0, 0, 0]]


def test_rows_of_both_players_count_and_sum_to_nothing() -> None:
    drive = Drive(f"pettingzoo:{CONNECT_FOUR}", envs=range(2), steps=80).reset().walk(80)
    rows = drive.rows
    assert not drive.faults
    reward, over = rows["reward"][:80], rows["terminated"][:80]
    assert over.sum() >= 4
    assert (over[:, 0::2] == over[:, 1::2]).all(), "both players of a game end together"
    assert (reward[:, 0::2] + reward[:, 1::2] == 0).all()
    assert set(np.unique(reward[over])) <= {-1.0, 0.0, 1.0}
    invalid = ~rows["valid"][:80]
    assert (invalid[1:] == over[:-1]).all(), "only final observations do not count"


def test_a_reward_reaches_the_last_own_move_of_the_one_who_waited() -> None:
    """With the targets that learning uses: the loser's last move is followed by a row in which it only waits."""
    torch = pytest.importorskip("torch")
    from rollmill.learning.targets import gae

    drive = Drive(f"pettingzoo:{CONNECT_FOUR}", envs=range(1), steps=60).reset().walk(60)
    rows = drive.rows
    end = int(np.flatnonzero(rows["terminated"][:60, 0])[0])
    columns: dict[str, Any] = {n: torch.from_numpy(rows[n][:60].copy()) for n in ("reward", "terminated", "valid")}
    values = torch.zeros(61, 2)
    advantage, _ = gae(columns["reward"], values, columns["terminated"], columns["valid"], 1.0, 1.0)
    lost: Array = rows["reward"][end]
    assert sorted(lost.tolist()) == [-1, 1]
    assert advantage[: end + 1].numpy().tolist() == [lost.tolist()] * (end + 1)


def test_numbers_cannot_wait() -> None:
    with pytest.raises(ConfigError, match="players who take turns need Discrete actions, a0 has Box"):
        PettingZooEnv(env=AUCTION, numbers=True)
