"""Learns an environment's spec without building it in the main process.

A constructor may hang, crash the interpreter or start threads; a short-lived process takes that risk,
and it runs while the main process still imports torch. ``python -m rollmill.envs.probe`` is that process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rollmill.core.errors import EnvError, RollmillError
from rollmill.core.fields import EnvSpec
from rollmill.envs.make import make_env
from rollmill.envs.settings import EnvSettings


def probe_here(settings: EnvSettings) -> EnvSpec:
    """Build one env in this process, read its spec, close it."""
    try:
        env = make_env(settings)
    except RollmillError:
        raise
    except Exception as error:
        raise EnvError(
            f"{settings.id}: the constructor failed with {type(error).__name__}: {error}\n{traceback.format_exc()}"
        ) from error
    spec = env.spec
    env.close()
    return spec


class Probe:
    """A running probe process; ``result`` waits for its answer."""

    def __init__(self, settings: EnvSettings, environment: Mapping[str, str]) -> None:
        self._settings = settings
        read, write = os.pipe()
        self._answer = os.fdopen(read, "rb")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rollmill.envs.probe", str(write)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=(write,),
            env={**environment, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        )
        os.close(write)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(settings)).encode())
        self._process.stdin.close()
        self._process.stdin = None

    def result(self, timeout: float) -> EnvSpec:
        """The spec, or an EnvError that says what the constructor did; ``timeout`` 0 waits for ever."""
        name = self._settings.id
        try:
            _, noise = self._process.communicate(timeout=timeout or None)
        except subprocess.TimeoutExpired:
            self.close()
            raise EnvError(f"{name}: the constructor hangs for more than {timeout:g} s") from None
        with self._answer:
            text = self._answer.read()
        if not text:
            tail = noise.decode(errors="replace")[-2000:]
            raise EnvError(f"{name}: building it ended the process (exit code {self._process.returncode})\n{tail}")
        answer = json.loads(text)
        if "error" in answer:
            raise EnvError(answer["error"])
        return EnvSpec.from_dict(answer["spec"])

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def main(answer_fd: int) -> None:
    os.set_inheritable(answer_fd, False)
    settings = EnvSettings(**json.load(sys.stdin))
    answer: dict[str, Any]
    try:
        answer = {"spec": probe_here(settings).to_dict()}
    except RollmillError as error:
        answer = {"error": str(error)}
    with os.fdopen(answer_fd, "w") as pipe:
        json.dump(answer, pipe)


if __name__ == "__main__":
    main(int(sys.argv[1]))
