import logging
import os
from pathlib import Path

import pytest

from rollmill.core import run_log
from rollmill.core.errors import RunFolderError
from rollmill.core.run_folder import RunFolder
from rollmill.core.run_log import WARNING_BURST, open_log, told_on_console
from rollmill.core.terminal import AT_ONCE

LOG = logging.getLogger("rollmill")


def test_the_log_goes_to_the_file_and_is_appended_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = RunFolder(tmp_path)
    for line in ("first", "second"):
        handle = open_log(folder, to_console=False)
        LOG.info("%s", line)
        LOG.warning("careful")
        handle.close()
    LOG.warning("after the end")
    lines = folder.log.read_text().splitlines()
    assert [line.split(maxsplit=2)[2] for line in lines] == [
        "INFO    first",
        "WARNING careful",
        "INFO    second",
        "WARNING careful",
    ]
    assert "first" not in capsys.readouterr().err


def test_before_the_run_has_begun_the_console_is_told_at_once_what_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    handle = open_log(RunFolder(tmp_path), to_console=True)
    LOG.warning("later")
    LOG.warning("this takes long", extra=AT_ONCE)
    assert capsys.readouterr().err.split(maxsplit=1)[1] == "this takes long [warning]\n"
    handle.show()
    handle.close()
    assert capsys.readouterr().err.split(maxsplit=1)[1] == "later [warning]\n"


def test_the_console_gets_plain_lines_with_the_level_of_warnings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    handle = open_log(RunFolder(tmp_path), to_console=True)
    handle.show()
    LOG.info("started")
    LOG.error("broken")
    LOG.debug("not shown")
    handle.close()
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(maxsplit=1)[1] for line in lines] == ["started", "broken [error]"]


def test_warnings_of_one_kind_do_not_fill_the_console(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All of them are in the file."""
    handle = open_log(RunFolder(tmp_path), to_console=True)
    handle.show()
    for number in range(20):
        LOG.warning("env %d failed", number)
        LOG.info("line %d", number)
    LOG.warning("another kind")
    handle.close()
    said = [line.split(maxsplit=1)[1] for line in capsys.readouterr().err.splitlines()]
    warnings = [line for line in said if line.endswith("[warning]")]
    assert warnings == [
        *(f"env {number} failed [warning]" for number in range(WARNING_BURST - 1)),
        f"env {WARNING_BURST - 1} failed; more warnings like this one are in log.txt [warning]",
        "another kind [warning]",
    ]
    assert len(said) == len(warnings) + 20
    assert (tmp_path / "log.txt").read_text().count("failed\n") == 20


def test_what_the_console_has_been_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    handle = open_log(RunFolder(tmp_path), to_console=True)
    handle.show()
    LOG.error("failed: %s (3 frames)", "a long story")
    handle.close()
    assert told_on_console("a long story")
    assert not told_on_console("another story")
    quiet = open_log(RunFolder(tmp_path), to_console=False)
    LOG.error("another story")
    quiet.close()
    assert not told_on_console("another story")
    assert not told_on_console("")


def test_closing_the_log_puts_the_logger_back(tmp_path: Path) -> None:
    before = (LOG.level, LOG.propagate, list(LOG.handlers))
    handle = open_log(RunFolder(tmp_path), to_console=True)
    handle.show()
    assert LOG.level == logging.INFO
    assert not LOG.propagate  # or a root logger with handlers would print every line twice
    handle.close()
    handle.close()
    assert (LOG.level, LOG.propagate, list(LOG.handlers)) == before


def test_the_log_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_log, "LOG_BYTES", 1000)
    handle = open_log(RunFolder(tmp_path), to_console=False)
    for n in range(200):
        LOG.info("line %d", n)
    handle.close()
    files = sorted(tmp_path.iterdir())
    assert [f.name for f in files] == ["log.txt", "log.txt.1", "log.txt.2"]
    assert all(f.stat().st_size <= 1000 for f in files)
    assert "line 199" in files[0].read_text()


def test_a_log_that_cannot_be_opened_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"log.txt: cannot be written: No such file"):
        open_log(RunFolder(tmp_path / "none"), to_console=False)


def test_what_is_no_file_in_the_place_of_the_log_is_an_error(tmp_path: Path) -> None:
    os.mkfifo(RunFolder(tmp_path).log)
    with pytest.raises(RunFolderError, match=r"log\.txt: cannot be written: it is a FIFO"):
        open_log(RunFolder(tmp_path), to_console=False)


def test_escape_sequences_reach_neither_log_nor_console(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    handle = open_log(RunFolder(tmp_path), to_console=True)
    handle.show()
    LOG.info("an env says %s", "\x1b[2J\x07 hello")
    handle.close()
    for text in (RunFolder(tmp_path).log.read_text(), capsys.readouterr().err):
        assert text.endswith("an env says \\x1b[2J\\x07 hello\n")


def test_a_log_on_a_full_disk_complains_once_and_the_run_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder(tmp_path)
    folder.log.symlink_to("/dev/full")
    handle = open_log(folder, to_console=False)
    LOG.info("one")
    LOG.info("two")
    handle.close()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].endswith("log.txt: cannot be written: [Errno 28] No space left on device")


def test_a_start_that_fails_leaves_the_console_to_its_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    handle = open_log(RunFolder(tmp_path), to_console=True)
    logging.getLogger("rollmill").info("a folder")
    handle.close()
    assert capsys.readouterr().err == ""
    assert "a folder" in (tmp_path / "log.txt").read_text()
    handle = open_log(RunFolder(tmp_path), to_console=True)
    logging.getLogger("rollmill").info("another folder")
    handle.show()
    logging.getLogger("rollmill").info("a step")
    handle.close()
    assert [line.split(" ", 1)[1] for line in capsys.readouterr().err.splitlines()] == ["another folder", "a step"]
