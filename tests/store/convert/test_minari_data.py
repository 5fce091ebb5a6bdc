"""Minari datasets: loaded and sampled by Minari itself, and back."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import minari
import numpy as np
import pytest
from converting import DISCRETE, schema_of, write_store
from minari.data_collector import EpisodeBuffer

from rollmill.core.errors import ConfigError, StoreError
from rollmill.core.fields import ActionSpec, Field
from rollmill.store.care.verify import verify_store
from rollmill.store.convert.columns import env_actions
from rollmill.store.convert.minari_data import ImportOptions, Options, _action_space, export_episodes, import_episodes
from rollmill.store.format.schema import Column
from rollmill.store.reader import Store

LENGTHS = [9, 4, 1, 30, 12, 7]
EXTRA = (Column("value", "float32", per="obs"), Column("log_prob", "float32"))


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Minari's own folder of datasets."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield tmp_path / "minari"


def test_minari_loads_and_samples_it(root: Path, tmp_path: Path) -> None:
    store, episodes = write_store(tmp_path / "store", schema_of(extra=EXTRA), LENGTHS)
    told: list[tuple[int, int]] = []
    target = root / "doom" / "basic-v0"
    options = Options(author="somebody", description="some data")
    done = export_episodes(store, np.arange(6), target, options, lambda d, t: told.append((d, t)))
    assert told[-1] == (sum(LENGTHS),) * 2
    assert "doom/basic-v0" in minari.list_local_datasets()
    dataset = minari.load_dataset("doom/basic-v0")
    assert (dataset.total_episodes, dataset.total_steps) == (6, sum(LENGTHS))
    assert dataset.storage.metadata["author"] == {"somebody"}
    assert dataset.action_space == gym.spaces.Discrete(4, start=2)
    for found, episode in zip(dataset.iterate_episodes(), episodes):
        check(found, episode)
        assert all(found.actions[t] in dataset.action_space for t in range(len(found)))
        first = {name: rows[0] for name, rows in found.observations.items()}
        assert dataset.observation_space.contains(first)
    assert len(list(dataset.sample_episodes(3))) == 3
    assert len(list(dataset.filter_episodes(lambda e: e.terminations[-1]))) == 3
    metas = list(dataset.storage.get_episode_metadata(range(6)))
    assert [meta["seed"] for meta in metas] == list(range(6))
    assert [meta["uid"] for meta in metas] == [f"{1000 + k:016x}" for k in range(6)]
    assert metas[2]["stats"] == {"kills": 2}
    assert all(file.exists() for file in done.files)
    assert "1 episodes have no recorded end" in done.notes[0]


def check(found: Any, episode: Any) -> None:
    for name, rows in episode.obs.items():
        assert np.array_equal(found.observations[name], rows), "lossless"
    assert np.array_equal(found.actions, episode.actions + 2), "as the environment counts"
    assert np.array_equal(found.rewards, episode.rewards)
    assert found.terminations.tolist() == episode.terminateds.tolist()
    assert found.terminations[-1] or found.truncations[-1], "Minari has no open ends"
    n = episode.length
    assert np.array_equal(found.infos["value"], episode.columns["value"])
    assert np.array_equal(found.infos["global_step"][:n], episode.global_steps)
    assert np.array_equal(found.infos["log_prob"][:n], episode.columns["log_prob"])
    assert np.isnan(found.infos["log_prob"][n])


@pytest.mark.parametrize(
    "action",
    [
        ActionSpec("continuous", shape=(2,), low=(-1.0, -0.5), high=(1.0, 0.5)),
        ActionSpec("multi_discrete", nvec=(3, 4), start=(0, 1)),
    ],
)
def test_other_actions_and_a_single_observation(root: Path, tmp_path: Path, action: ActionSpec) -> None:
    store, episodes = write_store(tmp_path / "store", schema_of((Field("obs", "float32", (3,)),), action), [9, 4])
    export_episodes(store, np.arange(2), root / "x-v3", Options())
    dataset = minari.load_dataset("x-v3")
    for found, episode in zip(dataset.iterate_episodes(), episodes):
        assert np.array_equal(found.observations, episode.obs["obs"])
        assert all(dataset.action_space.contains(row) for row in found.actions)
    done = import_episodes(["x-v3"], tmp_path / "back", ImportOptions())
    back = Store(tmp_path / "back")
    assert done.episodes == 2
    assert back.schema.env.action == action
    low, high = (action.low, action.high) if action.kind == "continuous" else (None, None)
    for i, episode in enumerate(episodes):
        expected = episode.actions if low is None else np.clip(episode.actions, low, high).astype(np.float32)
        assert np.array_equal(back.episode(i).actions, expected)


def test_a_mixed_action_is_one_vector() -> None:
    spec = ActionSpec("mixed", nvec=(3,), start=(2,), shape=(1,), low=(-1.0,), high=(1.0,))
    space = _action_space(spec)
    assert space.low.tolist() == [2, -1]
    assert space.high.tolist() == [4, 1]
    assert all(space.contains(row) for row in env_actions(spec, np.array([[0, 5], [2, -5]], np.float32)))


def test_there_and_back(root: Path, tmp_path: Path) -> None:
    fields = (Field("image", "uint8", (36, 40, 3)), Field("vector", "float32", (2,)))
    store, episodes = write_store(tmp_path / "store", schema_of(fields, extra=EXTRA), LENGTHS[:5])
    export_episodes(store, np.arange(5), root / "x-v0", Options())
    done = import_episodes([str(root / "x-v0")], tmp_path / "back", ImportOptions("toy"))
    assert (done.episodes, done.steps) == (5, sum(LENGTHS[:5]))
    assert "log_prob, value" in done.notes[0]
    assert verify_store(tmp_path / "back", workers=1).good
    back = Store(tmp_path / "back")
    assert back.schema.env.action == DISCRETE
    for i, episode in enumerate(episodes):
        read = back.episode(i)
        assert {name: rows.tobytes() for name, rows in read.columns.items()} == {
            name: episode.columns[name].tobytes() for name in read.columns
        }
        assert (read.terminated, read.truncated, read.info.seed) == (episode.terminated, episode.truncated, i)


def test_a_dataset_made_by_minari(root: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    buffers = [
        EpisodeBuffer(
            seed=k,
            observations=rng.normal(size=(n + 1, 4)).astype(np.float32),
            actions=rng.integers(0, 2, n),
            rewards=np.ones(n),
            terminations=np.arange(n) == n - 1,
            truncations=np.zeros(n, bool),
        )
        for k, n in enumerate((5, 8))
    ]
    minari.create_dataset_from_buffers("cart/pole-v0", buffers, env="CartPole-v1")
    import_episodes(["cart/pole-v0"], tmp_path / "out", ImportOptions())
    store = Store(tmp_path / "out")
    assert (store.schema.env_id, store.table.length.tolist()) == ("CartPole-v1", [5, 8])
    assert np.array_equal(store.episode(1).obs["obs"], buffers[1].observations)
    assert store.episode(1).global_steps.tolist() == list(range(5, 13))
    assert store.table["seed"].tolist() == [0, 1]
    # And out again: Minari can make the environment.
    export_episodes(store, np.arange(2), root / "again-v0", Options())
    env = minari.load_dataset("again-v0").recover_environment()
    assert env.spec is not None
    assert env.spec.id == "CartPole-v1"
    env.close()


def test_nested_spaces(root: Path, tmp_path: Path) -> None:
    space = gym.spaces.Dict({"a": gym.spaces.Tuple([gym.spaces.Discrete(3), gym.spaces.Box(-1, 1, (2,))])})
    n = 4
    observations = {"a": (np.array([0, 1, 2, 1, 0]), np.linspace(-1, 1, 10).reshape(5, 2).astype(np.float32))}
    buffer = EpisodeBuffer(
        observations=observations,
        actions=np.arange(n) % 2,
        rewards=np.ones(n),
        terminations=np.zeros(n, bool),
        truncations=np.arange(n) == n - 1,
    )
    minari.create_dataset_from_buffers(
        "nested-v0", [buffer], observation_space=space, action_space=gym.spaces.Discrete(2)
    )
    import_episodes(["nested-v0"], tmp_path / "out", ImportOptions("mine"))
    obs = Store(tmp_path / "out").episode(0).obs
    assert obs["a.0"].argmax(axis=1).tolist() == [0, 1, 2, 1, 0]
    assert np.array_equal(obs["a.1"], observations["a"][1])
    assert Store(tmp_path / "out").schema.env_id == "mine"


def test_names_that_minari_would_not_find(root: Path, tmp_path: Path) -> None:
    store, _ = write_store(tmp_path / "store", schema_of(), [3])
    for target, options, message in (
        (root / "nameless", Options(), "name-v0 is expected"),
        (tmp_path / "elsewhere", Options("x-v0"), "in a folder of that name"),
        (root / "a-v0", Options("b-v0"), "in a folder of that name"),
    ):
        with pytest.raises(ConfigError, match=message):
            export_episodes(store, np.arange(1), target, options)
        assert not target.exists()
    done = export_episodes(store, np.arange(1), tmp_path / "data" / "ns" / "x-v1", Options("ns/x-v1"))
    assert str(tmp_path / "data") in done.notes[-1]
    assert minari.MinariDataset(tmp_path / "data" / "ns" / "x-v1" / "data").id == "ns/x-v1"


def test_what_cannot_be_imported(root: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="one Minari dataset"):
        import_episodes(["a-v0", "b-v0"], tmp_path / "out", ImportOptions())
    with pytest.raises(StoreError, match="not a Minari dataset"):
        import_episodes(["missing-v0"], tmp_path / "out", ImportOptions())
    (root / "broken-v0" / "data").mkdir(parents=True)
    (root / "broken-v0" / "data" / "metadata.json").write_text(json.dumps({"total_episodes": 0}))
    with pytest.raises(StoreError, match="not a Minari dataset"):
        import_episodes(["broken-v0"], tmp_path / "out", ImportOptions())
    assert not (tmp_path / "out").exists()
