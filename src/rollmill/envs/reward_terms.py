"""Rewards made of named terms, each with a weight of its own: a mechanism for any environment.

An environment declares its terms with their usual weights, gives their values in every step, and hands out the sums of
an episode as ``info["episode_stats"]``, so that each is logged by itself (``episode/reward_goal``)::

    self._terms = RewardTerms({"goal": 1.0, "step": 1.0}, env_args, lanes=1)
    ...
    reward = self._terms.step(goal=10.0 * reached, step=-0.1)

Weights come from the configuration (``env.args.rewards.goal=0.5``). A weight of 0 takes a term out of the reward; it is
logged all the same. Handed the environment's ``variables``, a term follows the variable of its logged name
(``env.variables.reward_goal``), which a population or a curriculum moves, from one episode to the next.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rollmill.core.fields import Array
from rollmill.core.text import nearest

PREFIX = "reward_"
"""Of the names under which the sums of terms are logged."""


class RewardTerms:
    """The terms of ``lanes`` environments that are stepped together."""

    def __init__(
        self,
        usual: Mapping[str, float],
        weights: Mapping[str, float] | None = None,
        lanes: int = 1,
        variables: Mapping[str, float] | None = None,
    ) -> None:
        """Weigh every term as ``usual`` says, unless ``weights`` says otherwise; raises ValueError for an unknown term.

        ``variables``: those named ``reward_<term>`` come before both.
        """
        self._variables = variables or {}
        self._moved = [name.removeprefix(PREFIX) for name in self._variables if name.startswith(PREFIX)]
        for name, weight in {**(weights or {}), **dict.fromkeys(self._moved, 0.0)}.items():
            if name not in usual:
                hint = nearest(name, usual)
                raise ValueError(
                    f"no reward term {name!r}{f'; {hint}' if hint else ''} (there are: {', '.join(usual)})"
                )
            if isinstance(weight, bool) or not isinstance(weight, int | float) or not np.isfinite(weight):
                raise ValueError(f"the weight of reward term {name!r} must be a number, not {weight!r}")
        self.weights = {**usual, **(weights or {})}
        self._index = {name: k for k, name in enumerate(usual)}
        self._sums = np.zeros((len(usual), lanes))
        self._take()

    def moves(self, name: str) -> bool:
        """Return whether the term counts now, or may come to count."""
        return bool(self.weights[name]) or name in self._moved

    def _take(self) -> None:
        for name in self._moved:
            self.weights[name] = self._variables[PREFIX + name]

    def step(self, **values: Array | float) -> Array:
        """Return ``[lanes]`` float64, the reward of this step, from the values of its terms; one left out is 0."""
        reward = np.zeros(self._sums.shape[1])
        for name, value in values.items():
            weighted = self.weights[name] * np.asarray(value, np.float64)
            self._sums[self._index[name]] += weighted
            reward += weighted
        return reward

    def sums(self, scale: float = 1.0) -> dict[str, Array]:
        """Return what every term has brought since ``reset``, ``[lanes]`` each, by the name it is logged under."""
        return {f"{PREFIX}{name}": self._sums[k] * scale for name, k in self._index.items()}

    def reset(self, lanes: Array | slice = slice(None)) -> None:
        """Begin new episodes in these lanes."""
        self._sums[:, lanes] = 0.0
        self._take()
