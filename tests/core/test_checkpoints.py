import errno
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollmill.core import atomic, tree_file
from rollmill.core.checkpoints import Checkpoints, load_checkpoint
from rollmill.core.errors import CheckpointError
from rollmill.core.tree_file import save_tree


def state(value: float = 0.0, kilobytes: int = 1) -> dict[str, Any]:
    return {"w": np.full((kilobytes * 250,), value, np.float32), "lr": 0.1}


def names(checkpoints: Checkpoints) -> list[str]:
    return [c.path.name for c in checkpoints.list()]


def frames(checkpoints: Checkpoints) -> list[int]:
    return [c.step for c in checkpoints.list()]


def flip_last_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "rollmill")
    return caplog


# ----------------------------------------------------------------------------------------- save and load


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    path = checkpoints.save(state(2.0), 123_456, metric=1.5)
    assert path == tmp_path / "checkpoints" / "frames-000000123456.ckpt"
    loaded = checkpoints.load_newest()
    assert (loaded.path, loaded.step, loaded.metric) == (path, 123_456, 1.5)
    np.testing.assert_array_equal(loaded.state["w"], state(2.0)["w"])
    assert load_checkpoint(path).state["lr"] == 0.1


def test_runs_that_count_something_else_say_so(tmp_path: Path) -> None:
    Checkpoints(tmp_path).save(state(), 3, None)  # version 0.1 called everything frames
    checkpoints = Checkpoints(tmp_path, unit="updates")
    checkpoints.save(state(), 5, None)
    assert names(checkpoints) == ["frames-000000000003.ckpt", "updates-000000000005.ckpt"]
    assert tree_file.read_header(tmp_path / "updates-000000000005.ckpt")["unit"] == "updates"
    assert checkpoints.load_newest().step == 5
    checkpoints.save(state(), 5, None, keep=True)
    assert names(checkpoints) == ["frames-000000000003.ckpt", "milestone-000000000005.ckpt"]


def test_an_empty_or_missing_folder_has_nothing(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "none")
    assert checkpoints.list() == ()
    assert checkpoints.newest() is None
    assert checkpoints.best() is None
    with pytest.raises(CheckpointError, match="none: no checkpoint to continue from"):
        checkpoints.load_newest()
    assert not (tmp_path / "none").exists()


def test_which_one_is_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    assert not checkpoints.is_newest(tmp_path / "checkpoints" / "frames-000000000001.ckpt")
    first, second = checkpoints.save(state(), 1, None), checkpoints.save(state(), 2, None)
    monkeypatch.chdir(tmp_path)
    assert checkpoints.is_newest(second.relative_to(tmp_path))
    assert not checkpoints.is_newest(first)
    assert not checkpoints.is_newest(tmp_path / second.name)


def test_a_run_folder_that_is_gone_does_not_come_back_by_a_save(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="checkpoints: cannot be written: No such file"):
        Checkpoints(tmp_path / "run" / "checkpoints").save(state(), 1, None)
    assert not (tmp_path / "run").exists()


def test_the_checkpoint_of_the_start_is_one_like_any_other(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep_last=2, keep_best=1, milestone_frames=100)
    checkpoints.save(state(), 0, None)
    assert (names(checkpoints), checkpoints.best()) == (["frames-000000000000.ckpt"], None)
    for number in (40, 50, 120):
        checkpoints.save(state(), number, 1.0)
    assert frames(checkpoints) == [50, 120]


def test_saving_again_at_the_same_frames_replaces(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(state(1.0), 10, 5.0)
    checkpoints.save(state(2.0), 10, 3.0)
    assert frames(checkpoints) == [10]
    assert checkpoints.load_newest().metric == 3.0


def test_frames_beyond_twelve_digits_sort_as_numbers(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(state(), 999_999_999_999, None)
    checkpoints.save(state(), 1_000_000_000_000, None)
    assert frames(checkpoints) == [999_999_999_999, 1_000_000_000_000]


def test_a_tree_that_is_not_a_checkpoint_of_a_run_is_refused(tmp_path: Path) -> None:
    save_tree(tmp_path / "frames-000000000001.ckpt", {"w": 1})
    with pytest.raises(CheckpointError, match="not the checkpoint of a run"):
        Checkpoints(tmp_path).load_newest()


@pytest.mark.parametrize("name", ["keep_last", "keep_best", "milestone_frames", "min_free_mb"])
def test_negative_numbers_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="must not be negative"):
        Checkpoints(tmp_path, **{name: -1})


# ------------------------------------------------------------------------------------------------ pruning


def test_the_newest_stay_and_every_removal_is_logged(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    checkpoints = Checkpoints(tmp_path, keep_last=2, keep_best=0)
    for n in (10, 20, 30, 40):
        checkpoints.save(state(), n, None)
    assert frames(checkpoints) == [30, 40]
    removed = [r.getMessage() for r in log.records if "removed old checkpoint" in r.getMessage()]
    assert [line.split("/")[-1] for line in removed] == [
        "frames-000000000010.ckpt",
        "frames-000000000020.ckpt",
    ]


def test_keep_last_zero_keeps_all(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep_last=0)
    for n in range(8):
        checkpoints.save(state(), n, None)
    assert frames(checkpoints) == list(range(8))


def test_the_best_stay(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep_last=1, keep_best=2)
    for n, metric in [(1, 5.0), (2, 9.0), (3, float("nan")), (4, None), (5, 7.0), (6, 1.0)]:
        checkpoints.save(state(), n, metric)
    assert frames(checkpoints) == [2, 5, 6]
    best = checkpoints.best()
    assert best is not None
    assert best.step == 2


def test_a_metric_that_is_not_a_number_is_never_best(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(state(), 1, float("nan"))
    assert checkpoints.best() is None


def test_the_metric_of_a_checkpoint_that_is_saved_again_is_looked_up_again(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for n, metric in [(1, 3.0), (2, 5.0), (2, 1.0)]:
        checkpoints.save(state(), n, metric)
        best = checkpoints.best()
    assert best is not None
    assert best.step == 1


def test_of_equal_metrics_the_newer_is_best(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep_last=1)
    for n in (1, 2, 3):
        checkpoints.save(state(), n, 500.0 if n < 3 else 0.0)
    assert frames(checkpoints) == [2, 3]


def test_a_new_process_knows_the_best_from_the_files(tmp_path: Path) -> None:
    Checkpoints(tmp_path, keep_last=1).save(state(), 1, 100.0)
    again = Checkpoints(tmp_path, keep_last=1)
    for n in (2, 3, 4):
        again.save(state(), n, float(n))
    assert frames(again) == [1, 4]


def test_the_first_after_each_milestone_stays_even_when_milestones_are_turned_off(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep_last=1, keep_best=0, milestone_frames=100)
    for n in (50, 90, 110, 150, 205, 290, 430):
        checkpoints.save(state(), n, None)
    assert names(checkpoints) == [f"milestone-{n:012d}.ckpt" for n in (110, 205, 430)]
    later = Checkpoints(tmp_path, keep_last=1, keep_best=0)
    for n in (440, 510):
        later.save(state(), n, None)
    assert frames(later) == [110, 205, 430, 510]


def test_saving_again_at_a_milestone_keeps_its_name_and_one_file(tmp_path: Path) -> None:
    Checkpoints(tmp_path).save(state(1.0), 100, None)
    checkpoints = Checkpoints(tmp_path, milestone_frames=100)
    checkpoints.save(state(2.0), 100, None)
    assert names(checkpoints) == ["milestone-000000000100.ckpt"]
    checkpoints.save(state(3.0), 100, None)
    assert names(checkpoints) == ["milestone-000000000100.ckpt"]
    assert checkpoints.load_newest().state["w"][0] == 3.0


def test_a_file_that_cannot_be_removed_does_not_fail_the_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
) -> None:
    checkpoints = Checkpoints(tmp_path, keep_last=1, keep_best=0)
    checkpoints.save(state(), 1, None)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(Path, "unlink", refuse)
    assert checkpoints.save(state(), 2, None).exists()
    assert "could not remove old checkpoint" in log.text
    assert frames(checkpoints) == [1, 2]


def test_files_of_others_are_neither_listed_nor_removed(tmp_path: Path) -> None:
    others = [tmp_path / n for n in ("notes.txt", "frames-1.ckpt", "frames-000000000001.ckpt.bak", "best.ckpt")]
    for path in others:
        path.write_text("mine")
    checkpoints = Checkpoints(tmp_path, keep_last=1)
    for n in range(3):
        checkpoints.save(state(), n, None)
    assert frames(checkpoints) == [2]
    assert all(path.exists() for path in others)


# ------------------------------------------------------------------------------------------------- damage


def test_a_damaged_newest_is_an_error_that_names_the_newest_good_one(
    tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    checkpoints = Checkpoints(tmp_path, keep_last=0)
    paths = [checkpoints.save(state(), n, float(n)) for n in (10, 20, 30, 40)]
    flip_last_byte(paths[3])
    os.truncate(paths[2], 100)
    with pytest.raises(CheckpointError) as caught:
        checkpoints.load_newest()
    assert str(caught.value) == (
        f"{paths[3]}: checksum does not match. The newest good checkpoint is at 20 frames; "
        f"to continue from it: --resume --restore {paths[1]}"
    )
    assert f"{paths[2]}: cut short: 100 of" in log.text


def test_without_any_good_one_the_error_says_so(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    flip_last_byte(checkpoints.save(state(), 1, None))
    with pytest.raises(CheckpointError, match=r"checksum does not match\. No other checkpoint .* is whole"):
        checkpoints.load_newest()


def test_a_checkpoint_whose_header_is_damaged_is_never_best(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    first = Checkpoints(tmp_path).save(state(), 1, 100.0)
    Checkpoints(tmp_path).save(state(), 2, 1.0)
    os.truncate(first, 40)
    best = Checkpoints(tmp_path).best()
    assert best is not None
    assert best.step == 2
    assert "cannot be compared" in log.text


def test_a_run_restored_from_an_older_one_sets_the_later_ones_aside(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep_last=0)
    for n in (10, 20, 30):
        checkpoints.save(state(), n, float(n))
    with pytest.raises(CheckpointError, match=r"0030.ckpt is ahead .*\(set_aside_after\(15\)\)"):
        checkpoints.save(state(), 15, None)
    moved = checkpoints.set_aside_after(10)
    assert [p.name for p in moved] == [f"frames-0000000000{n}.ckpt.abandoned" for n in (20, 30)]
    assert all(p.exists() for p in moved)
    checkpoints.save(state(), 15, None)
    assert frames(checkpoints) == [10, 15]
    best = checkpoints.best()
    assert best is not None
    assert best.step == 10
    assert checkpoints.set_aside_after(15) == ()


# -------------------------------------------------------------------------------------- kills, full disks


def test_a_kill_in_the_middle_of_a_save_keeps_the_older_ones_and_is_swept(
    tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    checkpoints = Checkpoints(tmp_path, keep_last=1)
    checkpoints.save(state(1.0), 1, None)
    program = (
        "import os, signal, sys, pathlib, numpy as np\n"
        "from rollmill.core.checkpoints import Checkpoints\n"
        "os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)\n"
        "Checkpoints(pathlib.Path(sys.argv[1]), keep_last=1).save({'w': np.ones(10_000)}, 2, None)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)])
    assert process.wait() == -9
    leftover = tmp_path / f".frames-000000000002.ckpt.{process.pid}.tmp"
    assert leftover.stat().st_size > 80_000
    assert frames(checkpoints) == [1]
    assert checkpoints.load_newest().state["w"][0] == 1.0
    checkpoints.save(state(2.0), 3, None)
    assert not leftover.exists()
    assert str(leftover) in log.text
    assert frames(checkpoints) == [3]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("step", ["write", "fsync", "rename"])
def test_a_disk_that_fills_up_during_the_write_keeps_all_older_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, number: int
) -> None:
    checkpoints = Checkpoints(tmp_path, keep_last=1, min_free_mb=0)
    checkpoints.save(state(1.0), 1, None)

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    if step == "write":
        monkeypatch.setattr(atomic, "write_bytes", fail)
    else:
        monkeypatch.setattr(os, {"fsync": "fsync", "rename": "replace"}[step], fail)
    with pytest.raises(CheckpointError, match=r"too full for frames-0+2.ckpt: needs 0.0 MB, free \d+.\d MB"):
        checkpoints.save(state(2.0), 2, None)
    monkeypatch.undo()
    assert [p.name for p in tmp_path.iterdir()] == ["frames-000000000001.ckpt"]
    assert checkpoints.load_newest().state["w"][0] == 1.0


def test_other_errors_of_the_disk_are_named_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(CheckpointError, match="cannot be written: Input/output error"):
        Checkpoints(tmp_path).save(state(), 1, None)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="file/checkpoints: cannot be written: Not a directory"):
        Checkpoints(tmp_path / "file" / "checkpoints").save(state(), 1, None)


def test_too_little_space_is_refused_before_writing(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(state(), 1, None)
    greedy = Checkpoints(tmp_path, keep_last=1, min_free_mb=10**9)
    with pytest.raises(
        CheckpointError,
        match=r"needs 2.0 MB and 1000000000 MB in reserve, free .*Older checkpoints are untouched",
    ):
        greedy.save(state(kilobytes=2000), 2, None)
    assert frames(checkpoints) == [1]


def test_a_really_full_disk(small_disk: Path) -> None:
    """On one megabyte: the guard counts right, and without the guard the write itself fails cleanly."""
    checkpoints = Checkpoints(small_disk, keep_last=1, min_free_mb=0)
    checkpoints.save(state(1.0, kilobytes=600), 1, None)
    with pytest.raises(CheckpointError, match=r"needs 0.6 MB, free 0.4 MB"):
        checkpoints.save(state(2.0, kilobytes=600), 2, None)
    assert [p.name for p in small_disk.iterdir()] == ["frames-000000000001.ckpt"]

    with pytest.MonkeyPatch.context() as patch:  # as if the space vanished after the guard had looked
        patch.setattr("rollmill.core.checkpoints._free_bytes", lambda _: 10**12)
        with pytest.raises(CheckpointError, match=r"too full for frames-000000000002.ckpt"):
            checkpoints.save(state(2.0, kilobytes=600), 2, None)
    assert [p.name for p in small_disk.iterdir()] == ["frames-000000000001.ckpt"]
    assert checkpoints.load_newest().state["w"][0] == 1.0
    checkpoints.save(state(3.0, kilobytes=300), 3, None)
    assert frames(checkpoints) == [3]
