"""Builds the recorder of a run from its config."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rollmill.core.fields import EnvSpec
from rollmill.envs.tasks.suite import tasks_of
from rollmill.recording.assemble import LanePlan
from rollmill.recording.choose import Chooser, ChosenLanes, EpisodeChooser, RunShape
from rollmill.recording.forecast import Sample
from rollmill.recording.pieces import PieceChooser
from rollmill.recording.recorder import LocalRecorder, ProcessRecorder, Recorder
from rollmill.recording.sink import SinkPlan
from rollmill.runs.settings.train import TrainConfig
from rollmill.runs.train.cluster.cluster import node_sampling
from rollmill.sampling.sampler import Sampler, SamplerPlan
from rollmill.store.format.schema import Column, StoreSchema, create_store


def store_schema(config: TrainConfig, spec: EnvSpec) -> StoreSchema:
    """Return the columns and facts that the run's store holds."""
    extra = {"log_prob": Column("log_prob", "float32"), "value": Column("value", "float32", per="obs")}
    # Row by row, so that it can be seen that nobody changes within an episode.
    who = [Column("policy_id", "int16"), Column("opponent", "int16")] if config.selfplay.on else []
    return StoreSchema.for_env(
        spec,
        **config.env.for_store,
        extra=[*(extra[name] for name in config.recording.columns), *who],
        image_codec=config.recording.image_codec,
    )


def build_recorder(
    config: TrainConfig, sampler: Sampler, store: Path, environment: Mapping[str, str], sample: Sample
) -> Recorder:
    """Build the run's recorder; nothing is started. ``sample``: what a step takes.

    Raises StoreError if the store does not fit.
    """
    plan = sampler.plan
    schema = create_store(store, store_schema(config, plan.spec))
    lanes = LanePlan(
        groups=plan.groups + plan.remote_groups,
        lanes=plan.lanes_per_group,
        agents=plan.spec.agents,
        groups_per_worker=plan.settings.groups,
        seeds=None if plan.env.vector else plan.seeds,
        workers_before=plan.workers_before,
        tasks=tuple(task.name for task in tasks_of(plan.env)),
        own_groups=plan.groups,
        node_groups=node_sampling(config).workers * plan.settings.groups,
        key=plan.seeds.branch("recording").integer(),
    )
    steps = max(1, round(sample.episode_length))
    sink = SinkPlan(store.absolute(), schema, config.recording, lanes, steps)
    chooser = _build_chooser(config, plan, lanes, sample)
    if plan.settings.mode == "serial":
        return LocalRecorder(sink, chooser, sampler.arena)
    return ProcessRecorder(sink, chooser, sampler.arena, sampler.spare, environment)


def _build_chooser(config: TrainConfig, plan: SamplerPlan, lanes: LanePlan, sample: Sample) -> Chooser:
    frames = config.stop.frames
    if not config.recording.whole:
        workers = lanes.groups // plan.settings.groups
        return PieceChooser(config.recording, workers, plan.settings.groups, frames)
    shape = RunShape(frames, plan.spec.frames_per_step, sample.bytes_per_step, sample.episode_length)
    return EpisodeChooser(config.recording, shape, ChosenLanes(lanes.key, lanes.groups, lanes.lanes, lanes.agents))
