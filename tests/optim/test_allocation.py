"""Large tensors give their memory back, where that costs no time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rollmill.optim import allocation

HAS_HUGE_PAGES = pytest.mark.skipif(not allocation.huge_pages_on_request(), reason="this system has no huge pages")


def run(program: str, **environment: str) -> str:
    """What a fresh process prints: torch reads its wish once, and malloc's settings stay."""
    command = [sys.executable, "-c", program]
    clean = {name: value for name, value in os.environ.items() if name != allocation.TORCH_WISH}
    return subprocess.run(command, env=clean | environment, capture_output=True, text=True, check=True).stdout.strip()


@HAS_HUGE_PAGES
def test_freed_blocks_leave_the_process() -> None:
    program = """
import os, torch
from rollmill.optim.allocation import map_large_tensors

def resident() -> float:
    lines = open("/proc/self/smaps_rollup").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Rss:")) / 1e3

done = map_large_tensors()
torch.ones(5_000_000)
before = resident()
blocks = [torch.ones(5_000_000) for _ in range(8)]  # 20 MB each
held = resident()
del blocks[:-1]  # the last one would hold all of them in a heap
print(done, held - before > 150, resident() - before < 40, "THP_MEM_ALLOC_ENABLE" in os.environ)
"""
    assert run(program) == "True True True False"


@HAS_HUGE_PAGES
def test_nothing_is_changed_when_torch_has_allocated_before() -> None:
    program = """
import torch
torch.ones(3)
from rollmill.optim.allocation import map_large_tensors
print(map_large_tensors())
"""
    assert run(program) == "False"


def test_the_users_wish_counts() -> None:
    program = """
import os
from rollmill.optim.allocation import map_large_tensors
print(map_large_tensors(), os.environ["THP_MEM_ALLOC_ENABLE"])
"""
    assert run(program, THP_MEM_ALLOC_ENABLE="0") == "False 0"


@pytest.mark.parametrize(
    ("text", "found"),
    [("always [madvise] never\n", True), ("[always] madvise never\n", True), ("always madvise [never]\n", False)],
)
@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux")
def test_the_systems_setting_is_read(tmp_path: Path, text: str, found: bool) -> None:
    setting = tmp_path / "enabled"
    setting.write_text(text)
    assert allocation.huge_pages_on_request(setting) is found
    assert not allocation.huge_pages_on_request(tmp_path / "missing")


def test_a_system_that_does_not_tell_about_mappings_is_left_as_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(allocation, "SMAPS", tmp_path / "missing")
    assert allocation._flags_at(0) == []
    assert not allocation.map_large_tensors()
