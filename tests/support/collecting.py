"""Shared by tests of collections and recordings: policies, looking at stores, checking what ``Telling`` has told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from telling_env import Telling

from rollmill.core.fields import EnvSpec
from rollmill.runs.collect.options import CollectOptions
from rollmill.runs.collect.run import Collected, collect
from rollmill.store.episode import Episode
from rollmill.store.reader import Store

SERIAL = ("sampling.mode=serial", "sampling.rollout=4")
PARALLEL = ("sampling.workers=2", "sampling.envs_per_worker=2", "sampling.rollout=4", "sampling.affinity=false")


class Echo:
    """A policy whose actions follow from the seed it is given."""

    def __init__(self, spec: EnvSpec) -> None:
        self._rng = np.random.default_rng(0)
        self._choices = spec.action.nvec[0]

    def reset(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def __call__(self, obs: np.ndarray) -> int:
        return int(self._rng.integers(self._choices))


def fails_later(spec: EnvSpec) -> Callable[[Any], int]:
    """Good for a hundred decisions."""
    calls = 0

    def act(obs: Any) -> int:
        nonlocal calls
        calls += 1
        return 0 if calls < 100 else 99

    return act


def makes_a_number(spec: EnvSpec) -> int:
    return 3


def collect_here(out: Path, *overrides: str, env: str = "telling_env:Telling", **options: Any) -> Collected:
    """In this process; serial unless told otherwise."""
    progress = options.pop("progress", None)
    words = [f"env={env}"] if env else []
    words += SERIAL if not any(word.startswith("sampling.") for word in overrides) else ()
    return collect(CollectOptions(out, **options), (), (*words, *overrides), progress)


def all_episodes(out: Path) -> dict[int, Episode]:
    """By uid; no uid is there twice."""
    with Store(out) as store:
        assert not store.problems
        uids = store.table.uid.tolist()
        assert len(set(uids)) == len(uids)
        return {uid: store.episode(i) for i, uid in enumerate(uids)}


def same_episodes(one: dict[int, Episode], two: dict[int, Episode]) -> bool:
    """The same uids with the same data down to the last bit, seeds and statistics included."""
    return one.keys() == two.keys() and all(
        a.columns.keys() == b.columns.keys()
        and all(a.columns[name].tobytes() == b.columns[name].tobytes() for name in a.columns)
        and (a.info.seed, a.terminated, a.truncated, a.stats) == (b.info.seed, b.terminated, b.truncated, b.stats)
        for a, b in ((one[uid], two[uid]) for uid in one)
    )


def check_telling(episode: Episode) -> None:
    """Every row of an episode of ``Telling`` is right, from the first to the final observation."""
    seed, n = episode.info.seed, len(episode)
    assert seed is not None
    assert n == Telling.length(seed)
    obs = episode.obs["obs"]
    assert obs[:, 0].tolist() == [seed % 1000] * (n + 1)
    assert obs[:, 1].tolist() == list(range(n + 1))
    assert np.array_equal(episode.rewards, (episode.actions + (1 + np.arange(n)) / 10).astype(np.float32))
    assert (episode.terminated, episode.truncated) == (seed % 2 == 0, True)
    assert episode.stats == {"figure": seed / 7}
