"""Who played at a moment of a run, and which checkpoint comes nearest."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from experimenting import online, write_run
from viewing import counting_store

from rollmill.core.checkpoints import Checkpoints
from rollmill.core.run_folder import RunFolder
from rollmill.store.reader import Store
from rollmill.viewer.moment import Played, moment, played_at

NONE = np.empty(0)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """Checkpoints at 100, 200, 300 frames; an asynchronous training, so that version 40 came after 200 frames."""
    folder = RunFolder(tmp_path / "run")
    write_run(folder.path, online(), [1.0])
    checkpoints = Checkpoints(folder.checkpoints, keep_last=0, min_free_mb=0)
    for step, version in ((100, 10), (200, 30), (300, 44)):
        checkpoints.save({"learners": [{"version": version}, {"version": 2 * version}]}, step, None)
    return folder


def told(run: RunFolder, frames: float, played: Played | None) -> tuple[int | None, int | None]:
    found = moment(run, run.path.parent, frames, NONE, NONE, played)
    return found["checkpoint"], found["version"]


def test_the_checkpoint_is_that_of_the_nearest_version(run: RunFolder) -> None:
    assert told(run, 210, Played(0, 38, 42)) == (300, 44), "the last one before is ten versions older"
    assert told(run, 210, Played(0, 9, 50)) == (200, 30), "of several that played, the one nearest in frames"
    assert told(run, 210, Played(1, 20, 20)) == (100, 20), "of the second policy"
    assert moment(run, run.path.parent, 210, NONE, NONE, Played(0, 38, 42))["played"]["first"] == 38


def test_without_episodes_it_is_the_last_one_before(run: RunFolder) -> None:
    assert told(run, 210, None) == (200, None)
    assert told(run, 50, None) == (None, None)
    assert told(run, 210, Played(7, 38, 42)) == (200, None), "a policy that no checkpoint knows"


def test_damaged_checkpoints_are_passed_over(run: RunFolder) -> None:
    (run.checkpoints / "frames-000000000300.ckpt").write_bytes(b"no checkpoint")
    assert told(run, 210, Played(0, 38, 42)) == (200, 30)


def test_no_checkpoint_is_read_that_a_link_leads_to(run: RunFolder, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside") / "secret.ckpt"
    (run.checkpoints / "frames-000000000300.ckpt").rename(outside)
    (run.checkpoints / "frames-000000000300.ckpt").symlink_to(outside)
    with pytest.raises(OSError, match="leads out of"):
        told(run, 210, Played(0, 38, 42))


def test_who_played_is_told_by_the_episodes(tmp_path: Path) -> None:
    store = Store(counting_store(tmp_path / "data", (90, 150, 40)))
    assert played_at(store, 50) == Played(0, 0, 0)
    assert played_at(store, 120) == Played(0, 1, 1), "its frames, 100 to 249, hold the place"
    assert played_at(store, 95) is None, "between two episodes"
