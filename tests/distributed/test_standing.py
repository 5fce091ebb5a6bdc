"""How nodes stand, as a run writes it down and others read it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rollmill.core.errors import ClusterError
from rollmill.distributed.messages import NodeState
from rollmill.distributed.standing import FILE, SPAN_SECONDS, Rate, Rates, RunStanding, standing_of


def state(rows: int, incarnation: int = 1000) -> NodeState:
    return NodeState(
        node="alpha",
        seat=0,
        incarnation=incarnation,
        stage="sampling",
        reason="",
        rows=rows,
        packed_bytes=rows * 4,
        raw_bytes=rows * 12,
        lag=1.5,
        heard=0.1,
        lost=2,
    )


def test_a_rate_is_that_of_the_last_seconds_of_news() -> None:
    rates, begun = Rates(), time.monotonic()
    found = [rates.hear([state(rows)], begun + 0.5 * k)[1000] for k, rows in enumerate((0, 0, 600, 600, 600), start=1)]
    assert found[1] == Rate(0.0, 0.0)
    assert found[2].rows_per_s == pytest.approx(600 / 1.5, rel=1e-3)
    assert found[2].bytes_per_s == pytest.approx(4 * 600 / 1.5, rel=1e-3)
    assert found[4].rows_per_s == pytest.approx(600 / 2.5, rel=1e-3), "a moment without segments does not make it 0"
    late = begun + 2.5 + SPAN_SECONDS
    assert rates.hear([state(600)], late)[1000] == Rate(0.0, 0.0)
    assert rates.hear([state(700)], late + 1)[1000].rows_per_s == pytest.approx(100 / (SPAN_SECONDS + 1))


def test_an_incarnation_that_is_new_counts_from_the_news_before() -> None:
    rates, begun = Rates(), time.monotonic()
    rates.hear([state(50)], begun + 1)
    found = rates.hear([state(150), state(40, 1001)], begun + 3)
    assert found[1000].rows_per_s == pytest.approx(50.0, rel=1e-3)
    assert found[1001].rows_per_s == 20.0


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    node = standing_of(state(100), Rate(50.0, 2e6))
    assert (node.steps_per_s, node.mb_per_s, node.pack_ratio, node.lost, node.codec) == (50.0, 2.0, 3.0, 2, "RMS1")
    written = RunStanding(1, "auto", 5.0, 0, "", received=10, lost=2, refused=0, nodes=[node])
    written.write(tmp_path)
    assert RunStanding.read(tmp_path) == written
    (tmp_path / FILE).write_text('{"gateways": 1}')
    with pytest.raises(ClusterError, match="damaged"):
        RunStanding.read(tmp_path)
