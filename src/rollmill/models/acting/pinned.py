"""Host memory that a GPU reads and writes by itself: locked, registered with CUDA, and surely given back.

A range that stays registered after its memory is gone breaks whoever is given the same addresses next ("part or all of
the requested memory range is already mapped"). So the registration is undone by ``close``, and if nobody calls that,
with the object itself.
"""

from __future__ import annotations

import weakref

import numpy as np
import torch
from torch import Tensor

from rollmill.core.errors import RollmillError
from rollmill.core.fields import Array
from rollmill.core.slots import SharedBlock

MAPPED = 2
"""``cudaHostRegisterMapped``"""


class PinnedMemory:
    """Ranges of host memory as one device sees them; on a CPU they are plain views."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._ranges: list[Array] = []
        # The callback holds the arrays, so their memory outlives its registration.
        self._finalizer = weakref.finalize(self, _unregister, self._ranges, device)

    def register(self, name: str, block: SharedBlock) -> None:
        """Lock a block (whole pages) and let the device see it."""
        if self.device.type != "cuda":
            return
        array = block.array("uint8", (block.nbytes,), 0)
        cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        result = int(cudart.cudaHostRegister(array.ctypes.data, array.nbytes, MAPPED))
        if result:
            raise RollmillError(
                f"CUDA cannot lock the shared memory of {name} ({array.nbytes / 1e6:.0f} MB, error {result}); "
                "lower sampling.envs_per_worker or raise the limit of locked memory (ulimit -l)"
            )
        self._ranges.append(array)

    def view(self, array: Array) -> Tensor:
        """Return a tensor over an array that lies in registered memory."""
        if self.device.type != "cuda":
            return torch.from_numpy(array)
        return torch.as_tensor(_DeviceArray(array), device=self.device)

    def numbers(self, name: str, shape: tuple[int, ...]) -> tuple[Array, Tensor]:
        """Make int64 numbers in memory of their own, and return them as host and device see them."""
        block = SharedBlock.create(8 * int(np.prod(shape)))
        block.close_fd()
        self.register(name, block)
        array = block.array("int64", shape, 0)
        array[...] = 0
        return array, self.view(array)

    def close(self) -> None:
        """Unlock everything; nothing may be at work on the device any more that reads it."""
        self._finalizer()


def _unregister(ranges: list[Array], device: torch.device) -> None:
    if not ranges:
        return
    torch.cuda.synchronize(device)
    cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    while ranges:
        cudart.cudaHostUnregister(ranges.pop().ctypes.data)


class _DeviceArray:
    """Names an array's address to torch as device memory (with unified addressing both are the same)."""

    def __init__(self, array: Array) -> None:
        self.array = array  # a tensor over it keeps this object, and so the memory
        self.__cuda_array_interface__ = {
            "shape": array.shape,
            "typestr": array.dtype.str,
            "data": (array.ctypes.data, False),
            "strides": None,
            "version": 3,
        }
