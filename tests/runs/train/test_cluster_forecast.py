"""How old rows will be, forecast from what lies on the way."""

from __future__ import annotations

from pathlib import Path

import pytest
from clustering import node_plan
from running import config_of

from rollmill.runs.train.cluster_forecast import announce, expected_lag


def test_rows_on_their_way_divided_by_those_of_an_update(tmp_path: Path) -> None:
    config, plan = config_of(tmp_path, "cluster=local", "learning.batch_size=32"), node_plan()
    # Segments of 8 steps in 2 lanes; 6 groups are half full: 48 rows. 4 slots more: 64 rows.
    assert expected_lag(config, plan.layout, groups=6, waiting=4) == (1.5, 3.5)


@pytest.mark.parametrize(("lag", "level", "said"), [(20, "INFO", "max_policy_lag=20"), (2, "WARNING", "batch_size")])
def test_rows_that_would_be_too_old_are_told_of(
    lag: int, level: str, said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = config_of(tmp_path, "cluster=local", "learning.batch_size=32", f"learning.max_policy_lag={lag}")
    with caplog.at_level("INFO", "rollmill"):
        announce(config, node_plan(), own_groups=2, slots=6, remote=4)
    first, second = caplog.records
    assert "up to 1 nodes of 2 workers x 4 environments; 4 slots" in first.getMessage()
    assert "with 1 nodes rows will be 1.5 to 3.5 updates old" in second.getMessage()
    assert (second.levelname, said in second.getMessage()) == (level, True)
