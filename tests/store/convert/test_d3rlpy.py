"""d3rlpy trains on our Minari exports. It needs versions of its own: `make consumers` runs this in a venv for it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from converting import schema_of, write_store

from rollmill.core.fields import ActionSpec, Field
from rollmill.store.convert.minari_data import Options, export_episodes
from rollmill.store.reader import Store

d3rlpy = pytest.importorskip("d3rlpy")
minari = pytest.importorskip("minari")

LENGTHS = [40, 25, 60, 33]
STEPS = 20
DISCRETE = ("CartPole-v1", (4,), ActionSpec("discrete", nvec=(2,), start=(0,)))
CONTINUOUS = ("Pendulum-v1", (3,), ActionSpec("continuous", shape=(1,), low=(-2.0,), high=(2.0,)))
ENVS = {"discrete": DISCRETE, "continuous": CONTINUOUS}


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Minari's own folder of datasets; d3rlpy writes its logs into the current folder."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield tmp_path / "minari"


def exported(root: Path, kind: str) -> Store:
    env, shape, action = ENVS[kind]
    schema = schema_of((Field("obs", "float32", shape),), action, env=env)
    store, _ = write_store(root.parent / "store", schema, LENGTHS)
    export_episodes(store, np.arange(len(store)), root / "toy" / f"{kind}-v0", Options())
    return store


def aligned(name: str) -> Any:
    """The dataset for d3rlpy, whose episodes have as many observations as actions."""
    episodes = list(minari.load_dataset(name).iterate_episodes())
    return d3rlpy.dataset.MDPDataset(
        observations=np.concatenate([episode.observations[:-1] for episode in episodes]),
        actions=np.concatenate([episode.actions for episode in episodes]),
        rewards=np.concatenate([episode.rewards for episode in episodes]),
        terminals=np.concatenate([episode.terminations for episode in episodes]).astype(np.float32),
        timeouts=np.concatenate([episode.truncations for episode in episodes]).astype(np.float32),
    )


def check(dataset: Any, store: Store) -> None:
    """Episodes, actions, rewards and transitions as the store has them (its actions lie within their bounds, or are
    clipped to them by the export)."""
    low, high = ENVS["continuous"][2].low, ENVS["continuous"][2].high
    assert len(dataset.episodes) == len(store)
    for i, found in enumerate(dataset.episodes):
        episode = store.episode(i)
        actions = episode.actions.reshape(episode.length, -1)
        assert found.size() == episode.length
        assert found.terminated == episode.terminated
        assert np.array_equal(found.actions, actions if actions.dtype == np.int64 else np.clip(actions, low, high))
        assert np.array_equal(found.rewards[:, 0], episode.rewards)
        assert found.compute_return() == pytest.approx(store.table.return_[i], rel=1e-5)
    # d3rlpy gives up the last step of an episode that did not terminate: it has no place for the observation after it.
    assert dataset.transition_count == store.table.steps - int((~store.table["terminated"]).sum())


def train(config: Any, dataset: Any) -> Any:
    learner = config(batch_size=16).create(device="cpu:0")
    logs = d3rlpy.logging.NoopAdapterFactory()
    epochs = learner.fit(
        dataset, n_steps=STEPS, n_steps_per_epoch=STEPS, logger_adapter=logs, show_progress=False, save_interval=10
    )
    losses = {name: value for name, value in epochs[-1][1].items() if "loss" in name}
    assert losses
    assert all(np.isfinite(value) for value in losses.values()), losses
    return learner


@pytest.mark.parametrize("algorithm", ["DiscreteBCConfig", "DiscreteCQLConfig"])
def test_choices(root: Path, algorithm: str) -> None:
    store = exported(root, "discrete")
    dataset = aligned("toy/discrete-v0")
    check(dataset, store)
    for i, found in enumerate(dataset.episodes):
        assert np.array_equal(found.observations, store.episode(i).obs["obs"][:-1])
    learner = train(getattr(d3rlpy.algos, algorithm), dataset)
    chosen = learner.predict(store.episode(0).obs["obs"])
    assert chosen.shape == (LENGTHS[0] + 1,)
    assert set(chosen.tolist()) <= {0, 1}


@pytest.mark.parametrize("algorithm", ["BCConfig", "CQLConfig"])
def test_vectors(root: Path, algorithm: str) -> None:
    store = exported(root, "continuous")
    dataset = aligned("toy/continuous-v0")
    check(dataset, store)
    for i, found in enumerate(dataset.episodes):
        assert np.array_equal(found.observations, store.episode(i).obs["obs"][:-1])
    learner = train(getattr(d3rlpy.algos, algorithm), dataset)
    assert learner.predict(store.episode(0).obs["obs"]).shape == (LENGTHS[0] + 1, 1)


@pytest.mark.parametrize(("kind", "algorithm"), [("discrete", "DiscreteBCConfig"), ("continuous", "BCConfig")])
def test_its_own_loader(root: Path, kind: str, algorithm: str) -> None:
    """``get_minari`` finds dataset and environment. Its observations are not compared: of every dataset with a final
    observation, ours or others', it shifts those of the second episode by one row, of the third by two, and so on.
    """
    store = exported(root, kind)
    dataset, env = d3rlpy.datasets.get_minari(f"toy/{kind}-v0")
    assert env.spec.id == ENVS[kind][0]
    check(dataset, store)
    assert np.array_equal(dataset.episodes[0].observations, store.episode(0).obs["obs"][:-1])
    train(getattr(d3rlpy.algos, algorithm), dataset)
    env.close()
