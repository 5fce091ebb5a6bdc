from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch
from gpu_device import DEVICE, ON_GPU, exact


def pytest_sessionstart(session: pytest.Session) -> None:
    if ON_GPU and not torch.cuda.is_available():
        pytest.exit("make test-gpu needs a GPU that torch can use", returncode=1)


@pytest.fixture(autouse=True)
def _full_precision_and_no_memory_left() -> Iterator[None]:
    exact()
    yield
    if ON_GPU:
        gc.collect()
        torch.cuda.synchronize(DEVICE)
        torch.cuda.empty_cache()
