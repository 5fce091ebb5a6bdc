"""A copy of the pages without a server: one HTML file that holds the answers a server would give, to mail or to keep.

It holds the curves of all runs, launched experiments, and of every store the points and the first page of its table.
Episodes with their frames take the room, so only as many as are asked for are in it. The page says what is not, and
what could not be read.
"""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import numpy as np

from rollmill.core import atomic
from rollmill.core.errors import ConfigError, RollmillError, RunFolderError
from rollmill.core.fields import Array
from rollmill.core.run_folder import RunFolder
from rollmill.pbt.ledger import NAME as LEDGER
from rollmill.pbt.payoff import PAYOFF_FILE
from rollmill.store.reader import Store
from rollmill.viewer.catalog import Catalog, RunEntry, words_of
from rollmill.viewer.clusters import PREFIX, cluster
from rollmill.viewer.columns import Columns
from rollmill.viewer.episodes import Question, Stores, episode, frames, portion, report_of, scatter, shown_image, table
from rollmill.viewer.experiments import Experiments
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
    problems: tuple[str, ...] = ()
    """What could not be read and is not in it, and why."""


def export(catalog: Catalog, folder: Path, episodes: int) -> Copied:
    """Write ``index.html`` into a folder; ``episodes``: the best of each store, with their frames."""
    if folder.resolve().is_relative_to(catalog.root):
        raise ConfigError(f"--export {folder}: lies among the runs, where nothing is written; name another folder")
    catalog.refresh()
    columns, stores = Columns(catalog.root), Stores(catalog.root)
    answers: dict[str, Any] = {"json": {"/api/runs": catalog.to_dict()}}
    answers |= {kind: {} for kind in ("binary", "pictures", "columns", "checkpoints", "problems")}
    copy = _Copy(catalog.root, answers)
    for run in catalog.runs.values():
        copy.run(run, columns)
    experiments = Experiments(catalog.root)
    for name, launched in catalog.experiments.items():
        query = f"name={quote_plus(name)}"
        copy.json(f"/api/experiment?{query}", name, partial(experiments, launched))
        if (launched / LEDGER).is_file():
            copy.json(f"/api/population?{query}", name, partial(population, launched, catalog.root))
    for id_, place in catalog.stores.items():
        copy.store(id_, place, stores, episodes)
    answers["missing"] = list(copy.problems)
    text = page(f"{catalog.root.name} - rollmill", json.dumps(answers, allow_nan=False).replace("<", "\\u003c"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        atomic.write_text(folder / PAGE, text)
    except OSError as error:
        raise RunFolderError(f"{folder / PAGE}: cannot be written: {error.strerror or error}") from error
    return Copied(folder / PAGE, len(catalog.runs), copy.episodes, len(text.encode()), tuple(copy.problems))


class _Copy:
    """Gathers answers. What cannot be read is named in place of its answer; the rest is in the copy all the same."""

    def __init__(self, root: Path, answers: dict[str, Any]) -> None:
        self._root, self._answers = root, answers
        self.episodes = 0
        self.problems: dict[str, None] = {}
        """What is not in the copy, each once."""

    def json(self, address: str, name: str, make: Callable[[], Any]) -> None:
        with self._naming(name, address):
            self._answers["json"][address] = make()

    def run(self, run: RunEntry, columns: Columns) -> None:
        """Add curves, checkpoints, and what the pages of populations and clusters ask for where a run is one."""
        folder, names, root = RunFolder(run.folder), run.shown["metrics"], self._root
        with self._naming(run.name):
            found = columns.read(folder.metrics, names)
            self._answers["columns"][run.id] = {name: packed([column]) for name, column in zip(names, found)}
            self._answers["checkpoints"][run.id] = checkpoint_steps(folder, root)
        if (run.folder / LEDGER).is_file():
            self.json(f"/api/population?run={run.id}", run.name, lambda: population(run.folder, root))
        if (run.folder / PAYOFF_FILE).is_file():
            self.json(f"/api/selfplay?run={run.id}", run.name, lambda: selfplay(run.folder, root))
        if any(name.startswith(PREFIX) for name in names):
            self.json(f"/api/cluster?run={run.id}", run.name, lambda: cluster(folder, root, names))

    def store(self, id_: str, place: Path, stores: Stores, episodes: int) -> None:
        """Add the table, the points and some episodes of a store."""
        name, address = place.relative_to(self._root).as_posix(), f"/api/episodes?store={id_}&start=0&count={ROWS}"
        self.json(f"/api/checks?store={id_}", name, lambda: report_of(place, self._root))
        best: list[int] = []
        with self._naming(name, address, f"/api/scatter?store={id_}"):
            store = stores(place)
            self._answers["json"][address] = table(store, Question(count=ROWS))
            self._answers["binary"][f"/api/scatter?store={id_}"] = binary(*scatter(store, Question()))
            best = Question(sort="-return").select(store)[:episodes].tolist()
        for number in best:
            address = f"/api/episode?store={id_}&episode={number}"
            with self._naming(f"{name}, episode {number}", address):
                tracks, pictures = binary(*episode(store, number)), dict(_frames(id_, store, number))
                self._answers["binary"][address] = tracks
                self._answers["pictures"].update(pictures)
                self.episodes += 1

    @contextlib.contextmanager
    def _naming(self, name: str, *addresses: str) -> Iterator[None]:
        """Note what cannot be read; ``addresses``: what a page then asks for in vain and gets the reason for."""
        try:
            yield
        except (RollmillError, OSError) as error:
            words = f"{name}: {words_of(error, self._root)}"
            self.problems[words] = None
            self._answers["problems"] |= dict.fromkeys(addresses, words)


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
    """Return float64 numbers as text."""
    return base64.b64encode(b"".join(np.asarray(column, "<f8").tobytes() for column in columns)).decode()
