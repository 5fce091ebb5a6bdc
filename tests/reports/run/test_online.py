"""The page about an online run: which of several workers, or policies, stands apart from the others."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest

from rollmill.reports.run.online import _comparisons


def marked(returns: Sequence[float]) -> list[int]:
    """Workers that stand out on the page of a run that ended with these mean returns."""
    page = str(_comparisons([{"frames": 100, **{f"worker{k}/return": y for k, y in enumerate(returns)}}]))
    return [int(k) for k in re.findall(r"worker (\d+)</td><td>[^<]*</td><td>[^<]*</td><td class=.warn.>", page)]


@pytest.mark.parametrize("count", [4, 6, 10, 40])
def test_a_worker_whose_environments_differ_is_marked_among_few_and_among_many(count: int) -> None:
    usual = [100.0 + (-1) ** k * (k % 3) for k in range(count)]
    assert marked(usual) == []
    assert marked([*usual[:-1], 160.0]) == [count - 1]
    assert marked([40.0, *usual[1:]]) == [0]


@pytest.mark.parametrize("count", [3, 4, 8, 16])
def test_equal_workers_are_hardly_ever_marked(count: int) -> None:
    rng = np.random.default_rng(count)
    runs = 1000
    found = sum(bool(marked(rng.normal(20.0, 5.0, count).tolist())) for _ in range(runs))
    assert found / runs < 0.02


def test_one_other_says_nothing_and_equal_others_say_all() -> None:
    assert marked([1.0, 500.0]) == []
    assert marked([7.0] * 4) == []
    assert marked([7.0, 7.0, 7.0, 7.5]) == [3]
    assert _comparisons([{"frames": 1}]) == ""
