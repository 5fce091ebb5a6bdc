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
        columns = np.flatnonzero(obs["action_mask"])
        if not obs["turn"][0]:
            return int(columns[0])
        board = obs["observation"] > 0
        for side in (0, 1):
            for column in columns.tolist():
                if wins(board[:, :, side], board.any(axis=2), column):
                    return int(column)
        return int(self._rng.choice(columns))


def wins(mine: Array, taken: Array, column: int) -> bool:
    """Whether one more piece in this column makes four in a row; row 0 is the top."""
    row = int(np.flatnonzero(~taken[:, column])[-1])
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


class Choices(Exploitability):
    """Logs the first player's probability of choice 0 as well."""

    def extra_summaries(self, run: OnlineRun) -> dict[str, float]:
        return {**super().extra_summaries(run), "game/first_choice": float(self._policy[0, 0])}
