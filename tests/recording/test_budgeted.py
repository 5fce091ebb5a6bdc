"""A store that never grows beyond its budget, whatever is written and whatever is dropped."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmill.core.fields import ActionSpec, EnvSpec, Field
from rollmill.recording.budget import BudgetReached, ShardFacts, folder_bytes, oldest, shard_size
from rollmill.recording.budgeted import BudgetedWriter
from rollmill.recording.choose import level_of
from rollmill.store.derive.thinning import note_share
from rollmill.store.episode import EpisodeInfo
from rollmill.store.format import open_shard
from rollmill.store.format.schema import StoreSchema
from rollmill.store.format.shards import ShardRef
from rollmill.store.reader import Store

SPEC = EnvSpec("toy", (Field("image", "uint8", (8, 8, 3)),), ActionSpec("discrete", nvec=(3,), start=(0,)))
SCHEMA = StoreSchema.for_env(SPEC)
LIMIT = 1_500_000


class Meter:
    """Looks at the folder after every system call that can make it grow."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.largest, self._folder = 0, folder
        for name in ("writev", "write", "rename", "replace"):
            monkeypatch.setattr(open_shard.os, name, self._watched(getattr(os, name)))

    def _watched(self, real):  # type: ignore[no-untyped-def]
        def call(*args):  # type: ignore[no-untyped-def]
            result = real(*args)
            self.look()
            return result

        return call

    def look(self) -> None:
        self.largest = max(self.largest, folder_bytes(self._folder))


class Writer:
    """Several lanes of noise that does not compress, or of flat images that do."""

    def __init__(self, keeper: BudgetedWriter, noisy: bool = True, lanes: int = 4) -> None:
        self.keeper, self.noisy, self.lanes = keeper, noisy, lanes
        self.frames = 0
        self.rng = np.random.default_rng(0)
        self.open: set[int] = set()
        self.drawn: list[float] = []
        """The number of each episode, by its uid."""
        keeper.before_rotation = self.end_all

    def write(self, steps: int, ends: bool) -> None:
        for lane in range(self.lanes):
            self.keeper.reserve(steps, 1)
            if lane not in self.open:
                number = 1 - self.rng.random()
                self.drawn.append(number)
                info = EpisodeInfo(lane=lane, uid=len(self.drawn) - 1, probability=1.0)
                self.keeper.begin(lane, info, level_of(number))
                self.open.add(lane)
            self.keeper.append(lane, self.rows(steps))
            if ends:
                self.end(lane)
        self.frames += steps

    def rows(self, steps: int) -> dict[str, np.ndarray]:
        return {
            "obs:image": self.rng.integers(0, 256 if self.noisy else 2, (steps, 8, 8, 3), dtype=np.uint8),
            "action": self.rng.integers(0, 3, steps),
            "reward": np.ones(steps, np.float32),
            "global_step": self.frames + np.arange(steps),
            "version": np.zeros(steps, np.int64),
        }

    def end(self, lane: int) -> None:
        self.keeper.end(lane, {"obs:image": np.zeros((8, 8, 3), np.uint8)}, True, False)
        self.open.discard(lane)

    def end_all(self) -> None:
        for lane in list(self.open):
            self.end(lane)


@pytest.mark.parametrize("noisy", [True, False])
@pytest.mark.parametrize("policy", ["thin", "ring"])
def test_the_folder_stays_within_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str, noisy: bool
) -> None:
    keeper = BudgetedWriter(tmp_path, SCHEMA, LIMIT, policy, expected_steps=30)  # type: ignore[arg-type]
    meter, writer = Meter(tmp_path, monkeypatch), Writer(keeper, noisy)
    for _ in range(300):
        writer.write(30, ends=True)
    keeper.close()
    meter.look()
    assert meter.largest <= LIMIT
    assert keeper.dropped_episodes > 0, "the limit was reached"
    assert folder_bytes(tmp_path) > (0.6 if policy == "ring" else 0.3) * LIMIT, "and used"
    store = Store(tmp_path)
    assert not store.problems
    assert (len(store), store.table.steps) == (keeper.episodes, keeper.steps)
    progress = store.table["global_step_first"]
    if policy == "ring":
        assert progress.max() > 8_900
        assert progress.min() > 0.2 * 9_000, "only the newest are left"
    else:
        share = 2.0**-keeper.level
        assert set(store.table.uid.tolist()) == {uid for uid, number in enumerate(writer.drawn) if number <= share}
        assert (store.table["probability"] == share).all()


def test_stop_leaves_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = BudgetedWriter(tmp_path, SCHEMA, LIMIT, "stop", expected_steps=30)
    meter, writer = Meter(tmp_path, monkeypatch), Writer(keeper)
    with pytest.raises(BudgetReached, match=r"has reached its budget of 0\.0015 GB"):  # noqa: PT012
        for _ in range(10_000):
            writer.write(13, ends=False)
            writer.write(17, ends=True)
    writer.end_all()
    keeper.close()
    meter.look()
    assert 0.7 * LIMIT < meter.largest <= LIMIT
    assert Store(tmp_path).table["global_step_first"].min() == 0


def test_there_is_always_room_to_end_what_is_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = BudgetedWriter(tmp_path, SCHEMA, LIMIT, "stop", block=64)
    meter, writer = Meter(tmp_path, monkeypatch), Writer(keeper, lanes=40)
    with pytest.raises(BudgetReached):  # noqa: PT012
        for _ in range(1000):
            writer.write(16, ends=False)
    writer.end_all()  # forty blocks of noise that were not yet on the disk
    keeper.close()
    meter.look()
    assert meter.largest <= LIMIT


@pytest.mark.parametrize("policy", ["thin", "ring"])
def test_open_episodes_that_fill_the_budget_are_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    """Episodes that never end: nothing is sealed, so everything has to be ended before something can be dropped."""
    keeper = BudgetedWriter(tmp_path, SCHEMA, LIMIT, policy)  # type: ignore[arg-type]
    meter, writer = Meter(tmp_path, monkeypatch), Writer(keeper)
    for _ in range(300):
        writer.write(50, ends=False)
    writer.end_all()
    keeper.close()
    meter.look()
    assert meter.largest <= LIMIT
    assert len(Store(tmp_path))


@given(
    steps=st.lists(st.tuples(st.integers(1, 70), st.booleans()), min_size=5, max_size=60),
    policy=st.sampled_from(["stop", "thin", "ring"]),
    block=st.sampled_from([1, 7, 64]),
)
@settings(max_examples=25, deadline=None)
def test_whatever_is_written(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, bool]], policy: str, block: int
) -> None:
    folder = tmp_path_factory.mktemp("store")
    limit = 500_000
    with pytest.MonkeyPatch.context() as monkeypatch:
        keeper = BudgetedWriter(folder, SCHEMA, limit, policy, block=block, expected_steps=20)  # type: ignore[arg-type]
        meter, writer = Meter(folder, monkeypatch), Writer(keeper, lanes=3)
        try:
            for count, ends in steps:
                writer.write(count, ends)
        except BudgetReached:
            assert policy == "stop"
        writer.end_all()
        keeper.close()
        meter.look()
    assert meter.largest <= limit
    store = Store(folder)
    assert (len(store), store.table.steps) == (keeper.episodes, keeper.steps)


def test_a_budget_too_small_for_anything_says_so(tmp_path: Path) -> None:
    keeper = BudgetedWriter(tmp_path, SCHEMA, 150_000, "ring")
    with pytest.raises(BudgetReached, match="set aside"):
        Writer(keeper).write(50, ends=True)


def test_an_existing_store_counts(tmp_path: Path) -> None:
    for session in range(3):
        keeper = BudgetedWriter(tmp_path, SCHEMA, LIMIT, "ring", expected_steps=30)
        writer = Writer(keeper)
        writer.frames = session * 3000
        for _ in range(100):
            writer.write(30, ends=True)
        keeper.close()
        assert folder_bytes(tmp_path) <= LIMIT
        assert len(Store(tmp_path)) == keeper.episodes


def test_no_limit(tmp_path: Path) -> None:
    keeper = BudgetedWriter(tmp_path, SCHEMA, 0, "stop")
    Writer(keeper).write(300, ends=True)
    keeper.close()
    assert keeper.steps == 1200


# -- whom to drop ------------------------------------------------------------------------------------------


def test_the_oldest() -> None:
    shards = [ShardFacts(ShardRef(Path(), name, True, 1), 1, 1, 1) for name in ("b", "a", "c")]
    assert oldest(shards) is shards[1]
    assert oldest([]) is None


def test_a_halving_that_was_interrupted_is_completed(tmp_path: Path) -> None:
    writer = Writer(BudgetedWriter(tmp_path, SCHEMA, LIMIT, "thin", expected_steps=30))
    for _ in range(20):
        writer.write(30, ends=True)
    writer.keeper.close()
    note_share(tmp_path, 0.5)  # and then the process was killed
    keeper = BudgetedWriter(tmp_path, SCHEMA, LIMIT, "thin", expected_steps=30)
    again = Writer(keeper)
    again.drawn = writer.drawn
    for _ in range(20):
        again.write(30, ends=True)
    keeper.close()
    table = Store(tmp_path).table
    assert set(table.uid.tolist()) == {uid for uid, number in enumerate(again.drawn) if number <= 0.5}
    assert (table["probability"] == 0.5).all()


def test_episodes_under_way_are_halved_too(tmp_path: Path) -> None:
    keeper = BudgetedWriter(tmp_path, SCHEMA, LIMIT, "thin", expected_steps=400)
    writer = Writer(keeper, lanes=16)
    while not keeper.level:
        writer.write(20, ends=False)
    for _ in range(3):
        writer.write(20, ends=False)
    writer.end_all()
    keeper.close()
    table = Store(tmp_path).table
    assert set(table.uid.tolist()) == {uid for uid, number in enumerate(writer.drawn) if number <= 2.0**-keeper.level}
    assert len(set(table.length.tolist())) == 1, "those that stay are whole"


def test_sizes_of_shards() -> None:
    assert shard_size(0, "stop") == shard_size(10**12, "ring") == 128 << 20
    assert shard_size(200_000_000, "thin") == 12_500_000
    assert shard_size(1000, "thin") == 1 << 16
