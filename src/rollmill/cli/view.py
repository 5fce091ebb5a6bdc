"""``rollmill view`` shows runs in the browser."""

from __future__ import annotations

import json
import logging
import signal
import sys
from pathlib import Path

from rollmill.cli.options import Json
from rollmill.core.errors import Interrupted
from rollmill.core.text import bytes_text
from rollmill.launch.boards import forwarding
from rollmill.reports.html.serving import LOOPBACK, LOOPBACK_NAMES
from rollmill.viewer.run import Address, copy
from rollmill.viewer.run import view as run_view


def view(
    folder: Path = Path("runs"),
    /,
    host: str = LOOPBACK,
    port: int = 0,
    export: Path | None = None,
    episodes: int = 3,
    json_: Json = False,
) -> int:
    """See all runs below a folder in the browser: ``rollmill view runs``. Ctrl-C ends it.

    The link that it prints holds a token: whoever has the link can see everything below the folder, and nobody else
    can. Runs that begin later appear by themselves. Nothing is ever written into the folder.

    Args:
        folder: Folder of all experiments.
        host: Address to listen on; only this machine can open the page unless it is another one.
        port: TCP port; 0 takes any that is free.
        export: Write the pages into this folder instead, as one file that needs no server.
        episodes: With --export: the best episodes of each store that are copied, with their frames.
        json_: Print the link as JSON on stdout, and nothing else there.
    """
    logging.basicConfig(level=logging.WARNING, format="%(message)s")

    if export is not None:
        copied = copy(folder, export, episodes)
        words = f"{copied.path}: {copied.runs} runs and {copied.episodes} episodes, {bytes_text(copied.bytes)}"
        print(json.dumps(vars(copied) | {"path": str(copied.path)}) if json_ else words)
        for problem in copied.problems:
            print(f"warning: not in the copy: {problem}", file=sys.stderr)
        return 0

    def announce(link: str, port: int) -> None:
        if json_:
            print(json.dumps({"url": link}), flush=True)
            return
        if host not in LOOPBACK_NAMES:
            print(f"warning: other machines can reach {host}; only the link keeps them out, and it is not encrypted")
        print(f"see it at {link} (Ctrl-C ends it)")
        if host in LOOPBACK_NAMES:
            print(f"from another machine: {forwarding(host, port)}, then open the same link there", flush=True)

    try:
        run_view(folder, Address(host, port), announce)
    except KeyboardInterrupt as error:
        if isinstance(error, Interrupted) and error.name != signal.SIGINT.name:
            raise
    return 0  # Ctrl-C is the usual way to end it
