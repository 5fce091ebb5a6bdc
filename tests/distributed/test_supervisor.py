"""Supervisors of Ray nodes: records, and what happens when there is nothing to join (Ray itself: test_ray_cluster)."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from rollmill.core.errors import ClusterError
from rollmill.distributed import supervisor
from rollmill.distributed.ray_place import Place
from rollmill.distributed.supervisor import RayNode, Record

NODE = RayNode("node", "127.0.0.1:6379", "127.0.0.1", 2.0, 100, "rollmill", patience=0.0)


@pytest.fixture(autouse=True)
def own_records(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.fixture
def silent() -> str:
    """An address where nobody listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{listener.getsockname()[1]}"


def test_what_ray_is_told() -> None:
    options = NODE.options("/tmp/x")
    assert {"--block", "--address=127.0.0.1:6379", "--node-ip-address=127.0.0.1", "--num-cpus=2"} <= set(options)
    assert '--resources={"rollmill": 1}' in options
    assert "--head" not in options
    head = replace(NODE, role="head", resource="", cpus=0.0).options("/tmp/x")
    assert {"--head", "--port=6379", "--include-dashboard=false"} <= set(head)
    assert not any(option.startswith(("--address", "--resources", "--num-cpus")) for option in head)


def test_a_node_that_cannot_reach_its_head_says_so_and_gives_up(silent: str) -> None:
    file = supervisor.prepare(replace(NODE, address=silent))
    process = supervisor.start_in_background(file)
    with pytest.raises(ClusterError, match=f"{silent}: nothing answers at {silent}"):
        supervisor.wait_until_up(file, process)
    assert process.wait() == 1
    assert "failed: nothing answers" in supervisor.log_of(file).read_text()
    folder = Record.read(file).folder
    assert Path(folder).is_dir()
    assert list(supervisor.records()) == []
    assert not Path(folder).exists()
    assert not file.exists()


def test_a_node_waits_for_its_token_as_for_its_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A head makes it when it is started, which may be at the same time."""
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_MODE"):
        monkeypatch.delenv(name, raising=False)
    with socket.socket() as head:
        head.bind(("127.0.0.1", 0))
        head.listen()
        address = f"127.0.0.1:{head.getsockname()[1]}"
        file = supervisor.prepare(replace(NODE, address=address))
        with pytest.raises(ClusterError, match="no token: copy"):
            supervisor.wait_until_up(file, supervisor.start_in_background(file))
    assert Record.read(file).stage == "failed"
    assert list(supervisor.records()) == [], "what it has left is removed"


def test_a_node_that_waits_for_its_head_is_found_and_ended(silent: str) -> None:
    file = supervisor.prepare(replace(NODE, address=silent, patience=600.0))
    process = supervisor.start_in_background(file)
    while Record.read(file).stage == "starting":
        assert process.poll() is None
    ((found, record),) = supervisor.records()
    assert (found, record.stage, record.pid) == (file, "resting", process.pid)
    assert supervisor.place_of_this_machine() == Place("127.0.0.1", int(silent.rpartition(":")[2]))
    assert not supervisor.end(file, record)
    assert process.wait() == 0
    assert not Path(record.folder).exists()
    assert list(supervisor.records()) == []


@pytest.mark.parametrize("pid", [0, -1])
def test_a_record_that_names_no_process_ends_none(pid: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the supervisor's lock and its first word the pid is 0: to `kill`, the group of whoever asks."""
    file = supervisor.prepare(NODE)
    record = replace(Record.read(file), pid=pid)
    record.write(file)
    signals = []
    monkeypatch.setattr("os.kill", lambda *asked: signals.append(asked))
    monkeypatch.setattr(supervisor, "alive", lambda file: not signals)
    assert list(supervisor.records()) == ([] if pid == 0 else [(file, record)])
    with pytest.raises(ClusterError, match=f"names no process yet .pid {pid}.: nothing was ended"):
        supervisor.end(file, record)
    assert not signals
    assert file.exists()


def test_records_of_other_machines_are_left_alone(silent: str) -> None:
    file = supervisor.prepare(NODE)
    replace(Record.read(file), machine="another", pid=1).write(file)
    assert list(supervisor.records()) == []
    assert file.exists()


def test_a_machine_in_two_clusters_must_choose() -> None:
    started = []
    for port in (2, 3):
        file = supervisor.prepare(replace(NODE, address=f"127.0.0.1:{1024 + port}", patience=600.0))
        started.append((file, supervisor.start_in_background(file)))
    for file, process in started:
        while Record.read(file).stage == "starting":
            assert process.poll() is None
    with pytest.raises(ClusterError, match="several clusters"):
        supervisor.place_of_this_machine()
    for file, process in started:
        supervisor.end(file, Record.read(file))
        process.wait()
