"""``rollmill offline`` learns from recorded data."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from rollmill.cli.announce import announcer, page_of
from rollmill.cli.options import StartOptions, keep_stdout
from rollmill.core.config.load import load_config
from rollmill.core.config.plain import dump_yaml
from rollmill.core.errors import ConfigError
from rollmill.core.run_folder import RunFolder
from rollmill.runs.resume import resumed_settings
from rollmill.runs.settings.offline import OfflineConfig


def offline(
    overrides: tuple[str, ...],
    store: Path | None = None,
    /,
    *,
    options: StartOptions,
    restore: Path | None = None,
    trust_code: bool = False,
) -> int:
    """Learn a policy from a store: ``rollmill offline runs/demo/doom_basic/data algorithm=dt fit.steps=5000``.

    The run lives in ``<run.dir>/<run.experiment>/<run.name>``; docs/offline.md explains every key.

    Args:
        overrides: Settings, for example algorithm=bc 'data.filter=["top=10%"]'.
        store: The store to learn from.
        restore: Start from this checkpoint.
        trust_code: Run the code that store and checkpoints name; else your own words have to name it
            (env=my_env.py:MyEnv).
    """
    from rollmill.runs.offline.run import train_offline

    mode, json_ = options.mode(), options.json_
    settings = _load(store, options.config, overrides, options.resume, restore)
    if options.print_config:
        print(dump_yaml(settings), end="")
        return 0
    ready = announcer(settings, settings.folder, quiet=json_)
    request = options.request(mode=mode, restore=restore, trust_code=trust_code, on_ready=ready)
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
    """Name the run as version 0.1 did, if a run of that name has learnt from this store."""
    old = settings.as_named_by_0_1()
    saved = RunFolder(old.folder).config
    if settings.folder.exists() or settings.store is None or not saved.is_file():
        return settings
    learnt_from = load_config(OfflineConfig, (saved,), ()).store
    return old if learnt_from is not None and learnt_from.resolve() == settings.store.resolve() else settings


def _with_store(settings: OfflineConfig, store: Path | None) -> OfflineConfig:
    return settings if store is None else replace(settings, store=store)
