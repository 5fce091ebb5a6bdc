"""Stages of world models that tests run: small settings, and models that were never trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dreaming import corner_encoder, corner_model

from rollmill.envs.settings import EnvSettings
from rollmill.runs.world.controller import ControllerOutcome, train_controller
from rollmill.worldmodel.controller.settings import ControllerSettings
from rollmill.worldmodel.dynamics.settings import DynamicsSettings

TOY = EnvSettings(id="toy_image")


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
