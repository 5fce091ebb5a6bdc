"""What a run changes in the process that it runs in, and how that is undone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rollmill.core.machine import keep_threads_to, usable_cores


@contextlib.contextmanager
def machine_as_it_was() -> Iterator[None]:
    """Undo what a run sets for the whole process (torch's threads, precision and randomness, the cores that threads may
    run on), and have the memory back that it has used: that of its segments, and of its network on a GPU.
    """
    import torch

    from rollmill.optim.device import free_memory

    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    benchmark, random = torch.backends.cudnn.benchmark, torch.random.get_rng_state()
    cores = usable_cores()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)
        torch.backends.cudnn.benchmark = benchmark
        torch.random.set_rng_state(random)
        if usable_cores() != cores:
            keep_threads_to(cores)
        free_memory()
