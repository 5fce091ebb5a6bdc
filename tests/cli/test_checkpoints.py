"""``rollmill checkpoint``."""

from __future__ import annotations

import io
import signal
from pathlib import Path

import pytest
from running import SERIAL, Call, Command, small_words, train_here

from rollmill.core.checkpoints import Checkpoints, load_checkpoint
from rollmill.core.model_pool import ModelPool
from rollmill.core.run_folder import RunFolder

WORDS = (*SERIAL, "env=toy_target", "stop.frames=0", "stop.batches=8", "checkpoints.every_seconds=0")


@pytest.fixture
def run(tmp_path: Path, call: Call) -> RunFolder:
    """A run with all its checkpoints and a pool of three models."""
    more = ("checkpoints.keep_last=0", "report.every_frames=1", "pool.every_updates=3", "pool.keep=3")
    return train_here(Path("runs"), *WORDS, *more)[1]


def frames_of(run: RunFolder) -> list[int]:
    return [checkpoint.step for checkpoint in Checkpoints(run.checkpoints).list()]


def test_list(call: Call, run: RunFolder) -> None:
    done = call("checkpoint", "list", "x/run")
    assert done.code == 0
    head, *rows = done.out.splitlines()
    assert head.split() == ["frames", "metric", "size", "saved", "file"]
    assert len(rows) == len(frames_of(run)) + 3
    assert "newest" in rows[len(frames_of(run)) - 1]
    found = call("checkpoint", "list", "x/run", "--json").json
    assert [saved["roles"] for saved in found[-3:]] == [["pool", "0"], ["pool", "1"], ["pool", "2"]]
    best = next(saved for saved in found if "best" in saved["roles"])
    assert best["by"] == "episode/return"
    assert best["metric"] == max(saved["metric"] for saved in found if saved["metric"] is not None)
    assert call("checkpoint", "list", "nonsense").code == 2


def test_the_lowest_is_listed_as_it_was_logged(call: Call) -> None:
    more = ("checkpoints.keep_last=0", "report.every_frames=1", "checkpoints.best_metric=-learn/entropy")
    train_here(Path("runs"), *WORDS, *more)
    found = call("checkpoint", "list", "x/run", "--json").json
    values = [saved["metric"] for saved in found if saved["metric"] is not None]
    assert min(values) > 0
    (best,) = (saved for saved in found if "best" in saved["roles"])
    assert (best["by"], best["metric"]) == ("learn/entropy", min(values))


def test_a_damaged_file_is_listed_as_such(call: Call, run: RunFolder) -> None:
    newest = Checkpoints(run.checkpoints).list()[-1].path
    newest.write_bytes(b"nothing")
    assert "damaged" in call("checkpoint", "list", str(run.path)).out


def test_prune_asks_and_keeps_the_newest_and_the_best(
    call: Call, run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = frames_of(run)
    best = Checkpoints(run.checkpoints).best()
    assert best is not None
    assert len(before) > 4
    done = call("checkpoint", "prune", "x/run", "--keep-last", "2", "--dry-run")
    assert done.out.splitlines()[-1].startswith(f"would remove {len({*before} - {*before[-2:], best.step})} ")
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    assert call("checkpoint", "prune", "x/run", "--keep-last", "2").code == 1
    assert frames_of(run) == before
    done = call("checkpoint", "prune", "x/run", "--keep-last", "2", "--yes", "--json")
    assert done.json["bytes"] > 0
    assert frames_of(run) == sorted({*before[-2:], best.step})
    assert call("checkpoint", "prune", "x/run", "--keep-last", "0", "--yes").code == 2
    assert call("checkpoint", "prune", "x/run", "--keep-last", "2", "--yes").out == "removed 0 checkpoints, 0 B\n"


def test_export_writes_a_small_file_that_plays(call: Call, run: RunFolder, tmp_path: Path) -> None:
    done = call("checkpoint", "export", "x/run", "--out", "best.ckpt", "--best")
    assert done.code == 0, done.err
    best = Checkpoints(run.checkpoints).best()
    assert best is not None
    small = load_checkpoint(tmp_path / "best.ckpt")
    assert small.step == best.step
    assert set(small.state["learners"][0]) == {"model", "version"}
    nbytes = (tmp_path / "best.ckpt").stat().st_size
    assert nbytes < best.path.stat().st_size
    assert call("eval", "best.ckpt", "--episodes", "2", "--json").code == 0
    again = call("checkpoint", "export", str(best.path), "--out", "best.ckpt")
    assert again.code == 2
    assert "exists already" in again.err
    assert call("checkpoint", "export", str(best.path), "--out", "best.ckpt", "--overwrite", "--half").code == 0
    assert (tmp_path / "best.ckpt").stat().st_size < nbytes
    assert call("eval", "best.ckpt", "--episodes", "2", "--json").code == 0


def test_export_takes_models_of_the_pool(call: Call, run: RunFolder, tmp_path: Path) -> None:
    assert call("checkpoint", "export", "x/run", "--out", "one.ckpt", "--model", "1").code == 0
    entry = ModelPool(run.pool).entries()[1]
    assert load_checkpoint(tmp_path / "one.ckpt").state["learners"][0]["version"] == entry.version
    gone = call("checkpoint", "export", "x/run", "--out", "two.ckpt", "--model", "7")
    assert gone.code == 1
    assert "there are 0, 1, 2" in gone.err
    assert call("checkpoint", "export", "x/run", "--out", "two.ckpt", "--model", "1", "--best").code == 2
    assert call("checkpoint", "export", "x/run", "--out", "two").code == 2


def test_save_asks_a_running_training(call: Call, tmp_path: Path) -> None:
    words = ("env=toy_target", "run.dir=runs", "run.experiment=x", *small_words("stop.frames=0"))
    command = Command("train", *words, "stop.batches=1000000", cwd=tmp_path)
    try:
        command.wait_for_text("checkpoint ")
        done = call("checkpoint", "save", "x/run")
        assert done.code == 0, done.err
        assert Path(done.out.strip()).name.startswith("milestone-")
        assert Path(done.out.strip()).exists()
        assert call("checkpoint", "prune", "x/run", "--yes").code == 0
        assert Path(done.out.strip()).exists()
        command.send(signal.SIGINT)
        command.wait()
    finally:
        command.kill()
    over = call("checkpoint", "save", "x/run")
    assert over.code == 1
    assert "no training is running" in over.err
