"""Which input shards of an encoding go into one file: sizes, plans of several instances, shards that come later."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from rollmill.core.errors import StoreError
from rollmill.runs.world.groups import Groups, divide

MB = 1_000_000
NAMES = [f"s{k:03d}" for k in range(200)]


@pytest.mark.parametrize("count", [40, 100, 193, 200])
def test_files_are_of_100_to_200_mb(count: int) -> None:
    sizes = np.random.default_rng(count).integers(1 * MB, 9 * MB, count).tolist()
    groups = divide(NAMES[:count], sizes, 128 * MB, 1)
    assert [name for group in groups for name in group] == NAMES[:count]  # each once, in order
    of = dict(zip(NAMES, sizes, strict=False))
    assert all(90 * MB < sum(of[name] for name in group) < 200 * MB for group in groups)


def test_every_instance_has_something_to_do_as_far_as_there_are_shards() -> None:
    assert [len(group) for group in divide(NAMES[:8], [1] * 8, 128 * MB, 3)] == [3, 2, 3]
    assert len(divide(NAMES[:8], [1] * 8, 128 * MB, 99)) == 8
    assert divide(NAMES[:2], [0, 0], 128 * MB, 1) == [["s000", "s001"]]


def planned(groups: Groups) -> list[str]:
    return [name for names in groups.all().values() for name in names]


def test_a_plan_is_made_once_and_what_comes_later_is_planned_then(tmp_path: Path) -> None:
    groups = Groups(tmp_path)
    groups.plan(dict.fromkeys(NAMES[:6], 10), 30, 1)
    first = groups.all()
    assert [len(names) for names in first.values()] == [3, 3]
    Groups(tmp_path).plan(dict.fromkeys(NAMES[:6], 10), 10, 6)  # somebody who would divide it otherwise
    assert Groups(tmp_path).all() == first
    groups.plan(dict.fromkeys(NAMES[:8], 10), 30, 1)
    assert sorted(planned(groups)) == NAMES[:8]
    assert len(groups.all()) == 3


def test_what_a_mark_does_not_name_is_planned_again(tmp_path: Path) -> None:
    groups = Groups(tmp_path)
    groups.plan(dict.fromkeys(NAMES[:3], 10), 30, 1)
    (name,) = groups.all()
    groups.finish(name, [NAMES[0], NAMES[2]], episodes=2)
    assert groups.is_done(name)
    assert groups.done() == {NAMES[0], NAMES[2]}
    for _ in range(2):
        groups.plan(dict.fromkeys(NAMES[:3], 10), 30, 1)
    _, again = groups.all().items()
    assert again[1] == (NAMES[1],)
    assert not groups.is_done(again[0])


def test_marks_of_version_0_1_are_those_of_their_shards(tmp_path: Path) -> None:
    groups = Groups(tmp_path)
    (tmp_path / "done" / "s000.json").write_text('{"episodes": 1, "images": 4}')
    groups.plan(dict.fromkeys(NAMES[:2], 10), 30, 1)
    assert groups.done() == {"s000"}
    assert planned(groups) == ["s001"]


def test_of_instances_that_plan_at_the_same_time_one_wins(tmp_path: Path) -> None:
    all_groups = [Groups(tmp_path) for _ in range(8)]
    start = threading.Barrier(8)

    def plan(groups: Groups) -> None:
        start.wait()
        groups.plan(dict.fromkeys(NAMES[:20], 10), 30, 1)

    threads = [threading.Thread(target=plan, args=(groups,)) for groups in all_groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert planned(all_groups[0]) == NAMES[:20]


def test_a_plan_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    groups = Groups(tmp_path)
    (tmp_path / "plans" / "0000.json").write_text("{")
    with pytest.raises(StoreError, match=r"0000\.json cannot be read"):
        groups.all()
