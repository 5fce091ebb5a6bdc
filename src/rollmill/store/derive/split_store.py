"""One store into several: a selection, fractions, or a number of parts; records are copied as they are."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rollmill.core.errors import BadBlock, StoreError
from rollmill.core.fields import Array
from rollmill.store.care.verify import Progress
from rollmill.store.derive.derivation import SHARD_BYTES, NewStore, check_free
from rollmill.store.reader import Store
from rollmill.store.split import position


@dataclass(frozen=True)
class Part:
    """One result of a division: a store and what was copied into it."""

    path: Path
    episodes: int
    steps: int
    already: int
    """Of ``episodes``: copied by an earlier, interrupted go."""


def by_fraction(store: Store, episodes: Array, fractions: Mapping[str, float]) -> dict[str, Array]:
    """Divide episodes by the hash of their uid: the same episode always goes to the same part, however the store grows.

    ``fractions`` add up to at most 1; the rest is left out. The first one is what ``split.Split`` calls validation.
    """
    if not fractions or any(not 0 < share <= 1 for share in fractions.values()):
        raise StoreError(f"fractions must be above 0 and at most 1: {dict(fractions)}")
    if sum(fractions.values()) > 1 + 1e-9:
        raise StoreError(f"fractions add up to {sum(fractions.values()):g}, more than 1: {dict(fractions)}")
    place = position(store.table.uid[episodes], seed=0)
    bounds = np.cumsum([0.0, *fractions.values()])
    bounds[-1] = 1.0 if bounds[-1] > 1 - 1e-9 else bounds[-1]
    return {
        name: episodes[(low <= place) & (place < high)] for name, low, high in zip(fractions, bounds[:-1], bounds[1:])
    }


def by_number(store: Store, episodes: Array, parts: int) -> dict[str, Array]:
    """Return ``parts`` parts of about the same number of bytes, named ``part-00000-of-00004`` and so on."""
    if parts < 1:
        raise StoreError(f"{parts} parts: at least 1 is needed")
    if parts > len(episodes):
        raise StoreError(f"{len(episodes)} episodes cannot be divided into {parts} parts")
    sizes = store.table["bytes"]
    loads = [(0, k) for k in range(parts)]
    picks: list[list[int]] = [[] for _ in range(parts)]
    # The largest first, each to the part that has least: even, and none stays empty.
    for i in episodes[np.argsort(-sizes[episodes], kind="stable")]:
        load, k = heapq.heappop(loads)
        picks[k].append(int(i))
        heapq.heappush(loads, (load + int(sizes[i]), k))
    return {f"part-{k:05d}-of-{parts:05d}": np.array(sorted(pick), np.int64) for k, pick in enumerate(picks)}


def split_store(
    store: Store,
    parts: Mapping[Path, Array],
    *,
    how: str,
    resume: bool = False,
    shard_bytes: int = SHARD_BYTES,
    progress: Progress | None = None,
) -> list[Part]:
    """Copy the given episodes of ``store`` into a new store each. ``how`` says in words what decided (for the recipe).

    ``progress`` counts steps. With ``resume`` parts that were not begun are begun, others continued.
    """
    if not resume:
        for path in parts:
            check_free(path)
    lengths = store.table.length
    total = sum(int(lengths[episodes].sum()) for episodes in parts.values())
    done, result = 0, []
    for path, episodes in parts.items():
        begun = resume and path.exists()
        uids = np.sort(store.table.uid[episodes])
        names = hashlib.blake2b(uids.tobytes(), digest_size=8).hexdigest()
        # If the store has grown since, other episodes may belong here: they must not get into two parts.
        recipe = {"tool": "split", "source": str(store.path), "how": how, "part": path.name, "episodes": names}
        with NewStore(path, store.schema, recipe, resume=begun, shard_bytes=shard_bytes) as new:
            for i in episodes:
                if progress is not None:
                    progress(done, total)
                done += int(lengths[i])
                if int(store.table.uid[i]) not in new.done:
                    _copy(store, int(i), new)
            new.finish(count=len(episodes))
        result.append(Part(path, len(episodes), int(lengths[episodes].sum()), len(new.done)))
    if progress is not None:
        progress(done, total)
    return result


def _copy(store: Store, i: int, new: NewStore) -> None:
    try:
        new.writer.copy_episode(store, i)
    except BadBlock as error:
        raise StoreError(
            f"{error}. What was copied so far stays in {new.path}; repair the store first (`rollmill data repair`)"
        ) from error
