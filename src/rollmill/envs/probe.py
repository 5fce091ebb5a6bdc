"""Learns an environment's spec without building it in the main process.

A constructor may hang, crash the interpreter or start threads; a short-lived process takes that risk,
and it runs while the main process still imports torch. ``python -m rollmill.envs.probe`` is that process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping
from dataclasses import asdict
from typing import IO, Any

from rollmill.core.errors import ConfigError, EnvError, MissingExtraError, RollmillError
from rollmill.core.fields import EnvSpec
from rollmill.core.protocols import Env
from rollmill.envs.make import make_env
from rollmill.envs.settings import EnvSettings


def probe_here(settings: EnvSettings) -> EnvSpec:
    """Build one env in this process, read its spec, close it."""
    try:
        env: Env
        if settings.vector:
            from rollmill.envs.vector import VectorLane  # imports gymnasium, which the others may not need

            env = VectorLane(settings)
        else:
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


CONFIG_ERRORS = {kind.__name__: kind for kind in (ConfigError, MissingExtraError)}
"""Errors that keep their kind on the way from the probe, because their exit code differs."""


class Probe:
    """A running probe process; ``result`` waits for its answer.

    It answers, and complains, into files: a pipe would hold it up when full, and would be held open by
    whatever simulator it leaves behind.
    """

    def __init__(self, settings: EnvSettings, environment: Mapping[str, str]) -> None:
        self._settings = settings
        self._answer = tempfile.TemporaryFile()  # noqa: SIM115 - read and closed by ``close``
        self._noise = tempfile.TemporaryFile()  # noqa: SIM115
        question = json.dumps(asdict(settings))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rollmill.envs.probe", str(self._answer.fileno()), question],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._noise,
            pass_fds=(self._answer.fileno(),),
            env={**environment, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        )

    def result(self, timeout: float) -> EnvSpec:
        """The spec, or an EnvError that says what the constructor did; ``timeout`` 0 waits for ever."""
        name = self._settings.id
        try:
            code = self._process.wait(timeout or None)
            text, noise = _content(self._answer), _content(self._noise)
        except subprocess.TimeoutExpired:
            raise EnvError(f"{name}: the constructor hangs for more than {timeout:g} s") from None
        finally:
            self.close()
        if not text:
            raise EnvError(f"{name}: building it ended the process (exit code {code})\n{noise[-2000:]}")
        answer = json.loads(text)
        if "error" in answer:
            raise CONFIG_ERRORS.get(answer["kind"], EnvError)(answer["error"])
        return EnvSpec.from_dict(answer["spec"])

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._answer.close()
        self._noise.close()


def _content(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def main(answer_fd: int, question: str) -> None:
    os.set_inheritable(answer_fd, False)
    settings = EnvSettings(**json.loads(question))
    answer: dict[str, Any]
    try:
        answer = {"spec": probe_here(settings).to_dict()}
    except RollmillError as error:
        answer = {"error": str(error), "kind": type(error).__name__}
    with os.fdopen(answer_fd, "w") as file:
        json.dump(answer, file)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
