"""All randomness of a run grows from one seed, as a tree: run -> part -> worker -> env -> episode.

A branch depends only on its path, never on timing or on how many numbers others drew, so an
episode can be reproduced from ``(run seed, worker, env, episode)`` alone.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Seeds:
    """One node of the seed tree; ``Seeds(7).branch("env", 3)`` is a node further out."""

    root: int
    path: tuple[int, ...] = ()

    def branch(self, *names: int | str) -> Seeds:
        return Seeds(self.root, self.path + tuple(_key(name) for name in names))

    def integer(self) -> int:
        """This node's seed: below 2**31, which every simulator accepts."""
        return int(self._sequence().generate_state(1, np.uint32)[0]) & 0x7FFFFFFF

    def generator(self) -> np.random.Generator:
        return np.random.default_rng(self._sequence())

    def _sequence(self) -> np.random.SeedSequence:
        return np.random.SeedSequence(entropy=self.root, spawn_key=self.path)


def _key(name: int | str) -> int:
    """Words become stable numbers (Python's own ``hash`` of a string changes between processes)."""
    return zlib.crc32(name.encode()) if isinstance(name, str) else int(name)
