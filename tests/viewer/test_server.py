"""What the server answers, and to whom: nothing without the token, nothing but what lies below the root."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

import numpy as np
import pytest
from experimenting import online, write_run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("uvicorn")
from viewing import Serving, serving

from rollmill.viewer.server import MOST_RUNS

SECRET = b"the secret of the house"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    root = tmp_path_factory.mktemp("viewer")
    (root / "secret.txt").write_bytes(SECRET)
    for seed in range(3):
        write_run(root / "runs" / "exp" / f"run-s{seed}", online(seed), [1.5, 2.5, float(seed)])
    (root / "runs" / "exp" / "run-s0" / "leak").symlink_to(root / "secret.txt")
    with serving(root / "runs") as found:
        yield found


ADDRESSES = ("/", "/web/app.js", "/api/runs", "/api/columns?name=frames&runs=", "/api/events", "/api/attempt?name=exp")


@pytest.mark.parametrize("address", ADDRESSES)
def test_nothing_without_the_cookie(server: Serving, address: str) -> None:
    for headers in ({"Cookie": ""}, {"Cookie": "rollmill_0=1"}, {"Cookie": server.cookie[:-1]}):
        refused = server.ask(address, **headers)
        assert (refused.code, b"open the link" in refused.body) == (403, True)
    assert server.ask(address, Host="evil.example").code == 403
    assert server.ask(address, Host="").code in (400, 403)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_it_only_shows(server: Serving, method: str) -> None:
    assert server.ask("/api/runs", method).code == 405


def test_through_a_tunnel_the_port_is_another_one(server: Serving) -> None:
    assert server.ask("/api/runs", Host="localhost:6123").code == 200
    link = urlsplit(server.link)
    assert server.ask(f"/?{link.query}", Host="localhost:6123", Cookie="").headers["set-cookie"]


def test_what_a_browser_may_do(server: Serving) -> None:
    answer = server.ask("/")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert "set-cookie" not in answer.headers


def test_runs_and_their_columns(server: Serving) -> None:
    found = server.ask("/api/runs").json
    ids = [run["id"] for run in found["runs"]]
    assert [run["name"] for run in found["runs"]] == ["exp/run-s0", "exp/run-s1", "exp/run-s2"]
    assert server.ask(f"/api/runs?since={found['revision']}").json["runs"] == []
    body = server.ask(f"/api/columns?name=frames&name=episode/return&runs={','.join(ids)}").body
    (size,) = struct.unpack_from("<I", body)
    assert (4 + size) % 8 == 0
    head = json.loads(body[4 : 4 + size])
    assert head["runs"] == [{"id": id_, "rows": 3} for id_ in ids]
    numbers = np.frombuffer(body, "<f8", offset=4 + size).reshape(3, 2, 3)
    assert numbers[2].tolist() == [[10, 20, 30], [1.5, 2.5, 2.0]]


def test_head_is_get_without_the_rest(server: Serving) -> None:
    assert server.ask("/api/runs", "HEAD").body == b""


@pytest.mark.parametrize(
    ("address", "code"),
    [
        ("/api/columns?name=frames&runs=nobody", 404),
        ("/api/columns?runs=", 400),
        (f"/api/columns?name=frames&runs={','.join(['a'] * (MOST_RUNS + 1))}", 400),
        ("/api/runs?since=x", 400),
        ("/web/none.js", 404),
        ("/web/../server.py", 404),
        ("/nothing", 404),
    ],
)
def test_questions_without_an_answer(server: Serving, address: str, code: int) -> None:
    assert server.ask(address).code == code


WORDS = st.sampled_from(
    ["..", "/", "%2e%2e", "%2f", "\\", "etc/passwd", "secret.txt", "exp", "run-s0", "leak", "\0", "%00", "~"]
)

QUESTIONS = (
    *("columns?name=frames&runs", "checkpoints?runs", "moment?frames=1&run", "population?run", "cluster?run"),
    *("episodes?store", "scatter?store", "checks?store", "episode?episode=0&store", "frames?episode=0&part=0&store"),
    *("experiment?name", "attempt?number=1&run=run-s0&name", "attempt?number=1&name=exp&run"),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.one_of(WORDS, st.text(max_size=8)), max_size=6),
    st.sampled_from(["/", "/web/", *(f"/api/{question}=" for question in QUESTIONS)]),
)
def test_no_address_leads_out(server: Serving, parts: list[str], start: str) -> None:
    answer = server.ask(start + quote("/".join(parts), safe="/%\\.,~"))
    assert SECRET not in answer.body
    assert b"root:" not in answer.body
    assert answer.code in (200, 400, 404)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40), st.booleans())
def test_no_token_and_no_name_but_the_right_ones(server: Serving, word: str, as_host: bool) -> None:
    if as_host:
        answer = server.ask("/api/runs", Host=word.strip())
    else:
        answer = server.ask(f"/api/runs?token={quote(word)}", Cookie=word.strip())
    assert answer.code in (400, 403)


def test_a_run_that_vanishes_is_no_error_of_the_server(server: Serving, tmp_path: Path) -> None:
    folder = server.catalog.root / "exp" / "gone"
    write_run(folder, online(7), [1.0])
    id_ = server.id_of("exp/gone")
    folder.rename(tmp_path / "gone")
    answer = server.ask(f"/api/columns?name=frames&runs={id_}")
    assert answer.code == 200
    assert b'"rows":0' in answer.body
    assert "exp/gone" not in server.runs()
