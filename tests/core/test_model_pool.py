"""The pool keeps the newest models and milestones, and survives whatever ends its writer."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollmill.core import checkpoints, tree_file
from rollmill.core.checkpoints import load_checkpoint
from rollmill.core.errors import CheckpointError
from rollmill.core.model_pool import ModelPool


def content_of(version: int, size: int = 50) -> dict[str, Any]:
    weights = np.full(size, version, np.float32)
    return {"frames": 10 * version, "metric": float(version % 7), "state": {"kind": "test", "weights": weights}}


def version_of(loaded: Any) -> int:
    return int(loaded.state["weights"][0])


def files_of(pool: ModelPool) -> set[str]:
    return {path.name for path in pool.folder.iterdir()} - {"index.json"}


def test_the_newest_and_milestones_stay(tmp_path: Path) -> None:
    pool = ModelPool(tmp_path / "pool", keep=3, milestone_updates=10)
    assert pool.entries() == ()
    with pytest.raises(CheckpointError, match="no model has been published"):
        pool.latest()
    for version in range(5, 40, 2):
        pool.publish(content_of(version), version)
    assert [entry.version for entry in pool.entries()] == [11, 21, 31, 35, 37, 39]
    assert [entry.version for entry in pool.entries() if entry.milestone] == [11, 21, 31]
    assert files_of(pool) == {entry.file for entry in pool.entries()}
    assert version_of(pool.latest()) == 39
    ids = {entry.version: entry.id for entry in pool.entries()}
    assert version_of(pool.by_id(ids[21])) == 21
    with pytest.raises(CheckpointError, match=rf"no model 0; there are {ids[11]}, {ids[21]}"):
        pool.by_id(0)
    drawn = {version_of(pool.random(np.random.default_rng(k))) for k in range(60)}
    assert drawn == {11, 21, 31, 35, 37, 39}


def test_files_are_named_by_their_contents_and_can_be_loaded_alone(tmp_path: Path) -> None:
    pool = ModelPool(tmp_path / "pool")
    entry = pool.publish(content_of(3), 3)
    path = pool.path_of(entry)
    assert path.stem == tree_file.stored_checksum(path)
    assert version_of(load_checkpoint(path)) == 3


def test_the_same_model_again_is_the_one_that_is_there(tmp_path: Path) -> None:
    """A run that is killed and goes on bit for bit publishes what it had published before."""
    pool = ModelPool(tmp_path / "pool", keep=2)
    entries = [pool.publish(content_of(k), k) for k in range(3)]
    assert pool.publish(content_of(1), 1) == entries[1]
    assert pool.entries() == tuple(entries[1:])
    assert pool.publish(content_of(9), 9).id == 3
    assert pool.publish(content_of(0), 0) == entries[0], "also one that had given way"
    assert [entry.id for entry in pool.entries()] == [0, 2, 3]
    assert pool.publish(content_of(8), 8).id == 4


def test_models_that_somebody_needs_stay(tmp_path: Path) -> None:
    pool = ModelPool(tmp_path / "pool", keep=2)
    for k in range(4):
        pool.publish(content_of(k), k, needed=[0])
    assert [entry.id for entry in pool.entries()] == [0, 2, 3]
    pool.publish(content_of(4), 4)
    assert [entry.id for entry in pool.entries()] == [3, 4]


def test_models_of_another_pool_keep_their_ids(tmp_path: Path) -> None:
    old, new = ModelPool(tmp_path / "old", keep=9), ModelPool(tmp_path / "new", keep=9)
    entries = [old.publish(content_of(k), k) for k in range(3)]
    new.take_over(entries[1:], old.folder)
    assert new.entries() == tuple(entries[1:])
    assert version_of(new.by_id(2)) == 2
    assert new.publish(content_of(7), 7).id == 3
    new.take_over(entries[1:], tmp_path / "gone")  # they are there
    with pytest.raises(CheckpointError):
        new.take_over(entries, tmp_path / "gone")


def test_ids_go_on_in_the_next_session_and_leftovers_are_swept(tmp_path: Path) -> None:
    first = ModelPool(tmp_path / "pool", keep=2)
    ids = [first.publish(content_of(k), k).id for k in range(4)]
    (tmp_path / "pool" / "0000.ckpt").write_bytes(b"half")
    (tmp_path / "pool" / ".0001.ckpt.999999999.tmp").write_bytes(b"half")
    second = ModelPool(tmp_path / "pool", keep=2)
    second.tidy()
    assert files_of(second) == {entry.file for entry in second.entries()}
    assert second.publish(content_of(9), 9).id == ids[-1] + 1


def test_a_damaged_index_is_an_error_that_names_it(tmp_path: Path) -> None:
    pool = ModelPool(tmp_path / "pool")
    pool.publish(content_of(1), 1)
    index = tmp_path / "pool" / "index.json"
    for text in ("{", "[]", json.dumps({"format": 9, "next_id": 0, "entries": []}), '{"format": 1, "entries": [3]}'):
        index.write_text(text)
        with pytest.raises(CheckpointError, match=r"index\.json"):
            pool.entries()


def test_a_full_disk_leaves_the_pool_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = ModelPool(tmp_path / "pool", min_free_mb=5)
    pool.publish(content_of(1), 1)
    monkeypatch.setattr(checkpoints, "_free_bytes", lambda folder: 4_000_000)
    with pytest.raises(CheckpointError, match="too full"):
        pool.publish(content_of(2), 2)
    assert [entry.version for entry in pool.entries()] == [1]


def test_a_reader_looks_again_when_its_model_gave_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = ModelPool(tmp_path / "pool", keep=1)
    pool.publish(content_of(1), 1)
    stale = pool.entries()
    pool.publish(content_of(2), 2)
    reader = ModelPool(tmp_path / "pool")
    answers = iter([stale])
    read = reader._read

    def old_first() -> Any:
        return replace(read(), entries=found) if (found := next(answers, None)) is not None else read()

    monkeypatch.setattr(reader, "_read", old_first)
    assert version_of(reader.latest()) == 2


THOUSAND = """
import os, sys
import numpy as np
from pathlib import Path
from rollmill.core.model_pool import ModelPool

os.fsync = lambda _: None  # of the disk it is not about
pool = ModelPool(Path(sys.argv[1]), keep=10, milestone_updates=250)
for version in range(1, 1001):
    weights = np.full(5000, version, np.float32)
    pool.publish({"frames": version, "metric": None, "state": {"weights": weights}}, version)
    if version in (200, 1000):
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
        print(next(line.split()[1] for line in lines if line.startswith("Rss:")))
"""


def test_a_thousand_publications_take_no_memory(tmp_path: Path) -> None:
    """In a process of its own: what other tests have taken and given back hides what this one takes."""
    command = [sys.executable, "-c", THOUSAND, str(tmp_path / "pool")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    before, after = map(int, done.stdout.split())
    assert len(ModelPool(tmp_path / "pool").entries()) == 10 + 3
    assert after <= 1.05 * before


WRITER = """
import sys
import numpy as np
from pathlib import Path
from rollmill.core.model_pool import ModelPool

pool = ModelPool(Path(sys.argv[1]), keep=4, milestone_updates=20)
pool.tidy()
version = max((entry.version for entry in pool.entries()), default=0)
while True:
    version += 1
    weights = np.full(100_000, version, np.float32)
    pool.publish({"frames": version, "metric": None, "state": {"weights": weights}}, version)
    print(version, flush=True)
"""


def test_kills_at_random_moments_lose_nothing(tmp_path: Path) -> None:
    """What was announced is there, whole; ids and versions go on; nothing piles up."""
    pool, rng = ModelPool(tmp_path / "pool", keep=4, milestone_updates=20), np.random.default_rng(0)
    last_id = -1
    for _ in range(20):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(pool.folder)], stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout is not None
            told = int(writer.stdout.readline())
            time.sleep(float(rng.random()) * 0.05)
            writer.send_signal(signal.SIGKILL)
            told = max([told, *map(int, writer.stdout.read().split())])
        found = pool.entries()
        assert found[-1].version in (told, told + 1)
        assert found[-1].id > last_id
        last_id = found[-1].id
        assert {entry.version // 20 for entry in found if entry.milestone} == set(range(1, found[-1].version // 20 + 1))
        for entry in found:
            assert version_of(load_checkpoint(pool.path_of(entry))) == entry.version
    assert last_id == found[-1].version - 1, "no id was skipped or given twice"
    pool.tidy()
    assert files_of(pool) == {entry.file for entry in found}
