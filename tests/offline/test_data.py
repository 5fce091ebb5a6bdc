from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from offlining import HAND_SPEC, hand_episode, hand_store

from rollmill.core.errors import ConfigError, StoreError
from rollmill.core.fields import ActionSpec, EnvSpec, Field
from rollmill.offline.data import (
    Selection,
    WindowLoader,
    automatic_targets,
    check_spec,
    fit_normaliser,
    open_store,
    scales_of,
    select,
)
from rollmill.offline.model import SequencePolicy
from rollmill.offline.settings import DataSettings, SequenceSettings
from rollmill.store.format.schema import StoreSchema
from rollmill.store.reader import Store
from rollmill.store.writer import StoreWriter

SEQUENCE = SequenceSettings(context=3, size=8, layers=1, mlp=(4,))
ALL = DataSettings(validation=0.0)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Ten whole episodes with returns 0 .. 9, one without an end, one without a beginning."""
    episodes = [hand_episode(k, [float(k)] + [0.0] * (k % 3)) for k in range(10)]
    episodes.append(hand_episode(10, [100.0, 1.0], terminated=False))
    episodes.append(hand_episode(11, [50.0], first_step=30))
    return hand_store(tmp_path_factory.mktemp("data") / "store", episodes)


def uids(store: Store, numbers: object) -> list[int]:
    return sorted(int(x) for x in store.table.uid[numbers])


def test_an_unknown_end_is_left_out_by_dt_and_counted(store: Store) -> None:
    chosen = select(store, ALL, "dt", 0)
    assert uids(store, chosen.training) == [*range(10), 11]  # what came after the missing beginning is known
    assert chosen.dropped == {"end not recorded": 1}
    assert sorted(chosen.whole_returns) == list(range(10))


def test_cloning_takes_every_step_there_is(store: Store) -> None:
    assert uids(store, select(store, ALL, "bc", 0).training) == list(range(12))
    keep = DataSettings(validation=0.0, unknown_returns="keep")
    assert uids(store, select(store, keep, "dt", 0).training) == list(range(12))


def test_ranks_by_return_are_among_whole_episodes(store: Store) -> None:
    best = DataSettings(validation=0.0, filter=("top=20%",))
    chosen = select(store, best, "bc", 0)
    assert uids(store, chosen.training) == [8, 9]
    assert chosen.dropped == {"end not recorded": 1, "beginning not recorded": 1, "below the top": 8}
    limits = DataSettings(validation=0.0, filter=("return_min=5", "return_max=60"))
    assert uids(store, select(store, limits, "bc", 0).training) == [5, 6, 7, 8, 9]


def test_validation_is_apart(store: Store) -> None:
    chosen = select(store, DataSettings(validation=0.3), "bc", 0)
    assert len(chosen.validation) > 0
    assert not set(chosen.training) & set(chosen.validation)
    assert len(chosen.training) + len(chosen.validation) == 12


def test_nothing_left_says_why(store: Store) -> None:
    with pytest.raises(StoreError, match="no episode of 12 is left to learn from \\(12 by the filter\\)"):
        select(store, DataSettings(filter=("length_min=99",)), "dt", 0)


def test_scales_come_from_the_table(store: Store) -> None:
    scales = scales_of(store, select(store, ALL, "dt", 0))
    assert scales.return_mean == 4.5
    assert scales.return_scale == pytest.approx(np.std(np.arange(10)))
    assert scales.timesteps == 31  # the last step of the episode that begins at 30


def test_equal_returns_have_a_scale(tmp_path: Path) -> None:
    same = hand_store(tmp_path / "a", [hand_episode(k, [20.0]) for k in range(3)])
    assert scales_of(same, select(same, ALL, "dt", 0)).return_scale == 2.0
    zero = hand_store(tmp_path / "b", [hand_episode(k, [0.0]) for k in range(3)])
    assert scales_of(zero, select(zero, ALL, "dt", 0)).return_scale == 1.0


def test_automatic_targets_are_returns_of_the_data(store: Store) -> None:
    targets = automatic_targets(select(store, ALL, "dt", 0))
    assert targets[0] == 4.5
    assert targets[-1] == 9
    assert list(targets) == sorted(set(targets))
    none = np.zeros(0)
    with pytest.raises(ConfigError, match=r"set evaluation\.targets"):
        automatic_targets(Selection(none, none, none, {}))


# ------------------------------------------------------------------------------------ errors before training


def test_nan_rewards_are_named(tmp_path: Path) -> None:
    bad = hand_store(tmp_path / "s", [hand_episode(0, [1.0]), hand_episode(1, [0.0, float("nan"), 2.0])])
    with pytest.raises(StoreError, match=r"episode 1 \(uid 0000000000000001, shard .*\) at step 1 \(nan\)"):
        select(bad, ALL, "bc", 0)
    assert uids(bad, select(bad, DataSettings(validation=0.0, filter=("return_min=0",)), "bc", 0).training) == [0]


def test_an_unfinished_shard_is_named_or_read(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "s", StoreSchema.for_env(HAND_SPEC))
    writer.add_episode(hand_episode(0, [1.0]))
    with pytest.raises(StoreError, match=r"shard .*\.open\.tfrecord is not finished"):
        open_store(tmp_path / "s", ALL)
    assert len(open_store(tmp_path / "s", DataSettings(open_shards="read"))) == 1
    writer.close()
    assert len(open_store(tmp_path / "s", ALL)) == 1


def test_damage_is_named(tmp_path: Path) -> None:
    made = hand_store(tmp_path / "s", [hand_episode(0, [1.0])])
    made.shards[0].path.unlink()
    with pytest.raises(StoreError, match=r"file is missing.*rollmill data verify"):
        open_store(tmp_path / "s", ALL)


def test_an_empty_store_and_no_store_are_refused(tmp_path: Path) -> None:
    hand_store(tmp_path / "s", [])
    with pytest.raises(StoreError, match="holds no finished episode"):
        open_store(tmp_path / "s", ALL)
    with pytest.raises(StoreError, match="is not a store"):
        open_store(tmp_path, ALL)


def test_another_environment_is_told_from_that_of_the_data() -> None:
    seen = EnvSpec("maze", (Field("obs", "float32", (2,)),), ActionSpec("discrete", nvec=(4,), start=(0,)))
    check_spec(HAND_SPEC, HAND_SPEC, "store")
    with pytest.raises(ConfigError, match=r"store holds discrete \(\[1000\] choices\) actions, maze takes discrete"):
        check_spec(HAND_SPEC, seen, "store")
    with pytest.raises(ConfigError, match="has no observation 'map', which maze shows"):
        check_spec(HAND_SPEC, EnvSpec("maze", (Field("map", "uint8", (9, 9, 3)),), HAND_SPEC.action), "store")
    with pytest.raises(ConfigError, match=r"'obs' is float32 \(2,\), maze shows float32 \(3,\)"):
        check_spec(HAND_SPEC, EnvSpec("maze", (Field("obs", "float32", (3,)),), HAND_SPEC.action), "store")


@pytest.mark.parametrize(
    ("name", "advice"), [("previous_reward", "set env.previous_reward=true"), ("map", "set env and env.args")]
)
def test_a_field_that_the_environment_does_not_show_is_refused(name: str, advice: str) -> None:
    stored = replace(HAND_SPEC, observation=(*HAND_SPEC.observation, Field(name, "float32", (1,))))
    with pytest.raises(ConfigError, match=f"store has an observation '{name}', which hand does not show; {advice}"):
        check_spec(stored, HAND_SPEC, "store")


# ------------------------------------------------------------------------------------ reading


def loader_for(store: Store, data: DataSettings = ALL, seed: int = 1) -> WindowLoader:
    chosen = select(store, data, "dt", 0)
    return WindowLoader(store, chosen, HAND_SPEC, data, SEQUENCE, 4, seed, torch.device("cpu"))


def first_actions(loader: WindowLoader, count: int) -> list[list[list[int]]]:
    found = []
    for batch, _ in zip(loader, range(count)):
        found.append(batch.action.tolist())
    return found


def test_the_order_continues_at_any_place_with_any_number_of_workers(store: Store) -> None:
    whole = first_actions(loader_for(store), 6)
    later = loader_for(store)
    later.position = 3
    assert first_actions(later, 3) == whole[3:]
    two = loader_for(store, DataSettings(validation=0.0, workers=2))
    assert first_actions(two, 6) == whole
    assert first_actions(loader_for(store, seed=2), 6) != whole


def test_a_stream_and_a_decoded_copy_give_the_same_windows(store: Store, tmp_path: Path) -> None:
    plain = first_actions(loader_for(store), 4)
    assert first_actions(loader_for(store, DataSettings(validation=0.0, cache=tmp_path)), 4) == plain
    stream = loader_for(store, DataSettings(validation=0.0, order="stream"))
    seen = {action for batch in first_actions(stream, 12) for row in batch for action in row}
    assert {0, 21, 92 - 2} & seen


def test_validation_windows_are_always_the_same(store: Store) -> None:
    loader = loader_for(store, DataSettings(validation=0.4))
    once = [batch.action.tolist() for batch in loader.validation(3)]
    assert once
    assert once == [batch.action.tolist() for batch in loader.validation(3)]
    assert list(loader_for(store).validation(3)) == []


def test_windows_are_at_least_eight_steps_unless_told_otherwise(store: Store) -> None:
    assert loader_for(store).length == 8
    assert loader_for(store, DataSettings(validation=0.0, window=5)).length == 5


def test_moments_of_observations_come_from_the_data(store: Store, tmp_path: Path) -> None:
    chosen = select(store, ALL, "dt", 0)
    model = SequencePolicy(HAND_SPEC, SEQUENCE, scales_of(store, chosen), True)
    fit_normaliser(model.normaliser, store, chosen.training, 0)
    assert float(model.normaliser.moments[0].mean[0]) > 1
    bad = hand_episode(3, [1.0, 1.0])
    bad.columns["obs:obs"][1] = np.nan
    spoilt = hand_store(tmp_path / "s", [bad])
    with pytest.raises(StoreError, match=r"episode 0 \(uid 0000000000000003\) has NaN in column obs:obs"):
        fit_normaliser(model.normaliser, spoilt, np.array([0]), 0)
