"""``rollmill world dynamics``, ``controller``, ``dream`` and ``video``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rollmill.cli.announce import announcer
from rollmill.cli.options import Configs, SettingsOptions, keep_stdout
from rollmill.core.config.load import load_config
from rollmill.core.config.plain import dump_yaml
from rollmill.runs.settings.world import ControllerConfig, DreamVideo
from rollmill.worldmodel.dynamics.settings import DynamicsSettings
from rollmill.worldmodel.own import Trust


def dynamics(
    overrides: tuple[str, ...],
    latents: Path,
    /,
    out: Path,
    options: SettingsOptions,
) -> int:
    """Learn what happens next: ``rollmill world dynamics data/car_latents --out runs/car/dynamics steps=2000``.

    Writes ``dynamics.bin`` (architecture and weights), checkpoints and metrics. The same command continues a fit.

    Args:
        overrides: Settings, for example memory=transformer size=256 sequence_length=64.
        latents: The store of latents (``rollmill world encode``).
        out: Folder of the fit.
    """
    from rollmill.runs.world.dynamics import train_dynamics

    settings = load_config(DynamicsSettings, options.config, overrides)
    if options.print_config:
        print(dump_yaml(settings), end="")
        return 0
    request = options.request(on_ready=announcer(settings, out, quiet=options.json_))
    with keep_stdout(options.json_):
        outcome = train_dynamics(settings, latents, out, request)
    _say(outcome.to_dict(), options.json_, f"{outcome.steps:,} updates; model {outcome.model}")
    return outcome.exit_code


@dataclass(frozen=True, kw_only=True)
class SearchOptions(SettingsOptions):
    """How a controller is searched, in an environment or in dreams of it."""

    overrides: tuple[str, ...]
    """Settings, for example env=car_racing controller.population=32 dream.temperature=1.15."""
    out: Path
    """Folder of the search."""
    trust_code: bool = False
    """Run the code that the models' files name; else your own words have to name it (env=my_env.py:MyEnv,
    encoder.custom=my_encoder.py:Mine)."""


def controller(encoder: Path, /, options: SearchOptions, dynamics: Path | None = None) -> int:
    """Search a controller: ``rollmill world controller runs/car/vae --dynamics runs/car/dynamics --out runs/car/ctl``.

    Writes ``controller.bin``, ``generations.csv``, two plots, checkpoints and metrics. The same command continues it.

    Args:
        encoder: The encoder's file, or the folder of its training.
        dynamics: The dynamics model's file or folder; unset: the controller sees latents alone (controller.inputs=z).
    """
    return _search(encoder, dynamics, options, in_dream=False)


def dream(encoder: Path, dynamics: Path, /, options: SearchOptions) -> int:
    """Search a controller in the model's dreams, and test it outside: as ``rollmill world controller``.

    Args:
        encoder: The encoder's file, or the folder of its training; evaluations need it.
        dynamics: The dynamics model's file, or the folder of its training.
    """
    return _search(encoder, dynamics, options, in_dream=True)


def _search(encoder: Path, model: Path | None, options: SearchOptions, in_dream: bool) -> int:
    from rollmill.runs.world.controller import known_env, train_controller

    settings = load_config(ControllerConfig, options.config, options.overrides)
    if options.print_config:
        print(dump_yaml(settings), end="")
        return 0
    env = settings.env or known_env(model, options.trust_code)
    settings = replace(settings, env=env)
    with keep_stdout(options.json_):
        outcome = train_controller(
            *(settings.controller, env, encoder, model, options.out),
            dream=settings.dream if in_dream else None,
            request=options.request(on_ready=announcer(settings, options.out, quiet=options.json_)),
            trust=Trust(encoder=settings.encoder, dynamics=settings.dynamics, trust_code=options.trust_code),
        )
    metrics = outcome.to_dict()
    judged = "not judged" if outcome.final is None else f"{metrics['final_return']:.1f} +- {metrics['final_std']:.1f}"
    text = f"{outcome.generations:,} generations, {outcome.env_steps:,} steps; return {judged}; {outcome.controller}"
    _say(metrics, options.json_, text)
    return outcome.exit_code


def video(
    overrides: tuple[str, ...],
    latents: Path,
    encoder: Path,
    dynamics: Path,
    /,
    out: Path,
    raw: Path | None = None,
    config: Configs = (),
    trust_code: bool = False,
) -> int:
    """Show dreams beside what happened: ``rollmill world video data/lat runs/vae runs/dynamics --out dreams.mp4``.

    Args:
        overrides: Settings, for example episodes=4 shown=20 temperature=1.2.
        latents: The store of latents.
        encoder: The encoder's file, or the folder of its training.
        dynamics: The dynamics model's file, or the folder of its training.
        out: The video (mp4).
        raw: The store of images that the latents were made from: real images are shown as well.
        config: A YAML file with settings; may be given several times, later files win.
        trust_code: Run the code that the models' files name; else your own words have to name it
            (encoder.custom=my_encoder.py:Mine).
    """
    from rollmill.runs.world.dream import write_dream_video

    options = load_config(DreamVideo, config, overrides)
    trust = Trust(encoder=options.encoder, dynamics=options.dynamics, trust_code=trust_code)
    print(write_dream_video(latents, encoder, dynamics, out, options, raw, trust))
    return 0


def _say(metrics: Mapping[str, Any], json_: bool, text: str) -> None:
    print(json.dumps(metrics) if json_ else text)
