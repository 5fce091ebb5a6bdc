"""What a match counts: the terms of every agent's reward, and its statistics at the end.

All of it is read from the engine's variables, as changes since the step before. What is picked up or lost by dying and
coming back (health, armour, weapons) counts for nothing.

================ =================================================== ======
term             value of a step                                     weight
================ =================================================== ======
``frag``         frags won                                           1
``lost_frag``    frags lost (who kills himself loses one), negative  1.5
``death``        deaths, negative                                    0.75
``hit``          hits dealt, at most 5                               0.01
``damage``       damage dealt, at most 200                           0.003
``health``       health gained                                       0.005
``lost_health``  health lost, negative                               0.003
``armor``        armour gained                                       0.005
``lost_armor``   armour lost, negative                               0.001
``weapon``       weapons found that were not held                    0.02
================ =================================================== ======

Terms and weights are close to those of Sample Factory's matches; ammunition is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rollmill.core.fields import Array

TERMS = {
    "frag": 1.0,
    "lost_frag": 1.5,
    "death": 0.75,
    "hit": 0.01,
    "damage": 0.003,
    "health": 0.005,
    "lost_health": 0.003,
    "armor": 0.005,
    "lost_armor": 0.001,
    "weapon": 0.02,
}
"""Of the reward, with their usual weights."""
MOST_HITS, MOST_DAMAGE = 5.0, 200.0
"""Of one step: a rocket into a crowd should not be worth more than all else."""
COUNTED = ("FRAGCOUNT", "DEATHCOUNT", "HITCOUNT", "DAMAGECOUNT", "HEALTH", "ARMOR", "DEAD")
FRAGS, DEATHS, HITS, DAMAGE, HEALTH, ARMOR, DEAD = range(len(COUNTED))
WEAPONS = tuple(f"WEAPON{n}" for n in range(1, 8))


class Score:
    """The score of one match after another; ``games`` are the agents'."""

    def __init__(self, vizdoom: Any, games: Sequence[Any], bots: int) -> None:
        known = vizdoom.GameVariable.__members__
        self._games = games
        self._variables = [known[name] for name in (*COUNTED, *WEAPONS)]
        self._frags_of_all = [known[f"PLAYER{n}_FRAGCOUNT"] for n in range(1, len(games) + bots + 1)]
        self._last = self._first = [[0.0] * len(self._variables) for _ in games]

    def begin(self) -> None:
        """Begin a match."""
        self._last = self._first = self._read()

    def _read(self) -> list[list[float]]:
        """Return the variables as they stand, ``[agents][variables]``."""
        return [[game.get_game_variable(v) for v in self._variables] for game in self._games]

    def step(self) -> dict[str, Array]:
        """Return the values of the terms since the last call, ``[agents]`` each; none where nothing has happened."""
        last, self._last = self._last, self._read()
        if self._last == last:  # so it is in most steps
            return {}
        before, now = np.array(last), np.array(self._last)
        change = now - before
        # The whole time alive: what somebody has when he comes back is not found.
        alive = (change[:, DEATHS] == 0) & (before[:, DEAD] == 0) & (now[:, DEAD] == 0)
        held, found = np.where(alive[:, None], change[:, [HEALTH, ARMOR]], 0.0).T, now[:, DEAD + 1 :] > 0
        new = (found & ~(before[:, DEAD + 1 :] > 0)).sum(axis=1) * alive
        return {
            "frag": np.maximum(change[:, FRAGS], 0.0),
            "lost_frag": np.minimum(change[:, FRAGS], 0.0),
            "death": -change[:, DEATHS],
            "hit": np.minimum(change[:, HITS], MOST_HITS),
            "damage": np.minimum(change[:, DAMAGE], MOST_DAMAGE),
            "health": np.maximum(held[0], 0.0),
            "lost_health": np.minimum(held[0], 0.0),
            "armor": np.maximum(held[1], 0.0),
            "lost_armor": np.minimum(held[1], 0.0),
            "weapon": new.astype(np.float64),
        }

    def statistics(self) -> dict[str, Array]:
        """Return how the match stands, agents and bots compared, ``[agents]`` each."""
        last = np.array(self._last)
        since, frags = last - np.array(self._first), last[:, FRAGS]
        everybody = np.array([self._games[0].get_game_variable(v) for v in self._frags_of_all])
        place = 1 + (everybody[None, :] > frags[:, None]).sum(axis=1)
        ahead = (everybody[None, :] >= frags[:, None]).sum(axis=1) == 1  # nobody but the agent has as many
        return {
            "frags": frags,
            "deaths": since[:, DEATHS],
            "hits": since[:, HITS],
            "damage": since[:, DAMAGE],
            "place": place.astype(np.float64),
            "won": ahead.astype(np.float64),
        }
