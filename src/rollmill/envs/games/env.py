"""Small games as environments of two agents: matrix games, Kuhn and Leduc poker.

Both players are asked at every step. Whose turn it is not has a single choice, 0, that means nothing: its row counts,
and carries what the other player's move brings.
"""

from __future__ import annotations

import bisect
import functools
import random
from collections.abc import Callable, Sequence

import numpy as np

from rollmill.core.errors import ConfigError, EnvError
from rollmill.core.fields import MASK_FIELD, ActionSpec, Array, EnvSpec, Field, Obs
from rollmill.core.protocols import StepReturn
from rollmill.envs.games.rules import Kuhn, Leduc, MatrixGame
from rollmill.envs.games.tree import CHANCE, END, GameTree, Rules, grow
from rollmill.envs.spaces import mask_field

GAMES: dict[str, Callable[[], Rules]] = {"kuhn_poker": Kuhn, "leduc_poker": Leduc}
MATRICES = {
    "biased_rps": ((0.0, -1.0, 2.0), (1.0, 0.0, -1.0), (-2.0, 1.0, 0.0)),
    "two_by_two": ((3.0, -2.0), (-2.0, 1.0)),
}
"""Rock, paper, scissors where rock wins twice as much against scissors: (1/4, 1/2, 1/4) cannot be beaten; and a game of
two choices, where (3/8, 5/8) cannot."""


class TreeEnv:
    """Walks along the tree of a game. A seed and the moves fix an episode."""

    def __init__(self, *, game: str = "kuhn_poker", payoff: Sequence[Sequence[float]] | None = None) -> None:
        """Build it.

        Args:
            game: ``kuhn_poker``, ``leduc_poker``, ``biased_rps`` or ``two_by_two``.
            payoff: A matrix game of your own: what the first player wins, by rows (its choices) and columns.
        """
        self.tree = game_tree(game, payoff)
        tree, rules = self.tree, self.tree.rules
        action = ActionSpec("discrete", nvec=(rules.actions,), start=(0,))
        self.spec = EnvSpec(
            name=rules.name,
            observation=(Field("obs", "float32", (tree.views.shape[2],)), mask_field(action)),
            action=action,
            agents=2,
        )
        self._masks = _masks(tree)
        self._player, self._child = tree.player.tolist(), tree.child.tolist()
        self._outcomes = {node: (after.tolist(), ends.tolist()) for node, (after, ends) in tree.outcomes.items()}
        self._moves = 2 if rules.at_once else 1
        self._node = -1
        self._rng = random.Random(0)

    def reset(self, seed: int, obs: Obs) -> None:
        self._rng.seed(seed)
        self._node = self._settled(0)
        self._write(obs)

    def step(self, action: Array, obs: Obs) -> StepReturn:
        if self._node < 0 or self._player[self._node] == END:
            raise EnvError("step() without a running episode: call reset() first")
        for _ in range(self._moves):
            player = self._player[self._node]
            chosen = int(action[player])
            after = self._child[self._node][chosen]
            if after < 0:
                raise ValueError(f"player {player} chose {chosen}, which is not allowed here")
            self._node = self._settled(after)
        self._write(obs)
        over = self._player[self._node] == END
        won = self.tree.payoff[self._node]
        return np.array([won, -won], np.float32), over, False, {}

    def render(self) -> Array | None:
        return None

    def close(self) -> None:
        return None

    def _settled(self, node: int) -> int:
        """Return the next node where somebody moves, or the end."""
        while self._player[node] == CHANCE:
            after, ends = self._outcomes[node]
            node = after[min(bisect.bisect_right(ends, self._rng.random()), len(after) - 1)]
        return node

    def _write(self, obs: Obs) -> None:
        obs["obs"][:] = self.tree.views[self._node]
        obs[MASK_FIELD][:] = self._masks[self._node]


def game_tree(game: str, payoff: Sequence[Sequence[float]] | None = None) -> GameTree:
    """Return the tree of a game by name, to be read only; raises ConfigError if there is none."""
    if payoff is not None:
        return grow(MatrixGame(payoff))
    if game not in GAMES and game not in MATRICES:
        raise ConfigError(f"env.args.game={game}: expected one of {', '.join((*GAMES, *MATRICES))}")
    return _named_tree(game)


@functools.cache
def _named_tree(game: str) -> GameTree:
    """Grow a game's tree once for all environments of a process."""
    return grow(GAMES[game]() if game in GAMES else MatrixGame(MATRICES[game]))


def _masks(tree: GameTree) -> Array:
    """Return ``[n, 2, actions]`` uint8, what each player may choose; whoever waits, choice 0 alone."""
    masks = np.zeros((len(tree.player), 2, tree.rules.actions), np.uint8)
    masks[:, :, 0] = 1
    moving = np.flatnonzero(tree.player >= 0)
    masks[moving, tree.player[moving]] = tree.child[moving] >= 0
    if tree.rules.at_once:
        masks[0, 1] = tree.child[tree.child[0, 0]] >= 0
    return masks
