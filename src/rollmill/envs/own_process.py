"""An environment in a process of its own (``env.own_process``), seen from here.

For simulators that need a process, a GL context or global state to themselves, or that crash. Observations are written
into shared memory by the other process; calls and what comes of them travel through a socket. When the process ends,
the call says how, and whoever holds the environment builds another one; when it hangs, so does the call, and the worker
is replaced as for any hang. The process ends with the one that has started it, whatever that ended by.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

from rollmill.core.errors import EnvError, RollmillError
from rollmill.core.fields import Array, EnvSpec, Obs
from rollmill.core.process import Child
from rollmill.core.protocols import StepReturn
from rollmill.core.slots import SharedBlock, layout_arrays
from rollmill.envs.settings import EnvSettings
from rollmill.envs.variables import EnvVariables

CLOSE_SECONDS = 3.0
"""How long an environment may take to close before its process is ended."""
MODULE = "rollmill.envs.own_process_main"


@dataclass(frozen=True)
class OwnProcessSetup:
    """What the process is to build."""

    socket_fd: int
    settings: EnvSettings
    instance: Any
    """``make.EnvInstance`` or None."""
    variables: Mapping[str, float]


class OwnProcessEnv:
    """An ``Env`` whose work is done elsewhere."""

    def __init__(self, settings: EnvSettings, instance: Any, variables: EnvVariables | None) -> None:
        """Start the process and wait for its environment; what its constructor raises is raised here."""
        self._name, self._variables = settings.id, variables
        ours, theirs = socket.socketpair()
        with ours, theirs:
            # What is here already starts no further process.
            inside = replace(settings, own_process=False)
            setup = OwnProcessSetup(theirs.fileno(), inside, instance, dict(variables or {}))
            self._child = Child(MODULE, setup, os.environ, inherit=(theirs.fileno(),))
            self._peer = Connection(os.dup(ours.fileno()))
        self._poll = select.poll()
        for fd in (self._peer.fileno(), self._child.output.fd):
            self._poll.register(fd, select.POLLIN)
        self.reset_info: Any = None
        """What came with the first observation of the episode."""
        self._open = True
        try:
            spec, self._offers = self._answer("the constructor")
            self.spec = EnvSpec.from_dict(spec)
            self._obs = self._share()
        except BaseException:
            self.close()
            raise

    @property
    def process_pid(self) -> int:
        return self._child.pid

    def reset(self, seed: int, obs: Obs) -> None:
        self.reset_info = self._ask("reset", seed, dict(self._variables or {}))
        self._take(obs)

    def step(self, action: Array, obs: Obs) -> StepReturn:
        result: StepReturn = self._ask("step", action)
        self._take(obs)
        return result

    def render(self) -> Array | None:
        image: Array | None = self._ask("render")
        return image

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        with contextlib.suppress(OSError):
            self._peer.send(("close",))
        self._child.end(CLOSE_SECONDS)
        self._print()
        self._peer.close()
        self._child.close()

    def __getattr__(self, name: str) -> Any:
        """Return what the environment had to offer when it was built (names of its choices, for instance)."""
        offers = self.__dict__.get("_offers", {})
        if name in offers:
            return offers[name]
        raise AttributeError(name)

    # -- the other side ------------------------------------------------------------------------

    def _ask(self, call: str, *words: Any) -> Any:
        try:
            self._peer.send((call, *words))
        except OSError:
            raise self._gone(f"{call}()") from None
        return self._answer(f"{call}()")

    def _answer(self, where: str) -> Any:
        """Return what comes of a call. What the process prints meanwhile is passed on, or it would wait for us."""
        while True:
            ready = {fd for fd, _ in self._poll.poll()}
            if self._child.output.fd in ready:
                self._print()
                if self._child.output.ended:
                    self._poll.unregister(self._child.output.fd)
            if self._peer.fileno() not in ready:
                continue
            try:
                error, answer = self._peer.recv()
            except (EOFError, OSError):
                raise self._gone(where) from None
            if error is None:
                return answer
            raise error if isinstance(error, RollmillError) else _with_trace(error, answer)

    def _gone(self, where: str) -> EnvError:
        """Return the error of a process that has ended; or has closed the connection, which is as bad."""
        self._child.end(CLOSE_SECONDS)
        self._print()
        return EnvError(f"the process of {self._name} (pid {self.process_pid}) {self._child.how_it_ended()} in {where}")

    def _print(self) -> None:
        for line in self._child.read_output():
            print(line, file=sys.stderr, flush=True)

    def _share(self) -> Obs:
        spec = self.spec
        offsets, size = layout_arrays([(field, (spec.agents,)) for field in spec.observation])
        block = SharedBlock.create(size)
        with socket.socket(fileno=os.dup(self._peer.fileno())) as peer:
            socket.send_fds(peer, [size.to_bytes(8, "little")], [block.fd])
        block.close_fd()
        return arrays_in(block, spec, offsets)

    def _take(self, obs: Obs) -> None:
        for name, array in self._obs.items():
            obs[name][...] = array


def arrays_in(block: SharedBlock, spec: EnvSpec, offsets: Mapping[str, int]) -> Obs:
    """Return the observation's fields, ``[agents, *shape]`` each, where both processes see them."""
    return {f.name: block.array(f.dtype, (spec.agents, *f.shape), offsets[f.name]) for f in spec.observation}


def _with_trace(error: str, trace: str) -> EnvError:
    raised = EnvError(error)
    raised.add_note(f"In the environment's own process:\n{trace}")
    return raised
