from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from gpu_device import ON_GPU, exact

from rollmill.optim.device import free_memory


def pytest_sessionstart(session: pytest.Session) -> None:
    if ON_GPU and not torch.cuda.is_available():
        pytest.exit("make test-gpu needs a GPU that torch can use", returncode=1)


@pytest.fixture(autouse=True)
def _full_precision_and_no_memory_left() -> Iterator[None]:
    exact()
    yield
    free_memory()
