"""Ranks that talk through torch.distributed: gloo for CPU tensors; for GPUs NCCL, or gloo where they share one.

Nobody waits without end: a collective is looked at again and again, while signals are served and the roll call says
who lives (``learning.roll_call``). When a rank is lost, all that are left leave their group for a new one. The groups
are torch's, made without ``init_process_group``: one with a silent member can be left to itself while the next is made.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from rollmill.core.errors import LostRankError
from rollmill.core.tree_file import Tree, pack_tree, unpack_tree
from rollmill.learning.roll_call import RollCall, first_line, in_background

START_SECONDS = 300.0
"""How long ranks may take, at least, to import torch and to build their parts."""
CONNECT_SECONDS = 30.0
LONGEST_PAUSE = 5e-4
"""Seconds between two looks at a collective that is under way."""
CHECK_SECONDS = 0.2
NOTE_BYTES = 16_384
"""Notes up to this length go in one message; longer ones need a second."""


class TorchRanks:
    """All ranks of a run, seen from one of them (``learning.ranks.Ranks``)."""

    def __init__(self, roll_call: RollCall, count: int, timeout: float, cuda: str = "nccl") -> None:
        """Take a part in the roll call; nothing is connected before ``connect``.

        ``timeout``: seconds for which the others may be busy; ``cuda``: what moves GPU tensors, nccl or gloo.
        """
        self.rank = roll_call.rank
        self.present = tuple(range(count))
        self._roll_call, self._timeout, self._cuda = roll_call, timeout, cuda
        self._device = torch.device("cpu")
        self._groups: dict[str, Any] = {}
        """torch's groups, by type of device."""

    @property
    def count(self) -> int:
        return len(self.present)

    def connect(self, device: torch.device) -> None:
        """Return when all ranks have called this."""
        self._device = device
        self._form(max(self._timeout, START_SECONDS))

    def regroup(self) -> None:
        self._abandon()
        self._form(self._timeout)

    def close(self, abandon: bool = False) -> None:
        """Leave, as agreed with the others; or ``abandon`` what is under way."""
        if abandon:
            self._abandon()
        elif self._cuda == "nccl" and "cuda" in self._groups:
            self._groups["cuda"].shutdown()
        self._groups = {}

    def _form(self, limit: float) -> None:
        self.present = self._roll_call.assemble(limit)
        if self.count == 1:
            return
        with _library_settings(self._roll_call.host), self._explained("connecting"):
            self._groups = in_background(self._make_groups, CONNECT_SECONDS, self._roll_call.check)
            self.total(torch.zeros(1, device=self._device))  # NCCL connects, and reads its settings, only now

    def _make_groups(self) -> dict[str, Any]:
        store, place = self._roll_call.store(), self.present.index(self.rank)
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._timeout = timedelta(seconds=self._timeout)
        options._devices = [_gloo_device(self._roll_call.host)]
        gloo = dist.ProcessGroupGloo(PrefixStore("gloo", store), place, self.count, options)
        if self._device.type == "cpu" or self._cuda == "gloo":
            return {"cpu": gloo, "cuda": gloo}
        nccl = dist.ProcessGroupNCCL(PrefixStore("nccl", store), place, self.count, dist.ProcessGroupNCCL.Options())
        return {"cpu": gloo, "cuda": nccl}

    def _abandon(self) -> None:
        """Leave groups in which somebody may wait for ever. A kernel of NCCL's that waits would keep the GPU: it is
        ended. gloo's threads wait for their time-out, and whoever drops the group waits for them: not this thread."""
        if self._cuda == "nccl" and "cuda" in self._groups:
            self._groups["cuda"].abort()
        groups, self._groups = self._groups, {}
        threading.Thread(target=groups.clear, daemon=True, name="ranks-left").start()

    # -- collectives ---------------------------------------------------------------------------

    def total(self, x: Tensor) -> Tensor:
        x = x.contiguous()
        self._do("adding up", x.device, lambda group: group.allreduce([x]))
        return x

    def gather(self, x: Tensor) -> Tensor:
        own = x.detach().cpu().contiguous()  # small things that are looked at by the host anyway
        parts = [own.clone() for _ in range(self.count)]
        self._do("gathering", own.device, lambda group: group.allgather([parts], [own]))
        return torch.stack(parts).to(x.device)

    def from_first(self, tree: Tree) -> Tree:
        data = pack_tree(tree) if self.rank == 0 else b""
        size = self._broadcast(torch.tensor([len(data)]))
        body = _padded(data, len(data)) if self.rank == 0 else torch.empty(int(size), dtype=torch.uint8)
        self._broadcast(body)
        return tree if self.rank == 0 else unpack_tree(body.numpy().tobytes(), "what rank 0 has sent")

    def _broadcast(self, x: Tensor) -> Tensor:
        """Overwrite a tensor with that of rank 0, which comes first in every group."""
        self._do("handing out weights", x.device, lambda group: group.broadcast([x], dist.BroadcastOptions()))
        return x

    def gather_notes(self, note: Any) -> list[Any]:
        text = json.dumps(note).encode()
        heads = self.gather(_padded(len(text).to_bytes(8, "little") + text, NOTE_BYTES))
        lengths = [int.from_bytes(head[:8].numpy().tobytes(), "little") for head in heads]
        if max(lengths) > NOTE_BYTES - 8:
            bodies = self.gather(_padded(text, max(lengths)))
        else:
            bodies = heads[:, 8:]
        # Not a pickle: what comes from a socket must not be able to run code.
        return [json.loads(body[:length].numpy().tobytes()) for body, length in zip(bodies, lengths, strict=True)]

    # -- waiting -------------------------------------------------------------------------------

    def _do(self, what: str, device: torch.device, begin: Callable[[Any], Any]) -> None:
        if self.count == 1:  # all others are lost
            return
        with self._explained(what):
            work = begin(self._groups[device.type])
            self._await(work)
            work.wait()  # raises what went wrong; on a GPU, makes the current stream wait

    def _await(self, work: Any) -> None:
        """Sleep until it is done. A blocking wait would keep signals, and the news of a lost rank, from being heard."""
        pause = 2e-5
        begun = time.monotonic()
        next_look = begun + CHECK_SECONDS
        while not work.is_completed():
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
            now = time.monotonic()
            if now > next_look:
                self._roll_call.check()
                next_look = now + CHECK_SECONDS
            if now > begun + self._timeout:
                raise RuntimeError(f"no answer within {self._timeout:g} s (learning.rank_timeout)")

    @contextlib.contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # torch.distributed has no errors of its own for this
            text = f"rank {self.rank} has lost the other ranks while {what}: {first_line(error)}"
            raise LostRankError(text) from error


def _gloo_device(host: str) -> Any:
    """Return the network that gloo uses: the one the ranks meet on, unless the user has set another."""
    chosen = os.environ.get("GLOO_SOCKET_IFNAME")
    make = dist.ProcessGroupGloo.create_device
    return make(interface=chosen.split(",")[0]) if chosen else make(hostname=host)


@contextlib.contextmanager
def _library_settings(host: str) -> Iterator[None]:
    """Set what NCCL reads from the environment, within this context.

    Ranks of one machine are heard by nobody else; what the user has set is left alone. Other threads may start
    processes meanwhile: no other variable is ever missing.
    """
    # By default its watchdog ends the whole process when a rank is lost.
    wanted = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}
    if ipaddress.ip_address(host).is_loopback:
        wanted["NCCL_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    own = {name: value for name, value in wanted.items() if name not in os.environ}
    os.environ.update(own)
    try:
        yield
    finally:
        for name in own:
            del os.environ[name]


def _padded(data: bytes, size: int) -> Tensor:
    return torch.frombuffer(bytearray(data[:size].ljust(size, b"\0")), dtype=torch.uint8)
