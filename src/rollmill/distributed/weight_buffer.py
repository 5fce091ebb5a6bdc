"""Newest weights in shared memory: one process writes, others read, nobody waits for anybody.

A sequence number is odd while something is being written. Who reads copies everything and looks at the number again:
if it has changed, the copy is thrown away and made once more. There is no history: the newest wins.

The weights are bytes here; ``distributed.acting`` knows the tensors in them. With them goes what environments should
know at the same time: the frames of the run and ``env.variables``.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rollmill.core.fields import Array, Field
from rollmill.core.slots import SharedBlock, layout_arrays

RETRY_SECONDS = 0.0005


@dataclass(frozen=True)
class Publication:
    """What was written at one moment, as it travels."""

    sequence: int
    """Of the writer's buffer: higher is newer."""
    version: int
    """Of the weights."""
    frames: int
    """Simulator frames of the run."""
    variables: tuple[float, ...]
    """``env.variables``, in the order of the config."""
    weights: Array | None
    """uint8; None: those of this version are there already."""

    @functools.cached_property
    def without_weights(self) -> Publication:
        """The same without weights, for who has those of this version already."""
        return replace(self, weights=None)


class WeightBuffer:
    """The shared memory, for the one who writes and for those who read."""

    def __init__(self, nbytes: int, variables: int, block: SharedBlock | None = None) -> None:
        fields = [(Field(name, "int64"), (1,)) for name in ("sequence", "version", "frames")]
        fields += [(Field("variables", "float64"), (variables,)), (Field("weights", "uint8"), (nbytes,))]
        offsets, total = layout_arrays(fields)
        self.block = block or SharedBlock.create(total)
        arrays = {f.name: self.block.array(f.dtype, shape, offsets[f.name]) for f, shape in fields}
        self._sequence, self._version, self._frames = (arrays[name] for name in ("sequence", "version", "frames"))
        self._variables = arrays["variables"]
        self.weights: Array = arrays["weights"]
        """For whoever writes: change it within ``writing`` only."""
        if block is None:
            self._version[0] = -1

    @property
    def sequence(self) -> int:
        """A number that changes with every write."""
        return int(self._sequence[0])

    @property
    def version(self) -> int:
        """Version of the newest weights; -1 before the first."""
        return int(self._version[0])

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Mark what is written meanwhile as unfinished: readers throw away what they have copied of it."""
        self._sequence[0] += 1
        try:
            yield
        finally:
            self._sequence[0] += 1

    def write(self, version: int, frames: int, variables: Sequence[float], weights: Array | None = None) -> None:
        """Write everything at once; without ``weights`` the old ones stay (or are changed within ``writing``)."""
        with self.writing():
            self.tell(version, frames, variables)
            if weights is not None:
                self.weights[:] = weights

    def tell(self, version: int, frames: int, variables: Sequence[float]) -> None:
        """Write all but the weights, for who is ``writing`` these."""
        self._version[0], self._frames[0] = version, frames
        self._variables[:] = variables

    def read(self) -> Publication:
        """Read what was written last, whole."""
        while True:
            before = self.sequence
            if before % 2 == 0:
                found = Publication(
                    before, self.version, int(self._frames[0]), tuple(self._variables.tolist()), self.weights.copy()
                )
                if self.sequence == before:
                    return found
            time.sleep(RETRY_SECONDS)

    def read_small(self) -> tuple[int, tuple[float, ...]]:
        """Read frames and variables alone; they may be of two moments."""
        return int(self._frames[0]), tuple(np.array(self._variables).tolist())
