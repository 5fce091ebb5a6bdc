"""Figures add up between two looks, and only once."""

from rollmill.core.step_figures import StepFigures


def test_figures_add_up_and_are_taken_once() -> None:
    figures = StepFigures()
    assert not figures.fresh
    figures.note({"loss": 1.0, "wait": 0.5})
    figures.note({"loss": 3.0})
    assert figures.fresh
    assert figures.take() == ({"loss": 4.0, "wait": 0.5}, 2)
    assert not figures.fresh
    assert figures.take() == ({}, 0)


def test_what_was_taken_does_not_change_later() -> None:
    figures = StepFigures()
    figures.note({"loss": 1.0})
    sums, _ = figures.take()
    figures.note({"loss": 5.0})
    assert sums == {"loss": 1.0}
