"""Builds the venv that ML-Agents needs for itself: ``python -m rollmill.envs.mlagents.install [FOLDER]``.

``mlagents-envs`` 1.1.0 asks for versions of protobuf, grpcio and numpy that nothing else here can live with, some of
them without need. What it runs with is installed beside it, in a folder in the cache.
"""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

from rollmill.core.errors import RollmillError
from rollmill.core.machine import cache_folder
from rollmill.core.process import module_command

VERSION = "1.1.0"
ITSELF = ("--no-deps", "--ignore-requires-python", f"mlagents-envs=={VERSION}")
BESIDE = ("grpcio", "protobuf<3.21", "numpy", "pillow", "pyyaml", "cloudpickle", "filelock")
STAMP = "complete"
"""File that is there once everything is installed."""
COMMAND = "python -m rollmill.envs.mlagents.install"


def default_folder() -> Path:
    """Return where it is looked for; one for each version of Python, which a venv is bound to."""
    return cache_folder() / f"mlagents-{VERSION}-py{sys.version_info.major}.{sys.version_info.minor}"


def interpreter(folder: Path | None = None) -> Path | None:
    """Return the venv's Python; None when it is not (completely) installed."""
    folder = folder or default_folder()
    return folder / "bin" / "python" if (folder / STAMP).exists() else None


def install(folder: Path | None = None) -> Path:
    """Build the venv, if it is not there; returns its Python. Two that do it at once wait for each other."""
    folder = folder or default_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = interpreter(folder)
        if found is not None:
            return found
        python = folder / "bin" / "python"
        _run(module_command("venv", str(folder)))
        for packages in (ITSELF, BESIDE):
            _run([str(python), "-P", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages])
        _run([str(python), "-I", "-c", "import mlagents_envs.environment"])
        (folder / STAMP).touch()
    return python


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RollmillError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")


def main(arguments: list[str]) -> int:
    if len(arguments) > 1:
        print(f"usage: {COMMAND} [FOLDER]", file=sys.stderr)
        return 2
    try:
        print(install(Path(arguments[0]).absolute() if arguments else None))
    except RollmillError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
