"""A virtual display for one run.

Not through ``xvfb-run``: that is a shell script, which a signal ends before the program in it has saved anything.
"""

from __future__ import annotations

import os
import secrets
import select
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from rollmill.core.errors import LaunchError

SCREEN = "1280x1024x24"
_START_SECONDS = 30.0
_ANY_ADDRESS = 0xFFFF
"""FamilyWild of an Xauthority file: the key is good for every display."""


def start_display(stack: ExitStack, before_exec: Callable[[], None]) -> dict[str, str]:
    """Start Xvfb on a free display until ``stack`` closes; returns the environment variables its clients need.

    It has a session of its own: what signals the run's process group must not take the display away from it.
    """
    if shutil.which("Xvfb") is None:
        raise LaunchError("virtual_display: Xvfb is not installed on this machine (apt install xvfb)")
    folder = Path(tempfile.mkdtemp(prefix="rollmill-display-"))
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    key = folder / "key"
    key.write_bytes(_authority(secrets.token_bytes(16)))
    reader, writer = os.pipe()
    stack.callback(os.close, reader)
    try:
        server = subprocess.Popen(
            ["Xvfb", "-displayfd", str(writer), "-screen", "0", SCREEN, "-nolisten", "tcp", "-auth", str(key)],
            pass_fds=(writer,),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=before_exec,
        )
    finally:
        os.close(writer)
    stack.callback(server.wait)
    stack.callback(server.terminate)
    ready, _, _ = select.select([reader], [], [], _START_SECONDS)
    number = os.read(reader, 16).decode().strip() if ready else ""
    if not number:
        raise LaunchError("virtual_display: Xvfb did not start")
    return {"DISPLAY": f":{number}", "XAUTHORITY": str(key)}


def _authority(cookie: bytes) -> bytes:
    """Return the content of an Xauthority file with one key: numbers and texts, each with its length before it."""
    parts = (b"", b"", b"MIT-MAGIC-COOKIE-1", cookie)  # address, display, kind of key, key
    return struct.pack(">H", _ANY_ADDRESS) + b"".join(struct.pack(">H", len(part)) + part for part in parts)
