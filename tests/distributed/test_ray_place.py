"""Addresses of clusters, and what Ray is told before it is imported."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from rollmill.core.errors import ConfigError
from rollmill.distributed.ray_place import KEEP_LOOPBACK, Place, environment, make_token, place_of, silence


def test_an_address_is_a_host_and_a_port() -> None:
    assert place_of("10.0.0.5:6379") == Place("10.0.0.5", 6379)
    assert place_of("localhost:6379") == Place("127.0.0.1", 6379)
    assert [place_of(text).loopback for text in ("127.0.0.2:6379", "alpha:6379")] == [True, False]


@pytest.mark.parametrize("text", ["alpha", "alpha:", ":6379", "alpha:80", "alpha:70000", "ray://alpha:6379", "a:b"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="host:port is expected"):
        place_of(text)


def test_who_does_not_answer_is_named() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        place = Place("127.0.0.1", listener.getsockname()[1])
        assert str(place) in silence(place)
        listener.listen()
        assert not silence(place)


def test_a_token_is_made_once_for_the_user_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert "RAY_AUTH_MODE" not in environment(loopback=True)
    file = make_token()
    assert file == tmp_path / ".ray" / "auth_token"
    token = file.read_text()
    assert len(token) == 64
    assert file.stat().st_mode & 0o777 == 0o600
    assert make_token().read_text() == token
    assert environment(loopback=False)["RAY_AUTH_MODE"] == "token"
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert "RAY_AUTH_MODE" not in environment(loopback=False), "the user's word counts"


def test_only_a_cluster_on_loopback_is_kept_there() -> None:
    assert KEEP_LOOPBACK.items() <= environment(loopback=True).items()
    assert not KEEP_LOOPBACK.keys() & environment(loopback=False).keys()
