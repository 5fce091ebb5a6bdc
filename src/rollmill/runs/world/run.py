"""``rollmill world run``: all stages of a world model in turn, in one folder.

Words
-----
stage     one of ``core.run_kind.STAGES``: each reads what earlier ones have left in the folder (``stages``).
record    ``stages/<stage>.json``: the settings and inputs a stage was run with, and how it ended.
aside     a stage whose settings or inputs have changed is not continued; its folder is moved to ``aside/``.

Running it again skips what is done, continues what was interrupted, and redoes what changed and all that depends
on it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rollmill.core import atomic
from rollmill.core.checkpoints import Loaded
from rollmill.core.config.plain import completed
from rollmill.core.errors import RollmillError, RunFolderError
from rollmill.core.imports import import_object
from rollmill.core.run_kind import FOLDERS, RECORDS, STAGES
from rollmill.envs.make import check_env_settings
from rollmill.runs.lifecycle import Ended, Life, Request, live
from rollmill.runs.resume import Changes
from rollmill.runs.settings.world import WorldConfig
from rollmill.runs.world.panel import StagePanel
from rollmill.runs.world.stage import Record, Stage, StageInterrupted, Work, read_record, record_path
from rollmill.runs.world.stages import policy_name

log = logging.getLogger("rollmill")

ASIDE = "aside"


@dataclass(frozen=True)
class WorldOutcome(Ended):
    """How a pipeline ended."""

    stages: Mapping[str, str]
    """done, skipped or waiting, by stage."""
    results: Mapping[str, Any]
    """What each stage says about itself."""


def run_world(
    config: WorldConfig,
    out: Path,
    request: Request | None = None,
    until: str = "report",
) -> WorldOutcome:
    """Run all stages up to ``until`` in the folder ``out``. Raises RollmillError when one fails."""
    request = request or Request("continue")
    check_env_settings(config.env)
    for policy in config.collect.episodes:
        policy_name(policy, config, request.trust_code)
    with live("world", out, config, request) as life:
        request.on_ready()
        panel = StagePanel(f"world model: {out}", tuple(STAGES), live=False if request.console == "off" else None)
        with contextlib.closing(panel):
            world = World(config, out, panel, request.trust_code)
            life.begin(world)
            world.run(until, life)
    return WorldOutcome(**life.ended(), stages=world.states, results=world.results)


class World:
    """The stages of one folder."""

    def __init__(self, config: WorldConfig, out: Path, panel: StagePanel, trust_code: bool = False) -> None:
        self.out, self.panel = out, panel
        self.states: dict[str, str] = dict.fromkeys(STAGES, "waiting")
        self.results: dict[str, Any] = {}
        (out / RECORDS).mkdir(exist_ok=True)
        work = Work(config, out, panel.progress, trust_code)
        made = {name: import_object(stage.target, f"the stage {name}") for name, stage in STAGES.items()}
        self.stages: list[Stage] = [make(name, work) for name, make in made.items()]

    @property
    def step(self) -> int:
        """Stages that are done."""
        return sum(state != "waiting" for state in self.states.values())

    def load_state(self, loaded: Loaded) -> None:
        raise NotImplementedError("each stage has checkpoints, or a store, of its own")

    def run(self, until: str, life: Life) -> None:
        """Run every stage that is not done, in turn."""
        for stage in self.stages:
            try:
                self.states[stage.name] = self._settle(stage)
            except StageInterrupted as error:
                life.interrupt.signal = error.signal
                life.stop(f"{error.signal.name} received in the stage {stage.name}")
                return
            except RollmillError as error:
                self.panel.end(stage.name, "failed", str(error).splitlines()[0])
                raise
            self.results[stage.name] = read_record(self.out, stage.name).result
            if stage.name == until:
                break
        life.stop(f"the stage {until} is done")

    def _settle(self, stage: Stage) -> str:
        """Run a stage unless its record says that it is done with these settings and inputs."""
        inputs = json.loads(json.dumps(dict(stage.inputs())))
        settings = json.loads(json.dumps(dict(stage.settings()), default=str))
        before, changed = read_record(self.out, stage.name), Changes()
        if before.state:
            before = replace(before, settings=completed(before.settings, stage.defaults()))
            changed = stage.changes(before, settings, inputs)
        if changed.never:
            self._set_aside(stage.name, changed.never)
            before = Record()
        elif before.state == "done" and not changed.extends and self._is_there(stage.name):
            self.panel.end(stage.name, "skipped", "was done before", before.seconds)
            return "skipped"
        for line in changed.extends:
            log.info("%s goes on: %s", stage.name, line)
        self._write(stage.name, Record("begun", settings, inputs, {}, before.seconds))
        self.panel.begin(stage.name)
        begun = time.monotonic()
        try:
            result = json.loads(json.dumps(dict(stage.run()), default=str))
        finally:
            seconds = before.seconds + time.monotonic() - begun
            self._write(stage.name, Record("begun", settings, inputs, {}, seconds))
        self._write(stage.name, Record("done", settings, inputs, result, seconds))
        self.panel.end(stage.name, "done")
        return "done"

    # -- records -------------------------------------------------------------------------------

    def _write(self, name: str, record: Record) -> None:
        path = record_path(self.out, name)
        try:
            atomic.write_json(path, {**vars(record), "seconds": round(record.seconds, 1)})
        except OSError as error:
            raise RunFolderError(f"{path} cannot be written: {error.strerror or error}") from error

    def _set_aside(self, name: str, why: list[str]) -> None:
        """Move what a stage has left out of the way; nothing that was computed is deleted."""
        folder = self.out / FOLDERS.get(name, name)
        words = "; ".join(why)
        if name not in FOLDERS or not folder.exists():
            log.info("%s is run again: %s", name, words)
            return
        target = self.out / ASIDE / f"{folder.name}-{datetime.now(UTC):%Y%m%dT%H%M%S%f}"
        target.parent.mkdir(exist_ok=True)
        os.rename(folder, target)
        log.warning("%s is run again: %s. What it had made is now in %s", name, words, target)

    def _is_there(self, name: str) -> bool:
        return name not in FOLDERS or (self.out / FOLDERS[name]).is_dir()
