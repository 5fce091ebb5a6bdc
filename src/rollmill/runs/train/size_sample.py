"""How many bytes a step of an environment takes in a store: tried out with random actions before a recording starts.

``python -m rollmill.runs.train.size_sample`` does it in a process of its own, while the run is being built.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from rollmill.core.errors import EnvError, error_text
from rollmill.core.fields import INFO, Array, Obs
from rollmill.core.process import Errand
from rollmill.core.protocols import Env
from rollmill.core.slots import OBS
from rollmill.envs.batch import PHASES, RESET, STEP, STOPS, random_actions
from rollmill.envs.probe import answer_about_env, build_one, close_here, note_closing
from rollmill.envs.settings import EnvSettings
from rollmill.recording.forecast import Sample
from rollmill.store.episode import Episode
from rollmill.store.format.index import EPISODE, PLACE
from rollmill.store.format.schema import StoreSchema
from rollmill.store.reader import Store
from rollmill.store.writer import StoreWriter

STEPS = 2000
SECONDS = 1.5
"""Whichever comes first ends the trial."""


def sample_here(settings: EnvSettings, schema: StoreSchema, block: int = 0, piece: int = 0) -> Sample:
    """Play one env for a moment, write what it shows, and look at the files. ``piece``: steps to cut episodes at.

    EnvError says where it failed.
    """
    env = build_one(settings)
    try:
        return _sample(settings, env, schema, block, piece)
    finally:
        close_here(settings.id, env)


def _sample(settings: EnvSettings, env: Env, schema: StoreSchema, block: int, piece: int) -> Sample:
    with tempfile.TemporaryDirectory(prefix="rollmill-size-", dir=os.environ.get("ROLLMILL_SCRATCH")) as folder:
        with StoreWriter(Path(folder), schema, block=block, sync="seal") as writer:
            lengths = _Player(settings, env, writer, piece).run()
        table = Store(folder).table
        index = len(table) * EPISODE.itemsize + int(table["blocks"].sum()) * PLACE.itemsize
        size = int(table["bytes"].sum()) + index
    return Sample(table.steps, size / max(1, table.steps), float(np.mean(lengths)))


class _Player:
    """Writes episodes of agent 0 until the time is up."""

    def __init__(self, settings: EnvSettings, env: Env, writer: StoreWriter, piece: int) -> None:
        self._settings, self._env, self._writer, self._piece = settings, env, writer, piece
        self._limit = settings.max_episode_steps
        self._rng = np.random.default_rng(0)
        self._rows: list[dict[str, Any]] = []
        self._steps = 0

    def run(self) -> list[int]:
        """Returns the lengths of the episodes that ended (or of the only one)."""
        spec = self._env.spec
        obs: Obs = {f.name: np.zeros((spec.agents, *f.shape), f.dtype) for f in spec.written}
        lengths: list[int] = []
        end = time.monotonic() + SECONDS
        while self._steps < STEPS and time.monotonic() < end:
            with self._calling(RESET, len(lengths), 0):
                self._env.reset(len(lengths), obs)
            length, over = 0, np.zeros(spec.agents, bool)
            while not over.all() and self._steps < STEPS and time.monotonic() < end:
                seen = {_column(name): array[0].copy() for name, array in obs.items()}
                action = random_actions(spec, self._rng, obs, spec.agents)
                with self._calling(STEP, len(lengths), length):
                    reward, terminated, truncated, _ = self._env.step(action, obs)
                    self._note(seen, action[0], float(np.ravel(reward)[0]))
                    over |= np.asarray(terminated, bool)
                    over |= np.asarray(truncated, bool)
                length += 1
                over |= length == self._limit
                if over.all() or len(self._rows) == self._piece:
                    self._write(obs, bool(over.all()))
            if over.all():
                lengths.append(length)
        if self._rows:
            self._write(obs, False)
        return lengths or [self._steps]

    @contextlib.contextmanager
    def _calling(self, phase: int, seed: int, step: int) -> Iterator[None]:
        """Turn whatever comes out of the env, or cannot be made sense of, into an EnvError that tells the place."""
        try:
            yield
        except STOPS:
            raise
        except BaseException as error:
            place = f"{PHASES[phase]} (seed {seed}, step {step})"
            raise EnvError(f"{self._settings.id} failed in {place}: {error_text(error)}") from error

    def _note(self, seen: dict[str, Any], action: Any, reward: float) -> None:
        self._steps += 1
        # Progress rises by what all lanes of a run decide meanwhile.
        self._rows.append(seen | {"action": action, "reward": reward, "global_step": self._steps * 64, "version": 1})

    def _write(self, obs: Obs, ended: bool) -> None:
        rows, self._rows = self._rows, []
        columns: dict[str, Array] = {}
        for column in self._writer.schema.columns:
            if column.name.startswith((OBS, INFO)):
                values = [row[column.name] for row in rows] + [obs[column.name.removeprefix(OBS)][0].copy()]
            elif column.name in rows[0]:
                values = [row[column.name] for row in rows]
            elif column.numpy.kind == "i":  # who plays: the same in all rows
                values = [0] * (len(rows) + (column.per == "obs"))
            else:  # what a policy says: numbers that hardly compress
                values = list(self._rng.normal(size=len(rows) + (column.per == "obs")))
            columns[column.name] = np.asarray(values, column.numpy)
        self._writer.add_episode(Episode(columns, terminated=ended))


def _column(name: str) -> str:
    return name if name.startswith(INFO) else OBS + name


class SizeSample:
    """The trial in a process of its own; ``result`` waits for its answer."""

    def __init__(
        self, env: EnvSettings, schema: StoreSchema, block: int, piece: int, environment: Mapping[str, str]
    ) -> None:
        self._name = env.id
        question = {"env": asdict(env), "schema": schema.to_json(), "block": block, "piece": piece}
        self._errand = Errand("rollmill.runs.train.size_sample", question, environment)

    def result(self, timeout: float) -> Sample | str:
        """Return the sample, or why there is none."""
        try:
            answer = self._errand.first_line(timeout)
            if answer is None:
                noise = self._errand.last_noise
                return f"its process {self._errand.end()}{f': {noise}' if noise else ''}"
            if "error" in answer:
                return str(answer["error"])
            note_closing(self._name, self._errand)
        except TimeoutError:
            return f"it took more than {timeout:g} s"
        finally:
            self.close()
        return Sample(**answer["sample"])

    def close(self) -> None:
        self._errand.close()


def _look(env: Env, question: Mapping[str, Any]) -> dict[str, Any]:
    settings, schema = EnvSettings.of(question["env"]), StoreSchema.from_json(question["schema"])
    return {"sample": asdict(_sample(settings, env, schema, question["block"], question["piece"]))}


if __name__ == "__main__":
    answer_about_env(int(sys.argv[1]), _look)
