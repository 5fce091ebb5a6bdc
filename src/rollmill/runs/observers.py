"""What can be hooked into a run. Subclass ``Observer`` and override what you need.

Cadence: ``on_training_step`` fires once per training step, after the weights were published;
``run.segments`` then holds exactly the arrays that step has learnt from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollmill.runs.online import OnlineRun


class Observer:
    """All hooks of a run; the base class does nothing."""

    def on_init(self, run: OnlineRun) -> None:
        """Everything is built, nothing has started."""

    def on_start(self, run: OnlineRun) -> None:
        """Workers are being started."""

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        """One batch has been learnt from; ``iteration`` counts from 1 over all sessions of the run."""

    def extra_summaries(self, run: OnlineRun) -> dict[str, float]:
        """Figures to add to every row of metrics."""
        return {}

    def on_stop(self, run: OnlineRun) -> None:
        """The run is over, for whatever reason; always called once after ``on_init``."""
