"""How nodes stand, as a run writes it down and others read it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollmill.core.errors import ClusterError
from rollmill.distributed.messages import NodeState
from rollmill.distributed.standing import FILE, Rate, Rates, RunStanding, standing_of


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


def test_a_rate_is_that_of_the_time_between_two_pieces_of_news() -> None:
    """Who asks faster than news come is told the same, not zero and then twice as much."""
    first = Rate(10.0, 0, 0).at(12.0, 100, 4000)
    assert (first.rows_per_s, first.bytes_per_s) == (50.0, 2000.0)
    assert first.at(12.0, 100, 4000) == first
    assert first.at(14.0, 100, 4000).rows_per_s == 0.0


def test_an_incarnation_that_is_new_counts_from_the_last_look() -> None:
    rates = Rates()
    rates.look([state(50)], 1e6)
    found = rates.look([state(150), state(40, 1001)], 1e6 + 2)
    assert (found[1000].rows_per_s, found[1001].rows_per_s) == (50.0, 20.0)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    node = standing_of(state(100), Rate(0, 0, 0, 50.0, 2e6))
    assert (node.steps_per_s, node.mb_per_s, node.pack_ratio, node.lost) == (50.0, 2.0, 3.0, 2)
    written = RunStanding(1, "auto", 5.0, 0, "", received=10, lost=2, refused=0, nodes=[node])
    written.write(tmp_path)
    assert RunStanding.read(tmp_path) == written
    (tmp_path / FILE).write_text('{"gateways": 1}')
    with pytest.raises(ClusterError, match="damaged"):
        RunStanding.read(tmp_path)
