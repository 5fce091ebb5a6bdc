"""The runs of an experiment's folder, sorted into what may be compared, and in groups with names.

Words
-----
family    runs of one kind (online, offline) in one environment. Only these are compared with each other.
group     runs of a family that differ in their seed alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rollmill.core.config.old_names import read_saved
from rollmill.core.errors import ConfigError, RollmillError
from rollmill.core.run_kind import RunKind, run_kind
from rollmill.launch.experiment import flat
from rollmill.launch.params import Setting
from rollmill.launch.plan import differing_keys, name_parts
from rollmill.launch.records import LaunchRecords
from rollmill.launch.verbs import SEED
from rollmill.store.format.schema import load_schema, store_at

COMPARED: tuple[RunKind, ...] = ("online", "offline")
_ASIDE = ("run.", "report.", "wandb.", "checkpoints.", "profile.", "evaluation.")
"""Settings that say where a run lives, what it writes down and how it is judged, not what it learns."""
_FIRST = ("env.", "algorithm", "data.", "learning.", "sac.", "model.", "fit.")
"""Settings that name a group before others do, where several would tell it from the rest."""
LONGEST_NAME = 60


@dataclass(frozen=True)
class Found:
    """One run that has begun."""

    folder: Path
    name: str
    kind: RunKind
    env: str
    """Empty where the settings name none."""
    settings: Setting
    """All of them, with dotted keys."""
    group: str = ""
    params: Mapping[str, Any] | None = None
    """What it differs in, the seed included; None until it is known which runs it is compared with."""


def find_runs(experiment: Path) -> tuple[list[Found], dict[str, str]]:
    """Find all runs that have begun, launched or started one by one, with their groups.

    Also returns what is wrong with other folders, by their names.
    """
    found, unread = [], {}
    for path in sorted(experiment.glob("*/config.yaml")):
        try:
            found.append(look_at(path.parent))
        except ConfigError as error:
            unread[path.parent.name] = f"unreadable: {error}"
    return in_groups(found, experiment), unread


def in_groups(found: Sequence[Found], experiment: Path) -> list[Found]:
    """Return the runs of an experiment with their groups: those of its plan, or what differs in settings."""
    records = LaunchRecords(experiment)
    planned = {run.name: run for run in records.read_plan().runs} if records.exists else {}
    launched = [
        replace(run, group=planned[run.name].group, params=planned[run.name].params)
        for run in found
        if run.name in planned
    ]
    others = families(run for run in found if run.name not in planned)
    return [*launched, *(run for members in others.values() for run in grouped(members, experiment.absolute().name))]


def families(runs: Iterable[Found]) -> dict[tuple[RunKind, str], list[Found]]:
    """Sort runs into those that may be compared, by kind and environment; online ones first, then by alphabet."""
    found: dict[tuple[RunKind, str], list[Found]] = {}
    for run in runs:
        found.setdefault((run.kind, run.env), []).append(run)
    return dict(sorted(found.items(), key=lambda item: (item[0][0] != "online", item[0][1].lower())))


def look_at(folder: Path) -> Found:
    """Return a run by its saved settings. Raises ConfigError if they cannot be read."""
    return found_of(folder, read_saved(folder / "config.yaml"))


def found_of(folder: Path, tree: Mapping[str, Any]) -> Found:
    """Return a run by the settings that its folder holds."""
    kind, settings = run_kind(tree), flat(tree)
    env = settings.get("env.id") or settings.get("env") or ""
    if kind == "offline" and not env:
        env = _env_of_store(settings.get("store"))
    return Found(folder, folder.name, kind, str(env), settings)


def _env_of_store(path: Any) -> str:
    """Return what the store of an offline run was recorded in; nothing where the store is gone."""
    try:
        return load_schema(store_at(str(path))).env_id
    except RollmillError:
        return ""


# ------------------------------------------------------------------------------------------------------ groups


def grouped(runs: Sequence[Found], alone: str) -> list[Found]:
    """Return the runs of one family with their groups; ``alone`` names a group that differs from no other.

    A group of one run is called as the run is. Others are called by as few settings as tell them from the rest.
    """
    settings = [_what_matters(run.settings) for run in runs]
    differing = differing_keys(settings)
    members: dict[str, list[int]] = {}
    for k, setting in enumerate(settings):
        members.setdefault(repr([setting.get(key) for key in differing]), []).append(k)
    firsts = [settings[numbers[0]] for numbers in members.values()]
    made: list[Found] = []
    taken: set[str] = set()
    for numbers, first in zip(members.values(), firsts):
        parts = name_parts(first, _telling(differing, first, firsts))
        parts = [f"{part}none" if part.endswith("-") else part for part in parts]  # an empty list
        name = _group_name([runs[k].name for k in numbers], parts, alone, taken)
        taken.add(name)
        for k in numbers:
            params = {key: settings[k][key] for key in (*differing, SEED) if key in settings[k]}
            made.append(replace(runs[k], group=name, params=params))
    return sorted(made, key=lambda run: run.name)


def _what_matters(settings: Mapping[str, Any]) -> Setting:
    return {key: value for key, value in settings.items() if key == SEED or not key.startswith(_ASIDE)}


def _group_name(runs: Sequence[str], parts: Sequence[str], alone: str, taken: set[str]) -> str:
    if len(runs) == 1:
        return runs[0]
    name = "_".join(parts) or alone
    if len(name) > LONGEST_NAME or name in taken:
        return f"{runs[0]} and {len(runs) - 1} more"
    return name


def _telling(differing: Sequence[str], group: Setting, groups: Sequence[Setting]) -> list[str]:
    """Choose as few keys as tell this group from all others: always the one next that tells it from most."""
    left = [other for other in groups if other is not group]
    open_ = sorted(differing, key=lambda key: not key.startswith(_FIRST))
    chosen: set[str] = set()
    while left:
        best = min(open_, key=lambda key: sum(other.get(key) == group.get(key) for other in left))
        chosen.add(best)
        left = [other for other in left if other.get(best) == group.get(best)]
    return [key for key in differing if key in chosen]
