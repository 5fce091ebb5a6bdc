"""``rollmill tb`` opens TensorBoard."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from pathlib import Path

from rollmill.core.errors import ConfigError, Interrupted
from rollmill.core.janitor import SCRATCH_VARIABLE
from rollmill.core.process_scope import process_scope
from rollmill.core.text import counted
from rollmill.launch.boards import forwarding, free_port, link_runs, matching_runs, secret_path, start_board
from rollmill.reports.html.serving import place

_LOOK_SECONDS = 10.0
_END_SECONDS = 5.0


def tb(
    masks: tuple[str, ...] = (),
    /,
    root: Path = Path("runs"),
    host: str = "127.0.0.1",
    port: int = 6006,
) -> int:
    """One TensorBoard over all runs that match: ``rollmill tb '*gamma-0.99*' 'doom*'``.

    A mask is compared with the names of runs and of experiments; with a slash in it, with experiment/run. Runs that
    begin later are added. Only this machine can open the page, unless --host says otherwise, and only who has the link.

    Args:
        masks: For example '*mask*'; quote them, or the shell fills them in. None: all runs.
        root: Folder of all experiments.
        host: Address to listen on.
        port: Port; if it is taken, the next free one.
    """
    runs = matching_runs(root, masks)
    if not runs:
        raise ConfigError(f"no run below {root} matches {' '.join(masks) or '*'}")
    port = free_port(host, port)
    with process_scope() as environment:
        folder = Path(environment[SCRATCH_VARIABLE])
        link_runs(folder, runs.items())
        path = secret_path()
        board = start_board(folder, host, port, path)
        try:
            for name in runs:
                print(name)
            print(f"{counted(len(runs), 'run')}: http://{place(host, port)}{path}/ (Ctrl-C ends it)")
            print(f"from another machine: {forwarding(host, port)}", flush=True)
            return _wait(board, folder, root, masks)
        except KeyboardInterrupt as error:
            if isinstance(error, Interrupted) and error.name != signal.SIGINT.name:
                raise
            return 0  # the usual way to end it
        finally:
            board.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                board.wait(_END_SECONDS)


def _wait(board: subprocess.Popen[bytes], folder: Path, root: Path, masks: tuple[str, ...]) -> int:
    """Wait until TensorBoard ends; runs that begin meanwhile get their link."""
    while True:
        try:
            return board.wait(_LOOK_SECONDS)
        except subprocess.TimeoutExpired:
            for name in link_runs(folder, matching_runs(root, masks).items()):
                print(f"added {name}", flush=True)
