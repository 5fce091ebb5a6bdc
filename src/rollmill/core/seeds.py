"""All randomness of a run grows from one seed, as a tree: run -> part -> worker -> env -> episode.

A branch depends only on its path, never on timing or on how many numbers others drew, so an
episode can be reproduced from ``(run seed, worker, env, episode)`` alone.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np

INCARNATION_EPISODES = 1_000_000_000
"""Episodes of a lane that belong to one incarnation of a sampler on another machine: number k of incarnation i is
``i * INCARNATION_EPISODES + k``. Lower numbers are those of the run's own sampler."""
POOL_WORDS = 4
"""numpy fills the root up to its pool size with zeros before a spawn key."""


@dataclass(frozen=True)
class Seeds:
    """One node of the seed tree; ``Seeds(7).branch("env", 3)`` is a node further out."""

    root: int
    path: tuple[int, ...] = ()

    def branch(self, *names: int | str) -> Seeds:
        return Seeds(self.root, self.path + tuple(_key(name) for name in names))

    def of_incarnation(self, episode: int) -> Seeds:
        """Return the node that the environments of an episode grow from: this one, or their incarnation's branch."""
        incarnation = episode // INCARNATION_EPISODES
        return self.branch("incarnation", incarnation) if incarnation else self

    def integer(self) -> int:
        """Return this node's seed: below 2**31, which every simulator accepts."""
        return int(self._sequence().generate_state(1, np.uint32)[0]) & 0x7FFFFFFF

    def generator(self) -> np.random.Generator:
        return np.random.default_rng(self._sequence())

    def _sequence(self) -> np.random.SeedSequence:
        """Make ``SeedSequence(entropy=root, spawn_key=path)`` from words of 32 bits, in a third of the time."""
        words = _words(self.root)
        if self.path:
            words += [0] * (POOL_WORDS - len(words))
            for key in self.path:
                words += _words(key)
        return np.random.SeedSequence(np.array(words, np.uint32))


def _words(number: int) -> list[int]:
    """Return a number in words of 32 bits, the least significant first."""
    if number < 0:
        raise ValueError(f"seeds and their branches must not be negative, got {number}")
    words = [number & 0xFFFFFFFF]
    while number := number >> 32:
        words.append(number & 0xFFFFFFFF)
    return words


def _key(name: int | str) -> int:
    """Turn a word into a stable number (Python's own ``hash`` of a string changes between processes)."""
    return zlib.crc32(name.encode()) if isinstance(name, str) else int(name)
