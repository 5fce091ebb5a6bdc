"""A copy of the pages without a server: one HTML file that holds the answers a server would give, to mail or to keep.

It holds the curves of all runs, launched experiments, and of every store the points and the first page of its table.
Episodes with their frames take the room, so only as many as are asked for are in it. The page says what is not.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import numpy as np

from rollmill.core import atomic
from rollmill.core.errors import ConfigError, RunFolderError
from rollmill.core.fields import Array
from rollmill.core.run_folder import RunFolder
from rollmill.pbt.ledger import NAME as LEDGER
from rollmill.pbt.payoff import PAYOFF_FILE
from rollmill.store.reader import Store
from rollmill.viewer.catalog import Catalog, RunEntry
from rollmill.viewer.clusters import PREFIX, cluster
from rollmill.viewer.columns import Columns
from rollmill.viewer.episodes import Question, Stores, episode, frames, portion, report_of, scatter, shown_image, table
from rollmill.viewer.experiments import experiment
from rollmill.viewer.moment import checkpoint_steps
from rollmill.viewer.page import page
from rollmill.viewer.populations import population
from rollmill.viewer.selfplay import selfplay

PAGE = "index.html"
ROWS = 200
"""Of the table of episodes: one page of it, as ``page_data.js`` asks for."""


@dataclass
class Copied:
    """What lies in a copy."""

    path: Path
    runs: int
    episodes: int
    bytes: int


def export(catalog: Catalog, folder: Path, episodes: int) -> Copied:
    """Write ``index.html`` into a folder; ``episodes``: the best of each store, with their frames."""
    if folder.resolve().is_relative_to(catalog.root):
        raise ConfigError(f"--export {folder}: lies among the runs, where nothing is written; name another folder")
    catalog.refresh()
    columns, stores = Columns(catalog.root), Stores(catalog.root)
    answers: dict[str, Any] = {"json": {"/api/runs": catalog.to_dict()}}
    answers |= {kind: {} for kind in ("binary", "pictures", "columns", "checkpoints")}
    for run in catalog.runs.values():
        names = run.shown["metrics"]
        found = columns.read(RunFolder(run.folder).metrics, names)
        answers["columns"][run.id] = {name: packed([column]) for name, column in zip(names, found)}
        answers["checkpoints"][run.id] = checkpoint_steps(RunFolder(run.folder), catalog.root)
        answers["json"] |= _of_run(run, catalog.root)
    for name, launched in catalog.experiments.items():
        answers["json"][f"/api/experiment?name={quote_plus(name)}"] = experiment(launched, catalog.root)
        if (launched / LEDGER).is_file():
            answers["json"][f"/api/population?name={quote_plus(name)}"] = population(launched, catalog.root)
    for id_, place in catalog.stores.items():
        answers["json"][f"/api/checks?store={id_}"] = report_of(place, catalog.root)
    copied = sum(_store(answers, id_, stores(place), episodes) for id_, place in catalog.stores.items())
    text = page(f"{catalog.root.name} - rollmill", json.dumps(answers, allow_nan=False).replace("<", "\\u003c"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        atomic.write_text(folder / PAGE, text)
    except OSError as error:
        raise RunFolderError(f"{folder / PAGE}: cannot be written: {error.strerror or error}") from error
    return Copied(folder / PAGE, len(catalog.runs), copied, len(text.encode()))


def _of_run(run: RunEntry, root: Path) -> dict[str, Any]:
    """What the pages of populations and clusters ask for, where a run is one."""
    found: dict[str, Any] = {}
    if (run.folder / LEDGER).is_file():
        found[f"/api/population?run={run.id}"] = population(run.folder, root)
    if (run.folder / PAYOFF_FILE).is_file():
        found[f"/api/selfplay?run={run.id}"] = selfplay(run.folder, root)
    names = run.shown["metrics"]
    if any(name.startswith(PREFIX) for name in names):
        found[f"/api/cluster?run={run.id}"] = cluster(RunFolder(run.folder), root, names)
    return found


def _store(answers: dict[str, Any], id_: str, store: Store, episodes: int) -> int:
    """The table, the points and some episodes of a store; returns how many."""
    answers["json"][f"/api/episodes?store={id_}&start=0&count={ROWS}"] = table(store, Question(count=ROWS))
    names, points = scatter(store, Question())
    answers["binary"][f"/api/scatter?store={id_}"] = binary({"names": names, "rows": len(points[0])}, points)
    best = Question(sort="-return").select(store)[:episodes].tolist()
    for number in best:
        answers["binary"][f"/api/episode?store={id_}&episode={number}"] = binary(*episode(store, number))
        answers["pictures"].update(_frames(id_, store, number))
    return len(best)


def _frames(id_: str, store: Store, number: int) -> Iterable[tuple[str, str]]:
    image = shown_image(store)
    if image is None:
        return
    for part in range(int(store.table.length[number]) // portion(image) + 1):
        png = base64.b64encode(frames(store, number, image, part)).decode()
        yield f"/api/frames?store={id_}&episode={number}&part={part}", f"data:image/png;base64,{png}"


def binary(head: Any, columns: Sequence[Array]) -> dict[str, Any]:
    return {"head": head, "numbers": packed(columns)}


def packed(columns: Sequence[Array]) -> str:
    """Float64 numbers as text."""
    return base64.b64encode(b"".join(np.asarray(column, "<f8").tobytes() for column in columns)).decode()
