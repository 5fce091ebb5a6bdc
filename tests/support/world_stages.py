"""Stages of world models that tests run: small settings, and models that were never trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dreaming import corner_encoder, corner_model

from rollmill.core.config.load import load_config
from rollmill.envs.settings import EnvSettings
from rollmill.runs.lifecycle import Request
from rollmill.runs.settings.world import WorldConfig
from rollmill.runs.world.controller import ControllerOutcome, train_controller
from rollmill.runs.world.run import WorldOutcome, run_world
from rollmill.worldmodel.controller.settings import ControllerSettings
from rollmill.worldmodel.dynamics.settings import DynamicsSettings

TOY = EnvSettings(id="toy_image")


SMALL = (
    *("env.id=toy_image", "env.args={size: 16, length: 6}", 'collect.episodes={"random-controller": 4, random: 2}'),
    *("collect.workers=1", "vae.encoder.size=3", "vae.encoder.channels=[4, 8]", "vae.fit.steps=4"),
    *("vae.fit.batch_size=8", "vae.fit.save_steps=2", "vae.images.shuffle_buffer=16", "vae.tensorboard=false"),
    *("vae.fit.device=cpu", "vae.fit.threads=1", "encode.processes=1", "dynamics.size=8", "dynamics.mixtures=2"),
    *("dynamics.steps=3", "dynamics.sequence_length=4", "dynamics.batch_size=4", "dynamics.device=cpu"),
    *("controller.population=4", "controller.trials=1", "controller.generations=2", "controller.mode=serial"),
    *("controller.envs=4", "controller.evaluate_every=0", "controller.final_episodes=2", "controller.device=cpu"),
    "controller.max_steps=6",
)


def world(out: Path, *overrides: str, **more: Any) -> WorldOutcome:
    """A world model with these settings over ``SMALL``, in seconds; ``until``: its last stage."""
    config = load_config(WorldConfig, [], (*SMALL, *overrides))
    return run_world(config, out, Request("continue", console="off"), **more)


def dynamics_settings(**values: object) -> DynamicsSettings:
    chosen = {
        "size": 8,
        "mixtures": 2,
        "sequence_length": 6,
        "batch_size": 8,
        "steps": 8,
        "report_steps": 4,
        "threads": 1,
    }
    return DynamicsSettings(**{**chosen, **values})  # type: ignore[arg-type]


def corner_models(folder: Path) -> Path:
    corner_encoder(folder / "encoder.bin")
    corner_model(folder / "dynamics.bin")
    return folder


def controller_settings(**values: Any) -> ControllerSettings:
    usual = {"inputs": "z", "population": 8, "trials": 1, "generations": 3, "envs": 4, "sigma": 0.5, "mode": "serial"}
    judged = {"evaluate_every": 2, "evaluate_episodes": 4, "final_episodes": 4, "lockstep": True}
    return ControllerSettings(**{**usual, **judged, **values})


def search(models: Path, out: Path, env: EnvSettings = TOY, **values: Any) -> ControllerOutcome:
    dream = values.pop("dream", None)
    progress = values.pop("progress", None)
    chosen = controller_settings(**values)
    dynamics = models if chosen.inputs == "zh" or dream else None
    return train_controller(chosen, env, models, dynamics, out, dream=dream, progress=progress)
