"""Episodes that are in a store more than once, whatever their uid: the same environment, actions, rewards, end and
observations. Policy version, global step and worker may differ.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

import numpy as np

from rollmill.core.errors import BadBlock
from rollmill.reports.store.contents import Digest
from rollmill.store.reader import Store

MAX_DECODED = 1 << 30
"""Bytes of observations that are decoded for comparison at most."""
SHOWN = 50


def find_duplicates(store: Store, digests: Mapping[int, Digest], max_decoded: int = MAX_DECODED) -> dict[str, Any]:
    """JSON values: ``copies`` (episodes that repeat an earlier one), ``groups`` (numbers of equal episodes, the first
    ``SHOWN``), ``same_uid`` (episodes of the whole table whose uid appears before), ``not_compared``.

    Episodes with equal digests are equal. Those that differ only in their stored observations are decoded and compared,
    the first one first: blocks of another size hold the same rows in other bytes.
    """
    budget = _Budget(max_decoded)
    groups: list[list[int]] = []
    for alike in _grouped(digests, lambda i: digests[i].small):
        classes = _grouped(alike, lambda i: digests[i].stored, singles=True)
        for joined in _same_observations(store, [members[0] for members in classes], budget):
            first = set(joined)
            equal = sorted(i for members in classes if members[0] in first for i in members)
            if len(equal) > 1:
                groups.append(equal)
    groups.sort()
    uids = store.table.uid
    return {
        "looked_at": len(digests),
        "copies": sum(len(group) - 1 for group in groups),
        "groups": groups[:SHOWN],
        "group_count": len(groups),
        "same_uid": len(uids) - len(np.unique(uids)),
        "not_compared": budget.refused,
    }


class _Budget:
    """How much may still be decoded."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.refused = 0

    def take(self, size: int) -> bool:
        if size > self.left:
            self.refused += 1
            return False
        self.left -= size
        return True


def _grouped(items: Iterable[int], key: Callable[[int], Hashable], singles: bool = False) -> list[list[int]]:
    found: dict[Hashable, list[int]] = defaultdict(list)
    for item in items:
        found[key(item)].append(item)
    return [group for group in found.values() if singles or len(group) > 1]


def _same_observations(store: Store, episodes: list[int], budget: _Budget) -> list[list[int]]:
    """The episodes, grouped by decoded observations. Most part with the first one, so that comes first."""
    if len(episodes) == 1:
        return [episodes]
    groups: list[list[int]] = []
    row = sum(column.row_bytes for column in store.schema.obs_columns)
    for near in _grouped(episodes, lambda i: _observed(store, i, 1, row, budget), singles=True):
        if len(near) == 1:
            groups.append(near)
        else:
            steps = int(store.table.length[near[0]])
            groups += _grouped(near, lambda i, n=steps: _observed(store, i, n, row, budget), singles=True)  # type: ignore[misc]
    return groups


def _observed(store: Store, i: int, steps: int, row: int, budget: _Budget) -> Hashable:
    """A digest of the observations of the first ``steps`` steps; of its own for an episode that cannot be read."""
    if not budget.take(steps * row):
        return i
    digests = {column.name: hashlib.blake2b(digest_size=16) for column in store.schema.obs_columns}
    length, block = int(store.table.length[i]), 64
    try:
        for start in range(0, steps, block):
            stop = min(start + block, steps)
            rows = store.read(i, start, stop, list(digests), next_obs=stop == length)
            for name, digest in digests.items():
                digest.update(rows[name].tobytes())
    except BadBlock:  # the pass before named it, if it was damaged then
        return i
    return tuple(digest.digest() for digest in digests.values())
