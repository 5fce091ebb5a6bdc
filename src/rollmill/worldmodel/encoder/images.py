"""Images of a store in random order, for the training of encoders.

Words
-----
pool    ``shuffle_buffer`` images, ``per_rollout`` from each of some episodes, mixed in memory. Batches are drawn
        from one pool at a time; the next is read meanwhile.
round   the number of a pool. Which images a round holds, and their order, follows from seed and number alone: a
        training that is continued reads one pool again and goes on with the very next batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from rollmill.core.errors import ConfigError, StoreError
from rollmill.core.fields import Array
from rollmill.core.room import check_room
from rollmill.core.seeds import Seeds
from rollmill.core.slots import OBS
from rollmill.store.format.schema import Column, StoreSchema
from rollmill.store.shuffle import Shuffle
from rollmill.store.views import Observations, Source
from rollmill.worldmodel.encoder.settings import ImageSettings


class ImageBatches:
    """Batches uint8 ``[batch_size, H, W, C]`` without end, from batch number ``position`` on."""

    def __init__(
        self, source: Source, column: str, episodes: Array, settings: ImageSettings, batch_size: int, seed: int
    ) -> None:
        if not len(episodes):
            raise StoreError("there are no episodes to learn from: every one is held out; lower images.validation")
        asked = f"fit.batch_size={batch_size}, images.shuffle_buffer={settings.shuffle_buffer}"
        check_room(0, 2 * max(batch_size, settings.shuffle_buffer) * source.schema[column].row_bytes, asked)
        self._view = Observations(source, per_episode=settings.per_rollout, episodes=episodes, columns=[column])
        self._column, self._batch_size = column, batch_size
        self._seeds = Seeds(seed).branch("pictures")
        per_episode = len(self._view) / len(episodes)
        self._rollouts = max(1, math.ceil(settings.shuffle_buffer / per_episode))
        self._per_pool = max(1, settings.shuffle_buffer // batch_size)
        self.position = 0
        """Batches given so far."""

    def __iter__(self) -> Iterator[Array]:
        """Yield batches from ``position`` on; a thread reads the next pool ahead."""
        with ThreadPoolExecutor(1, thread_name_prefix="images") as reader:
            number = self.position // self._per_pool
            pool = self.pool(number)
            while True:
                ahead: Future[Array] = reader.submit(self.pool, number + 1)
                for batch in range(self.position % self._per_pool, self._per_pool):
                    self.position += 1
                    yield pool[batch * self._batch_size : (batch + 1) * self._batch_size]
                pool, number = ahead.result(), number + 1

    def pool(self, number: int) -> Array:
        """Read the images of a round in their order: ``[batches * batch_size, H, W, C]``."""
        rng = self._seeds.branch("round", number).generator()
        reads = [self._view.read(position, rng)[self._column] for position in self._episodes_of(number)]
        images: Array = np.concatenate(reads)
        # A pool of short episodes may hold a little less than its batches need: some are then taken twice.
        order = np.resize(rng.permutation(len(images)), self._per_pool * self._batch_size)
        return images[order]

    def _episodes_of(self, number: int) -> list[int]:
        """Return the positions of a round's episodes: all episodes in a random order, then again in another one."""
        count = len(self._view.episodes)
        places = np.arange(number * self._rollouts, (number + 1) * self._rollouts)
        found: list[int] = []
        for turn in np.unique(places // count).tolist():
            shuffle = Shuffle(count, self._seeds.branch("turn", turn))
            found += shuffle(places[places // count == turn] % count).tolist()
        return found


def held_out_images(source: Source, column: str, episodes: Array, count: int, seed: int) -> Array:
    """Read about ``count`` images ``[n, H, W, C]`` of held-out episodes, always the same ones."""
    if not len(episodes):
        shape = source.schema[column].shape
        return np.zeros((0, *shape), np.uint8)
    rng = Seeds(seed).branch("held out").generator()
    chosen = np.sort(rng.permutation(episodes)[:count])
    view = Observations(source, per_episode=max(1, count // len(chosen)), episodes=chosen, columns=[column])
    return np.concatenate([view.read(position, rng)[column] for position in range(len(chosen))])


def image_column(schema: StoreSchema, field: str, where: str, key: str = "images.field=") -> Column:
    """Return the column with the images; raises ConfigError unless there is one, or ``field`` names one.

    ``key`` is what the user writes before the name.
    """
    images = [c for c in schema.obs_columns if c.name.startswith(OBS) and c.dtype == "uint8" and len(c.shape) == 3]
    if field:
        images = [column for column in images if column.name == OBS + field]
    if len(images) == 1:
        return images[0]
    names = [column.name.removeprefix(OBS) for column in schema.obs_columns]
    if field:
        raise ConfigError(f"{key}{field}: {where} has no images of that name (it has: {', '.join(names)})")
    if not images:
        raise ConfigError(f"{where}: no observation field is an image, uint8 [H, W, C] (it has: {', '.join(names)})")
    found = ", ".join(column.name.removeprefix(OBS) for column in images)
    raise ConfigError(f"{where} has several fields with images ({found}): choose one with {key}NAME")
