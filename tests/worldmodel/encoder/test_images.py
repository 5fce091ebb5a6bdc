import itertools
from pathlib import Path

import numpy as np
import pytest
from image_stores import image_schema, image_store

from rollmill.core.errors import ConfigError, StoreError
from rollmill.core.fields import ActionSpec, EnvSpec, Field
from rollmill.store.format.schema import StoreSchema
from rollmill.store.reader import Store
from rollmill.worldmodel.encoder.images import ImageBatches, held_out_images, image_column
from rollmill.worldmodel.encoder.settings import ImageSettings

SETTINGS = ImageSettings(per_rollout=4, shuffle_buffer=24)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(image_store(tmp_path_factory.mktemp("images") / "store", 12, steps=8))


def batches(store: Store, position: int = 0, seed: int = 3) -> ImageBatches:
    found = ImageBatches(store, "obs:image", np.arange(12), SETTINGS, 8, seed)
    found.position = position
    return found


def test_batches_go_on_at_any_position(store: Store) -> None:
    whole = list(itertools.islice(batches(store), 10))
    assert all(batch.shape == (8, 16, 16, 3) and batch.dtype == np.uint8 for batch in whole)
    for position in (1, 3, 7):
        rest = list(itertools.islice(batches(store, position), 10 - position))
        assert all(np.array_equal(one, two) for one, two in zip(whole[position:], rest, strict=True))
    assert not np.array_equal(whole[0], next(iter(batches(store, seed=4))))


def test_the_position_counts_what_was_given(store: Store) -> None:
    given = batches(store)
    stream = iter(given)
    for count in range(1, 6):
        next(stream)
        assert given.position == count


def test_every_episode_has_its_turn_before_any_has_a_second(store: Store) -> None:
    pools = batches(store)
    turns = [pools._episodes_of(number) for number in range(4)]
    assert [len(turn) for turn in turns] == [6] * 4
    assert sorted(turns[0] + turns[1]) == sorted(turns[2] + turns[3]) == list(range(12))
    assert turns[0] + turns[1] != turns[2] + turns[3]


def test_a_pool_mixes_several_images_of_several_episodes(store: Store) -> None:
    pool = batches(store).pool(0)
    assert len(pool) == 24
    rows = {int(np.flatnonzero((image == 200).any(axis=(1, 2)))[0]) for image in pool[:8]}
    assert len(rows) > 1


def test_held_out_images_are_always_the_same(store: Store) -> None:
    one, two = (held_out_images(store, "obs:image", np.array([1, 5]), 6, seed=0) for _ in range(2))
    assert one.shape == (6, 16, 16, 3)
    assert np.array_equal(one, two)
    assert held_out_images(store, "obs:image", np.array([], int), 6, seed=0).shape == (0, 16, 16, 3)


def test_nothing_to_learn_from_is_an_error(store: Store) -> None:
    with pytest.raises(StoreError, match="every one is held out"):
        ImageBatches(store, "obs:image", np.array([], int), SETTINGS, 8, 0)


def test_the_column_with_the_images_is_found_or_named(tmp_path: Path) -> None:
    schema = image_schema()
    assert image_column(schema, "", "x").name == "obs:image"
    assert image_column(schema, "image", "x").name == "obs:image"
    with pytest.raises(ConfigError, match=r"images.field=speed.*it has: image, speed"):
        image_column(schema, "speed", "x")
    action = ActionSpec("discrete", nvec=(2,), start=(0,))
    two = (Field("a", "uint8", (4, 4, 1)), Field("b", "uint8", (4, 4, 1)))
    with pytest.raises(ConfigError, match="several fields with images"):
        image_column(StoreSchema.for_env(EnvSpec("e", two, action)), "", "x")
    with pytest.raises(ConfigError, match="no observation field is an image"):
        image_column(StoreSchema.for_env(EnvSpec("e", (Field("v", "float32", (2,)),), action)), "", "x")


def test_batches_that_no_memory_holds_are_refused_before_anything_is_read(store: Store) -> None:
    with pytest.raises(ConfigError, match=r"fit\.batch_size=1000000000000, .*GB of memory at least"):
        ImageBatches(store, "obs:image", np.arange(12), SETTINGS, 10**12, 0)
