"""How many bytes a step of an environment takes in a store: tried out with random actions before a recording starts.

``python -m rollmill.runs.size_sample`` does it in a process of its own, while the run is being built.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from rollmill.core.errors import RollmillError
from rollmill.core.fields import Array, Obs
from rollmill.core.slots import OBS
from rollmill.envs.batch import random_actions
from rollmill.envs.make import make_env
from rollmill.envs.settings import EnvSettings
from rollmill.store.episode import Episode
from rollmill.store.index import EPISODE, PLACE
from rollmill.store.reader import Store
from rollmill.store.recording.forecast import Sample
from rollmill.store.schema import StoreSchema
from rollmill.store.writer import StoreWriter

STEPS = 2000
SECONDS = 1.5
"""Whichever comes first ends the trial."""


def sample_here(env: EnvSettings, schema: StoreSchema, block: int = 0, piece: int = 0) -> Sample:
    """Play one env for a moment, write what it shows, and look at the files. ``piece``: steps to cut episodes at."""
    with tempfile.TemporaryDirectory(prefix="rollmill-size-", dir=os.environ.get("ROLLMILL_SCRATCH")) as folder:
        with StoreWriter(Path(folder), schema, block=block, sync="seal") as writer:
            lengths = _play(env, writer, piece)
        table = Store(folder).table
        index = len(table) * EPISODE.itemsize + int(table["blocks"].sum()) * PLACE.itemsize
        size = int(table["bytes"].sum()) + index
    return Sample(table.steps, size / max(1, table.steps), float(np.mean(lengths)))


def _make(settings: EnvSettings) -> Any:
    if not settings.vector:
        return make_env(settings)
    from rollmill.envs.vector import VectorLane  # imports gymnasium, which the main process may not need

    return VectorLane(settings)


def _play(settings: EnvSettings, writer: StoreWriter, piece: int) -> list[int]:
    """Write episodes of agent 0 until the time is up; returns the lengths of those that ended (or of the only one)."""
    env = _make(settings)
    try:
        return _Player(settings, env, writer, piece).run()
    finally:
        env.close()


class _Player:
    def __init__(self, settings: EnvSettings, env: Any, writer: StoreWriter, piece: int) -> None:
        self._env, self._writer, self._piece = env, writer, piece
        self._limit = settings.max_episode_steps
        self._rng = np.random.default_rng(0)
        self._rows: list[dict[str, Any]] = []
        self._steps = 0

    def run(self) -> list[int]:
        spec = self._env.spec
        obs: Obs = {f.name: np.zeros((spec.agents, *f.shape), f.dtype) for f in spec.observation}
        lengths: list[int] = []
        end = time.monotonic() + SECONDS
        while self._steps < STEPS and time.monotonic() < end:
            self._env.reset(len(lengths), obs)
            length, over = 0, np.zeros(spec.agents, bool)
            while not over.all() and self._steps < STEPS and time.monotonic() < end:
                seen = {OBS + name: array[0].copy() for name, array in obs.items()}
                action = random_actions(spec, self._rng, obs, spec.agents)
                reward, terminated, truncated, _ = self._env.step(action, obs)
                self._note(seen, action[0], float(np.ravel(reward)[0]))
                length += 1
                over |= terminated
                over |= truncated
                over |= length == self._limit
                if over.all() or len(self._rows) == self._piece:
                    self._write(obs, bool(over.all()))
            if over.all():
                lengths.append(length)
        if self._rows:
            self._write(obs, False)
        return lengths or [self._steps]

    def _note(self, seen: dict[str, Any], action: Any, reward: float) -> None:
        self._steps += 1
        # Progress rises by what all lanes of a run decide meanwhile.
        self._rows.append(seen | {"action": action, "reward": reward, "global_step": self._steps * 64, "version": 1})

    def _write(self, obs: Obs, ended: bool) -> None:
        rows, self._rows = self._rows, []
        columns: dict[str, Array] = {}
        for column in self._writer.schema.columns:
            if column.name.startswith(OBS):
                values = [row[column.name] for row in rows] + [obs[column.name.removeprefix(OBS)][0].copy()]
            elif column.name in rows[0]:
                values = [row[column.name] for row in rows]
            else:  # what a policy says: numbers that hardly compress
                values = list(self._rng.normal(size=len(rows) + (column.per == "obs")))
            columns[column.name] = np.asarray(values, column.numpy)
        self._writer.add_episode(Episode(columns, terminated=ended))


class SizeSample:
    """The trial in a process of its own; ``result`` waits for its answer."""

    def __init__(
        self, env: EnvSettings, schema: StoreSchema, block: int, piece: int, environment: Mapping[str, str]
    ) -> None:
        question = {"env": asdict(env), "schema": schema.to_json(), "block": block, "piece": piece, "path": sys.path}
        # Files instead of pipes: nothing is held up when full, or held open by a simulator that is left behind.
        self._question = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by ``close``
        self._answer = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        self._noise = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        json.dump(question, self._question)
        self._question.seek(0)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rollmill.runs.size_sample", str(self._answer.fileno())],
            stdin=self._question,
            stdout=self._noise,
            stderr=self._noise,
            pass_fds=(self._answer.fileno(),),
            env={**environment, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        )

    def result(self, timeout: float) -> Sample | str:
        """The sample, or why there is none."""
        try:
            code = self._process.wait(timeout)
            self._answer.seek(0)
            text = self._answer.read()
            self._noise.seek(0)
            noise = self._noise.read().strip()
        except subprocess.TimeoutExpired:
            return f"it took more than {timeout:g} s"
        finally:
            self.close()
        if text:
            return Sample(**json.loads(text))
        return f"exit code {code}: {noise.splitlines()[-1] if noise else 'no message'}"

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for file in (self._question, self._answer, self._noise):
            file.close()


def main(answer_fd: int) -> int:
    os.set_inheritable(answer_fd, False)
    question = json.load(sys.stdin)
    sys.path[:] = question["path"]
    try:
        found = sample_here(
            EnvSettings(**question["env"]),
            StoreSchema.from_json(question["schema"]),
            question["block"],
            question["piece"],
        )
    except RollmillError as error:
        print(error, file=sys.stderr)
        return 1
    with os.fdopen(answer_fd, "w") as file:
        json.dump(asdict(found), file)
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
