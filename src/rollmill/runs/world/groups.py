"""Which input shards of an encoding make one output shard.

Words
-----
group   input shards whose latents become one output shard; all instances share the groups.
plan    a file with groups. Whoever finds input shards that are in none writes the next plan; of several one wins.
mark    a file that says which input shards of a group are in the new store, written last.

A shard that was damaged when its group was encoded is not in the mark: it is planned anew, with whatever the source has
won since.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rollmill.core import atomic
from rollmill.core.errors import StoreError
from rollmill.core.opening import read_json

PLANS, MARKS = "plans", "done"
PLAN_FILES = "[0-9]*.json"

Group = tuple[str, ...]


class Groups:
    """The groups of a store of latents, and how far they are."""

    def __init__(self, out: Path) -> None:
        self._plans, self._marks = out / PLANS, out / MARKS
        for folder in (self._plans, self._marks):
            folder.mkdir(exist_ok=True)

    def plan(self, sizes: Mapping[str, int], target: int, ways: int) -> None:
        """Give every input shard a group; ``sizes``: bytes of their latents. See ``divide``."""
        while True:
            # Before they are read: where somebody plans meanwhile, this number is taken.
            number = len(list(self._plans.glob(PLAN_FILES)))
            planned = self._planned()
            left = [name for name in sizes if name not in planned]
            if not left:
                return
            groups = divide(left, [sizes[name] for name in left], target, ways)
            atomic.create_bytes(self._plans / f"{number:04d}.json", [json.dumps(groups).encode()])

    def all(self) -> dict[str, Group]:
        """Return every group by its name, which is that of its output shard."""
        found: dict[str, Group] = {}
        for path in sorted(self._plans.glob(PLAN_FILES)):
            groups = _read(path)
            found |= {f"latents-{path.stem}-{number:05d}": tuple(names) for number, names in enumerate(groups)}
        return found

    def is_done(self, group: str) -> bool:
        return self._mark(group).exists()

    def finish(self, group: str, shards: Sequence[str], **facts: Any) -> None:
        """Note that these input shards of a group are in the new store."""
        atomic.write_json(self._mark(group), {"shards": list(shards), **facts})

    def done(self) -> set[str]:
        """Return input shards that are in the new store. Marks of earlier versions are those of a single shard each."""
        marks = sorted(self._marks.glob("*.json"))
        return {name for path in marks for name in _read(path).get("shards", [path.stem])}

    def _planned(self) -> set[str]:
        waiting = [names for group, names in self.all().items() if not self.is_done(group)]
        return self.done().union(*waiting)

    def _mark(self, group: str) -> Path:
        return self._marks / f"{group}.json"


def divide(names: Sequence[str], sizes: Sequence[int], target: int, ways: int) -> list[list[str]]:
    """Divide shards, in their order, into groups of about equal size: near ``target``, and at least ``ways`` of them.

    However few bytes there are, ``ways`` instances have something to do, as far as there are shards.
    """
    ends = np.cumsum(np.asarray(sizes, np.float64))
    total = max(float(ends[-1]), 1.0)
    count = min(len(names), max(ways, round(total / target), 1))
    middles = ends - np.asarray(sizes) / 2
    place = np.minimum((middles / total * count).astype(int), count - 1)
    groups = [[name for name, at in zip(names, place, strict=True) if at == number] for number in range(count)]
    return [group for group in groups if group]


def _read(path: Path) -> Any:
    try:
        return read_json(path)
    except (OSError, ValueError) as error:
        raise StoreError(f"{path} cannot be read: {error}") from error
