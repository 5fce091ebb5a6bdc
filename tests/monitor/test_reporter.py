"""One reporter for all kinds of runs; sinks that fail are in ``runs/train/test_reporting``."""

from pathlib import Path

import numpy as np
import pytest

from rollmill.core.run_folder import RunFolder
from rollmill.monitor.console import Row
from rollmill.monitor.jsonl import read_jsonl
from rollmill.monitor.metrics import Progress
from rollmill.monitor.reporter import Display, Reporter

IMAGE = np.zeros((4, 6, 3), np.uint8)


def display(mode: str = "off") -> Display:
    return Display(mode, "a run", (Row("loss", "learn/loss"),), Progress(10), 0.0)  # type: ignore[arg-type]


def test_rows_reach_every_sink_and_those_beyond_the_step_are_written_again(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for start in (0, 1):
        reporter = Reporter(folder, "updates")
        reporter.open(start, display())
        for step in range(start + 1, 4):
            reporter.write(step, {"learn/loss": 1.0 / step})
        reporter.close()
    assert [row["step"] for row in read_jsonl(folder.metrics)] == [1, 2, 3]
    assert len(list(folder.tensorboard.iterdir())) == 2


def test_without_sinks_rows_go_nowhere(tmp_path: Path) -> None:
    reporter = Reporter(RunFolder(tmp_path))
    reporter.write(1, {"loss": 1.0})
    reporter.tick(2)
    reporter.end(3, {})
    reporter.close()
    assert not list(tmp_path.iterdir())


def test_the_console_counts_in_the_unit_of_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "rollmill")
    reporter = Reporter(RunFolder(tmp_path), "generations")
    reporter.open(0, display("plain"), tensorboard=False)
    reporter.write(2, {"learn/loss": 0.5})
    reporter.close()
    assert "2 of 10 generations (20 %) | loss 0.5000" in caplog.text


def test_images_go_to_the_folder_and_to_tensorboard(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    reporter = Reporter(folder)
    reporter.open(0, display())
    written = reporter.image(7, "sheet", IMAGE)
    reporter.close()
    assert written == folder.images / "sheet-00000007.png"
    assert b"PNG" in b"".join(path.read_bytes() for path in folder.tensorboard.iterdir())
    folder.images.rename(tmp_path / "elsewhere")
    folder.images.write_text("a file in its place")
    assert reporter.image(8, "sheet", IMAGE) is None
