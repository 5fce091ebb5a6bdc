"""One TensorBoard over the runs that match: a folder of links to their event files, kept up to date.

Masks are those of a shell. One without a slash is compared with the run's name and its experiment's, one with a slash
with ``experiment/run``.
"""

from __future__ import annotations

import errno
import fnmatch
import getpass
import importlib.util
import os
import secrets
import socket
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from rollmill.core.errors import ConfigError, LaunchError, MissingExtraError
from rollmill.core.process import module_command
from rollmill.core.run_folder import RunFolder
from rollmill.launch import board_main
from rollmill.reports.html.serving import place

_LAST_PORT = 65_535


def matching_runs(root: Path, masks: Sequence[str]) -> dict[str, Path]:
    """Return ``experiment/run`` -> folder of all runs below ``root`` that match one of the masks; no mask: all."""
    if not root.is_dir():
        raise ConfigError(f"{root}: there is no such folder of runs")
    found = {}
    for path in sorted(root.glob("*/*/config.yaml")):
        name = f"{path.parent.parent.name}/{path.parent.name}"
        if not masks or any(matches(name, mask) for mask in masks):
            found[name] = path.parent
    return found


def matches(name: str, mask: str) -> bool:
    """Return whether ``experiment/run`` is meant by a mask."""
    experiment, _, run = name.partition("/")
    whole = fnmatch.fnmatchcase(name, mask)
    return whole if "/" in mask else fnmatch.fnmatchcase(run, mask) or fnmatch.fnmatchcase(experiment, mask)


def link_runs(folder: Path, runs: Iterable[tuple[str, Path]]) -> list[str]:
    """Add links for runs that have event files and no link yet; returns their names."""
    added = []
    for name, run in runs:
        events = RunFolder(run).tensorboard
        link = folder / name
        if events.is_dir() and not link.is_symlink():
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(events.absolute(), target_is_directory=True)
            added.append(name)
    return added


def free_port(host: str, wanted: int) -> int:
    """Return the wanted port if it is free, else one of the next hundred. 0: any."""
    if not 0 <= wanted <= _LAST_PORT:
        raise ConfigError(f"--port {wanted}: ports are numbers up to {_LAST_PORT}; 0 takes any that is free")
    if not host:  # the system takes it for all addresses of the machine
        raise ConfigError("--host is empty: an address to listen on is expected; 0.0.0.0 are all of this machine")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET  # as TensorBoard chooses it
    last = min(wanted + 99, _LAST_PORT)
    for port in range(wanted, last + 1) if wanted else (0,):
        try:
            with socket.socket(family) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((host, port))
                return int(probe.getsockname()[1])
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):  # then no port is of any use
                raise ConfigError(f"--host {host}: nobody can listen there: {error.strerror or error}") from error
    raise LaunchError(f"no free port between {wanted} and {last} on {host}")


def secret_path() -> str:
    """Return a path that nobody can guess: what TensorBoard has in the place of a token."""
    return f"/{secrets.token_urlsafe(24)}"


def start_board(folder: Path, host: str, port: int, path: str) -> subprocess.Popen[bytes]:
    """Start TensorBoard over a folder of links; it looks for new ones by itself, and answers below a path alone.

    ``folder``: nobody else can enter it, as TensorBoard writes down in its temporary folder how it was started.
    """
    if importlib.util.find_spec("tensorboard") is None:
        raise MissingExtraError('rollmill tb needs TensorBoard: pip install "rollmill[tensorboard]"')
    command = module_command(board_main.__name__, "--logdir", str(folder), "--host", host, "--port", str(port))
    return subprocess.Popen(
        [*command, "--reload_interval", "5", "--load_fast", "false"],
        stdin=subprocess.DEVNULL,
        env={**os.environ, board_main.PATH_VARIABLE: path, "TMPDIR": str(folder)},
    )


def forwarding(host: str, port: int) -> str:
    """Return what to type on one's own machine when this one is a login node."""
    return f"ssh -N -L {port}:{place(host, port)} {_user()}@{socket.getfqdn()}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user that has no name
        return str(os.getuid())
