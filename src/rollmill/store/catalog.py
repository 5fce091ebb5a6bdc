"""The shards of a store with their indexes, and what is wrong with the others; grows with the store."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rollmill.core.errors import StoreError
from rollmill.store.care.lost import lost_episodes, witnesses
from rollmill.store.files import open_shard
from rollmill.store.format import owner
from rollmill.store.format.index import IndexDamaged, ShardIndex, build_index, empty_index, read_index
from rollmill.store.format.shards import Problem, ShardRef, ShardScan, list_files, scan_shard


class Catalog:
    """Sealed shards by their index files, or by a walk over them where these fail; open ones by a walk that continues.

    ``indexes[k]`` belongs to ``shards[k]``; a shard keeps its number. What cannot be read is left out and named in
    ``problems``, with the episodes that are known to have been there.
    """

    def __init__(self, store: Path, layout: str) -> None:
        self.shards: list[ShardRef] = []
        self.indexes: list[ShardIndex] = []
        self._store = store
        self._layout = layout
        self._scans: dict[str, ShardScan] = {}
        self._problems: dict[Problem, None] = {}  # a set that keeps the order
        self._witnesses: dict[str, list[ShardIndex]] | None = None  # looked for when something is amiss

    @property
    def problems(self) -> list[Problem]:
        return list(self._problems)

    def update(self) -> list[Problem]:
        """Take in what has changed in the folders; returns the problems that are new."""
        before = set(self._problems)
        found = list_files(self._store)
        found.check()
        numbers = {ref.name: number for number, ref in enumerate(self.shards)}
        for ref in found.shards:
            number = numbers.get(ref.name)
            if number is None:
                self.shards.append(ref)
                self.indexes.append(self._load(ref) or empty_index(ref.name))
            elif not self.shards[number].sealed and ref != self.shards[number]:
                self.shards[number] = ref
                self.indexes[number] = self._load(ref) or self.indexes[number]
        for file in found.odd:
            if file.problem not in self._problems:
                self._note([file.problem, *(self._lost(file.shard, None) if file.shard else ())])
        self._witnesses = None
        return [problem for problem in self._problems if problem not in before]

    def _note(self, problems: Iterable[Problem]) -> None:
        self._problems |= dict.fromkeys(problems)

    def _lost(self, shard: str, scan: ShardScan | None) -> list[Problem]:
        """Return what is known to have been in a shard and is not found there (None: it cannot be read)."""
        if self._witnesses is None:
            self._witnesses = witnesses(self._store)
        return [episode.problem for episode in lost_episodes(self._witnesses.get(shard, ()), scan)]

    def _load(self, ref: ShardRef) -> ShardIndex | None:
        """Return the index of a shard; None if it cannot be read, or holds other columns than this store."""
        try:
            index = self._index_of(ref) if ref.sealed else self._scan_open(ref)
        except (OSError, StoreError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            self._note([Problem(ref.name, -1, -1, f"cannot be read: {reason}")])
            return None
        if index.layout not in (self._layout, ""):
            self._note([Problem(ref.name, -1, -1, "it holds other columns than this store and is not read")])
            return None
        return index

    def _index_of(self, ref: ShardRef) -> ShardIndex:
        self._scans.pop(ref.name, None)
        try:
            return read_index(ref.index_path, ref.name, ref.bytes)
        except IndexDamaged as damage:
            reason = f"{damage}; read from the shard itself (slower to open)"
        self._note([Problem(ref.name, -1, -1, reason, harmless=True)])
        scan = scan_shard(ref)
        self._note([*scan.problems, *self._lost(ref.name, scan)])
        return build_index(scan)

    def _scan_open(self, ref: ShardRef) -> ShardIndex:
        scan = self._scans.setdefault(ref.name, ShardScan(ref.name))
        for problem in scan.tail_problems:
            self._problems.pop(problem, None)  # what the walk says now counts
        handle = open_shard(ref)
        scan.advance(handle.fd, handle.bytes)
        self._note(scan.problems)
        # A damaged end may be a record that is being written; unless nobody is there to write it.
        if scan.tail_problems and (scan.header is None or owner.state_of(scan.header.owner) != "alive"):
            self._note(scan.tail_problems)
        return build_index(scan)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without half-done walks: a copy begins them anew."""
        return {**vars(self), "_scans": {}}
