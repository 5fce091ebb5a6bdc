"""Running things as somebody for whom permissions count: root passes over them."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 24, 1, 2


def run_unprivileged(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """``python WORDS`` in a folder; if we are root, without root's right to read what it may not."""
    # A file without permissions is then closed to its owner too, and every path stays one that this user may walk.
    return subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=120, preexec_fn=_give_up_rights
    )


def _give_up_rights() -> None:
    libc = ctypes.CDLL(None)
    for right in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
        libc.prctl(PR_CAPBSET_DROP, right, 0, 0, 0)  # fails, and needs not be done, where we are not root
