"""Evaluations say how far they are: every five seconds where there is no terminal."""

from __future__ import annotations

import io
import sys

import pytest

from rollmill.cli.progress import EvaluationLine, bar, line
from rollmill.runs.evaluate.play import Metrics


def test_lines_every_five_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    with EvaluationLine(lambda: now[0]) as progress:
        for second in range(13):
            now[0] = float(second)
            progress.show(Metrics("dt (0 of 3 rows done)", second, 100, "episodes", 3.0 if second else None))
    assert capsys.readouterr().err.splitlines() == [
        "dt (0 of 3 rows done): 5 of 100 episodes, mean return 3, left 1 min 35 s",
        "dt (0 of 3 rows done): 10 of 100 episodes, mean return 3, left 1 min 30 s",
    ]


def test_a_terminal_has_a_bar_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("COLUMNS", "40")
    with EvaluationLine(lambda: 1.0) as progress:
        progress.show(Metrics("a policy with a very long name indeed", 1, 2, "episodes", 1.0))
    assert screen.getvalue() == "\r\033[K[##########..........] a policy with a \n"


def test_the_words() -> None:
    assert bar(0.5, line(Metrics("policy", 2, 4, "steps", None))) == "[##########..........] policy: 2 of 4 steps"
    assert line(Metrics("x (1 of 2)", 1000, 2000, "steps", 1.0)) == "x (1 of 2): 1,000 of 2,000 steps, mean return 1"
