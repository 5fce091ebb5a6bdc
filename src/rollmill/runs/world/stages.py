"""The stages that come with rollmill: episodes, an encoder, latents, a dynamics model, a controller, a page."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

from rollmill.core import atomic
from rollmill.core.config.plain import fields_of, to_dict
from rollmill.core.errors import MissingExtraError, StoreError
from rollmill.core.machine import available_cores
from rollmill.core.run_kind import RECORDS, STAGES
from rollmill.envs.settings import EnvSettings
from rollmill.reports.run.report import write_run_report
from rollmill.reports.run.world import VIDEO
from rollmill.runs.collect.options import CollectOptions
from rollmill.runs.collect.run import Metrics, collect, store_name
from rollmill.runs.lifecycle import Request
from rollmill.runs.policies.base import LoadOptions
from rollmill.runs.policies.load import load_each
from rollmill.runs.policies.simple import SMOOTHED
from rollmill.runs.resume import Changes
from rollmill.runs.settings.world import CollectStage, WorldConfig
from rollmill.runs.world.controller import train_controller
from rollmill.runs.world.dream import write_dream_video
from rollmill.runs.world.dynamics import train_dynamics
from rollmill.runs.world.encode import EncodeOptions, encode_store
from rollmill.runs.world.encoder import train_vae
from rollmill.runs.world.stage import Record, Stage, StageInterrupted, Work, read_record, require_whole
from rollmill.store.format.schema import STORE_FILE
from rollmill.store.reader import Store
from rollmill.worldmodel.files import DYNAMICS, ENCODER

log = logging.getLogger("rollmill")

QUIETLY = Request("continue", console="off")
"""How runs of their own are run here: each goes on where it was, and the panel speaks for all of them."""


def policy_name(word: str, config: WorldConfig, trust_code: bool) -> str:
    """Return what a store calls a policy that is to collect. Raises ConfigError if there is none."""
    how = LoadOptions(env=config.env, hold=config.collect.hold, trust_code=trust_code)
    return store_name(load_each(word, how, flag="collect.episodes: ")[0])


class Collect(Stage):
    """Plays episodes of every policy that are not there yet."""

    def settings(self) -> Mapping[str, Any]:
        c = self.work.config
        return {"seed": c.seed, "env": to_dict(c.env), **super().settings()}

    def defaults(self) -> object:
        return {"env": EnvSettings(), **fields_of(CollectStage())}

    def run(self) -> Mapping[str, Any]:
        config, raw, trust = self.work.config, self.work.place(self.name), self.work.trust_code
        c, settings = config.collect, self.work.out / RECORDS / "env.yaml"
        atomic.write_json(settings, {"env": to_dict(config.env)})  # JSON is YAML
        wanted, before = sum(c.episodes.values()), 0
        for policy, count in c.episodes.items():
            hold = c.hold if policy == SMOOTHED else None
            there = self._episodes_by(policy_name(policy, config, trust))
            before += min(count, there)
            if there >= count:
                continue
            options = CollectOptions(raw, policy, episodes=count - there, seed=config.seed, hold=hold, trust_code=trust)
            done = collect(options, (settings,), (f"sampling.workers={c.workers}",), self._tell(before, wanted))
            if done.signal:
                raise StageInterrupted(done.signal)
            before += done.metrics.episodes
        with Store(raw) as store:
            return {"episodes": len(store), "steps": store.table.steps, "return": float(store.table.return_.mean())}

    def _episodes_by(self, policy: str) -> int:
        raw = self.work.place(self.name)
        if not (raw / STORE_FILE).is_file():
            return 0
        with Store(raw) as store:
            whole = ~store.table["partial_end"] & (store.table["policy"] == policy)
            return int(whole.sum()) // store.schema.env.agents

    def _tell(self, before: int, wanted: int) -> Callable[[Metrics], None]:
        return lambda found: self.work.tell(
            (before + found.episodes) / wanted, {"episodes": before + found.episodes, "steps_per_s": found.steps_per_s}
        )


class Vae(Stage):
    """Trains the image encoder."""

    def inputs(self) -> Mapping[str, Any]:
        return {"images": _images(self.work)}

    def run(self) -> Mapping[str, Any]:
        images, out = self.work.place("collect"), self.work.place(self.name)
        outcome = train_vae(self.work.config.vae, images, out, QUIETLY, self.work.tell)
        require_whole(outcome)
        return {"steps": outcome.steps, "encoder": str(outcome.encoder), **outcome.metrics}


class Encode(Stage):
    """Turns the images of all episodes into latents."""

    def inputs(self) -> Mapping[str, Any]:
        return _encoded_from(self.work)

    def run(self) -> Mapping[str, Any]:
        c, field = self.work.config.encode, self.work.config.vae.images.field
        source, out = self.work.place("collect"), self.work.place(self.name)
        options = EncodeOptions(
            *(source, self.work.place("vae"), out),
            gpu=c.gpu,
            batch_size=c.batch_size,
            field=(field,) if field else (),
            trust=self.work.trust,
        )
        with Store(source) as store:
            shards = len(store.shards)
        processes = c.processes or (1 if options.device.type == "cuda" else available_cores())
        options = EncodeOptions(**{**vars(options), "sub_shards": max(1, min(processes, shards))})
        done = encode_store(options, lambda n, total: self.work.tell(n / max(1, total), {"shards": n}))
        if not done.complete:
            raise StoreError(done.text())
        with Store(out) as store:
            return {"episodes": len(store), "steps": store.table.steps}


class Dynamics(Stage):
    """Fits the dynamics model to the latents."""

    def inputs(self) -> Mapping[str, Any]:
        return _encoded_from(self.work)

    def run(self) -> Mapping[str, Any]:
        latents, out = self.work.place("encode"), self.work.place(self.name)
        outcome = train_dynamics(self.work.config.dynamics, latents, out, QUIETLY, self.work.tell)
        require_whole(outcome)
        return outcome.to_dict()


class Controller(Stage):
    """Searches the controller, in the environment or in dreams of it."""

    def settings(self) -> Mapping[str, Any]:
        c = self.work.config
        return {**super().settings(), "dream": to_dict(c.dream) if c.search_in == "dream" else None}

    def inputs(self) -> Mapping[str, Any]:
        return {
            "env": to_dict(self.work.config.env),
            "encoder": ENCODER.checksum(self.work.place("vae") / ENCODER.name),
            "dynamics": DYNAMICS.checksum(self.work.place("dynamics") / DYNAMICS.name),
        }

    def run(self) -> Mapping[str, Any]:
        c, place = self.work.config, self.work.place
        outcome = train_controller(
            *(c.controller, c.env, place("vae"), place("dynamics") / DYNAMICS.name, place(self.name)),
            dream=c.dream if c.search_in == "dream" else None,
            request=QUIETLY,
            progress=self.work.tell,
            trust=self.work.trust,
        )
        require_whole(outcome)
        return outcome.to_dict()


class Report(Stage):
    """Writes the page about all of it, with a video of dreams."""

    def settings(self) -> Mapping[str, Any]:
        return {"video": self.work.config.video}

    def inputs(self) -> Mapping[str, Any]:
        return {name: vars(read_record(self.work.out, name)) for name in STAGES if name != self.name}

    def changes(self, before: Record, settings: Mapping[str, Any], inputs: Mapping[str, Any]) -> Changes:
        moved = before.inputs != inputs or before.settings != settings
        return Changes(extends=["an earlier stage has changed"] if moved else [])

    def run(self) -> Mapping[str, Any]:
        work, place = self.work, self.work.place
        video = work.out / VIDEO
        video.unlink(missing_ok=True)
        if work.config.video:
            try:
                models = (place("encode"), place("vae"), place("dynamics") / DYNAMICS.name)
                write_dream_video(*models, video, None, place("collect"), work.trust)
            except MissingExtraError as error:
                log.warning("no video of dreams: %s", error)
        return {"page": str(write_run_report(work.out))}


def _images(work: Work) -> str:
    """Return a checksum of the names of the episodes in the store of images."""
    with Store(work.place("collect")) as store:
        uids = sorted(store.table.uid.tolist())
    return hashlib.sha256(json.dumps(uids).encode()).hexdigest()


def _encoded_from(work: Work) -> Mapping[str, Any]:
    return {"images": _images(work), "encoder": ENCODER.checksum(work.place("vae") / ENCODER.name)}
