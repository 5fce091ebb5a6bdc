"""One policy along the way of a population's best member (``pbt.replay``): the settings that its weights have learnt
with, each from the frames on at which they came.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollmill.core.errors import ConfigError
from rollmill.pbt.ledger import NAME, read_ledger
from rollmill.pbt.lineage import Stretch, best_member, schedule
from rollmill.runs.settings.population_checks import LEARNING, VARIABLES
from rollmill.runs.settings.train import TrainConfig
from rollmill.runs.train.observers import Observer

if TYPE_CHECKING:
    from rollmill.runs.train.loop import OnlineRun

log = logging.getLogger("rollmill")


class SettingsReplay(Observer):
    """Changes the run's settings between training steps, when their time has come."""

    def __init__(self, config: TrainConfig) -> None:
        """Read the ledger. Raises ConfigError unless that can be done, and all it has tuned is there to be set."""
        source = config.pbt.replay
        assert source is not None, "asked for by pbt.replay"
        if not source.exists():
            raise ConfigError(f"pbt.replay={source}: there is no such run")
        entries = read_ledger(source / NAME if source.is_dir() else source)
        self.member = best_member(entries)
        self.stretches = schedule(entries, self.member)
        for key, value in self.stretches[0].settings.items():
            _require(config, source, key, value)
        self._now: Stretch | None = None

    def on_init(self, run: OnlineRun) -> None:
        log.info(
            "settings follow those of member %d of %s: %d stretches",
            self.member,
            run.config.pbt.replay,
            len(self.stretches),
        )
        self._follow(run)

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        self._follow(run)

    def _follow(self, run: OnlineRun) -> None:
        now = [stretch for stretch in self.stretches if stretch.frames <= run.frames][-1]
        if now is self._now:
            return
        self._now = now
        learner: Any = run.parts.learners[0]  # APPO: the settings were checked
        learner.set_knobs(_part(now.settings, LEARNING))
        for name, value in _part(now.settings, VARIABLES).items():
            run.set_variable(name, value)

    def extra_summaries(self, run: OnlineRun) -> dict[str, float]:
        assert self._now is not None, "on_init comes first"
        return {f"pbt/{key}": value for key, value in self._now.settings.items()}


def _part(settings: Mapping[str, float], prefix: str) -> dict[str, float]:
    return {key.removeprefix(prefix): value for key, value in settings.items() if key.startswith(prefix)}


def _require(config: TrainConfig, source: Path, key: str, value: float) -> None:
    if key.startswith(VARIABLES) and key.removeprefix(VARIABLES) not in config.env.variables:
        raise ConfigError(f"pbt.replay={source} sets {key}, which is not in env.variables of this run")
    if config.learning.algorithm != "appo" or config.learning.custom is not None:
        raise ConfigError("pbt.replay changes settings of APPO: leave out learning.algorithm and learning.custom")
    if config.learning.ranks > 1:
        raise ConfigError(
            "pbt.replay changes settings in one process, and the other ranks would go on with theirs: "
            f"learning.ranks={config.learning.ranks}; use learning.ranks=1"
        )
    moved = {"learning.learning_rate": config.learning.lr_schedule != "constant"}
    moved["learning.entropy_coefficient"] = config.learning.entropy_end is not None
    if moved.get(key):
        raise ConfigError(f"pbt.replay={source} sets {key}, which a schedule of this run moves already")
    values: dict[str, Any] = {key.removeprefix(LEARNING): value} if key.startswith(LEARNING) else {}
    replace(config.learning, **values)
