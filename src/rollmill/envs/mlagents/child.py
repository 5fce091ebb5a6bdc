"""The process that talks to a Unity player: run by path in a venv of its own, without rollmill.

    python -I mlagents_child.py SOCKET_FD OPTIONS_AS_JSON

``mlagents-envs`` needs an old protobuf that other packages of a run cannot live with. So it lives here, and its
observations travel through a socket as plain arrays. The first half of this file is that exchange and is imported by
both sides; the second half needs mlagents-envs and runs here only.

A message is two lengths, a JSON header and the bytes of its arrays; nothing is unpickled::

    uint32 header bytes | uint32 array bytes | {"arrays": [[dtype, shape], ...], ...} | array | array ...
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import struct
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

LENGTHS = struct.Struct("<II")
MOST_BYTES = 1 << 30
"""A longer message is no message."""
PATIENCE = 10_000
"""Simulation steps without a decision from every agent, before that is called an error."""


def send(peer: socket.socket, header: dict[str, Any], arrays: Sequence[Any] = ()) -> None:
    """Send one message; ``header`` holds JSON values."""
    parts = [np.ascontiguousarray(array) for array in arrays]
    text = json.dumps({**header, "arrays": [[part.dtype.str, part.shape] for part in parts]}).encode()
    body = b"".join(part.tobytes() for part in parts)
    peer.sendall(LENGTHS.pack(len(text), len(body)) + text + body)


def receive(peer: socket.socket) -> tuple[dict[str, Any], list[Any]]:
    """Receive the next message; raises EOFError when the other side is gone, ValueError on nonsense."""
    lengths = LENGTHS.unpack(_read(peer, LENGTHS.size))
    if sum(lengths) > MOST_BYTES:
        raise ValueError(f"a message of {sum(lengths)} bytes")
    header = json.loads(_read(peer, lengths[0]))
    body = _read(peer, lengths[1])
    arrays, begin = [], 0
    for code, shape in header.pop("arrays"):
        dtype = np.dtype(code)
        if dtype.kind not in "biuf":
            raise ValueError(f"an array of {dtype}")
        end = begin + math.prod(shape) * dtype.itemsize
        arrays.append(np.frombuffer(body[begin:end], dtype).reshape(shape))
        begin = end
    return header, arrays


def _read(peer: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = peer.recv(min(count - len(data), 1 << 20))
        if not part:
            raise EOFError("the other side has closed the connection")
        data += part
    return bytes(data)


# -- what needs mlagents-envs --------------------------------------------------------------------------------


class Player:
    """One Unity player and the agents of one of its behaviours; agent ids become lanes, in ascending order."""

    def __init__(self, options: dict[str, Any]) -> None:
        from mlagents_envs.environment import UnityEnvironment  # type: ignore[import-not-found]

        arguments = [*options["arguments"]]
        if options["threads"]:
            arguments += ["-job-worker-count", str(options["threads"])]
        if not options["log_folder"]:
            arguments += ["-logFile", "-"]  # to stdout, which is thrown away: a log without a limit helps nobody
        self._env = UnityEnvironment(
            file_name=options["build"],
            worker_id=options["worker_id"],
            base_port=options["base_port"],
            seed=options["seed"],
            no_graphics=options["no_graphics"],
            timeout_wait=options["time_out"],
            additional_args=arguments,
            log_folder=options["log_folder"] or None,
        )
        self.pid = self._env._process.pid if self._env._process is not None else 0
        try:
            self._env.reset()
            self._name = self._choose(options["behavior"])
            self._spec = self._env.behavior_specs[self._name]
            self._lanes: dict[int, int] = {}
            self._ended = np.zeros(0, bool)
            self._begin()
        except BaseException:
            self.close()
            raise
        self._fresh = True

    def _choose(self, wanted: str) -> str:
        names: list[str] = list(self._env.behavior_specs)
        if wanted:
            found = [name for name in names if wanted in (name, name.partition("?")[0])]
        else:
            found = names
        if len(found) != 1:
            raise ValueError(f"env.args.behavior={wanted!r} must name one of the behaviours: {', '.join(names)}")
        return found[0]

    def describe(self) -> dict[str, Any]:
        spec = self._spec
        return {
            "observations": [[o.name, list(o.shape)] for o in spec.observation_specs],
            "continuous": spec.action_spec.continuous_size,
            "branches": list(spec.action_spec.discrete_branches),
            "agents": len(self._lanes),
            "behavior": self._name,
            "pid": self.pid,
        }

    def reset(self) -> list[Any]:
        """Begin an episode of every agent: what ``_columns`` says."""
        if not self._fresh:
            agents = len(self._lanes)
            self._env.reset()
            self._begin()
            if len(self._lanes) != agents:
                raise ValueError(f"{len(self._lanes)} agents after a reset, before there were {agents}")
        self._fresh = False
        return self._columns()

    def step(self, continuous: Any, discrete: Any) -> list[Any]:
        """Play on until every agent that is not done wants to decide again, or is done."""
        self._fresh = False
        self._reward[:] = 0.0
        self._terminated[:] = self._truncated[:] = False
        missing = ~self._ended
        for _ in range(PATIENCE):
            self._act(continuous, discrete)
            self._env.step()
            missing &= ~self._take()
            if not missing.any():
                self._ended |= self._terminated | self._truncated
                return self._columns()
        raise ValueError(f"no decision from agents in lanes {np.nonzero(missing)[0].tolist()} for {PATIENCE} steps")

    def close(self) -> None:
        self._env.close()

    def _begin(self) -> None:
        """Learn which agents there are; those that ask later than others are waited for."""
        decisions, _ = self._env.get_steps(self._name)
        for _ in range(PATIENCE):
            if len(decisions):
                break
            self._env.step()
            decisions, _ = self._env.get_steps(self._name)
        else:
            raise ValueError(f"no agent of behaviour {self._name} asks for a decision")
        self._lanes = {int(agent): lane for lane, agent in enumerate(sorted(decisions.agent_id))}
        count = len(self._lanes)
        self._obs = [np.zeros((count, *o.shape), np.float32) for o in self._spec.observation_specs]
        self._mask = np.ones((count, sum(self._spec.action_spec.discrete_branches)), np.int8)
        self._reward = np.zeros(count, np.float32)
        self._ended, self._terminated, self._truncated = (np.zeros(count, bool) for _ in range(3))
        self._take()
        self._reward[:] = 0.0

    def _act(self, continuous: Any, discrete: Any) -> None:
        """Act for those that ask: as their lane says, or not at all for agents of episodes that nobody follows."""
        decisions, _ = self._env.get_steps(self._name)
        action = self._spec.action_spec.empty_action(len(decisions))
        for place, agent in enumerate(decisions.agent_id.tolist()):
            lane = self._lanes.get(agent)
            if lane is not None and not self._ended[lane]:
                action.continuous[place] = continuous[lane]
                action.discrete[place] = discrete[lane]
        self._env.set_actions(self._name, action)

    def _take(self) -> Any:
        """Take over the newest steps; returns the lanes [A] bool that have something new to show."""
        decisions, ends = self._env.get_steps(self._name)
        heard = np.zeros(len(self._lanes), bool)
        for steps, done in ((decisions, False), (ends, True)):
            for place, agent in enumerate(steps.agent_id.tolist()):
                lane = self._lanes.get(agent)
                if lane is None or self._ended[lane]:
                    continue
                heard[lane] = True
                self._reward[lane] += steps.reward[place] + steps.group_reward[place]
                for own, seen in zip(self._obs, steps.obs):
                    own[lane] = seen[place]
                if done:
                    self._truncated[lane] = steps.interrupted[place]
                    self._terminated[lane] = not steps.interrupted[place]
                elif steps.action_mask is not None:  # there, True is forbidden
                    self._mask[lane] = 1 - np.concatenate([part[place] for part in steps.action_mask])
        return heard

    def _columns(self) -> list[Any]:
        return [self._reward, self._terminated, self._truncated, self._mask, *self._obs]


def threads_of(pid: int) -> int:
    """Return the threads of a process now; 0 where that cannot be known."""
    try:
        return len(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return 0


def serve(peer: socket.socket, player: Player) -> None:
    """Answer until told to close, or until the other side is gone."""
    while True:
        try:
            header, arrays = receive(peer)
        except EOFError:
            return
        if header["do"] == "close":
            return
        columns = player.reset() if header["do"] == "reset" else player.step(*arrays)
        send(peer, {"threads": threads_of(player.pid), "own_threads": threads_of(os.getpid())}, columns)


def main(descriptor: int, options: dict[str, Any]) -> None:
    peer = socket.socket(fileno=descriptor)
    player = None
    try:
        player = Player(options)
        send(peer, player.describe())
        serve(peer, player)
    except Exception as error:  # noqa: BLE001 - whatever it is, the other side has to hear of it
        with contextlib.suppress(OSError):  # unless that is what happened: nobody is there any more
            send(peer, {"error": f"{type(error).__name__}: {error}"})
    finally:
        if player is not None:
            player.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), json.loads(sys.argv[2]))
