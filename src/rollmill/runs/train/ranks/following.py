"""Rank 1, 2, ... of a run: the same loop as rank 0's, without run folder, metrics, console and limits."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollmill.core.child import failure
from rollmill.core.config.load import load_config
from rollmill.core.config.plain import differences as settings_that_differ
from rollmill.core.errors import ConfigError, RankError
from rollmill.core.fields import EnvSpec
from rollmill.core.process_scope import process_scope, temporary_files_in
from rollmill.core.run_folder import RunFolder
from rollmill.core.stopping import Interrupt
from rollmill.distributed.messages import differences, versions
from rollmill.distributed.ray_place import Place, silence
from rollmill.runs.probing import probe_in_child
from rollmill.runs.settings.train import TrainConfig, check
from rollmill.runs.train.ranks.processes import RankTask, share_of

if TYPE_CHECKING:
    from rollmill.learning.roll_call import Follower

log = logging.getLogger("rollmill")

FIND_SECONDS = 600.0
"""How long rank 0 is waited for: it may be started last."""
TRY_SECONDS = 0.5


def follow(task: RankTask, roll_call: Follower, environment: Mapping[str, str], level_tickets: Path | None) -> str:
    """Build a rank's parts, meet the others, and train with them until rank 0 says that it is over; returns why."""
    from rollmill.learning.torch_ranks import TorchRanks
    from rollmill.runs.lifecycle import Life
    from rollmill.runs.train.build import build_parts
    from rollmill.runs.train.loop import OnlineRun
    from rollmill.runs.train.reporting import TrainMetrics

    config = task.config
    ranks = TorchRanks(roll_call, config.learning.ranks, config.learning.rank_timeout, task.cuda)
    parts = build_parts(share_of(config), task.spec, environment, ranks, level_tickets)
    life = Life("online", RunFolder(config.folder), config)
    life.interrupt = Interrupt(signals=())  # they are for rank 0, or end this process at once
    run = OnlineRun(config, parts, life, TrainMetrics(config, life), ())
    ranks.connect(parts.device)
    run.begin_together()
    run.loop()
    ranks.close()
    roll_call.leave()
    return run.stop_reason


# -- on another machine -----------------------------------------------------------------------------


def join_run(place: Place) -> str:
    """Learn with the run whose rank 0 is at ``place``, until that is over; returns why it is.

    What is learnt, and with which code of this machine, is for rank 0 to say.
    """
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # before torch is there: what it warns of is told in words
    from rollmill.learning.roll_call import Follower, find_store, knock, read_run
    from rollmill.optim.device import choose_device

    _find(place)
    store = find_store(place.host, place.port)
    told = read_run(store)
    if "versions" not in told:
        raise ConfigError(f"the run at {place} has ranks of its own machine only; it needs learning.meet={place}")
    if different := differences(versions(), told["versions"]):
        raise ConfigError(f"this machine cannot learn with the run at {place}: {different}")
    task = RankTask(
        load_config(TrainConfig, (), (), base=told["config"]), EnvSpec.from_dict(told["spec"]), told["cuda"]
    )
    config = task.config
    device = choose_device(config.learning.device).type
    name = f"{socket.gethostname()} (pid {os.getpid()})"
    with temporary_files_in(config.run.temp_dir), process_scope() as environment:
        rank = knock(store, {"name": name, "versions": {**versions(), "device": device}})
        log.info("rank %d of %d of the run at %s: %s", rank, config.learning.ranks, place, config.env.id)
        roll_call = Follower(store, rank, config.learning.rank_silence)
        try:
            check(config)
            _require_same_env(task, environment)
            return follow(task, roll_call, environment, None)
        except BaseException as error:
            interrupted = isinstance(error, KeyboardInterrupt)
            roll_call.leave("was interrupted" if interrupted else failure(error))
            raise


def _find(place: Place) -> None:
    """Return when somebody listens there."""
    deadline, told = time.monotonic() + FIND_SECONDS, False
    while why := silence(place):
        if time.monotonic() > deadline:
            raise RankError(f"{why}; rank 0 listens there: rollmill train ... learning.meet={place}")
        if not told:
            log.info("%s yet; it is tried for %g s", why, FIND_SECONDS)
        told = True
        time.sleep(TRY_SECONDS)


def _require_same_env(task: RankTask, environment: Mapping[str, str]) -> None:
    found = probe_in_child(task.config.env, environment, task.config.sampling.start_timeout)
    here, there = _comparable(found), _comparable(task.spec)
    if changes := settings_that_differ(here, there):
        words = "; ".join(f"{key} is {mine}, and {its} on rank 0" for key, (mine, its) in changes.items())
        raise ConfigError(f"{task.config.env.id} is another environment on this machine: {words}")


def _comparable(spec: EnvSpec) -> dict[str, Any]:
    return {name: str(value) for name, value in spec.to_dict().items()}
