"""The process of rank 1, 2, ...: the same loop as rank 0's, without run folder, metrics, console and limits.

``python -m rollmill.runs.train.rank_main FD`` is started by ``ranks``; what it is to do comes through a pipe.
"""

from __future__ import annotations

import logging
import os
import sys

from rollmill.core.checkpoints import load_checkpoint
from rollmill.core.child import Parent, run_child
from rollmill.core.machine import keep_to
from rollmill.core.run_folder import RunFolder
from rollmill.runs.train.ranks import RankSetup, share_of


def follow(setup: RankSetup, parent: Parent) -> None:
    """Build this rank's parts, join the others, and train with them until rank 0 says it is over."""
    keep_to(setup.cores)
    logging.basicConfig(format="%(levelname)s %(message)s", level=logging.INFO)
    from rollmill.core.stopping import Interrupt
    from rollmill.learning.ranks import TorchRanks
    from rollmill.runs.lifecycle import Life
    from rollmill.runs.train.build import build_parts
    from rollmill.runs.train.loop import OnlineRun
    from rollmill.runs.train.reporting import TrainMetrics

    config = setup.config
    ranks = TorchRanks(setup.rank, config.learning.ranks, setup.rendezvous, config.learning.rank_timeout, setup.cuda)
    folder = RunFolder(config.folder)
    parts = build_parts(share_of(config), setup.spec, dict(os.environ), ranks, folder.levels)
    life = Life("online", folder, config)
    life.interrupt = Interrupt(signals=())  # rank 0 hears them, and says so
    run = OnlineRun(config, parts, life, TrainMetrics(config, life), ())
    if setup.checkpoint is not None:
        run.load_state(load_checkpoint(setup.checkpoint))
    parent.tell("ready", {})
    ranks.connect(parts.device)
    for learner in parts.learners:
        learner.agree()
    run.loop()
    ranks.close()


if __name__ == "__main__":
    sys.exit(run_child(follow))
