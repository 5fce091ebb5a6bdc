"""Trains from Python, in a script or in a notebook."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from rollmill.api.machine import machine_as_it_was
from rollmill.api.notebook import NotebookLine, TrainingLine, in_notebook, warnings_shown
from rollmill.api.run import Run
from rollmill.api.words import Env, Files, env_words, files_of, said_in_python, setting_words
from rollmill.core.config.load import load_config
from rollmill.core.config.plain import to_dict
from rollmill.core.errors import ConfigError
from rollmill.core.given import require_sendable
from rollmill.core.run_folder import Mode, RunFolder
from rollmill.runs.lifecycle import Request
from rollmill.runs.resume import resumed_settings
from rollmill.runs.settings.train import TrainConfig, require_env
from rollmill.runs.train import run as runs
from rollmill.runs.train.observers import Observer


def train(
    env: Env | None = None,
    *,
    frames: int | None = None,
    seed: int | None = None,
    name: str | None = None,
    config: Files | TrainConfig = (),
    overrides: Mapping[str, Any] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    restore: str | os.PathLike[str] | None = None,
    observers: Sequence[Observer] = (),
    progress: bool = True,
    **blocks: Mapping[str, Any],
) -> Run:
    """Train an agent to the end and return the run; it is what ``rollmill train`` does, with the same settings.

    ``rollmill.train("CartPole-v1", frames=50_000, learning={"gamma": 0.98})``. Ctrl-C (in a notebook: the stop button)
    ends the run in order and returns it, ``interrupted``; a second one raises KeyboardInterrupt at once. Errors are
    those of ``rollmill.core.errors``.

    Args:
        env: A name from ``rollmill envs``, any Gymnasium id, ``module:callable``; or a callable that makes an
            environment, which may be defined in a cell; or the whole block, ``{"id": ..., "args": {...}}``.
        frames: Simulator frames to train for (``stop.frames``).
        seed: Root of all randomness (``run.seed``).
        name: Name of the run, and of its folder (``run.name``).
        config: Settings files by path or name (``"cartpole"``), later ones win; or a ``TrainConfig``.
        overrides: Settings by dotted key, ``{"learning.gamma": 0.98}``; they win over everything else.
        resume: Continue the run in its folder from its newest checkpoint.
        overwrite: Delete the run in the folder and start anew.
        restore: Start from this checkpoint.
        observers: Objects that are told what happens (``rollmill.Observer``).
        progress: Show how far it is.
        blocks: Whole blocks of settings as dicts: ``learning={"gamma": 0.98}``, ``sampling={"mode": "serial"}``.
    """
    if resume and overwrite:
        raise ConfigError("resume and overwrite exclude each other: one keeps the run, the other deletes it")
    short = {"stop.frames": frames, "run.seed": seed, "run.name": name}
    given_short = {key: value for key, value in short.items() if value is not None}
    checkpoint = None if restore is None else Path(restore)
    with said_in_python():
        files, base = ((), to_dict(config)) if isinstance(config, TrainConfig) else (files_of(config), {})
        words = setting_words(base, blocks, env_words(env), given_short, overrides or {})
        settings = _settings(files, words, resume, checkpoint)
        mode: Mode = "resume" if resume else "overwrite" if overwrite else "new"
        with _shown(progress) as (console, lines), machine_as_it_was():
            request = Request(mode, checkpoint, ("rollmill.train", *map(str, files), *words), console)
            outcome = runs.train(settings, request, (*lines, *observers))
    return Run(outcome.folder, is_own=True)


def _settings(files: Sequence[Path], words: Sequence[str], resume: bool, restore: Path | None) -> TrainConfig:
    settings = load_config(TrainConfig, files, words)
    if resume:
        settings = resumed_settings(TrainConfig, RunFolder(settings.folder), files, words, restore)
    else:
        require_env(files, words, "rollmill.train")
    if settings.sampling.mode != "serial":
        require_sendable(settings.env.id)  # before there is a folder
    return settings


@contextlib.contextmanager
def _shown(progress: bool) -> Iterator[tuple[Literal["auto", "off"], tuple[Observer, ...]]]:
    """Choose what a person sees: the panel or the lines of the command, or one line that is updated in a notebook."""
    if not progress:
        with warnings_shown():
            yield "off", ()
    elif in_notebook():
        with warnings_shown():
            yield "off", (TrainingLine(NotebookLine()),)
    else:
        yield "auto", ()
