"""``rollmill offline`` learns from recorded data."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

from rollmill.cli.announce import announcer, page_of
from rollmill.cli.options import Configs, Json, PrintConfig, keep_stdout
from rollmill.core.config.load import load_config
from rollmill.core.config.plain import dump_yaml
from rollmill.core.errors import ConfigError
from rollmill.core.run_folder import Mode, RunFolder
from rollmill.runs.lifecycle import Request
from rollmill.runs.resume import resumed_settings
from rollmill.runs.settings.offline import OfflineConfig


def offline(
    overrides: tuple[str, ...],
    store: Path | None = None,
    /,
    config: Configs = (),
    resume: bool = False,
    overwrite: bool = False,
    restore: Path | None = None,
    trust_code: bool = False,
    print_config: PrintConfig = False,
    json_: Json = False,
) -> int:
    """Learn a policy from a store: ``rollmill offline runs/demo/doom_basic/data algorithm=dt fit.steps=5000``.

    The run lives in ``<run.dir>/<run.experiment>/<run.name>``; docs/offline.md explains every key.

    Args:
        overrides: Settings, for example algorithm=bc data.filter=["top=10%"].
        store: The store to learn from.
        config: A YAML file with settings; may be given several times, later files win.
        resume: Continue the run in its folder from the newest checkpoint, with its saved settings below the given ones.
        overwrite: Delete the run in the folder and start anew.
        restore: Start from this checkpoint.
        trust_code: Run the code that store and checkpoints name; else your own words have to name it
            (env=my_env.py:MyEnv).
        print_config: Print all settings as YAML and start nothing.
        json_: Print the outcome as JSON on stdout, and nothing else there.
    """
    from rollmill.runs.offline.run import train_offline

    if resume and overwrite:
        raise ConfigError("--resume and --overwrite exclude each other: one keeps the run, the other deletes it")
    settings = _load(store, config, overrides, resume, restore)
    if print_config:
        print(dump_yaml(settings), end="")
        return 0
    mode: Mode = "resume" if resume else "overwrite" if overwrite else "new"
    request = Request(
        *(mode, restore, ("rollmill", *sys.argv[1:]), "plain" if json_ else "auto"),
        trust_code=trust_code,
        on_ready=announcer(settings, settings.folder, quiet=json_),
    )
    with keep_stdout(json_):
        outcome = train_offline(settings, request)
    page = page_of(outcome.folder, "offline")
    if json_:
        print(json.dumps({**outcome.to_dict(), "page": page}, default=str))
        return outcome.exit_code
    if outcome.results is not None:
        print(outcome.results.text())
    print(f"{outcome.state}: {outcome.reason}; {outcome.steps:,} updates, folder {outcome.folder}")
    if outcome.results is None:
        print(f"the policy: {outcome.weights}")
    if page is not None:
        print(f"report: {page}")
    if outcome.state == "interrupted":
        print("the same command with --resume continues it")
    return outcome.exit_code


def _load(
    store: Path | None, files: tuple[Path, ...], overrides: tuple[str, ...], resume: bool, restore: Path | None
) -> OfflineConfig:
    settings = _with_store(load_config(OfflineConfig, files, overrides), store)
    if store is not None and any(word.startswith("store=") for word in overrides):
        raise ConfigError(f"{store} and store=... are two stores; give one of them")
    if not resume:
        return settings
    found = _as_found(settings)
    folder = RunFolder(found.folder)
    settings = _with_store(resumed_settings(OfflineConfig, folder, files, overrides, restore), store)
    return replace(settings, run=replace(settings.run, name=found.run.name))


def _as_found(settings: OfflineConfig) -> OfflineConfig:
    """Called as version 0.1 called it, where that is the run that has learnt from this store."""
    old = settings.as_named_by_0_1()
    saved = RunFolder(old.folder).config
    if settings.folder.exists() or settings.store is None or not saved.is_file():
        return settings
    learnt_from = load_config(OfflineConfig, (saved,), ()).store
    return old if learnt_from is not None and learnt_from.resolve() == settings.store.resolve() else settings


def _with_store(settings: OfflineConfig, store: Path | None) -> OfflineConfig:
    return settings if store is None else replace(settings, store=store)
