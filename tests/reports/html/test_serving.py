"""Who may see what a server of ours hands out."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmill.reports.html.serving import Door, host_name

HERE = "127.0.0.1:8000"


def query_of(door: Door) -> str:
    return urlsplit(door.link("127.0.0.1", 8000)).query


def test_the_link_is_exchanged_for_a_cookie() -> None:
    door = Door()
    first = door.ask(HERE, query_of(door), "")
    assert not first.refused
    assert first.cookie.endswith("; Path=/; HttpOnly; SameSite=Strict")
    then = door.ask(HERE, "", f"other=1; {first.cookie.partition(';')[0]}")
    assert (then.refused, then.cookie) == ("", "")


def test_without_it_nobody_is_let_in() -> None:
    door, other = Door(), Door()
    cookie = other.ask(HERE, query_of(other), "").cookie.partition(";")[0]
    for query, cookies in (("", ""), (query_of(other), ""), ("", cookie), ("token=", ""), ("", "rollmill_1=x")):
        assert door.ask(HERE, query, cookies).refused == "token"


def test_the_port_of_a_tunnel_does_not_matter_the_name_does() -> None:
    door = Door()
    for host in ("127.0.0.1:1234", "localhost", "LOCALHOST:80", "[::1]:8000"):
        assert door.ask(host, query_of(door), "").refused == ""
    for host in ("", "evil.example", "127.0.0.1.evil.example:8000", "10.0.0.7:8000", "localhost:8000:1", "a@localhost"):
        assert door.ask(host, query_of(door), "").refused == "host"


def test_names_of_an_address_that_others_can_reach() -> None:
    door = Door({"node7"}, any_address=True)
    assert door.ask("node7:80", query_of(door), "").refused == ""
    assert door.ask("10.0.0.7:80", query_of(door), "").refused == ""
    assert door.ask("node8:80", query_of(door), "").refused == "host"


@pytest.mark.parametrize(
    ("header", "name"), [("A.b:1", "a.b"), ("[::1]", "::1"), ("[::1]x", ""), ("a:b", ""), ("", ""), ("a/b", "")]
)
def test_names_in_host_headers(header: str, name: str) -> None:
    assert host_name(header) == name


@given(st.text(max_size=40), st.text(max_size=60), st.text(max_size=60))
def test_no_words_open_the_door(host: str, query: str, cookies: str) -> None:
    door = Door()
    assert door.ask(host, query, cookies).refused
    assert door.ask(HERE, query, cookies).refused == "token"
