import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollmill.core.identity import Identity


@pytest.fixture(autouse=True)
def no_leftovers(tmp_path: Path) -> Iterator[None]:
    """Jobs that a broken test has left: they would wait at their gate for ever."""
    yield
    for record in tmp_path.rglob("launch/attempts/*/*.json"):
        process = Identity.from_dict(json.loads(record.read_text())["process"])
        if process.is_here and process.alive and process.pid != os.getpid():
            os.kill(process.pid, signal.SIGKILL)  # its program is told to end when it dies
