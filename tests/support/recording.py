"""Segments for tests of recording, and the proof that what is stored is what was learnt from.

Used with ``recordable_env:Recordable``: an observation says which env, agent, episode and step it belongs to.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from marking import MarkPolicy
from recordable_env import Recordable, seed_of

from rollmill.core.fields import Array, EnvSpec
from rollmill.core.seeds import Seeds
from rollmill.core.slots import OBS
from rollmill.envs.make import EnvInstance
from rollmill.envs.settings import EnvSettings
from rollmill.recording.assemble import LanePlan
from rollmill.recording.recorder import recorder_metrics
from rollmill.runs.train.loop import OnlineRun
from rollmill.runs.train.observers import Observer
from rollmill.sampling.sampler import Sampler, SamplerPlan
from rollmill.sampling.settings import SamplingSettings
from rollmill.store.format.schema import Column, StoreSchema
from rollmill.store.reader import Store

Segment = dict[str, Array]
Key = tuple[int, int, int, int, int]
SEEDS = Seeds(3).branch("envs")
ROLLOUT, WORKERS, GROUPS, ENVS = 8, 2, 2, 4
EXTRA = (Column("log_prob", "float32"), Column("value", "float32", per="obs"))


def marker_spec(agents: int = 1) -> EnvSpec:
    return Recordable(EnvInstance(), agents).spec


def marker_schema(agents: int = 1, extra: tuple[Column, ...] = EXTRA) -> StoreSchema:
    return StoreSchema.for_env(marker_spec(agents), env_id="recordable_env:Recordable", extra=extra)


def lane_plan(agents: int = 1) -> LanePlan:
    lanes = ENVS // GROUPS * agents
    return LanePlan(groups=WORKERS * GROUPS, lanes=lanes, agents=agents, groups_per_worker=GROUPS, seeds=SEEDS)


def marker_segments(count: int, agents: int = 1, longest: int = 9) -> list[tuple[int, Segment]]:
    """(group, segment) of a real sampler in one process, in the order in which they were finished."""
    spec = marker_spec(agents)
    settings = SamplingSettings(mode="serial", workers=WORKERS, envs_per_worker=ENVS, groups=GROUPS, rollout=ROLLOUT)
    plan = SamplerPlan(
        settings=settings,
        env=EnvSettings(id="recordable_env:Recordable", args={"agents": agents, "longest": longest}),
        spec=spec,
        seeds=SEEDS,
        segments_per_batch=4,
    )
    sampler = Sampler(plan, [MarkPolicy(spec)])
    sampler.start()
    found: list[tuple[int, Segment]] = []
    while len(found) < count:
        slots = sampler.take(1, 0)
        if slots is None:
            sampler.round()
            continue
        group = int(sampler.inference.group_of_slot[slots[0]])
        found.append((group, copy.deepcopy(sampler.arena.segment(slots[0]))))
        sampler.release(slots)
    sampler.stop()
    return found


class Final(Observer):
    """What the recorder has to say in the end."""

    def __init__(self) -> None:
        self.metrics: dict[str, float] = {}

    def on_stop(self, run: OnlineRun) -> None:
        assert run.recorder is not None
        self.metrics = recorder_metrics(run.recorder)


class Seen(Final):
    """What the learner saw, by (env, agent, episode, step, seed); envs count episodes from 0 in every session."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[Key, dict[str, Any]] = {}

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        self.add(run.segments)

    def on_stop(self, run: OnlineRun) -> None:
        super().on_stop(run)
        if run.config.sampling.mode != "serial":  # recorded, though nobody will learn from them
            for slot in run.parts.sampler.finished:
                self.add(run.parts.sampler.arena.segment(slot))

    def add(self, batch: Any) -> None:
        where, valid = batch[OBS + "where"], batch["valid"]
        names = {"action", "reward", "terminated", "truncated", "version", "frames", "log_prob", "value", "step"}
        for row, lane in np.argwhere(valid[:-1]):
            key = key_of(where[row, lane], batch[OBS + "seed"][row, lane])
            self.rows[key] = {name: batch[name][row, lane].item() for name in names}
            self.rows[key]["seed"] = seed_of(batch[OBS + "seed"][row, lane])
            self.rows[key]["next"] = where[row + 1, lane].tolist()
            self.rows[key]["next_value"] = batch["value"][row + 1, lane].item()


def seen_in(segments: Iterable[Segment]) -> Seen:
    seen = Seen()
    for segment in segments:
        seen.add(segment)
    return seen


def key_of(where: Array, seed: Array) -> Key:
    env, agent, episode, step = (int(x) for x in where[:4])
    return env, agent, episode, step, seed_of(seed)


def check_stored(store: Store | Path, seen: Seen, whole: bool = False) -> set[Key]:
    """Every stored row is what was learnt from, and its neighbours follow it; returns their keys, each once."""
    store = Store(store) if isinstance(store, Path) else store
    assert not store.problems
    found: set[Key] = set()
    for i in range(len(store)):
        episode, end = store.episode(i), store.end_record(i)
        where = episode.obs["where"]
        assert len(where) == len(episode) + 1
        keys = [key_of(*row) for row in zip(where[:-1], episode.obs["seed"])]
        assert len({(env, agent, seed) for env, agent, _, _, seed in keys}) == 1, "rows of one episode"
        assert [key[3] for key in keys] == list(range(end.first_step, end.first_step + len(keys)))
        assert not found & set(keys), "no row twice"
        found |= set(keys)
        for row, key in enumerate(keys):
            check_row(episode, row, seen.rows[key], seen.rows.get((*key[:3], key[3] + 1, key[4])))
        if whole:
            assert not end.partial
        assert end.seed == seen.rows[keys[0]]["seed"]
        assert end.terminated == seen.rows[keys[-1]]["terminated"]
        assert end.truncated == seen.rows[keys[-1]]["truncated"]
        assert end.return_ == float(np.sum(episode.rewards, dtype=np.float64))
    return found


def check_row(episode: Any, row: int, expected: dict[str, Any], following: dict[str, Any] | None) -> None:
    assert seed_of(episode.obs["seed"][row]) == expected["seed"]
    assert episode.obs["where"][row + 1].tolist() == expected["next"], "the next observation is what the action led to"
    columns = {"global_step": "frames"}
    for name in episode.columns:
        if not name.startswith(OBS):
            assert episode.columns[name][row] == expected[columns.get(name, name)], name
    if "value" in episode.columns:
        # Where sync mode has learnt in between, the next row is decided anew: it says what the new weights say.
        known = {expected["next_value"], following["value"] if following else expected["next_value"]}
        assert episode.columns["value"][row + 1] in known
    for name in ("terminated", "truncated", "step"):
        assert episode.column(name)[row] == expected[name]
