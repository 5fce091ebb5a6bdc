"""``rollmill cluster`` without Ray's processes: what is refused, and what the status says (Ray: test_ray_cluster)."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from running import Call

from rollmill.distributed.standing import NodeStanding, RunStanding

NODE = NodeStanding("alpha", 0, 1000, "sampling", "", 1234.5, 2.5, 1.25, 9000, 3, 3.1, 0.4)


@pytest.fixture(autouse=True)
def own_records(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_MODE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def taken() -> Iterator[int]:
    """A port where somebody listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_a_head_is_refused_where_somebody_listens(call: Call, taken: int, tmp_path: Path) -> None:
    result = call("cluster", "up", "--port", str(taken))
    assert result.code == 2
    assert f"something listens at 127.0.0.1:{taken} already" in result.err
    assert not (tmp_path / "token").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("up", "--port", "80"), "with a port from 1024"),
        (("up", "--host", "10.0.0.5", "--port", "12000"), "Ray needs 10002 to 19999 for its workers"),
        (("join", "alpha"), "host:port is expected"),
        (("join", "127.0.0.1:6379", "--host", "10.0.0.5"), "from its own machine alone"),
        (("down", "alpha"), "host:port is expected"),
        (("status", "nobody"), "no run 'nobody'"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(call: Call, words: tuple[str, ...], said: str) -> None:
    result = call("cluster", *words)
    assert result.code == 2
    assert said in result.err


def test_a_node_without_a_token_is_refused_where_there_is_a_head(call: Call, taken: int) -> None:
    result = call("cluster", "join", f"127.0.0.1:{taken}")
    assert result.code == 2
    assert "no token: copy" in result.err


def test_a_node_gives_up_when_its_head_does_not_answer(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "a" * 64)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        result = call("cluster", "join", address, "--patience", "0")
    assert result.code == 1
    assert result.err.startswith(f"nothing answers at {address}")
    assert json.loads(call("cluster", "status", "--json").out) == {"machine": [], "runs": []}
    assert call("cluster", "down").out == "nothing of a cluster is up on this machine\n"


def test_the_status_of_a_run_says_how_each_node_stands(call: Call, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "default" / "pole"
    folder.mkdir(parents=True)
    (folder / "config.yaml").touch()
    assert "started without cluster.address" in call("cluster", "status", "pole").err
    RunStanding(1, "auto", time.time(), 0, "", received=40, lost=3, refused=0, nodes=[NODE]).write(folder)
    (run,) = json.loads(call("cluster", "status", "pole", "--json").out)["runs"]
    assert run["run"] == "runs/default/pole"
    assert run["nodes"] == [NODE.__dict__]
    lines = call("cluster", "status", "pole").out.splitlines()
    assert "40 segments received, 3 lost" in lines[0]
    assert lines[2].split() == ["alpha", "0", "sampling", "1000", "1,234", "2.50", "3.1x", "1.2", "3", "0.4"]
    assert call("cluster", "status").out.startswith("no node of a cluster"), "the run is not running"
