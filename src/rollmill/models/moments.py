"""Running mean and deviation, kept with the weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class RunningMoments(nn.Module):
    """Mean and variance of everything seen so far, elementwise over ``shape``; kept as buffers.

    Accumulates in float64: float32 sums drift once there are some ten million rows. The float32
    buffers ``shift`` and ``std`` are what the hot path reads. All five are saved and published with
    the weights; none needs recomputing after a plain tensor-by-tensor copy.
    """

    EPSILON = 1e-5  # added to the variance: a constant input is not blown up

    count: Tensor  # [] float64, rows seen
    mean: Tensor  # [*shape] float64
    var: Tensor  # [*shape] float64, population variance
    shift: Tensor  # [*shape] float32, the mean
    std: Tensor  # [*shape] float32, sqrt(var + EPSILON); 1 before the first update

    def __init__(self, shape: Sequence[int] = ()) -> None:
        super().__init__()
        shape = tuple(shape)
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("var", torch.ones(shape, dtype=torch.float64))
        self.register_buffer("shift", torch.zeros(shape))
        self.register_buffer("std", torch.ones(shape))

    @torch.no_grad()
    def update(self, x: Tensor, valid: Tensor | None = None) -> None:
        """Take in ``x`` ``[..., *shape]``; rows where ``valid`` ``[...]`` is False do not count.

        Merges the batch's moments with the running ones (Chan et al.), without a device sync.
        """
        rows = x.reshape(-1, *self.mean.shape).double()
        if valid is None:
            keep = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
        else:
            keep = valid.reshape(-1).bool()
        wide = keep.reshape(-1, *[1] * self.mean.dim())
        added = keep.sum().double()
        batch_mean = torch.where(wide, rows, 0.0).sum(0) / added.clamp(min=1)
        batch_var = torch.where(wide, rows - batch_mean, 0.0).square().sum(0) / added.clamp(min=1)
        self.merge(added, batch_mean, batch_var)

    @torch.no_grad()
    def merge(self, added: Tensor, batch_mean: Tensor, batch_var: Tensor) -> None:
        """Take in ``added`` rows of this mean and variance."""
        total = self.count + added
        weight = added / total.clamp(min=1)  # 0 when nothing counted: the moments stay as they are
        delta = batch_mean - self.mean
        var = self.var + weight * (batch_var - self.var + delta.square() * (1 - weight))
        self.set(total, self.mean + delta * weight, var)

    @torch.no_grad()
    def set(self, count: Tensor, mean: Tensor, var: Tensor) -> None:
        """Replace the moments, in place (whoever holds the buffers sees it)."""
        self.count.copy_(count)
        self.mean.copy_(mean)
        self.var.copy_(var)
        self.shift.copy_(self.mean)
        # Until something was seen the scaling stays the identity.
        self.std.copy_(torch.where(self.count > 0, (self.var + self.EPSILON).sqrt(), 1.0))

    def normalise(self, x: Tensor) -> Tensor:
        """Return ``x`` ``[..., *shape]`` in units of standard deviations from the mean."""
        return (x - self.shift).div_(self.std)

    def denormalise(self, x: Tensor) -> Tensor:
        """Undo ``normalise``."""
        return x * self.std + self.shift


class TaskMoments(RunningMoments):
    """Mean and deviation of returns, task by task: those of a task with small rewards count as much as any other's."""

    count: Tensor  # [tasks] float64

    def __init__(self, tasks: int) -> None:
        super().__init__((tasks,))
        self.register_buffer("count", torch.zeros(tasks, dtype=torch.float64))

    @torch.no_grad()
    def update_tasks(self, x: Tensor, task: Tensor, valid: Tensor) -> None:
        """Take in ``x`` ``[...]`` of one-hot tasks ``[..., tasks]``; only rows where ``valid`` ``[...]`` count."""
        share = (task.bool() & valid.bool().unsqueeze(-1)).reshape(-1, len(self.mean))
        rows = torch.where(share.any(1), x.reshape(-1), 0.0).double().unsqueeze(1)
        added = share.sum(0).double()
        batch_mean = torch.where(share, rows, 0.0).sum(0) / added.clamp(min=1)
        batch_var = torch.where(share, rows - batch_mean, 0.0).square().sum(0) / added.clamp(min=1)
        self.merge(added, batch_mean, batch_var)

    def shift_of(self, task: Tensor) -> Tensor:
        """Return the mean ``[...]`` of each row's task."""
        return task.to(self.shift.dtype) @ self.shift

    def std_of(self, task: Tensor) -> Tensor:
        """Return the deviation ``[...]`` of each row's task."""
        return task.to(self.std.dtype) @ self.std


class PixelMoments(RunningMoments):
    """Mean and deviation of all pixels of an image field, learnt from a few images of every batch.

    Centred pixels of deviation 1 let a network see differences between images from its first step; between 0 and 1
    they all look alike. Before the first update the scale is 1/255.
    """

    IMAGES = 8
    """Images of a batch that are looked at: millions of pixels say no more than a few hundred thousand."""
    SMALLEST = 1.0
    """Smallest deviation, in steps of brightness: an image of one colour is not blown up."""

    def __init__(self) -> None:
        super().__init__()
        self.std.fill_(255.0)

    @torch.no_grad()
    def update(self, x: Tensor, valid: Tensor | None = None) -> None:
        """Take in images ``[n, *shape]``, all alike: those of rows that do not count were seen, too."""
        super().update(x[:: -(-len(x) // self.IMAGES)])

    @torch.no_grad()
    def set(self, count: Tensor, mean: Tensor, var: Tensor) -> None:
        super().set(count, mean, var)
        self.std.copy_(torch.where(self.count > 0, self.std.clamp(min=self.SMALLEST), 255.0))

    def normalise(self, x: Tensor) -> Tensor:
        """Return images ``[..., *shape]`` uint8 as floats of the type the network reads, centred and scaled."""
        autocast = torch.is_autocast_enabled(x.device.type)
        dtype = torch.get_autocast_dtype(x.device.type) if autocast else torch.float32
        # Whole numbers up to 255 are exact in bfloat16, so a whole shift loses nothing there.
        shift = self.shift.round().to(dtype)
        # On a CPU a subtraction across types would hold two copies of a large batch; on a GPU it saves a pass.
        centred = x.to(dtype).sub_(shift) if x.device.type == "cpu" else torch.sub(x, shift)
        return centred.mul_(self.std.reciprocal().to(dtype))
