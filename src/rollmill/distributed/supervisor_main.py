"""A supervisor in the background: ``python -m rollmill.distributed.supervisor_main RECORD`` (``supervisor``)."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from rollmill.distributed.supervisor import Supervisor

if __name__ == "__main__":
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the terminal it was started from may be closed
    sys.exit(Supervisor(Path(sys.argv[1])).run())
