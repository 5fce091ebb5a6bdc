from collections.abc import Iterator
from pathlib import Path

import pytest
from disks import mounted


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte, so that "the disk is full" is real."""
    with mounted(tmp_path / "disk", "1m") as disk:
        yield disk
