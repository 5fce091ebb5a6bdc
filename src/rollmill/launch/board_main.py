"""TensorBoard behind a path that nobody can guess. ``python -m rollmill.launch.board_main --logdir ...``

The path is no word of the command: everybody on the machine can read those. It comes through the environment.
"""

from __future__ import annotations

import os
import sys

PATH_VARIABLE = "ROLLMILL_BOARD_PATH"


def main() -> None:
    """Serve until a signal comes; other addresses than those below the path are not found."""
    from tensorboard.main import run_main

    sys.argv += ["--path_prefix", os.environ.pop(PATH_VARIABLE)]
    run_main()


if __name__ == "__main__":
    main()
