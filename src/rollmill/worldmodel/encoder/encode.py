"""Images of a store as latents: the columns of the new store, and its episodes one by one.

The image's column becomes two, ``obs:mean`` and ``obs:std``, float32 ``[size]``: keeping the standard deviation lets
readers draw latents anew. Of several images each gets two that begin with its name: ``obs:left_mean``,
``obs:left_std``. Everything else, uids and seeds included, stays as it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from rollmill.core.errors import NonFiniteError, StoreError
from rollmill.core.fields import Array, Field
from rollmill.core.slots import OBS
from rollmill.store.episode import Episode
from rollmill.store.format.schema import Column, StoreSchema
from rollmill.worldmodel.encoder.file import ImageEncoder

MEAN, STD = "mean", "std"


def latent_names(images: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return the columns of means and standard deviations, by the image's column."""
    if len(images) == 1:
        return {images[0]: (OBS + MEAN, OBS + STD)}
    return {image: (f"{image}_{MEAN}", f"{image}_{STD}") for image in images}


def latent_schema(source: StoreSchema, names: Mapping[str, tuple[str, str]], size: int) -> StoreSchema:
    """Return the schema of a store of latents of ``size`` numbers; ``names``: see ``latent_names``."""
    fields = [Field(name.removeprefix(OBS), "float32", (size,)) for pair in names.values() for name in pair]
    kept = [field for field in source.env.observation if OBS + field.name not in names]
    columns = [column for column in source.columns if column.name not in names]
    taken = [field.name for field in fields if OBS + field.name in {column.name for column in columns}]
    if taken:
        raise StoreError(f"the store has an observation field {taken[0]!r} already; latents would need that name")
    spec = replace(source.env, observation=(*fields, *kept))
    latents = [Column.of(field, "obs", prefix=OBS) for field in fields]
    return replace(source, env=spec, columns=(*latents, *columns), made={})


class EpisodeEncoder:
    """Encodes whole episodes, in batches that do not depend on anything else: the same images, the same latents."""

    def __init__(self, encoder: ImageEncoder, names: Mapping[str, tuple[str, str]], batch_size: int) -> None:
        """Keep the encoder; ``names``: columns of images, and those their latents get (``latent_names``)."""
        self._encoder, self._names, self._batch_size = encoder, names, batch_size

    def __call__(self, episode: Episode) -> Episode:
        """Return the episode with latents for images; NonFiniteError names the first image that has none."""
        found: dict[str, Array] = {}
        for image, pair in self._names.items():
            mean, std = self.latents(episode.columns[image])
            bad = ~(np.isfinite(mean) & np.isfinite(std)).all(axis=1)
            if bad.any():
                raise NonFiniteError(
                    f"image {int(bad.argmax())} of episode {episode.info.uid or 0:016x} is encoded as NaN or infinity; "
                    "the encoder's weights are not good"
                )
            found |= zip(pair, (mean, std), strict=True)
        kept = {name: array for name, array in episode.columns.items() if name not in self._names}
        return replace(episode, columns={**found, **kept})

    @torch.inference_mode()
    def latents(self, images: Array) -> tuple[Array, Array]:
        """Return means and standard deviations, float32 ``[n, size]`` each, of images ``[n, H, W, C]``."""
        found = []
        for first in range(0, len(images), self._batch_size):
            batch = torch.from_numpy(np.ascontiguousarray(images[first : first + self._batch_size]))
            found.append(self._encoder.encode(batch.to(self._encoder.device)))
        mean, std = (torch.cat(parts).float().cpu().numpy() for parts in zip(*found))
        return mean, std
