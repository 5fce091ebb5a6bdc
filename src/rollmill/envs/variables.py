"""Numbers that change while a run goes on, and that environments may read: a curriculum's way into them.

``env.variables`` names them and gives their values; an observer sets them (``run.set_variable``). Values travel through
shared memory. An environment takes them over when an episode begins and keeps them to its end, so that an episode is
one thing from start to finish, and can be replayed. The lanes of a vector environment share one set, which is taken
over whenever an episode begins in one of them.

``progress`` is kept by the trainer itself: the share of the run that is done, the same for all environments and ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from rollmill.core.fields import Array

PROGRESS = "progress"


class EnvVariables(Mapping[str, float]):
    """The variables of one environment, as they stood when its episode began; its constructor is given them."""

    def __init__(self, names: Sequence[str], source: Array) -> None:
        """Read from ``source``, ``[len(names)]`` float64, written by whoever sets the variables."""
        self._index = {name: k for k, name in enumerate(names)}
        self._source = source
        self.values_now: Array = np.array(source, np.float64)
        """``[len(names)]`` float64: what the environment sees."""

    @classmethod
    def fixed(cls, values: Mapping[str, float]) -> EnvVariables:
        """Build variables that nobody changes."""
        return cls(tuple(values), np.array(list(values.values()), np.float64))

    def take(self, values: Array | None = None) -> None:
        """Take over, as an episode begins, the values of this moment, or those it had when it was recorded."""
        self.values_now[:] = self._source if values is None else values

    def __getitem__(self, name: str) -> float:
        return float(self.values_now[self._index[name]])

    def __iter__(self) -> Iterator[str]:
        return iter(self._index)

    def __len__(self) -> int:
        return len(self._index)
