"""``rollmill view``, through the command."""

from __future__ import annotations

import json
import re
import signal
import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from experimenting import online, write_run
from running import Call, Run

pytest.importorskip("uvicorn")


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_run(tmp_path / "runs" / "exp" / "run", online(), [1.0])
    return tmp_path / "runs"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_it_serves_until_a_signal_comes(runs: Path, rollmill: Run, number: signal.Signals, code: int) -> None:
    command = rollmill("view", str(runs))
    command.wait_for_text("(Ctrl-C ends it)")
    link = re.search(r"http://127\.0\.0\.1:(\d+)/\?token=\S+", command.text)
    assert link is not None
    with urllib.request.urlopen(link[0]) as answer:
        cookie = answer.headers["Set-Cookie"].partition(";")[0]
        assert b"rollmill" in answer.read()
    asked = urllib.request.Request(f"http://127.0.0.1:{link[1]}/api/runs", headers={"Cookie": cookie})
    with urllib.request.urlopen(asked) as answer:
        assert [run["name"] for run in json.load(answer)["runs"]] == ["exp/run"]
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(f"http://127.0.0.1:{link[1]}/")
    events = urllib.request.urlopen(urllib.request.Request(asked.full_url[:-4] + "events", headers={"Cookie": cookie}))
    assert events.readline().startswith(b"data: ")  # a tab that is open does not hold up the end
    command.send(number)
    assert command.wait() == code, command.text
    events.close()
    command.assert_nothing_left()
    assert "Traceback" not in command.text
    assert "ssh -N -L" in command.text
    assert (runs.parent / "cache" / "rollmill" / "viewer").is_dir()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("nowhere",), "nowhere: there is no such folder of runs"),
        (("runs", "--port", "70000"), "--port 70000: ports are numbers up to 65535"),
        (("runs", "--host", "no.such.host.invalid"), "cannot listen on no.such.host.invalid"),
    ],
)
def test_refused(call: Call, runs: Path, words: tuple[str, ...], reason: str) -> None:
    refused = call("view", *words)
    assert refused.code == 2
    assert reason in refused.err


def test_a_port_that_is_taken(call: Call, runs: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = call("view", "runs", "--port", str(port))
    assert refused.code == 2
    assert f"cannot listen on 127.0.0.1, port {port}: Address already in use" in refused.err


def test_other_machines_are_warned_of(runs: Path, rollmill: Run) -> None:
    command = rollmill("view", str(runs), "--host", "0.0.0.0")
    command.wait_for_text("(Ctrl-C ends it)")
    assert "other machines can reach 0.0.0.0" in command.text
    command.press_ctrl_c()
    assert command.wait() == 0


def test_a_copy_is_one_file(call: Call, runs: Path, tmp_path: Path) -> None:
    done = call("view", "runs", "--export", "copy", "--json")
    assert done.code == 0, done.err
    assert done.json["runs"] == 1
    assert [path.name for path in (tmp_path / "copy").iterdir()] == ["index.html"]
    assert str(tmp_path) not in (tmp_path / "copy" / "index.html").read_text()
    refused = call("view", "runs", "--export", "runs/copy")
    assert (refused.code, "lies among the runs" in refused.err) == (2, True)
    assert call("view", "runs", "--export", "copy", "--episodes", "-1").code == 2
