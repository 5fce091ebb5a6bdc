"""The server of ``rollmill view``: answers GET and HEAD, to those who have the link, from what the catalog knows."""

from __future__ import annotations

import asyncio
import json
import math
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rollmill.core.errors import RollmillError
from rollmill.core.run_folder import RunFolder
from rollmill.reports.html.serving import METHODS, Door, security_headers
from rollmill.store.reader import Store
from rollmill.viewer.catalog import Catalog, RunEntry, words_of
from rollmill.viewer.clusters import cluster
from rollmill.viewer.columns import Columns
from rollmill.viewer.episodes import (
    MOST_ROWS,
    Question,
    Stores,
    episode,
    frames,
    report_of,
    scatter,
    shown_image,
    table,
)
from rollmill.viewer.experiments import Experiments, attempt_log
from rollmill.viewer.moment import checkpoint_steps, moment, played_at
from rollmill.viewer.page import modules, page, policy
from rollmill.viewer.populations import population
from rollmill.viewer.selfplay import selfplay

REQUESTS = 64
"""Under way at the same time; more are told to come again."""
STREAMS = 16
"""Tabs that are told of news at the same time."""
MOST_RUNS = 250
"""Of one question about columns."""
MOST_COLUMNS = 16
POLL_SECONDS = 1.0
_JS = "text/javascript; charset=utf-8"


class Refused(Exception):
    """A request that is answered with a number and a sentence."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(words)
        self.code, self.words = code, words


class Guard:
    """In front of everything: methods, the door, limits, and the headers of every answer."""

    def __init__(self, app: ASGIApp, door: Door) -> None:
        self._app, self._door, self._under_way = app, door, 0
        self._headers = security_headers(**policy())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        found = self._door.ask(
            headers.get("host", ""), scope["query_string"].decode("latin-1"), headers.get("cookie", "")
        )

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = MutableHeaders(scope=message)
                for name, value in self._headers.items():
                    own[name] = value
                if found.cookie:
                    own["Set-Cookie"] = found.cookie
            await send(message)

        app: ASGIApp = self._app
        if scope["method"] not in METHODS:
            app = PlainTextResponse("405: this server only shows\n", 405, {"Allow": ", ".join(METHODS)})
        elif found.refused:
            app = PlainTextResponse(found.words, 403)
        elif self._under_way >= REQUESTS:
            app = PlainTextResponse("503: too many requests at the same time\n", 503, {"Retry-After": "1"})
        self._under_way += 1
        try:
            await app(scope, receive, answer)
        finally:
            self._under_way -= 1


class Viewer:
    """What the routes answer with."""

    def __init__(self, catalog: Catalog, stopping: Callable[[], bool] = lambda: False) -> None:
        self.catalog = catalog
        self._columns, self._stores = Columns(catalog.root), Stores(catalog.root)
        self._experiments = Experiments(catalog.root)
        self._stopping = stopping
        self._streams = 0

    def routes(self) -> list[Route]:
        """Return the addresses and who answers them. All else in an address is an id or a name that is looked up."""
        return [
            Route("/", self._page),
            Route("/web/{name}", self._module),
            Route("/api/runs", _in_thread(self._runs)),
            Route("/api/columns", _in_thread(self._read_columns)),
            Route("/api/events", self._events),
            Route("/api/moment", _in_thread(self._moment)),
            Route("/api/episodes", _in_thread(lambda r: as_json(table(self._store(r), question(r))))),
            Route("/api/scatter", _in_thread(self._scatter)),
            Route("/api/episode", _in_thread(self._episode)),
            Route("/api/checks", _in_thread(self._checks)),
            Route("/api/checkpoints", _in_thread(self._checkpoints)),
            Route("/api/population", _in_thread(self._population)),
            Route("/api/selfplay", _in_thread(lambda r: as_json(selfplay(self._one(r).folder, self.catalog.root)))),
            Route("/api/cluster", _in_thread(self._cluster)),
            Route("/api/experiment", _in_thread(self._experiment)),
            Route("/api/attempt", _in_thread(self._attempt)),
            Route("/api/frames", _in_thread(self._frames)),
        ]

    async def _page(self, _: Request) -> Response:
        return HTMLResponse(page(f"{self.catalog.root.name} - rollmill"))

    async def _module(self, request: Request) -> Response:
        text = modules().get(request.path_params["name"])
        return PlainTextResponse("404: no such module\n", 404) if text is None else Response(text, media_type=_JS)

    def _runs(self, request: Request) -> Response:
        self.catalog.refresh()
        return as_json(self.catalog.to_dict(_whole(request, "since", -1)))

    def _read_columns(self, request: Request) -> Response:
        names = request.query_params.getlist("name")
        if not 0 < len(names) <= MOST_COLUMNS:
            raise Refused(400, f"1 to {MOST_COLUMNS} names of columns at a time")
        return binary(columns_of(self._columns, self._several(request), names))

    def _several(self, request: Request) -> list[RunEntry]:
        """Return the runs that a request names."""
        ids = [id_ for id_ in request.query_params.get("runs", "").split(",") if id_]
        if len(ids) > MOST_RUNS:
            raise Refused(400, f"at most {MOST_RUNS} runs at a time")
        return [self._run(id_) for id_ in ids]

    def _one(self, request: Request) -> RunEntry:
        return self._run(request.query_params.get("run", ""))

    def _run(self, id_: str) -> RunEntry:
        """Return the run of an id that a request names."""
        try:
            return self.catalog[id_]
        except KeyError:
            raise Refused(404, "there is no such run") from None

    def _checkpoints(self, request: Request) -> Response:
        runs = self._several(request)
        return as_json({run.id: checkpoint_steps(RunFolder(run.folder), self.catalog.root) for run in runs})

    def _population(self, request: Request) -> Response:
        """Answer with the population of a run, or of an experiment whose runs are the members."""
        folder = self._launched(request) if "name" in request.query_params else self._one(request).folder
        return as_json(population(folder, self.catalog.root))

    def _cluster(self, request: Request) -> Response:
        run = self._one(request)
        return as_json(cluster(RunFolder(run.folder), self.catalog.root, run.shown["metrics"]))

    def _moment(self, request: Request) -> Response:
        run = self._one(request)
        folder = RunFolder(run.folder)
        frames, steps, times = self._columns.read(folder.metrics, ["frames", "step", "time"])
        at = steps if np.isnan(frames).all() else frames
        known = np.isfinite(at) & np.isfinite(times)
        place = _number(request, "frames")
        played = played_at(self._stores(folder.data), int(place)) if folder.data in run.stores else None
        return as_json(moment(folder, self.catalog.root, place, at[known], times[known], played))

    def _launched(self, request: Request) -> Path:
        folder = self.catalog.experiments.get(request.query_params.get("name", ""))
        if folder is None:
            raise Refused(404, "there is no such experiment")
        return folder

    def _experiment(self, request: Request) -> Response:
        return as_json(self._experiments(self._launched(request)))

    def _attempt(self, request: Request) -> Response:
        run, number = request.query_params.get("run", ""), _whole(request, "number", -1)
        return as_json({"log": attempt_log(self._launched(request), self.catalog.root, run, number)})

    def _place(self, request: Request) -> Path:
        folder = self.catalog.stores.get(request.query_params.get("store", ""))
        if folder is None:
            raise Refused(404, "there is no such store")
        return folder

    def _store(self, request: Request) -> Store:
        return self._stores(self._place(request))

    def _checks(self, request: Request) -> Response:
        return as_json(report_of(self._place(request), self.catalog.root))

    def _scatter(self, request: Request) -> Response:
        head, columns = scatter(self._store(request), question(request))
        return binary((head, [column.tobytes() for column in columns]))

    def _episode(self, request: Request) -> Response:
        store = self._store(request)
        head, tracks = episode(store, _episode_number(store, request))
        return binary((head, [track.tobytes() for track in tracks]))

    def _frames(self, request: Request) -> Response:
        store, asked = self._store(request), request.query_params.get("image", "")
        image = shown_image(store, asked)
        if image is None:
            raise Refused(404, "this store holds no images")
        found = frames(store, _episode_number(store, request), image, _whole(request, "part", -1))
        return Response(found, media_type="image/png")

    async def _events(self, request: Request) -> Response:
        if self._streams >= STREAMS:
            return PlainTextResponse(f"503: {STREAMS} tabs are open already\n", 503)
        self._streams += 1  # at once: of many that ask together none may pass unseen
        return _Stream(self._news(request), self._let_go)

    def _let_go(self) -> None:
        self._streams -= 1

    async def _news(self, request: Request) -> AsyncIterator[str]:
        """Yield the catalog's revision whenever it has changed: a browser then asks for what is new."""
        told = -1
        while not (self._stopping() or await request.is_disconnected()):
            revision = await run_in_threadpool(self.catalog.refresh)
            yield f"data: {revision}\n\n" if revision != told else ": still here\n\n"
            told = revision
            await asyncio.sleep(POLL_SECONDS)


class _Stream(StreamingResponse):
    """Events, and what is to be called at their end, though nobody may ever have listened."""

    def __init__(self, events: AsyncIterator[str], ended: Callable[[], None]) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._ended()


def make_app(viewer: Viewer, door: Door) -> ASGIApp:
    """Make the application behind its guard, which stands before all of it: faults of ours have its headers, too."""

    async def failed(_: Request, error: Exception) -> Response:
        """Say in a sentence what cannot be answered, be it a damaged file or wrong words."""
        return PlainTextResponse(f"422: {words_of(error, viewer.catalog.root)}\n", 422)

    app = Starlette(
        routes=viewer.routes(),
        middleware=[Middleware(GZipMiddleware, minimum_size=2000, compresslevel=1)],
        exception_handlers={Refused: _refused, RollmillError: failed, OSError: failed},
    )
    return Guard(app, door)


def columns_of(columns: Columns, runs: Sequence[RunEntry], names: Sequence[str]) -> tuple[Any, list[bytes]]:
    """Return for each run its id, its rows and the columns one after the other, as float64."""
    head, parts = [], []
    for run in runs:
        found = columns.read(RunFolder(run.folder).metrics, names)
        head.append({"id": run.id, "rows": len(found[0])})
        parts += [column.astype("<f8", copy=False).tobytes() for column in found]
    return {"names": list(names), "runs": head}, parts


def as_json(value: Any) -> Response:
    return Response(json.dumps(value, allow_nan=False, separators=(",", ":")), media_type="application/json")


def binary(found: tuple[Any, Sequence[bytes]]) -> Response:
    """Answer with a u32 that counts the bytes of a JSON text, that text padded to groups of eight, then numbers."""
    head = json.dumps(found[0], separators=(",", ":")).encode()
    head += b" " * (-(len(head) + 4) % 8)
    return Response(struct.pack("<I", len(head)) + head + b"".join(found[1]), media_type="application/octet-stream")


def _in_thread(answer: Callable[[Request], Response]) -> Callable[[Request], Any]:
    async def route(request: Request) -> Response:
        return await run_in_threadpool(answer, request)

    return route


def _whole(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name, str(default))
    try:
        return int(text[:20])
    except ValueError:
        raise Refused(400, f"{name} must be a whole number") from None


def _episode_number(store: Store, request: Request) -> int:
    number = _whole(request, "episode", -1)
    if not 0 <= number < len(store):
        raise Refused(404, "there is no such episode")
    return number


def _number(request: Request, name: str) -> float:
    try:
        found = float(request.query_params.get(name, "")[:40])
    except ValueError:
        raise Refused(400, f"{name} must be a number") from None
    if not math.isfinite(found):
        raise Refused(400, f"{name} must be a number")
    return found


def question(request: Request) -> Question:
    """Return what a request asks of a table of episodes."""
    near = _number(request, "near") if request.query_params.get("near") else None
    return Question(
        request.query_params.get("filter", ""),
        request.query_params.get("sort", ""),
        _whole(request, "start", 0),
        _whole(request, "count", MOST_ROWS),
        near,
    )


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return PlainTextResponse(f"{error.code}: {error.words}\n", error.code)
