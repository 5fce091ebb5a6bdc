"""``rollmill tb`` with the real TensorBoard."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from running import Call, Command, wait_until

from rollmill.cli import tb as tb_module
from rollmill.cli.tb import tb
from rollmill.core.janitor_main import is_alive
from rollmill.monitor.tensorboard import TensorBoardSink


def write_run(root: Path, name: str) -> None:
    (root / name).mkdir(parents=True)
    (root / name / "config.yaml").touch()
    sink = TensorBoardSink(root / name / "tb")
    sink.write(10, {"episode/return": 1.0})
    sink.close()


def test_the_page_lists_exactly_the_matching_runs(tmp_path: Path, rollmill: Callable[..., Command]) -> None:
    for name in ("doom/gamma-0.9_s0", "doom/gamma-0.99_s0", "pong/gamma-0.9_s0", "pong/other"):
        write_run(tmp_path / "runs", name)
    command = rollmill("tb", "doom/*0.9_*", "other", "--port", "16606")
    command.wait_for_text("from another machine")
    found = re.search(r"http://127.0.0.1:(\d+)/([\w-]{32})/", command.text)
    assert found is not None
    assert f"ssh -N -L {found.group(1)}:127.0.0.1:{found.group(1)}" in command.text

    def listed() -> list[str] | None:
        assert command.process.poll() is None, command.text
        try:
            with urllib.request.urlopen(f"{found.group(0)}data/runs", timeout=60) as answer:
                return json.load(answer) or None
        except (OSError, http.client.HTTPException):
            return None

    runs = wait_until(lambda: (names := listed()) and len(names) >= 2 and names, what="TensorBoard to list runs")
    assert sorted(runs) == ["doom/gamma-0.9_s0", "pong/other"]
    for path in ("", "data/runs", "wrong/data/runs"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{found.group(1)}/{path}", timeout=60)
    assert found.group(2) not in everybody_can_read(command), "the link is for who has started it"
    command.send(signal.SIGINT)
    assert command.wait() == 0
    command.assert_nothing_left()


def everybody_can_read(command: Command) -> str:
    """Words of the command's processes, and files in the temporary folder that others can open."""
    words = [Path(f"/proc/{pid}/cmdline").read_text() for pid in command.processes()]
    places = [file for file in Path(tempfile.gettempdir()).glob(".tensorboard-info/*") if os.access(file, os.R_OK)]
    return "".join([*words, *(file.read_text() for file in places)])


@pytest.mark.parametrize(("host", "shown"), [("::1", "[::1]"), ("0.0.0.0", "127.0.0.1"), ("10.1.2.3", "10.1.2.3")])
def test_the_link_can_be_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], host: str, shown: str
) -> None:
    write_run(tmp_path / "runs", "doom/one")
    monkeypatch.setattr(tb_module, "free_port", lambda host, port: port)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    monkeypatch.setattr(tb_module, "start_board", lambda *words: ended)
    assert tb(root=tmp_path / "runs", host=host, port=6006) == 0
    said = capsys.readouterr().out
    assert f"1 run: http://{shown}:6006/" in said
    assert f"ssh -N -L 6006:{shown}:6006 " in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_whatever_ends_it_nothing_is_left(
    tmp_path: Path,
    rollmill: Callable[..., Command],
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    write_run(tmp_path / "runs", "doom/one")
    command = rollmill("tb", "--port", "0")
    (board,) = wait_until(lambda: command.processes_of("rollmill.launch.board_main"), what="TensorBoard to be started")
    command.send(number)
    assert command.wait() == (-number if number == signal.SIGKILL else 128 + number)
    wait_until(lambda: not is_alive(board), what="TensorBoard to be ended")
    command.assert_nothing_left()
    wait_until(lambda: not list(scratch.iterdir()), what="the folder of links to be gone")
    assert "Traceback" not in command.text


def test_no_address_is_promised_where_tensorboard_is_missing(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(Path("runs/default"), "one")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    done = call("tb")
    assert done.code == 2
    assert done.out == ""
    assert "rollmill[tensorboard]" in done.err


def test_nothing_matches(call: Call, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    done = call("tb", "*gamma*")
    assert done.code == 2
    assert "no run below runs matches *gamma*" in done.err
