"""CMA-ES (Hansen) through pycma, for returns (larger is better), continued exactly without a pickle.

The random numbers of generation g come from the seed and g alone. So the whole search follows from the returns it was
told: a checkpoint holds those, and a resumed search is told them again. It then compares its mean with the saved one:
another processor may round otherwise, and a search that silently became another one would be worse than an error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from rollmill.core.errors import CheckpointError, MissingExtraError, NonFiniteError
from rollmill.core.fields import Array
from rollmill.core.seeds import Seeds
from rollmill.core.shapes import ArrayOf, Shape

VECTOR = ArrayOf("f", 1)

SEARCH_SHAPE: Shape = {
    "origin": {"start": VECTOR, "stds": VECTOR, "sigma": float, "first": int, "shrink?": float},
    "told": ArrayOf("f", 2),
    "mean": VECTOR,
    "sigma": float,
    "stds": VECTOR,
    "generation": int,
}
FULL_UP_TO = 2_000
"""Weights up to which ``auto`` learns a full covariance matrix: above, its decomposition costs more than it brings."""
TOLERANCE = 1e-6
"""Of the mean after a replay, in units of the step size."""
QUIET = -10
"""pycma's ``verbose``: at -9 and above it reads (and evaluates) a file ``cma_signals.in`` of the working directory."""


class Search:
    """A search for the weights with the highest return."""

    def __init__(
        self,
        size: int,
        population: int,
        sigma: float,
        seed: int,
        covariance: Literal["auto", "full", "diagonal"] = "auto",
        start: Array | None = None,
        first_generation: int = 0,
        stds: Array | None = None,
        shrink: float = 1.0,
    ) -> None:
        """Begin a search; ``shrink``: factor of the step size after every generation, beside what CMA-ES does."""
        self.size, self.population = size, population
        self._shrink = shrink
        self._seeds = Seeds(seed).branch("search")
        self._first = first_generation
        self.generation = first_generation
        """Generations that were told."""
        self._told: list[Array] = []
        self._origin = {
            "start": np.zeros(size) if start is None else np.asarray(start, np.float64),
            "stds": np.ones(size) if stds is None else np.asarray(stds, np.float64),
            "sigma": sigma,
            "first": first_generation,
            "shrink": shrink,
        }
        self._rng = self._seeds.generator()
        self._asked: list[Array] = []
        diagonal = covariance == "diagonal" or (covariance == "auto" and size > FULL_UP_TO)
        options = {
            "popsize": population,
            "verbose": QUIET,
            "seed": math.nan,  # numpy's global generator is left alone
            "randn": lambda *shape: self._rng.standard_normal(shape),
            "CMA_diagonal": diagonal,
            "CMA_stds": self._origin["stds"],
        }
        self._es = _pycma().CMAEvolutionStrategy(self._origin["start"], sigma, options)

    @property
    def mean(self) -> Array:
        """``[size]``: the middle of the search, its best guess where returns are noisy."""
        return np.array(self._es.mean, np.float64)

    @property
    def sigma(self) -> float:
        """The step size."""
        return float(self._es.sigma)

    @property
    def stds(self) -> Array:
        """``[size]``: standard deviations of the search along every weight, the step size left out."""
        return np.asarray(self._es.stds, np.float64) / self.sigma

    def ask(self) -> Array:
        """Return the members of the next generation ``[population, size]``; the same ones until ``tell``."""
        if not self._asked:
            self._rng = self._seeds.branch(self.generation).generator()
            self._asked = [np.asarray(x) for x in self._es.ask()]
        return np.stack(self._asked)

    def tell(self, returns: Array) -> None:
        """Take in the returns ``[population]`` of the members that were asked for."""
        values = np.asarray(returns, np.float64)
        if values.shape != (self.population,):
            raise ValueError(f"{values.shape} returns for {self.population} members")
        if not np.isfinite(values).all():
            bad = int(np.flatnonzero(~np.isfinite(values))[0])
            raise NonFiniteError(f"generation {self.generation}: the return of member {bad} is {values[bad]}")
        self.ask()
        self._es.tell(self._asked, (-values).tolist())
        self._es.sigma *= self._shrink
        self._told.append(values)
        self._asked = []
        self.generation += 1

    # -- checkpoints ---------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        told = np.stack(self._told) if self._told else np.zeros((0, self.population))
        return {
            "origin": dict(self._origin),
            "told": told,
            "mean": self.mean,
            "sigma": self.sigma,
            "stds": self.stds,
            "generation": self.generation,
        }

    def replay(self, told: Array) -> None:
        """Tell the returns ``[generations, population]`` of an earlier session."""
        for returns in told:
            self.tell(returns)


def resume_search(
    state: Mapping[str, Any],
    *,
    seed: int,
    covariance: Literal["auto", "full", "diagonal"],
    how: Literal["replay", "mean"],
    where: str,
) -> Search:
    """Return the search that ``state`` was saved of; raises CheckpointError where a replay ends elsewhere."""
    population = state["told"].shape[1]
    size = len(state["mean"])
    origin = {"shrink": 1.0, **state["origin"]}  # versions before had none
    if how == "mean":
        origin |= {"sigma": state["sigma"], "start": state["mean"], "first": state["generation"], "stds": state["stds"]}
    search = Search(
        size,
        population,
        origin["sigma"],
        seed,
        covariance,
        start=origin["start"],
        first_generation=origin["first"],
        stds=origin["stds"],
        shrink=origin["shrink"],
    )
    if how == "mean":
        return search
    search.replay(state["told"])
    off = float(np.abs(search.mean - state["mean"]).max()) / max(state["sigma"], 1e-300)
    if not off <= TOLERANCE:
        raise CheckpointError(
            f"{where}: told the same returns, CMA-ES ends elsewhere than it was ({off:.2g} step sizes away), because "
            "this machine or version of pycma rounds otherwise. "
            "Go on from the saved mean and step sizes with resume=mean"
        )
    return search


def _pycma() -> Any:
    try:
        import cma
    except ModuleNotFoundError as error:
        raise MissingExtraError('CMA-ES needs pycma: pip install "rollmill[world]"') from error
    return cma
