"""The process of rank 1, 2, ... on the machine of rank 0.

``python -m rollmill.runs.train.ranks.rank_main FD`` is started by ``processes``; what it is to do comes through a
pipe.
"""

from __future__ import annotations

import logging
import math
import os
import sys

from rollmill.core.child import Parent, run_child
from rollmill.core.machine import keep_to
from rollmill.core.run_folder import RunFolder
from rollmill.runs.train.ranks.following import follow
from rollmill.runs.train.ranks.processes import RankSetup


def work(setup: RankSetup, _parent: Parent) -> None:
    """Learn as one rank until the run is over.

    It dies with rank 0, which therefore may be silent for as long as it likes: stopped by Ctrl-Z, for instance.
    """
    keep_to(setup.cores)
    logging.basicConfig(format="%(levelname)s %(message)s", level=logging.INFO)
    from rollmill.learning.roll_call import Follower, find_store

    roll_call = Follower(find_store(setup.place.host, setup.place.port), setup.rank, patience=math.inf)
    follow(setup.task, roll_call, dict(os.environ), RunFolder(setup.task.config.folder).levels)


if __name__ == "__main__":
    sys.exit(run_child(work))
