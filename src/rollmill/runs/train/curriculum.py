"""A curriculum from the config alone: variables of the environment that move with the progress of the run.

::

    env.variables: {distance: 8}
    observers: {use: [rollmill.runs.train.curriculum:Ramp], args: {Ramp: {distance: [1, 8], until: 0.5}}}

makes ``distance`` go from 1 to 8 over the first half of the run. ``env.variables`` holds what evaluations use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollmill.runs.train.observers import Observer

if TYPE_CHECKING:
    from rollmill.runs.train.loop import OnlineRun


class Ramp(Observer):
    """Moves each of ``variables`` (name to ``[first, last]``) evenly until the share ``until`` of the run is done."""

    def __init__(self, until: float = 1.0, **variables: Any) -> None:
        if not 0 < until <= 1:
            raise ValueError(f"until={until} is a share of the run, above 0 and up to 1")
        for name, ends in variables.items():
            if not isinstance(ends, list | tuple) or len(ends) != 2:
                raise ValueError(f"{name}={ends!r}: expected [first, last]")
        self._until = until
        self._ends = {name: (float(first), float(last)) for name, (first, last) in variables.items()}

    def on_init(self, run: OnlineRun) -> None:
        self._turn(run)

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        self._turn(run)

    def extra_summaries(self, run: OnlineRun) -> dict[str, float]:
        return {f"variable/{name}": run.variables[name] for name in self._ends}

    def _turn(self, run: OnlineRun) -> None:
        done = min(1.0, run.progress / self._until)
        for name, (first, last) in self._ends.items():
            run.set_variable(name, first + (last - first) * done)
