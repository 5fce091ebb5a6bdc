"""A viewer for tests: its server in a thread, and what asks it."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import uvicorn
from experimenting import online, write_run
from running import wait_until

from rollmill.core.fields import ActionSpec, EnvSpec, Field
from rollmill.distributed.standing import NodeStanding, RunStanding
from rollmill.launch.records import LaunchRecords, PlanRecord, RunRecord
from rollmill.pbt.payoff import PAYOFF_FILE
from rollmill.reports.html.serving import Door
from rollmill.store.episode import Episode, EpisodeInfo
from rollmill.store.format.schema import Column, StoreSchema
from rollmill.store.writer import StoreWriter
from rollmill.viewer.catalog import Catalog
from rollmill.viewer.index import Index
from rollmill.viewer.run import Address, settings_of
from rollmill.viewer.server import Viewer, make_app


@dataclass
class Answer:
    code: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Serving:
    """A running server. ``cookie``: what its link was exchanged for."""

    port: int
    link: str
    catalog: Catalog
    cookie: str = ""
    names: dict[str, str] = field(default_factory=dict)

    def ask(self, path: str, method: str = "GET", **headers: str) -> Answer:
        """A request with the cookie, as a browser sends it; ``headers``: others, or None in their place."""
        sent = {"Host": f"127.0.0.1:{self.port}", "Cookie": self.cookie}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in sent.items():
                connection.putheader(name, value)
            connection.endheaders()
            found = connection.getresponse()
            return Answer(found.status, {k.lower(): v for k, v in found.getheaders()}, found.read())

    def follow(self) -> http.client.HTTPConnection:
        """A stream of news, as every tab has one; waits until there is room for one more."""

        def let_in() -> http.client.HTTPConnection | None:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
            connection.request("GET", "/api/events", headers={"Cookie": self.cookie})
            answer = connection.getresponse()
            if answer.status == 200 and answer.readline().startswith(b"data:"):
                return connection
            connection.close()
            return None

        found: http.client.HTTPConnection = wait_until(let_in, what="the server to tell one more of news")
        return found

    def runs(self) -> dict[str, Any]:
        """Name -> what the table of runs says of it; looked at anew."""
        self.catalog._due = 0.0
        return {run["name"]: run for run in self.ask("/api/runs").json["runs"]}

    def id_of(self, name: str) -> str:
        return str(self.runs()[name]["id"])


@contextmanager
def serving(root: Path) -> Iterator[Serving]:
    """The real server over a folder; every look is a new one."""
    index, door = Index(None), Door()
    catalog = Catalog(root, index)
    catalog.refresh()
    with closing(index), closing(Address().listen()) as bound:
        server: uvicorn.Server
        viewer = Viewer(catalog, stopping=lambda: server.should_exit)
        server = uvicorn.Server(settings_of(make_app(viewer, door)))
        thread = threading.Thread(target=server.run, args=([bound],))
        thread.start()
        try:
            wait_until(lambda: server.started, what="the server to start")
            port = int(bound.getsockname()[1])
            found = Serving(port, door.link("127.0.0.1", port), catalog)
            address = urlsplit(found.link)
            found.cookie = found.ask(f"/?{address.query}", Cookie="").headers["set-cookie"].partition(";")[0]
            yield found
        finally:
            server.should_exit = True
            thread.join()


EXTRA = (Column("log_prob", "float32"), Column("value", "float32", per="obs"))
"""Columns that a recorder adds."""
LAST_VALUE = 5.0
"""Of the final observation; 0 at all others."""


def counting_store(
    path: Path,
    lengths: Sequence[int],
    size: tuple[int, int] = (12, 16),
    ended: tuple[bool, bool] = (True, False),
) -> Path:
    """Episodes whose picture is the number of their step: all its pixels are the step, then the episode, then 7.

    ``ended``: terminated, truncated.
    """
    fields = (Field("image", "uint8", (*size, 3)),)
    schema = StoreSchema.for_env(
        EnvSpec("counting", fields, ActionSpec("discrete", nvec=(3,), start=(0,))),
        extra=EXTRA,
    )
    with StoreWriter(path, schema, sync="seal") as writer:
        for k, steps in enumerate(lengths):
            image = np.empty((steps + 1, *size, 3), np.uint8)
            image[...] = np.stack([np.arange(steps + 1) % 256, np.full(steps + 1, k), np.full(steps + 1, 7)], -1)[
                :, None, None
            ]
            reward = np.zeros(steps, np.float32)
            reward[steps // 2] = k + 1
            columns = {
                "obs:image": image,
                "action": np.arange(steps) % 3,
                "reward": reward,
                "global_step": 100 * k + np.arange(steps),
                "version": np.full(steps, k),
                "log_prob": np.full(steps, -0.5, np.float32),
                "value": np.append(np.zeros(steps, np.float32), np.float32(LAST_VALUE)),
            }
            writer.add_episode(Episode(columns, EpisodeInfo(uid=k + 1, seed=k), *ended))
    return path


def two_views(path: Path, steps: int) -> Path:
    """An episode with two images: all pixels are the step, then 100 (left) or 200 (right), then 7."""
    fields = tuple(Field(name, "uint8", (12, 16, 3)) for name in ("left", "right"))
    schema = StoreSchema.for_env(EnvSpec("two", fields, ActionSpec("discrete", nvec=(3,), start=(0,))))
    columns = {"action": np.zeros(steps, np.int64), "reward": np.zeros(steps, np.float32)}
    columns |= {"global_step": np.arange(steps), "version": np.zeros(steps, np.int64)}
    for name, mark in (("left", 100), ("right", 200)):
        pixels = np.stack([np.arange(steps + 1), np.full(steps + 1, mark), np.full(steps + 1, 7)], -1).astype(np.uint8)
        columns[f"obs:{name}"] = np.tile(pixels[:, None, None], (1, 12, 16, 1))
    with StoreWriter(path, schema, sync="seal") as writer:
        writer.add_episode(Episode(columns, EpisodeInfo(uid=1, seed=0), True, False))
    return path


def launched(experiment: Path, gammas: Sequence[float], seeds: int) -> None:
    """An experiment with its plan: finished runs of every gamma and seed, and one that nobody has started."""
    records, runs = LaunchRecords(experiment), []
    for gamma in gammas:
        for seed in range(seeds):
            params = {"learning.gamma": gamma, "run.seed": seed}
            folder = experiment / f"g{gamma}-s{seed}"
            write_run(folder, online(seed, learning={"gamma": gamma}), [100 * gamma + seed] * 30)
            runs.append(RunRecord(folder.name, f"gamma-{gamma}", params, ("rollmill", "train"), str(folder), 300))
    runs.append(RunRecord("to_come", "to_come", {}, ("rollmill", "train"), str(experiment / "to_come"), 300))
    records.write_plan(PlanRecord(experiment.name, str(experiment), tuple(runs), {}))


KEY = "learning.learning_rate"
RATES = (0.001, 0.01, 0.1)


def population_run(folder: Path) -> Path:
    """A population of three after two rounds: 2 takes over from 0, then 0 and 2 from 1; each copy halves the rate."""
    write_run(folder, online(pbt={"members": 3}), [1.0, 2.0])
    rates = list(RATES)
    lines: list[dict[str, Any]] = [
        {"begin": [{"learning.learning_rate": rate} for rate in rates], "objective": "return"}
    ]
    lines[0] |= {"method": "pbt", "seed": 0}
    for number, copies in enumerate((((2, 0),), ((0, 1), (2, 1))), 1):
        members, moves = [], []
        for k, rate in enumerate(rates):
            own: dict[str, Any] = {
                "member": k,
                "frames": 1000 * number + k,
                "objective": 10.0 * number + k,
                "error": 0.5,
            }
            members.append(own | {"episodes": 20, "settings": {"learning.learning_rate": rate}})
        if number == 2:
            members[2] |= {"objective": None, "error": None}
        for taker, giver in copies:
            before, rates[taker] = rates[taker], rates[giver] / 2
            moves.append(
                {"member": taker, "from": giver, "settings": {"learning.learning_rate": [before, rates[taker]]}}
            )
        lines.append({"round": number, "members": members, "moves": moves, "kept": {"1": "nobody is better"}})
    (folder / "population.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def cluster_run(folder: Path) -> Path:
    """A run of two nodes, the second of which died and came again; the first one still samples."""
    write_run(folder, online(cluster={"address": "local", "nodes": 2}), [1.0])
    rows = []
    for k in range(10):
        row = {"frames": 100 * (k + 1), "cluster/nodes": 2 - (k == 5), "cluster/segments": 7 * k}
        row |= {"cluster/lost_segments": 3 * (k > 5), "cluster/refused_segments": 0, "cluster/pack_ratio": 3.0}
        for seat in (0, 1) if k != 5 else (0,):
            node = f"cluster/node{seat}"
            row |= {f"{node}/frames_per_s": 500 + seat, f"{node}/mb_per_s": 0.25, f"{node}/lag": k / 4}
            row[f"{node}/incarnation"] = 1000 + seat + (2 if seat and k > 5 else 0)
        rows.append(row)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    stamp = "2026-11-01 10:00:00,000"
    said = (
        "INFO    node local-1 samples (seat 1, incarnation 1001)",
        "WARNING node local-1 is gone",
        "INFO    training",
        "INFO    checkpoint runs/nodes/two-nodes/checkpoints/frames-000000000100.ckpt",
    )
    (folder / "log.txt").write_text("".join(f"{stamp} {text}\n" for text in said))
    node = NodeStanding("local-0", 0, 1000, "sampling", "", 510.0, 0.25, 1.0, 5000, 0, 3.0, 0.1)
    RunStanding(1, "local", 1.79e9, 0, "", 63, 3, 0, [node]).write(folder)
    return folder


def selfplay_run(folder: Path) -> Path:
    """Three models, each of which has won three of four games against the one before, and all against an anchor."""
    write_run(folder, online(), [1.0, 2.0])
    (folder / "metrics.jsonl").write_text(json.dumps({"frames": 10, "selfplay/games": 12.0}) + "\n")
    lines: list[dict[str, Any]] = [{"begin": [], "rule": "uniform", "policies": 1, "anchors": {"still": 32767}}]
    for model in range(3):
        results = [{"policy": 0, "opponent": "still", "games": 4, "wins": 4, "draws": 0, "losses": 0, "return": 1.0}]
        if model:
            past = {"policy": 0, "opponent": f"model {model - 1}", "games": 4, "wins": 2, "draws": 2, "losses": 0}
            results.append(past | {"return": 0.5})
        lines.append({"model": model, "version": 10 * model, "frames": 1000 * (model + 1), "results": results})
    (folder / PAYOFF_FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder
