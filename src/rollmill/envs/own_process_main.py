"""The process of an environment that has one to itself (``envs.own_process`` is the other side)."""

from __future__ import annotations

import os
import socket
import sys
from multiprocessing.connection import Connection
from typing import Any

from rollmill.core.child import begin_child
from rollmill.core.errors import RollmillError, error_text, trace_text
from rollmill.core.exits import leave
from rollmill.core.fields import Obs
from rollmill.core.protocols import Env
from rollmill.core.slots import SharedBlock, layout_arrays
from rollmill.envs.make import make_env
from rollmill.envs.own_process import OwnProcessSetup, arrays_in
from rollmill.envs.variables import EnvVariables

OFFERS = ("choice_names", "engine_pid")
"""Of an environment's attributes, those that others ask for."""


class Server:
    """One environment, and whoever asks it."""

    def __init__(self, setup: OwnProcessSetup) -> None:
        os.set_inheritable(setup.socket_fd, False)  # what the simulator starts must not keep the connection open
        self._peer = Connection(setup.socket_fd)
        self._variables = EnvVariables.fixed(setup.variables)
        self._setup = setup
        self._env: Env
        self._obs: Obs

    def serve(self) -> None:
        """Build it, then do what is asked, until that is to close."""
        if not self._reply(self._build):
            return
        self._obs = self._shared()
        while True:
            try:
                call, *words = self._peer.recv()
            except EOFError:  # the other side is gone
                return
            if call == "close":
                self._env.close()
                return
            self._reply(getattr(self, f"_{call}"), *words)

    def _build(self) -> Any:
        setup = self._setup
        self._env = make_env(setup.settings, setup.instance, self._variables if setup.variables else None)
        offers = {name: value for name in OFFERS if (value := getattr(self._env, name, None)) is not None}
        return self._env.spec.to_dict(), offers

    def _reset(self, seed: int, variables: dict[str, float]) -> Any:
        if variables:
            self._variables.values_now[:] = list(variables.values())
        self._env.reset(seed, self._obs)
        return getattr(self._env, "reset_info", None)

    def _step(self, action: Any) -> Any:
        return self._env.step(action, self._obs)

    def _render(self) -> Any:
        return self._env.render()

    def _reply(self, function: Any, *words: Any) -> bool:
        """Reply with (None, what the call gives), or with what went wrong and where."""
        try:
            self._peer.send((None, function(*words)))
        except RollmillError as error:
            self._peer.send((error, ""))
        except Exception as error:  # noqa: BLE001 - user code: it is raised on the other side
            self._peer.send((error_text(error), trace_text(error)))
        else:
            return True
        return False

    def _shared(self) -> Obs:
        spec = self._env.spec
        offsets, _ = layout_arrays([(field, (spec.agents,)) for field in spec.observation])
        with socket.socket(fileno=self._peer.fileno()) as peer:
            size, fds, _, _ = socket.recv_fds(peer, 8, 1)
            peer.detach()
        block = SharedBlock(fds[0], int.from_bytes(size, "little"))
        block.close_fd()
        return arrays_in(block, spec, offsets)


def main(setup_fd: int) -> None:
    setup, _ = begin_child(setup_fd)
    Server(setup).serve()


if __name__ == "__main__":
    main(int(sys.argv[1]))
    leave(0)
