"""Images of a store as latents: the columns of the new store, and its episodes one by one.

The image's column becomes two, ``obs:mean`` and ``obs:std``, float32 ``[size]``: keeping the standard deviation lets
readers draw latents anew. Everything else, uids and seeds included, stays as it was.
"""

from __future__ import annotations

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


def latent_schema(source: StoreSchema, image: Column, size: int) -> StoreSchema:
    """The schema of a store of latents of ``size`` numbers, made from one whose images are in ``image``."""
    name = image.name.removeprefix(OBS)
    fields = [Field(MEAN, "float32", (size,)), Field(STD, "float32", (size,))]
    kept = [field for field in source.env.observation if field.name != name]
    columns = [column for column in source.columns if column.name != image.name]
    taken = [field.name for field in fields if OBS + field.name in {column.name for column in columns}]
    if taken:
        raise StoreError(f"the store has an observation field {taken[0]!r} already; latents would need that name")
    spec = replace(source.env, observation=(*fields, *kept))
    latents = [Column.of(field, "obs", prefix=OBS) for field in fields]
    return replace(source, env=spec, columns=(*latents, *columns))


class EpisodeEncoder:
    """Encodes whole episodes, in batches that do not depend on anything else: the same images, the same latents."""

    def __init__(self, encoder: ImageEncoder, image: str, batch_size: int) -> None:
        self._encoder, self._image, self._batch_size = encoder, image, batch_size

    def __call__(self, episode: Episode) -> Episode:
        """The episode with latents for images; NonFiniteError names the first image that has none."""
        mean, std = self.latents(episode.columns[self._image])
        bad = ~(np.isfinite(mean) & np.isfinite(std)).all(axis=1)
        if bad.any():
            raise NonFiniteError(
                f"image {int(bad.argmax())} of episode {episode.info.uid or 0:016x} is encoded as NaN or infinity; "
                "the encoder's weights are not good"
            )
        kept = {name: array for name, array in episode.columns.items() if name != self._image}
        return replace(episode, columns={OBS + MEAN: mean, OBS + STD: std, **kept})

    @torch.inference_mode()
    def latents(self, images: Array) -> tuple[Array, Array]:
        """Means and standard deviations, float32 ``[n, size]`` each, of images ``[n, H, W, C]``."""
        found = []
        for first in range(0, len(images), self._batch_size):
            batch = torch.from_numpy(np.ascontiguousarray(images[first : first + self._batch_size]))
            found.append(self._encoder.encode(batch.to(self._encoder.device)))
        mean, std = (torch.cat(parts).float().cpu().numpy() for parts in zip(*found))
        return mean, std
