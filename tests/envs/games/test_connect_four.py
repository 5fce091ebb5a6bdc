"""Connect four: every line wins, nothing else does, and games are those of PettingZoo."""

from __future__ import annotations

import numpy as np
import pytest

from rollmill.core.errors import EnvError
from rollmill.core.fields import MASK_FIELD, Array, EnvSpec, Obs
from rollmill.envs.batch import random_actions
from rollmill.envs.games.connect_four import BITS, BOARD, CELL_PIXELS, COLUMNS, ROWS, ConnectFour, has_line
from rollmill.envs.make import make_env
from rollmill.envs.settings import EnvSettings
from rollmill.envs.turns import TURN_FIELD

DRAWN = "146660203633536103043506522512202545444111"
"""Columns of a game in which all cells are taken and nobody has a line."""


def blank(spec: EnvSpec) -> Obs:
    return {f.name: np.full((2, *f.shape), 9, f.dtype) for f in spec.observation}


def play(moves: str) -> tuple[ConnectFour, Obs, list[tuple[list[float], bool]]]:
    env = ConnectFour()
    obs = blank(env.spec)
    env.reset(0, obs)
    told = []
    for k, column in enumerate(map(int, moves)):
        answer = np.zeros(2, np.int64)
        answer[k % 2] = column
        reward, over, truncated, _ = env.step(answer, obs)
        assert not truncated
        told.append((reward.tolist(), over))
    return env, obs, told


def lines() -> list[list[tuple[int, int]]]:
    """All lines of four cells (row, column) on the board, cell by cell."""
    ways = ((0, 1), (1, 0), (1, 1), (1, -1))
    found = [
        [(row + k * down, column + k * right) for k in range(4)]
        for row in range(ROWS)
        for column in range(COLUMNS)
        for down, right in ways
    ]
    return [line for line in found if all(0 <= row < ROWS and 0 <= column < COLUMNS for row, column in line)]


def bits(cells: list[tuple[int, int]]) -> int:
    return sum(1 << (column * BITS + row) for row, column in cells)


def test_each_of_the_69_lines_wins_and_three_of_it_do_not() -> None:
    assert len(lines()) == 69
    for line in lines():
        assert has_line(bits(line))
        assert not any(has_line(bits(line[:k] + line[k + 1 :])) for k in range(4))


def test_what_has_no_line_does_not_win() -> None:
    """Boards at random, beside a count of lines cell by cell: nothing runs over the edges."""
    rng, every = np.random.default_rng(2), lines()
    won = 0
    for _ in range(2000):
        taken = rng.random((ROWS, COLUMNS)) < 0.4
        expected = any(all(taken[cell] for cell in line) for line in every)
        assert has_line(bits(list(zip(*(part.tolist() for part in np.nonzero(taken)), strict=True)))) == expected
        won += expected
    assert 200 < won < 1800


def test_the_loser_is_told_while_it_waits_and_both_wait_at_the_end() -> None:
    _, obs, told = play("2525252")
    assert [reward for reward, _ in told] == [[0, 0]] * 6 + [[1, -1]]
    assert [over for _, over in told] == [False] * 6 + [True]
    assert obs[TURN_FIELD].tolist() == [[0], [0]]
    assert obs[MASK_FIELD].tolist() == [[1, 0, 0, 0, 0, 0, 0]] * 2
    assert play("25252565")[2][-1] == ([-1, 1], True), "the second player wins as well"


def test_a_full_board_is_a_draw() -> None:
    env, obs, told = play(DRAWN)
    assert told == [([0, 0], False)] * 41 + [([0, 0], True)]
    assert (obs[BOARD].sum(axis=3) == 1).all()
    with pytest.raises(EnvError, match="call reset"):
        env.step(np.zeros(2, np.int64), obs)
    env.reset(1, obs)
    assert not obs[BOARD].any()
    assert obs[MASK_FIELD].tolist() == [[1] * 7, [1, 0, 0, 0, 0, 0, 0]]


def test_both_see_the_board_from_their_own_side() -> None:
    _, obs, _ = play("334")
    first, second = obs[BOARD]
    assert np.argwhere(first[:, :, 0]).tolist() == [[5, 3], [5, 4]], "row 0 is the top"
    assert np.argwhere(first[:, :, 1]).tolist() == [[4, 3]]
    assert (second == first[:, :, ::-1]).all()
    assert obs[TURN_FIELD].tolist() == [[0], [1]]


@pytest.mark.parametrize("column", [3, 7, -1])
def test_what_is_not_allowed_is_a_fault(column: int) -> None:
    env, obs, _ = play("333333")
    assert obs[MASK_FIELD][0].tolist() == [1, 1, 1, 0, 1, 1, 1]
    with pytest.raises(ValueError, match=f"player 0 chose {column}, which is not allowed here"):
        env.step(np.array([column, 0]), obs)


def test_before_the_first_reset_nothing_is_played() -> None:
    env = ConnectFour()
    with pytest.raises(EnvError, match="call reset"):
        env.step(np.zeros(2, np.int64), blank(env.spec))


def test_the_picture_shows_whose_stones_lie_where() -> None:
    env, _, _ = play("06")
    image = env.render()
    assert image.shape == (ROWS * CELL_PIXELS, COLUMNS * CELL_PIXELS, 3)
    assert image.dtype == np.uint8

    def middle(row: int, column: int) -> tuple[int, ...]:
        return tuple(image[row * CELL_PIXELS + CELL_PIXELS // 2, column * CELL_PIXELS + CELL_PIXELS // 2].tolist())

    assert len({middle(5, 0), middle(5, 6), middle(5, 3)}) == 3, "red, yellow, empty"
    assert middle(0, 0) == middle(5, 3)
    assert tuple(image[0, 0].tolist()) != middle(0, 0), "the frame between the cells"


def test_games_are_those_of_pettingzoo() -> None:
    """The same random moves in both: all that is shown, paid and over, at every step."""
    pytest.importorskip("pettingzoo")
    ours = make_env(EnvSettings(id="connect_four"))
    theirs = make_env(EnvSettings(id="pettingzoo", args={"env": "pettingzoo.classic.connect_four_v3"}))
    assert {f.name: f.shape for f in ours.spec.observation} == {f.name: f.shape for f in theirs.spec.observation}
    rng, seen, other = np.random.default_rng(3), blank(ours.spec), blank(theirs.spec)
    ends: list[tuple[float, ...]] = []
    for game in range(60):
        ours.reset(game, seen)
        theirs.reset(game, other)
        moves = iter(DRAWN) if game == 0 else None
        over = False
        while not over:
            alike(seen, other)
            action = np.full(2, int(next(moves))) if moves else random_actions(ours.spec, rng, seen, 2)
            reward, over, _, _ = ours.step(action, seen)
            wanted, terminated, _, _ = theirs.step(action, other)
            assert reward.tolist() == wanted.tolist()
            assert terminated.tolist() == [over, over]
        alike(seen, other)
        ends.append(tuple(reward.tolist()))
    theirs.close()
    assert set(ends) == {(1, -1), (-1, 1), (0, 0)}, "both win sometimes, and one game is drawn"


def alike(ours: Obs, theirs: Obs) -> None:
    for name, array in ours.items():
        other: Array = theirs[name]
        assert (array == other).all(), name
