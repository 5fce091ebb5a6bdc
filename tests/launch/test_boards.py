"""Masks, links, ports; the real TensorBoard is started in ``tests/cli/test_tb.py``."""

from __future__ import annotations

import contextlib
import importlib.util
import socket
from pathlib import Path

import pytest

from rollmill.core.errors import ConfigError, LaunchError, MissingExtraError
from rollmill.launch import boards
from rollmill.launch.boards import forwarding, free_port, link_runs, matches, matching_runs, start_board


@pytest.mark.parametrize(
    ("mask", "found"),
    [
        ("*gamma*", True),
        ("doom*", True),
        ("gamma-0.9_s0", True),
        ("doom", True),
        ("doom/*", True),
        ("*/*_s0", True),
        ("gamma", False),
        ("pong*", False),
        ("GAMMA*", False),
        ("d*0", False),  # neither of the two names, though both together
        ("pong/*", False),
    ],
)
def test_masks(mask: str, found: bool) -> None:
    assert matches("doom/gamma-0.9_s0", mask) is found


def run(root: Path, name: str, events: bool = True) -> None:
    (root / name).mkdir(parents=True)
    (root / name / "config.yaml").touch()
    if events:
        (root / name / "tb").mkdir()


def test_runs_get_links_as_they_begin(tmp_path: Path) -> None:
    root, folder = tmp_path / "runs", tmp_path / "links"
    run(root, "doom/a")
    run(root, "doom/b", events=False)
    run(root, "pong/a")
    (root / "doom" / "launch").mkdir()
    found = matching_runs(root, ["doom"])
    assert list(found) == ["doom/a", "doom/b"]
    assert len(matching_runs(root, [])) == 3
    assert link_runs(folder, found.items()) == ["doom/a"]
    (root / "doom/b/tb").mkdir()
    assert link_runs(folder, found.items()) == ["doom/b"]
    assert link_runs(folder, found.items()) == []
    assert (folder / "doom/a").resolve() == (root / "doom/a/tb").resolve()
    with pytest.raises(ConfigError, match="no such folder of runs"):
        matching_runs(tmp_path / "nothing", [])


def test_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert free_port("127.0.0.1", port) > port
    assert free_port("127.0.0.1", 0) > 0
    with pytest.raises(ConfigError, match=r"--host 203.0.113.1: nobody can listen there: Cannot assign"):
        free_port("203.0.113.1", 6006)  # an address this machine does not have
    for host in ("127.0.0.1", "0.0.0.0"):
        assert "-L 6006:127.0.0.1:6006" in forwarding(host, 6006)
    monkeypatch.setattr(boards.getpass, "getuser", lambda: (_ for _ in ()).throw(KeyError("no name")))
    assert "@" in forwarding("127.0.0.1", 1)


def test_where_no_port_is_free_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr(boards, "_LAST_PORT", port)
        with pytest.raises(LaunchError, match=f"no free port between {port} and {port} on 127.0.0.1"):
            free_port("127.0.0.1", port)


def test_an_address_of_ipv6_is_probed_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    families = []

    class Probe(socket.socket):
        def __init__(self, family: int = socket.AF_INET) -> None:
            families.append(family)
            super().__init__(family)

    monkeypatch.setattr(boards.socket, "socket", Probe)
    with contextlib.suppress(ConfigError):  # this machine may have none
        assert free_port("::1", 0) > 0
    assert families == [socket.AF_INET6]
    assert "-L 6006:[::1]:6006" in forwarding("::1", 6006)


def test_without_tensorboard_there_is_a_hint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"rollmill\[tensorboard\]"):
        start_board(tmp_path, "127.0.0.1", 0, "/x")


@pytest.mark.parametrize(
    ("host", "port", "reason"),
    [
        ("127.0.0.1", 70_000, "--port 70000"),
        ("127.0.0.1", -1, "--port"),
        ("", 6006, "--host is empty"),
        ("no.such.host.invalid", 6006, "--host no.such.host.invalid: nobody can listen there: "),
    ],
)
def test_ports_that_cannot_be_are_refused(host: str, port: int, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        free_port(host, port)
