"""``rollmill world run``: all stages of a world model in turn, in one folder.

Words
-----
stage     collect, vae, encode, dynamics, controller, report: each reads what earlier ones have left in the folder.
record    ``stages/<stage>.json``: the settings and inputs a stage was run with, and how it ended.
aside     a stage whose settings or inputs have changed is not continued; its folder is moved to ``aside/``.

Running it again skips what is done, continues what was interrupted, and redoes what changed and all that depends
on it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rollmill.core import atomic
from rollmill.core.checkpoints import Loaded
from rollmill.core.config.old_names import renamed
from rollmill.core.config.plain import completed, fields_of, to_dict
from rollmill.core.errors import MissingExtraError, RollmillError, RunFolderError, StoreError
from rollmill.core.machine import available_cores
from rollmill.core.opening import read_json
from rollmill.core.run_kind import FOLDERS, RECORDS
from rollmill.envs.make import check_env_settings
from rollmill.envs.settings import EnvSettings
from rollmill.reports.run.report import write_run_report
from rollmill.reports.run.world import VIDEO
from rollmill.runs.collect.options import CollectOptions
from rollmill.runs.collect.run import Metrics, collect, store_name
from rollmill.runs.lifecycle import Ended, Life, Request, live
from rollmill.runs.policies.base import LoadOptions
from rollmill.runs.policies.load import load_each
from rollmill.runs.policies.simple import SMOOTHED
from rollmill.runs.resume import Changes, compare
from rollmill.runs.settings.world import STAGES, VaeConfig, WorldConfig
from rollmill.runs.world.controller import train_controller
from rollmill.runs.world.dream import write_dream_video
from rollmill.runs.world.dynamics import train_dynamics
from rollmill.runs.world.encode import EncodeOptions, encode_store
from rollmill.runs.world.encoder import train_vae
from rollmill.runs.world.panel import StagePanel
from rollmill.store.format.schema import STORE_FILE
from rollmill.store.reader import Store
from rollmill.worldmodel.controller.settings import ControllerSettings
from rollmill.worldmodel.dynamics.settings import DynamicsSettings
from rollmill.worldmodel.files import DYNAMICS, ENCODER
from rollmill.worldmodel.own import OwnClass, Trust

log = logging.getLogger("rollmill")

ASIDE = "aside"
QUIETLY = Request("continue", console="off")
"""How stages are run here: each goes on where it was, and the panel speaks for all of them."""


def _policy_name(word: str, config: WorldConfig, trust_code: bool) -> str:
    """What a store calls a policy that is to collect; ConfigError where there is none."""
    how = LoadOptions(env=config.env, hold=config.collect.hold, trust_code=trust_code)
    return store_name(load_each(word, how, flag="collect.episodes: ")[0])


@dataclass(frozen=True)
class WorldOutcome(Ended):
    """How a pipeline ended."""

    stages: Mapping[str, str]
    """done, skipped or waiting, by stage."""
    results: Mapping[str, Any]
    """What each stage says about itself."""


class StageInterrupted(Exception):
    """A stage was asked to stop, by a signal of this number; it can be continued."""

    def __init__(self, number: int) -> None:
        self.signal = signal.Signals(number)


@dataclass(frozen=True)
class Stage:
    """One stage: what decides its outcome, and the function that runs it and returns what it has to say."""

    name: str
    settings: Mapping[str, Any]
    inputs: Callable[[], Mapping[str, Any]]
    run: Callable[[], Mapping[str, Any]]
    defaults: object | None = None
    """Settings for keys that the record of an earlier version does not have."""


@dataclass
class Record:
    """What is known about an earlier run of a stage."""

    state: str = ""
    """begun or done; empty: never run."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, Any] = field(default_factory=dict)
    result: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


def run_world(
    config: WorldConfig,
    out: Path,
    request: Request | None = None,
    until: str = STAGES[-1],
) -> WorldOutcome:
    """Run all stages up to ``until`` in the folder ``out``. Raises RollmillError when one fails."""
    request = request or Request("continue")
    check_env_settings(config.env)
    for policy in config.collect.episodes:
        _policy_name(policy, config, request.trust_code)
    with live("world", out, config, request) as life:
        request.on_ready()
        panel = StagePanel(f"world model: {out}", STAGES, live=False if request.console == "off" else None)
        with contextlib.closing(panel):
            world = World(config, out, panel, request.trust_code)
            life.begin(world)
            world.run(until, life)
    return WorldOutcome(**life.ended(), stages=world.states, results=world.results)


class World:
    """The stages of one folder."""

    def __init__(self, config: WorldConfig, out: Path, panel: StagePanel, trust_code: bool = False) -> None:
        self.config, self.out, self.panel, self._trust_code = config, out, panel, trust_code
        self.states: dict[str, str] = dict.fromkeys(STAGES, "waiting")
        self.results: dict[str, Any] = {}
        (out / RECORDS).mkdir(exist_ok=True)
        c = config
        self.stages = [
            Stage(
                "collect",
                {"seed": c.seed, "env": to_dict(c.env), **to_dict(c.collect)},
                dict,
                self._collect,
                {"env": EnvSettings(), **fields_of(type(c.collect)())},
            ),
            Stage("vae", to_dict(c.vae), lambda: {"images": self._images()}, self._vae, VaeConfig()),
            Stage("encode", to_dict(c.encode), self._encode_inputs, self._encode),
            Stage("dynamics", to_dict(c.dynamics), self._encode_inputs, self._dynamics, DynamicsSettings()),
            Stage(
                "controller",
                self._controller_settings(),
                self._controller_inputs,
                self._controller,
                ControllerSettings(),
            ),
            Stage("report", {"video": c.video}, self._report_inputs, self._report),
        ]

    @property
    def step(self) -> int:
        """Stages that are done."""
        return sum(state != "waiting" for state in self.states.values())

    def load_state(self, loaded: Loaded) -> None:
        raise NotImplementedError("each stage has checkpoints, or a store, of its own")

    def run(self, until: str, life: Life) -> None:
        """Every stage that is not done, in turn."""
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
            self.results[stage.name] = self.record(stage.name).result
            if stage.name == until:
                break
        life.stop(f"the stage {until} is done")

    def _settle(self, stage: Stage) -> str:
        """Run a stage unless its record says that it is done with these settings and inputs."""
        inputs = json.loads(json.dumps(dict(stage.inputs())))
        settings = json.loads(json.dumps(dict(stage.settings), default=str))
        before = self.record(stage.name)
        if before.state and stage.defaults is not None:
            before = replace(before, settings=completed(before.settings, stage.defaults))
        changed = what_changed(stage.name, before, settings, inputs)
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

    def record(self, name: str) -> Record:
        path = self.out / RECORDS / f"{name}.json"
        try:
            return Record(**renamed(read_json(path)))
        except FileNotFoundError:
            return Record()
        except (OSError, ValueError, TypeError) as error:
            raise RunFolderError(f"{path} cannot be read: {error}; remove it, and the stage is run again") from error

    def _write(self, name: str, record: Record) -> None:
        path = self.out / RECORDS / f"{name}.json"
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
        return name not in FOLDERS or self._place(name).is_dir()

    def _place(self, name: str) -> Path:
        return self.out / FOLDERS[name]

    # -- stages --------------------------------------------------------------------------------

    def _collect(self) -> Mapping[str, Any]:
        """Episodes of every policy that are not there yet."""
        c, raw = self.config.collect, self._place("collect")
        settings = self.out / RECORDS / "env.yaml"
        atomic.write_json(settings, {"env": to_dict(self.config.env)})  # JSON is YAML
        wanted, before = sum(c.episodes.values()), 0
        for policy, count in c.episodes.items():
            hold = c.hold if policy == SMOOTHED else None
            name = _policy_name(policy, self.config, self._trust_code)
            before += min(count, there := self._episodes_by(name))
            if there >= count:
                continue
            seed, trust = self.config.seed, self._trust_code
            options = CollectOptions(raw, policy, episodes=count - there, seed=seed, hold=hold, trust_code=trust)
            done = collect(options, (settings,), (f"sampling.workers={c.workers}",), self._tell_collect(before, wanted))
            if done.signal:
                raise StageInterrupted(done.signal)
            before += done.metrics.episodes
        with Store(raw) as store:
            return {"episodes": len(store), "steps": store.table.steps, "return": float(store.table.return_.mean())}

    def _episodes_by(self, policy: str) -> int:
        raw = self._place("collect")
        if not (raw / STORE_FILE).is_file():
            return 0
        with Store(raw) as store:
            whole = ~store.table["partial_end"] & (store.table["policy"] == policy)
            return int(whole.sum()) // store.schema.env.agents

    def _tell_collect(self, before: int, wanted: int) -> Callable[[Metrics], None]:
        return lambda f: self.panel.progress(
            (before + f.episodes) / wanted, {"episodes": before + f.episodes, "steps_per_s": f.steps_per_s}
        )

    def _vae(self) -> Mapping[str, Any]:
        out = self._place("vae")
        outcome = train_vae(self.config.vae, self._place("collect"), out, QUIETLY, self.panel.progress)
        _require_whole(outcome)
        return {"steps": outcome.steps, "encoder": str(outcome.encoder), **outcome.metrics}

    def _encode(self) -> Mapping[str, Any]:
        c = self.config.encode
        source, out = self._place("collect"), self._place("encode")
        field = self.config.vae.images.field
        options = EncodeOptions(
            *(source, self._place("vae"), out),
            gpu=c.gpu,
            batch_size=c.batch_size,
            fields=(field,) if field else (),
            trust=self._trust,
        )
        with Store(source) as store:
            shards = len(store.shards)
        processes = c.processes or (1 if options.device.type == "cuda" else available_cores())
        options = EncodeOptions(**{**vars(options), "sub_shards": max(1, min(processes, shards))})
        done = encode_store(options, lambda n, total: self.panel.progress(n / max(1, total), {"shards": n}))
        if not done.complete:
            raise StoreError(done.text())
        with Store(out) as store:
            return {"episodes": len(store), "steps": store.table.steps}

    def _dynamics(self) -> Mapping[str, Any]:
        latents, out = self._place("encode"), self._place("dynamics")
        outcome = train_dynamics(self.config.dynamics, latents, out, QUIETLY, self.panel.progress)
        _require_whole(outcome)
        return outcome.to_dict()

    def _controller(self) -> Mapping[str, Any]:
        outcome = train_controller(
            *(self.config.controller, self.config.env, self._place("vae"), self._place("dynamics") / DYNAMICS.name),
            self._place("controller"),
            dream=self.config.dream if self.config.search_in == "dream" else None,
            progress=self.panel.progress,
            request=QUIETLY,
            trust=self._trust,
        )
        _require_whole(outcome)
        return outcome.to_dict()

    def _report(self) -> Mapping[str, Any]:
        video = self.out / VIDEO
        video.unlink(missing_ok=True)
        if self.config.video:
            try:
                dynamics, raw = self._place("dynamics") / DYNAMICS.name, self._place("collect")
                write_dream_video(self._place("encode"), self._place("vae"), dynamics, video, None, raw, self._trust)
            except MissingExtraError as error:
                log.warning("no video of dreams: %s", error)
        return {"page": str(write_run_report(self.out))}

    @property
    def _trust(self) -> Trust:
        """The code that this configuration names: the models in the folder are made by it."""
        encoder, dynamics = self.config.vae.encoder, self.config.dynamics
        return Trust(
            encoder=OwnClass(custom=encoder.custom, custom_args=encoder.custom_args),
            dynamics=OwnClass(custom=dynamics.custom, custom_args=dynamics.custom_args),
            trust_code=self._trust_code,
        )

    # -- what they are made from ---------------------------------------------------------------

    def _images(self) -> str:
        """Names the episodes in the store of images."""
        with Store(self._place("collect")) as store:
            uids = sorted(store.table.uid.tolist())
        return hashlib.sha256(json.dumps(uids).encode()).hexdigest()

    def _encode_inputs(self) -> Mapping[str, Any]:
        return {"images": self._images(), "encoder": ENCODER.checksum(self._place("vae") / ENCODER.name)}

    def _controller_settings(self) -> Mapping[str, Any]:
        dream = to_dict(self.config.dream) if self.config.search_in == "dream" else None
        return {**to_dict(self.config.controller), "dream": dream}

    def _controller_inputs(self) -> Mapping[str, Any]:
        return {
            "env": to_dict(self.config.env),
            "encoder": ENCODER.checksum(self._place("vae") / ENCODER.name),
            "dynamics": DYNAMICS.checksum(self._place("dynamics") / DYNAMICS.name),
        }

    def _report_inputs(self) -> Mapping[str, Any]:
        return {name: vars(self.record(name)) for name in STAGES if name != "report"}


def _require_whole(outcome: Ended) -> None:
    if outcome.interrupted:
        raise StageInterrupted(outcome.signal)


def what_changed(name: str, before: Record, settings: Mapping[str, Any], inputs: Mapping[str, Any]) -> Changes:
    """Compare a stage with its record; nothing has changed where there is none."""
    if not before.state:
        return Changes()
    if name == "report":
        moved = before.inputs != inputs or before.settings != settings
        return Changes(extends=["an earlier stage has changed"] if moved else [])
    return compare(name, before.settings, settings, before.inputs, inputs)
