"""Players to measure policies against (``rollmill match ... benchmarks/game_players.py:win_or_block``), an observer."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rollmill.core.fields import Array, EnvSpec
from rollmill.runs.train.games import Exploitability
from rollmill.runs.train.loop import OnlineRun


class WinOrBlock:
    """Connect four: wins where it can, else keeps the other one from winning, else plays at random."""

    def __init__(self, spec: EnvSpec) -> None:
        self._rng = np.random.default_rng(0)

    def reset(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def __call__(self, obs: Mapping[str, Array]) -> int:
        columns = np.flatnonzero(obs["action_mask"]).tolist()
        if not obs["turn"][0]:
            return int(columns[0])
        return int(self._rng.choice(self.good(obs["observation"] > 0, columns)))

    def good(self, board: Array, columns: list[int]) -> list[int]:
        """The columns it chooses from, given both sides' stones ``[6, 7, 2]``, its own first."""
        taken = board.any(axis=2)
        for side in (0, 1):
            for column in columns:
                if wins(board[:, :, side], taken, column):
                    return [column]
        return columns


class TwoPlies(WinOrBlock):
    """Connect four, a search of depth 2: wins where it can, else moves such that the other one cannot win at once."""

    def good(self, board: Array, columns: list[int]) -> list[int]:
        taken = board.any(axis=2)
        winning = [column for column in columns if wins(board[:, :, 0], taken, column)]
        return winning or [column for column in columns if not self._loses(board, column)] or columns

    def _loses(self, board: Array, column: int) -> bool:
        """Whether the other one can win after a stone in this column."""
        taken = board.any(axis=2)
        taken[landing(taken, column), column] = True
        return any(wins(board[:, :, 1], taken, reply) for reply in np.flatnonzero(~taken[0]).tolist())


def landing(taken: Array, column: int) -> int:
    """The row in which a stone comes to rest; row 0 is the top."""
    return int(np.flatnonzero(~taken[:, column])[-1])


def wins(mine: Array, taken: Array, column: int) -> bool:
    """Whether one more piece in this column makes four in a row; row 0 is the top."""
    row = landing(taken, column)
    for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
        length = 1
        for sign in (1, -1):
            r, c = row + sign * down, column + sign * right
            while 0 <= r < 6 and 0 <= c < 7 and mine[r, c]:
                length, r, c = length + 1, r + sign * down, c + sign * right
        if length >= 4:
            return True
    return False


win_or_block = WinOrBlock
two_plies = TwoPlies


class Choices(Exploitability):
    """Logs the first player's probability of choice 0 as well."""

    def extra_summaries(self, run: OnlineRun) -> dict[str, float]:
        return {**super().extra_summaries(run), "game/first_choice": float(self._policy[0, 0])}
