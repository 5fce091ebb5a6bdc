"""What the server answers, and to whom: nothing without the token, nothing but what lies below the root."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import numpy as np
import pytest
from experimenting import online, write_run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from running import wait_until

pytest.importorskip("uvicorn")
from starlette.requests import Request
from viewing import Serving, cluster_run, counting_store, population_run, selfplay_run, serving

from rollmill.reports.html.serving import Door, Pass
from rollmill.viewer import run
from rollmill.viewer.server import MOST_RUNS, REQUESTS, STREAMS, Guard, Viewer

SECRET = b"the secret of the house"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    root = tmp_path_factory.mktemp("viewer")
    (root / "secret.txt").write_bytes(SECRET)
    for seed in range(3):
        write_run(root / "runs" / "exp" / f"run-s{seed}", online(seed), [1.5, 2.5, float(seed)])
    (root / "runs" / "exp" / "run-s0" / "leak").symlink_to(root / "secret.txt")
    counting_store(root / "runs" / "exp" / "run-s0" / "data", (3, 5))
    population_run(root / "runs" / "pop" / "three")
    cluster_run(root / "runs" / "cl" / "two")
    selfplay_run(root / "runs" / "play" / "one")
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
    runs = [run for run in found["runs"] if run["experiment"] == "exp"]
    ids = [run["id"] for run in runs]
    assert [run["name"] for run in runs] == ["exp/run-s0", "exp/run-s1", "exp/run-s2"]
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


def test_requests_under_way_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more than there may be is told to come again; when one has ended, the next one is let in."""

    async def asked(guard: Guard) -> list[int]:
        codes: list[int] = []

        async def send(message: Any) -> None:
            codes.append(message["status"]) if message["type"] == "http.response.start" else None

        await guard({"type": "http", "method": "GET", "query_string": b"", "headers": []}, None, send)
        return codes

    async def scenario() -> None:
        go, inside = asyncio.Event(), 0

        async def slow(scope: Any, receive: Any, send: Any) -> None:
            nonlocal inside
            inside += 1
            await go.wait()
            await send({"type": "http.response.start", "status": 200, "headers": []})

        door = Door()
        monkeypatch.setattr(door, "ask", lambda *_: Pass())
        guard = Guard(slow, door)
        under_way = [asyncio.create_task(asked(guard)) for _ in range(REQUESTS)]
        while inside < REQUESTS:
            await asyncio.sleep(0)
        assert await asked(guard) == [503]
        go.set()
        assert await asyncio.gather(*under_way) == [[200]] * REQUESTS
        assert await asked(guard) == [200]

    # In a thread of its own: tests before this one may have left an event loop running in this one.
    with ThreadPoolExecutor(1) as aside:
        aside.submit(asyncio.run, scenario()).result()


def test_a_tab_too_many_is_told_of_nothing(server: Serving) -> None:
    streams = [server.follow() for _ in range(STREAMS)]
    refused = server.ask("/api/events")
    assert (refused.code, refused.body) == (503, b"503: 16 tabs are open already\n")
    streams.pop().close()
    streams.append(server.follow())
    for stream in streams:
        stream.close()


WORDS = st.sampled_from(
    ["..", "/", "%2e%2e", "%2f", "\\", "etc/passwd", "secret.txt", "exp", "run-s0", "leak", "\0", "%00", "~"]
)

QUESTIONS = (
    *("columns?name=frames&runs", "checkpoints?runs", "moment?frames=1&run", "population?run", "cluster?run"),
    *("episodes?store", "scatter?store", "checks?store", "episode?episode=0&store", "frames?episode=0&part=0&store"),
    *("selfplay?run", "experiment?name", "attempt?number=1&run=run-s0&name", "attempt?number=1&name=exp&run"),
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


NUMBERS = st.one_of(st.integers(), st.floats(), st.sampled_from([2**63, -(2**63) - 1, "1e999", "-0", "0x1", "1_0"]))
FILTERS = st.builds(
    "{}{}{}".format,
    st.sampled_from(["return_min", "length_max", "top", "partial", "global_step_min", "seed", "policy", "x", ""]),
    st.sampled_from(["=", "<", "==", ""]),
    st.one_of(NUMBERS, st.sampled_from(["no", "10%", "-5%", "1e400%", "best"]), WORDS, st.text(max_size=4)),
)
HOSTILE = st.one_of(NUMBERS.map(str), FILTERS, st.lists(FILTERS, max_size=3).map(" ".join), WORDS, st.text(max_size=8))
PARTS = {
    **dict.fromkeys(("episodes", "scatter"), ("store", "filter", "sort", "near", "start", "count")),
    "episode": ("store", "episode"),
    "frames": ("store", "episode", "part", "image"),
    "moment": ("run", "frames"),
    "columns": ("runs", "name"),
    **dict.fromkeys(("population", "cluster", "selfplay", "checkpoints"), ("run", "runs", "name")),
}
"""What is asked of those who are really there."""


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_known_ids_with_hostile_words_do_no_harm(server: Serving, data: st.DataObject) -> None:
    """An answer, or a sentence about what is wrong with the question: never a fault of the server."""
    known = server.catalog.to_dict()
    what = data.draw(st.sampled_from(sorted(PARTS)))
    ids = {"store": known["stores"][0]["id"]} | dict.fromkeys(("run", "runs"), data.draw(st.sampled_from(known["ids"])))
    words = {name: ids[name] for name in PARTS[what] if name in ids}
    others = [name for name in PARTS[what] if name not in ids]
    usual = {"episode": "1", "part": "0", "image": "", "frames": "1", "name": "frames"}
    words |= {name: usual[name] for name in others if name in usual and data.draw(st.booleans())}
    words |= data.draw(st.dictionaries(st.sampled_from(others or ["name"]), HOSTILE, min_size=1))
    answer = server.ask(f"/api/{what}?{urlencode(words)}")
    assert answer.code in (200, 400, 404, 422), (words, answer.body)
    assert SECRET not in answer.body
    assert b"root:" not in answer.body


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


def test_a_fault_of_ours_has_the_headers_of_all_answers(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(since: int) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(server.catalog, "to_dict", fails)
    answer = server.ask("/api/runs")
    assert answer.code == 500
    for name in ("content-security-policy", "x-content-type-options", "cross-origin-resource-policy"):
        assert answer.headers[name] == server.ask("/").headers[name]


def test_tabs_that_come_together_are_counted_one_by_one(server: Serving) -> None:
    """Each as it is let in, not when its first event is made; one that nobody reads gives its place back."""
    viewer = Viewer(server.catalog)

    async def scenario() -> list[int]:
        answers = [await viewer._events(Request({"type": "http"})) for _ in range(STREAMS + 1)]
        codes = [answer.status_code for answer in answers]

        async def gone(_: object = None) -> dict[str, str]:
            return {"type": "http.disconnect"}

        async def nobody(_: object) -> None:
            raise OSError

        for answer in answers[:-1]:
            with contextlib.suppress(Exception):
                await answer({"type": "http"}, gone, nobody)
        return [*codes, (await viewer._events(Request({"type": "http"}))).status_code]

    with ThreadPoolExecutor(1) as aside:
        assert aside.submit(asyncio.run, scenario()).result() == [200] * STREAMS + [503, 200]


def test_more_connections_than_the_server_holds_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "CONNECTIONS", 3)
    (tmp_path / "runs").mkdir()
    with serving(tmp_path / "runs") as few, contextlib.ExitStack() as held:
        assert few.ask("/api/runs").code == 200
        connections = [held.enter_context(socket.create_connection(("127.0.0.1", few.port))) for _ in range(3)]
        wait_until(lambda: few.ask("/api/runs").code == 503, what="the server to be full")
        for connection in connections:
            connection.close()
        wait_until(lambda: few.ask("/api/runs").code == 200, what="room for one more")
