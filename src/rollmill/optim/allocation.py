"""Memory of a learner on the CPU: what large tensors held goes back to the system when they are freed.

glibc's malloc stops doing that after the first large block was freed: then activations come from heaps, one for each
thread, in which blocks of many sizes leave gaps. Mapping each large block alone costs a page fault for every 4 KB,
a quarter of the learner's time; on huge pages there are 500 times fewer of them. So both come together, or not at all.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

import torch

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
SMAPS = Path("/proc/self/smaps")
TORCH_WISH = "THP_MEM_ALLOC_ENABLE"
"""The variable by which torch asks for huge pages; it is read once, at the first allocation."""
MAPPED_BYTES = 4 << 20
"""Blocks of this size and more are mapped alone."""
KEPT_BYTES = 64 << 20
"""Free memory at a heap's end that is kept for smaller blocks; fixing the size above would make it 128 KB."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # from <malloc.h>


def map_large_tensors() -> bool:
    """Give large blocks a mapping of their own, from now on in this process; returns False where it would not pay.

    It would not without huge pages (none on this system, ``THP_MEM_ALLOC_ENABLE=0``, or torch has been used before),
    and where malloc is not glibc's.
    """
    if not huge_pages_on_request() or not _torch_asks():
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(
        mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES) and mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
    )


def huge_pages_on_request(setting: Path | None = None) -> bool:
    """Return whether Linux gives huge pages to a process that asks."""
    try:
        text = (setting or HUGE_PAGES).read_text()
    except OSError:
        return False
    return sys.platform == "linux" and "[never]" not in text


def _torch_asks() -> bool:
    """Make torch ask for huge pages, if it is not too late; the wish is not left to child processes."""
    before = os.environ.get(TORCH_WISH)
    os.environ.setdefault(TORCH_WISH, "1")
    try:
        block = torch.empty(4 * MAPPED_BYTES, dtype=torch.uint8)
    finally:
        if before is None:
            del os.environ[TORCH_WISH]
    return "hg" in _flags_at(block.data_ptr() + 2 * MAPPED_BYTES)


def _flags_at(address: int) -> list[str]:
    """Return flags of the mapping at an address (``VmFlags``; ``hg``: huge pages were asked for), if known."""
    try:
        lines = SMAPS.read_text().splitlines()
    except OSError:
        return []
    inside = False
    for line in lines:
        key, *words = line.split()
        if not key.endswith(":"):
            begin, end = (int(part, 16) for part in key.split("-"))
            inside = begin <= address < end
        elif inside and key == "VmFlags:":
            return words
    return []
