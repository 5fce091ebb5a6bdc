"""What every training runner measures, in one way for all of them. Plain Python: any peer's venv can import it.

A runner counts its env steps and episodes, says when an update is done, and stops when ``over``. It prints one
JSON line with the rate between its first and its last update, and when the goal was reached.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import deque

WINDOW = 100
"""Episodes behind a mean return: the goal counts once so many have ended and their mean has reached it."""


def arguments(description: str) -> argparse.ArgumentParser:
    """The options every training runner has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--task", choices=["cartpole", "pong"], required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--launched", type=float, default=time.time(), help="time.time() when the process was started")
    parser.add_argument("--limit", type=float, default=30, help="seconds after the first step when it gives up")
    parser.add_argument("--rate-seconds", type=float, default=10, help="measure the rate for at least so long")
    parser.add_argument("--goal", type=float, default=None, help=f"mean return of the last {WINDOW} episodes")
    return parser


class Stopwatch:
    """Times one training run."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._steps = 0
        self._first_step: float | None = None
        self._updates: list[tuple[float, int]] = []
        self._returns: deque[float] = deque(maxlen=WINDOW)
        self._solved: tuple[float, int] | None = None

    def step(self, count: int) -> None:
        """So many env steps are about to be asked for (all envs together)."""
        if self._first_step is None:
            self._first_step = time.time()
        self._steps += count

    def episode(self, total: float) -> None:
        """An episode has ended with this (unclipped) return."""
        self._returns.append(float(total))
        goal = self._options.goal
        if self._solved is None and goal is not None and len(self._returns) == WINDOW and self.mean >= goal:
            self._solved = time.time(), self._steps

    def update(self) -> None:
        """A training phase (all epochs over one batch) is done."""
        self._updates.append((time.time(), self._steps))

    @property
    def mean(self) -> float:
        return sum(self._returns) / len(self._returns) if self._returns else float("nan")

    @property
    def over(self) -> bool:
        """Solved (or nothing to solve) and the rate is known, or out of time."""
        if self._first_step is None or len(self._updates) < 2:
            return False
        now = time.time()
        measured = now - self._updates[0][0] >= self._options.rate_seconds
        return measured and (
            self._options.goal is None or self._solved is not None or now - self._first_step >= self._options.limit
        )

    def report(self, **more: object) -> None:
        """Print the JSON line."""
        assert self._first_step is not None, "no step was counted"
        (begun, before), (ended, after) = self._updates[0], self._updates[-1]
        result: dict[str, object] = {
            "steps_per_s": (after - before) / (ended - begun),
            "first_step_s": self._first_step - self._options.launched,
            "first_update_s": begun - self._options.launched,
            "mean_return": self.mean if self._returns else None,
            "steps": self._steps,
            "solved_s": None,
            "solved_wall_s": None,
            "solved_steps": None,
        }
        if self._solved is not None:
            when, steps = self._solved
            result |= {
                "solved_s": when - self._first_step,
                "solved_wall_s": when - self._options.launched,
                "solved_steps": steps,
            }
        print(json.dumps({**result, **more}), flush=True)
        sys.stdout.flush()
