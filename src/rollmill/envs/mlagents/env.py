"""Unity players built with the ML-Agents toolkit, each driven by a process and a venv of its own.

``mlagents_child`` runs there and speaks with the player; this side speaks with it through a socket pair. Every
instance has its own player, port and worker id.

- All agents of one behaviour are lanes. An agent that is done waits until all are: what the player plays on with it
  meanwhile is not followed.
- Unity takes a seed when a player starts, not with every episode: episodes cannot be repeated from their seeds.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rollmill.core.errors import ConfigError, EnvError, MissingExtraError
from rollmill.core.fields import MASK_FIELD, ActionSpec, Array, EnvSpec, Field, Obs
from rollmill.core.protocols import StepReturn
from rollmill.envs.make import EnvInstance
from rollmill.envs.mlagents import child as mlagents_child
from rollmill.envs.mlagents.child import receive, send
from rollmill.envs.mlagents.install import COMMAND, interpreter
from rollmill.envs.spaces import mask_field

SUFFIXES = ("", ".x86_64", ".x86", ".app", ".exe")
"""What a player's file may end with, when the path is given without."""
STDERR = 2
CLOSE_SECONDS = 2.0
"""A player that takes longer to end is killed: a worker has several, and little time."""


class MlAgentsEnv:
    """One player; see the module's text."""

    def __init__(
        self,
        *,
        build: str,
        behavior: str = "",
        base_port: int = 5005,
        no_graphics: bool = True,
        log_folder: str = "",
        time_out: int = 60,
        threads: int = 1,
        seed: int = 0,
        arguments: Sequence[str] = (),
        python: str = "",
        instance: EnvInstance | None = None,
    ) -> None:
        """Start the player and learn its agents and spaces.

        Args:
            build: Path of the player.
            behavior: Name of the behaviour that is learnt, where there are several.
            base_port: First port; instance i listens on ``base_port + i``, or on another one that is free.
            no_graphics: Run without a window or GPU. Players with cameras need graphics.
            log_folder: Where players write ``Player-<instance>.log``; empty: no logs.
            time_out: Seconds to wait for the player, at its start and at every step.
            threads: Unity's worker threads (``-job-worker-count``); 0 leaves it to Unity, which takes all cores.
            seed: Seed of the first instance's player; others count up from it.
            arguments: More words for the player's command line.
            python: Interpreter of the venv that has mlagents-envs; empty: the one in the cache.
            instance: Which of the run's environments this is.
        """
        instance = instance or EnvInstance()
        if time_out < 1 or threads < 0:
            raise ConfigError(f"time_out must be at least 1 (s) and threads 0, got {time_out} and {threads}")
        if not any(Path(build + suffix).exists() for suffix in SUFFIXES):
            raise ConfigError(f"env.args.build={build}: there is no such file")
        if log_folder:
            Path(log_folder).mkdir(parents=True, exist_ok=True)
        port = instance.port(base_port, host="")  # mlagents-envs listens on all interfaces
        options = {
            "build": str(Path(build).absolute()),
            "behavior": behavior,
            "worker_id": instance.index,
            "base_port": port - instance.index,
            "no_graphics": no_graphics,
            "log_folder": str(Path(log_folder).absolute()) if log_folder else "",
            "time_out": time_out,
            "threads": threads,
            "seed": seed + instance.index,
            "arguments": [str(word) for word in arguments],
        }
        self._child = _Child(_interpreter(python), options, 2.0 * time_out + 30)
        try:
            self._answer = self._child.ask(None)
            self._lay_out(build, self._answer[0])
        except BaseException:
            self._child.close()
            raise
        self.port, self.player_pid = port, int(self._answer[0]["pid"])
        self._told = False

    def _lay_out(self, build: str, about: dict[str, Any]) -> None:
        self._fields = _observation_fields(about["observations"])
        self._action = action = _action_spec(about["continuous"], about["branches"])
        masked = (mask_field(action),) if action.nvec else ()
        self.spec = EnvSpec(
            f"mlagents:{Path(build).name}", (*self._fields, *masked), action, agents=int(about["agents"])
        )
        self.behavior = str(about["behavior"])

    def reset(self, seed: int, obs: Obs) -> None:
        about, columns = self._child.ask("reset")
        self._write(columns, obs)
        if not self._told:
            self._told = True
            print(  # a worker's output is what reaches the log of the run
                f"ML-Agents player {self.player_pid} on port {self.port}: {about['threads']} threads; "
                f"its Python process {self._child.pid}: {about['own_threads']} threads",
                file=sys.stderr,
            )

    def step(self, action: Array, obs: Obs) -> StepReturn:
        about, columns = self._child.ask("step", _split(self._action, action))
        self._write(columns, obs)
        reward, terminated, truncated = columns[:3]
        info = {}
        if terminated.any() or truncated.any():
            info["episode_stats"] = {"player_threads": float(about["threads"])}
        return reward, terminated, truncated, info

    def render(self) -> Array | None:
        return None

    def close(self) -> None:
        self._child.close()

    def _write(self, columns: list[Array], obs: Obs) -> None:
        mask, seen = columns[3], columns[4:]
        for field, values in zip(self._fields, seen, strict=True):
            obs[field.name][:] = _as_pixels(values) if field.is_image else values
        if self._action.nvec:
            obs[MASK_FIELD][:] = mask


class _Child:
    """The running ``mlagents_child``: asks, and ends it for sure."""

    def __init__(self, python: str, options: dict[str, Any], patience: float) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [python, "-I", mlagents_child.__file__, str(theirs.fileno()), json.dumps(options)],
                stdin=subprocess.DEVNULL,
                stdout=STDERR,  # mlagents-envs logs to stdout, which is for the results of a command
                pass_fds=(theirs.fileno(),),
                env={name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},  # not its own
            )
        ours.settimeout(patience)
        self._socket = ours
        self._player = 0

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, do: str | None, arrays: Sequence[Array] = ()) -> tuple[dict[str, Any], list[Array]]:
        """Send a request (None: listen only) and wait for the answer; raises EnvError on a complaint, or on silence."""
        try:
            if do is not None:
                send(self._socket, {"do": do}, arrays)
            header, answer = receive(self._socket)
        except TimeoutError:
            raise EnvError(f"ML-Agents' process {self.pid} does not answer") from None
        except (EOFError, OSError) as error:
            raise EnvError(
                f"ML-Agents' process {self.pid} has ended ({error}); its last words are in the log"
            ) from error
        if "error" in header:
            raise EnvError(f"ML-Agents: {header['error']}")
        self._player = header.get("pid", self._player)
        return header, answer

    def close(self) -> None:
        """Ask the child to end, and the player with it; kill what is left after that. May be called again."""
        with contextlib.suppress(OSError):  # closed already, or the child is gone: nobody waits for it
            send(self._socket, {"do": "close"})
        self._socket.close()
        try:
            self._process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.returncode and self._player:  # it had no chance to end the player
            _kill(self._player)


def _kill(pid: int) -> None:
    """End a process that is not our child, and see it end: its port and its log are free then."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        select.select([handle], [], [], CLOSE_SECONDS)
    except ProcessLookupError:
        return
    finally:
        os.close(handle)


def _interpreter(python: str) -> str:
    if python:
        if not Path(python).exists():
            raise ConfigError(f"env.args.python={python}: there is no such file")
        return python
    found = interpreter()
    if found is None:
        raise MissingExtraError(
            f"ML-Agents needs a venv of its own, which is not there yet; build it with: {COMMAND} "
            "(or name the interpreter of another one in env.args.python)"
        )
    return str(found)


def _observation_fields(observations: list[list[Any]]) -> tuple[Field, ...]:
    """Return one field per sensor, by its name; numbered where names are empty or not unique."""
    names = [str(name) for name, _ in observations]
    fields = []
    for place, (name, shape) in enumerate(observations):
        own = name if name and names.count(name) == 1 and name != MASK_FIELD else f"{name or 'obs'}_{place}"
        size = tuple(int(n) for n in shape)
        fields.append(Field(own, "uint8" if len(size) == 3 else "float32", size))
    if not fields:
        raise ConfigError("the player's agents have no observations")
    return tuple(fields)


def _action_spec(continuous: int, branches: list[int]) -> ActionSpec:
    nvec, start = tuple(int(n) for n in branches), (0,) * len(branches)
    if not continuous:
        return ActionSpec("discrete" if len(nvec) == 1 else "multi_discrete", nvec=nvec, start=start)
    low, high = (-1.0,) * continuous, (1.0,) * continuous
    if not nvec:
        return ActionSpec("continuous", shape=(continuous,), low=low, high=high)
    return ActionSpec("mixed", nvec=nvec, start=start, shape=(continuous,), low=low, high=high)


def _split(spec: ActionSpec, action: Array) -> tuple[Array, Array]:
    """Split actions ``[A, ...]`` into continuous ``[A, C]`` float32 within -1..1 and discrete ``[A, B]`` int32."""
    rows = action.reshape(len(action), -1)
    choices = len(spec.nvec)
    numbers = np.clip(rows[:, choices:], -1.0, 1.0).astype(np.float32)
    return numbers.reshape(len(rows), math.prod(spec.shape) if spec.shape else 0), rows[:, :choices].astype(np.int32)


def _as_pixels(values: Array) -> Array:
    """Turn 0..1, which cameras give, into pixels 0..255."""
    return (np.clip(values, 0.0, 1.0) * 255.0 + 0.5).astype(np.uint8)
