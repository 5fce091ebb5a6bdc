"""A store hurt at random, in every way we know: no acknowledged episode disappears without being named.

Whatever is no longer readable as it was written is named by verify, before and after a repair in place, and is either
whole in the repaired store or in its list of losses.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from damaging import MUTATIONS
from storing import dead_process, make_episode, same, tiny_schema

from rollmill.core.errors import BadBlock, StoreError
from rollmill.store.care.recover import recover
from rollmill.store.care.repair import repair
from rollmill.store.care.verify import verify_store
from rollmill.store.derive.derivation import open_quietly
from rollmill.store.episode import Episode
from rollmill.store.format import owner
from rollmill.store.reader import Store
from rollmill.store.writer import StoreWriter

SCHEMA = tiny_schema()
SEEDS = range(4)


class Written:
    """Two sealed shards and one that a dead writer left open, with episodes whose blocks lie among each other."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = folder / "store"
        self.episodes: dict[int, Episode] = {}
        for shard in range(2):
            with StoreWriter(self.path, SCHEMA, block=2, name=f"sealed{shard}") as writer:
                self._write(writer, range(10 * shard, 10 * shard + 5))
        with monkeypatch.context() as patch:
            dead = dead_process()
            patch.setattr(owner, "this_process", lambda: dead)
            writer = StoreWriter(self.path, SCHEMA, block=2, name="left")
        self._write(writer, range(20, 24))

    def _write(self, writer: StoreWriter, uids: range) -> None:
        episodes = {uid: make_episode(SCHEMA, 1 + uid % 6, uid) for uid in uids}
        for uid, episode in episodes.items():
            writer.begin(uid, episode.info)
        for t in range(6):
            for uid, episode in episodes.items():
                if t < episode.length:
                    writer.append(uid, {name: array[t : t + 1] for name, array in episode.columns.items()})
                if t == episode.length - 1:
                    final = {"obs:x": episode.columns["obs:x"][-1]}
                    writer.end(uid, final=final, terminated=True, stats=episode.stats)
        self.episodes |= episodes

    def whole(self, store: Store) -> set[int]:
        """The uids that are as they were written; a value that is not fails the test."""
        found = set()
        for i, uid in enumerate(map(int, store.table.uid)):
            try:
                read = store.episode(i)
                assert store.rewards(i).tobytes() == read.rewards.tobytes()
            except BadBlock as error:
                if error.episode != uid:
                    raise
                continue
            written, end = self.episodes[uid], store.end_record(i)
            if end.partial:
                continue
            assert same(read, written)
            assert (end.return_, dict(end.stats)) == (written.return_, dict(written.stats))
            found.add(uid)
        return found

    def readable(self) -> set[int]:
        try:
            with open_quietly(self.path) as store:
                return self.whole(store)
        except StoreError as error:
            if "store.json" not in str(error):
                raise
            return set(self.episodes)  # the shards are not asked; repair takes the schema from them


def named(path: Path) -> set[int]:
    report = verify_store(path, workers=1)
    found = {problem.episode for _, problem in report.problems if problem.episode is not None}
    assert {uid for shard in report.shards for uid in shard.bad_episodes} == found
    return found


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Written:
    return Written(tmp_path, monkeypatch)


@pytest.mark.parametrize("kind", MUTATIONS)
def test_whatever_is_gone_is_named(written: Written, tmp_path: Path, kind: str) -> None:
    good = shutil.copytree(written.path, tmp_path / "good")
    for seed in SEEDS:
        shutil.rmtree(written.path)
        shutil.copytree(good, written.path)
        MUTATIONS[kind](written.path, random.Random(f"{kind} {seed}"))
        check_all_is_named(written, tmp_path / f"{seed}")


def tidy_up(path: Path) -> None:
    try:
        recover(path, force=True)
    except StoreError as error:
        if "store.json" not in str(error):
            raise


def check_all_is_named(written: Written, folder: Path) -> None:
    everything = set(written.episodes)
    lost_of: dict[str, set[int]] = {}
    for tidied in (False, True):
        if tidied:
            tidy_up(written.path)
        gone = everything - written.readable()
        unnamed = gone - named(written.path)
        for salvage in (False, True):
            target = folder / f"{tidied}-{salvage}"
            report = repair(written.path, target, salvage=salvage, workers=1)
            lost = {int(item.episode, 16) for item in report.lost}
            with open_quietly(target) as store:
                whole = written.whole(store)
            assert whole | lost == everything, f"neither kept nor lost, tidied up: {tidied}, salvage: {salvage}"
            # An index that points elsewhere hides what is there all the same; then verify names the index.
            assert unnamed <= whole, f"not named by verify, tidied up: {tidied}"
            assert not unnamed or not verify_store(written.path, workers=1).good
            assert verify_store(target, workers=1).good
            lost_of[target.name] = lost
    assert lost_of["True-False"] <= lost_of["False-False"], "tidying up loses nothing more"


def test_without_a_mutation_nothing_is_named(written: Written, tmp_path: Path) -> None:
    assert written.readable() == set(written.episodes)
    assert named(written.path) == set()
    report = repair(written.path, tmp_path / "copy", workers=1)
    assert (report.kept, report.lost) == (len(written.episodes), [])
