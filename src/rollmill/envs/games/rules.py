"""Matrix games, Kuhn poker and Leduc poker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rollmill.core.errors import ConfigError
from rollmill.envs.games.tree import CHANCE, END


def _one_hot(index: int, size: int) -> list[float]:
    """Return ``size`` numbers, all 0 but a 1 at ``index``; only zeros for -1."""
    return [float(index == k) for k in range(size)]


# -- matrix games ---------------------------------------------------------------------------------------------


class MatrixGame:
    """Both choose at once; the first player wins ``payoff[row][column]`` and the second one loses it."""

    name = "matrix_game"
    at_once = True

    def __init__(self, payoff: Sequence[Sequence[float]]) -> None:
        try:
            self._payoff = np.array(payoff, np.float64)
        except ValueError as error:  # lists of different lengths
            raise ConfigError(f"env.args.payoff: {error}") from error
        if self._payoff.ndim != 2 or min(self._payoff.shape) < 1 or not np.isfinite(self._payoff).all():
            raise ConfigError(f"env.args.payoff={payoff}: expected rows of numbers, as many in each")
        self.actions = max(self._payoff.shape)

    def start(self) -> tuple[int, ...]:
        return ()

    def player(self, state: tuple[int, ...]) -> int:
        return len(state) if len(state) < 2 else END

    def moves(self, state: tuple[int, ...]) -> list[tuple[int, float, tuple[int, ...]]]:
        return [(k, 1.0, (*state, k)) for k in range(self._payoff.shape[len(state)])]

    def payoff(self, state: tuple[int, ...]) -> float:
        return float(self._payoff[state])

    def view(self, state: tuple[int, ...], player: int) -> list[float]:
        return _one_hot(player, 2)


# -- Kuhn poker -----------------------------------------------------------------------------------------------


class KuhnState(NamedTuple):
    cards: tuple[int, ...] = ()
    bets: tuple[int, ...] = ()
    """1 for a bet (or a call), 0 for a pass (or a fold)."""


class Kuhn:
    """Three cards, one each, one chip in the pot and one to bet (Kuhn 1950). Pass is choice 0, bet is choice 1.

    The first player loses 1/18 of a chip in the mean when nobody makes mistakes.
    """

    name = "kuhn_poker"
    actions = 2
    at_once = False
    CARDS = 3
    _ENDS = ((0, 0), (0, 1, 0), (0, 1, 1), (1, 0), (1, 1))

    def start(self) -> KuhnState:
        return KuhnState()

    def player(self, state: KuhnState) -> int:
        if len(state.cards) < 2:
            return CHANCE
        return END if state.bets in self._ENDS else len(state.bets) % 2

    def moves(self, state: KuhnState) -> list[tuple[int, float, KuhnState]]:
        if len(state.cards) < 2:
            left = [card for card in range(self.CARDS) if card not in state.cards]
            return [(card, 1 / len(left), state._replace(cards=(*state.cards, card))) for card in left]
        return [(bet, 1.0, state._replace(bets=(*state.bets, bet))) for bet in (0, 1)]

    def payoff(self, state: KuhnState) -> float:
        one, other = state.cards
        if state.bets in ((0, 1, 0), (1, 0)):  # somebody has folded
            return 1.0 if state.bets == (1, 0) else -1.0
        stake = 2.0 if state.bets[-1] else 1.0
        return stake if one > other else -stake

    def view(self, state: KuhnState, player: int) -> list[float]:
        """Return which player it is, the own card, and up to three moves (pass and bet), all one-hot."""
        card = state.cards[player] if player < len(state.cards) else -1
        bets = [state.bets[k] if k < len(state.bets) else -1 for k in range(3)]
        return [*_one_hot(player, 2), *_one_hot(card, self.CARDS), *(x for bet in bets for x in _one_hot(bet, 2))]


# -- Leduc poker ----------------------------------------------------------------------------------------------

FOLD, CALL, RAISE = 0, 1, 2


class LeducState(NamedTuple):
    ranks: tuple[int, ...] = ()
    """Of the first player, the second one, and the public card."""
    rounds: tuple[tuple[int, ...], ...] = ((),)
    """The moves of each round of betting."""


class Leduc:
    """Six cards of three ranks, one each and a public one, two rounds of betting (Southey et al. 2005).

    Choices: 0 folds (where there is a bet to answer), 1 calls or passes, 2 raises, twice a round at most, by 2 chips in
    the first round and 4 in the second. A pair with the public card wins, then the higher rank.
    """

    name = "leduc_poker"
    actions = 3
    at_once = False
    RANKS, SUITS, RAISES = 3, 2, 2
    _MOST = 4
    """Moves of a round, at most: pass, raise, raise, call."""

    def start(self) -> LeducState:
        return LeducState()

    def player(self, state: LeducState) -> int:
        betting = state.rounds[-1]
        if len(state.ranks) < 2:
            return CHANCE
        if FOLD in betting:
            return END
        if not self._is_closed(betting):
            return len(betting) % 2
        return CHANCE if len(state.ranks) == 2 else END

    @staticmethod
    def _is_closed(betting: tuple[int, ...]) -> bool:
        """Return whether both have moved, and the last one has not raised."""
        return len(betting) >= 2 and betting[-1] == CALL

    def moves(self, state: LeducState) -> list[tuple[int, float, LeducState]]:
        if self.player(state) == CHANCE:
            return self._deals(state)
        betting = state.rounds[-1]
        allowed = [CALL]
        if betting and betting[-1] == RAISE:
            allowed.insert(0, FOLD)
        if betting.count(RAISE) < self.RAISES:
            allowed.append(RAISE)
        return [(move, 1.0, state._replace(rounds=(*state.rounds[:-1], (*betting, move)))) for move in allowed]

    def _deals(self, state: LeducState) -> list[tuple[int, float, LeducState]]:
        """Return the ranks that can be dealt, each with its chance: suits mean nothing."""
        left = [self.SUITS - state.ranks.count(rank) for rank in range(self.RANKS)]
        rounds = (*state.rounds, ()) if len(state.ranks) == 2 else state.rounds
        return [
            (rank, count / sum(left), LeducState((*state.ranks, rank), rounds))
            for rank, count in enumerate(left)
            if count
        ]

    def stakes(self, state: LeducState) -> tuple[float, float]:
        """Return the chips that each player has put in."""
        chips = [1.0, 1.0]
        for size, betting in zip((2.0, 4.0), state.rounds):
            for k, move in enumerate(betting):
                if move in (CALL, RAISE):
                    chips[k % 2] = chips[1 - k % 2] + (size if move == RAISE else 0.0)
        return chips[0], chips[1]

    def payoff(self, state: LeducState) -> float:
        mine, yours = self.stakes(state)
        betting = state.rounds[-1]
        if betting[-1] == FOLD:
            return yours if len(betting) % 2 == 0 else -mine  # the one who moved last has folded
        one, other, public = state.ranks
        if one == other:
            return 0.0
        wins = one == public or (other != public and one > other)
        return yours if wins else -mine

    def view(self, state: LeducState, player: int) -> list[float]:
        """Return which player it is, the own rank, the public rank, and the moves of both rounds, all one-hot."""
        ranks = state.ranks
        own = ranks[player] if player < len(ranks) else -1
        public = ranks[2] if len(ranks) > 2 else -1
        seen = [*_one_hot(player, 2), *_one_hot(own, self.RANKS), *_one_hot(public, self.RANKS)]
        for number in range(2):
            betting = state.rounds[number] if number < len(state.rounds) else ()
            for k in range(self._MOST):
                seen += _one_hot(betting[k] if k < len(betting) else -1, self.actions)
        return seen
