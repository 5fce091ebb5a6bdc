"""Many stores into one: records are copied as they are, checksums verified, nothing decoded."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from rollmill.core.errors import BadBlock, StoreError
from rollmill.core.fields import Array
from rollmill.store.care.verify import Progress
from rollmill.store.derive.derivation import SHARD_BYTES, NewStore, check_free, open_quietly
from rollmill.store.format.schema import StoreSchema
from rollmill.store.reader import Store


@dataclass
class MergeReport:
    """What a merge did."""

    copied: int = 0
    already: int = 0
    """Copied by an earlier, interrupted go."""
    duplicates: int = 0
    """Episodes left out because another one has the same uid."""
    shortened: list[int] = field(default_factory=list)
    """Uids of duplicates that were not alike: the longest was taken."""
    damaged: list[str] = field(default_factory=list)
    """Bad places met, one line each; their episodes are not in the result."""
    steps: int = 0


def merge(
    sources: Sequence[Path | str],
    target: Path | str,
    *,
    any_env: bool = False,
    skip_damaged: bool = False,
    resume: bool = False,
    shard_bytes: int = SHARD_BYTES,
    progress: Progress | None = None,
) -> MergeReport:
    """Copy every episode of ``sources`` into a new store. ``progress`` counts steps.

    The schemas must agree (codecs aside); ``any_env`` lets environments and their arguments differ, as long as the
    columns are the same. Of episodes with the same uid the longest is taken. Damage ends the merge, unless
    ``skip_damaged``: then it is listed and left out.
    """
    if not sources:
        raise StoreError("nothing to merge: name at least one store")
    if not resume:
        check_free(Path(target))
    stores = [open_quietly(path) for path in sources]
    _check_alike(stores, any_env)
    report = MergeReport()
    _check_whole(stores, skip_damaged, report)
    plan = _plan(stores, report)
    recipe = {"tool": "merge", "sources": [str(store.path) for store in stores], "any_env": any_env}
    with NewStore(target, stores[0].schema, recipe, resume=resume, shard_bytes=shard_bytes) as new:
        for number, store in enumerate(stores):
            _copy(store, plan[number], new, report, skip_damaged, _part(progress, plan, number, stores))
            store.close()
        new.finish(episodes=report.copied + report.already, duplicates=report.duplicates, damaged=report.damaged)
    return report


def _check_alike(stores: list[Store], any_env: bool) -> None:
    first = stores[0]
    for other in stores[1:]:
        lines = _differences(first.schema, other.schema, any_env)
        if lines:
            text = "".join(f"\n  {line}" for line in lines)
            env_only = not any(line.startswith(("column", "order")) for line in lines)
            hint = "\n--any-env merges them all the same" if env_only else ""
            raise StoreError(f"{other.path} (there) differs from {first.path} (here):{text}{hint}")


def _differences(mine: StoreSchema, theirs: StoreSchema, any_env: bool) -> list[str]:
    """Return lines of differences that matter: how columns are compressed does not, blocks say it themselves."""
    if mine.layout == theirs.layout:
        theirs = dataclasses.replace(theirs, columns=mine.columns)
        if any_env:
            return []
    return mine.differences(theirs)


def _check_whole(stores: list[Store], skip_damaged: bool, report: MergeReport) -> None:
    for store in stores:
        lost = [f"{store.path}: {problem}" for problem in store.problems if not problem.harmless]
        if lost and not skip_damaged:
            raise StoreError(
                f"{lost[0]} ({len(lost)} bad places in this store). Repair it first (`rollmill data repair`), or leave "
                "out what is damaged with --skip-damaged"
            )
        report.damaged += lost


def _plan(stores: list[Store], report: MergeReport) -> list[Array]:
    """Choose the episodes of each store to copy: of every uid one, the longest, else the first."""
    source = np.repeat(np.arange(len(stores)), [len(store) for store in stores])
    number = np.concatenate([np.arange(len(store)) for store in stores])
    uid = np.concatenate([store.table.uid for store in stores])
    length = np.concatenate([store.table.length for store in stores])
    order = np.lexsort((np.arange(len(uid)), -length, uid))
    first = np.ones(len(uid), np.bool_)
    first[1:] = uid[order][1:] != uid[order][:-1]
    unlike = ~first
    unlike[1:] &= length[order][1:] != length[order][:-1]
    report.duplicates = int((~first).sum())
    report.shortened = sorted({int(u) for u in uid[order][unlike]})
    chosen = np.zeros(len(uid), np.bool_)
    chosen[order[first]] = True
    return [number[chosen & (source == k)] for k in range(len(stores))]


def _copy(
    store: Store, episodes: Array, new: NewStore, report: MergeReport, skip_damaged: bool, progress: Progress | None
) -> None:
    lengths, uids = store.table.length, store.table.uid
    done, total = 0, int(lengths[episodes].sum())
    for i in episodes:
        if progress is not None:
            progress(done, total)
        done += int(lengths[i])
        if int(uids[i]) in new.done:
            report.already += 1
            continue
        try:
            new.writer.copy_episode(store, int(i))
        except BadBlock as error:
            if not skip_damaged:
                raise StoreError(
                    f"{error}. What was copied so far stays in {new.path}; continue with --resume --skip-damaged, or "
                    "repair the store first (`rollmill data repair`)"
                ) from error
            report.damaged.append(str(error))
            continue
        report.copied += 1
        report.steps += int(lengths[i])
    if progress is not None:
        progress(done, total)


def _part(progress: Progress | None, plan: list[Array], number: int, stores: list[Store]) -> Progress | None:
    """Return what reports progress within one store as progress within all."""
    if progress is None:
        return None
    sums = [int(store.table.length[episodes].sum()) for store, episodes in zip(stores, plan)]
    before, total = sum(sums[:number]), sum(sums)
    tell = progress
    return lambda done, _: tell(before + done, total)
