"""What a description comes to: runs with names, folders and command lines, checked before anything starts.

Names are made of what the runs differ in: ``CartPole-v1_gamma-0.99_s3``. Without the seed it is the run's *group*.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rollmill.core.errors import ConfigError
from rollmill.core.text import show
from rollmill.launch.experiment import Expect, Experiment
from rollmill.launch.params import RESERVED, Setting
from rollmill.launch.verbs import SEED, describe

CONFIG = "config"
"""The parameter that names a file instead of a key."""
LONGEST_NAME = 120
MOST_RUNS = 10_000
FOLDER = "launch"
"""The launcher's own folder among the runs of an experiment."""
_SHOWN = 20
_KEY = re.compile(r"\{([\w.]+)\}")


@dataclass(frozen=True)
class RunFacts:
    """What a run's final settings say about its size."""

    frames: int = 0
    """Frames after which it ends; 0 if something else ends it."""
    recording_gb: float = 0.0
    """The budget of its recording; 0 without one."""


@dataclass(frozen=True)
class PlannedRun:
    """One run: its place and its command line."""

    name: str
    group: str
    params: Mapping[str, Any]
    """What it differs in from the other runs, the seed included."""
    folder: Path
    files: tuple[str, ...]
    words: tuple[str, ...]
    """KEY=VALUE words, those that name the folder included."""
    program: tuple[str, ...]
    flags: tuple[str, ...] = ()
    """Of verbs whose place and seed are no settings."""
    facts: RunFacts = field(default_factory=RunFacts)

    @property
    def command(self) -> tuple[str, ...]:
        files = (word for file in self.files for word in ("--config", file))
        return (*self.program, *files, *self.words, *self.flags)


@dataclass(frozen=True)
class Plan:
    """All runs of an experiment. ``folder`` is the experiment's: ``<root>/<name>``."""

    name: str
    folder: Path
    runs: tuple[PlannedRun, ...]
    expect: Expect = field(default_factory=Expect)
    search: Mapping[str, Any] | None = None
    """The description of a search, whose runs are only those of its trials so far."""
    population: Mapping[str, Any] | None = None
    """Of a population: who takes part, and what is tuned (``pbt.exchange.About``)."""


Check = Callable[[PlannedRun], RunFacts]
"""Loads the settings of a run; ConfigError if they are wrong. Injected: this room does not know the settings."""


def make_plan(experiment: Experiment, root: Path, check: Check) -> Plan:
    """Make the plan. Raises ConfigError, one line per problem, if any of its runs could not be started."""
    folder = root / experiment.name
    runs: list[PlannedRun] = []
    for command in experiment.commands or (experiment,):
        settings = list(itertools.islice(command.all_params(), MOST_RUNS + 1))
        if len(settings) + len(runs) > MOST_RUNS:
            raise ConfigError(
                f"experiment {experiment.name}: more than {MOST_RUNS:,} runs; describe it in several parts"
            )
        _refuse_fixed(command, settings)
        before = f"{command.name}_" if experiment.commands and differing_keys(settings) else ""
        named = name_runs(settings, command.name)
        runs += [_planned(command, folder, before + name, before + group, *rest) for name, group, *rest in named]
    _refuse_collisions(runs)
    if experiment.shuffle is not None:
        random.Random(experiment.shuffle).shuffle(runs)
    return Plan(experiment.name, folder, _checked(runs, check), experiment.expect)


def plan_trials(
    experiment: Experiment, root: Path, check: Check, trials: Sequence[tuple[int, Setting]]
) -> tuple[PlannedRun, ...]:
    """Plan the runs of trials (number, settings) of a search: each with every seed."""
    runs = []
    for number, setting in trials:
        group = f"trial-{number:03d}"
        for seeds in [{SEED: seed} for seed in experiment.seed_list()] or [{}]:
            _refuse_fixed(experiment, [setting])
            name = f"{group}_s{seeds[SEED]}" if seeds else group
            whole = {**setting, **seeds}
            runs.append(_planned(experiment, root / experiment.name, name, group, whole, whole))
    return _checked(runs, check)


def plan_members(experiment: Experiment, root: Path, check: Check) -> tuple[PlannedRun, ...]:
    """Plan the runs of a population: each is told its number, where it meets the others, and a seed of its own."""
    assert experiment.population is not None
    (seed,) = experiment.seed_list()
    folder, members = root / experiment.name, experiment.population.members
    _refuse_fixed(experiment, [])
    runs = []
    for member in range(members):
        setting = {"pbt.exchange": str(folder), "pbt.member": member, SEED: seed * members + member}
        name = f"member-{member}"
        runs.append(_planned(experiment, folder, name, name, setting, {"pbt.member": member}))
    return _checked(runs, check)


def _refuse_fixed(experiment: Experiment, settings: Sequence[Setting]) -> None:
    for key in experiment.settings:
        if key in RESERVED:
            raise ConfigError(f"settings: {key} cannot be set: it follows from the names of experiment and run")
    twice = sorted({key for setting in settings for key in setting if key in experiment.settings})
    if twice:
        raise ConfigError(f"{', '.join(twice)}: stands under settings and among the parameters; which one is meant?")


def _planned(
    command: Experiment, experiment: Path, name: str, group: str, setting: Setting, params: Setting
) -> PlannedRun:
    """Plan one run; ``experiment``: the experiment's folder."""
    verb, folder = describe(command.program), experiment / name
    assert verb is not None, "the description was checked"
    files = (*map(str, command.config), *([str(setting[CONFIG])] if CONFIG in setting else []))
    values = {**command.settings, **{key: value for key, value in setting.items() if key != CONFIG}}
    place = {"root": str(experiment.parent), "experiment": experiment.name, "name": name, "folder": str(folder)}
    program, used = _filled(command.program, {**values, **place})
    values = {key: value for key, value in values.items() if key not in used}
    flags: tuple[str, ...] = ("--out", verb.out.format(**place)) if verb.out and "--out" not in program else ()
    if verb.seed != SEED and SEED in values:
        seed = values.pop(SEED)
        if verb.seed.startswith("--"):
            flags += (verb.seed, str(seed))
        elif verb.seed:
            values[verb.seed] = seed
    values |= {key: template.format(**place) for key, template in verb.settings.items()}
    words = tuple(override(key, value) for key, value in values.items())
    return PlannedRun(name, group, params, folder, files, words, program, flags)


def _filled(program: Sequence[str], values: Mapping[str, Any]) -> tuple[tuple[str, ...], set[str]]:
    """Fill ``{KEY}`` in the words of a program; returns them and the keys that were used; others in braces stay."""
    used: set[str] = set()

    def fill(found: re.Match[str]) -> str:
        if found[1] not in values:
            return found[0]
        used.add(found[1])
        return str(values[found[1]])

    return tuple(_KEY.sub(fill, word) for word in program), used


def _refuse_collisions(runs: Sequence[PlannedRun]) -> None:
    names = Counter(run.name.lower() for run in runs)  # some disks do not tell a from A
    for run in runs:
        if names[run.name.lower()] > 1:
            same = [show(dict(other.params), 120) for other in runs if other.name.lower() == run.name.lower()]
            raise ConfigError(f"{len(same)} runs would be called {run.name}: {'; '.join(same[:3])}; make them differ")
        if run.name.lower() == FOLDER:
            raise ConfigError(f"a run cannot be called {run.name!r}: the launcher keeps its own files there")


def _checked(runs: Sequence[PlannedRun], check: Check) -> tuple[PlannedRun, ...]:
    """Return the runs with their facts. A problem that many runs share is told once."""
    made: list[PlannedRun] = []
    problems: dict[str, list[str]] = {}
    for run in runs:
        try:
            made.append(replace(run, facts=check(run)))
        except ConfigError as error:
            problems.setdefault(str(error), []).append(run.name)
    if problems:
        lines = [
            f"{names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}: {problem}"
            for problem, names in problems.items()
        ]
        more = [f"... and {len(lines) - _SHOWN} more problems"] if len(lines) > _SHOWN else []
        raise ConfigError("\n".join(["nothing was started; these runs cannot be:", *lines[:_SHOWN], *more]))
    return tuple(made)


# ------------------------------------------------------------------------------------------------------- words


def override(key: str, value: Any) -> str:
    """Return ``key=value`` as ``load_config`` reads it back."""
    return f"{key}={_value_text(value)}"


def _value_text(value: Any) -> str:
    from rollmill.core.config.yaml import parse_value

    if isinstance(value, Path):
        value = str(value)
    if isinstance(value, tuple):
        value = list(value)
    try:
        if isinstance(value, str):
            try:
                plain = parse_value(value, "value") == value
            except ConfigError:
                plain = False
            if plain:
                return value
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{show(value)} cannot be written on a command line: {error}") from error
    # YAML takes some characters for line breaks, and JSON's pairs of escapes for two characters.
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in text)


def command_text(words: Iterable[str]) -> str:
    """Return words as a line for a shell."""
    return shlex.join(words)


# ------------------------------------------------------------------------------------------------------- names


def name_runs(settings: Sequence[Setting], alone: str) -> Iterable[tuple[str, str, Setting, Setting]]:
    """Yield (name, group, whole setting, what differs) of each run; ``alone`` names a group that differs in nothing."""
    differing = differing_keys(settings)
    for setting in settings:
        group = _shortened("_".join(name_parts(setting, differing)) or alone)
        params = {key: _storable(setting[key]) for key in (*differing, SEED) if key in setting}
        name = f"{group}_s{setting[SEED]}" if SEED in setting else group
        yield name, group, setting, params


def differing_keys(settings: Sequence[Setting]) -> list[str]:
    """Return keys whose values are not the same in all settings, the seed apart."""
    keys = dict.fromkeys(key for setting in settings for key in setting)
    return [key for key in keys if key != SEED and _differs(key, settings)]


def name_parts(setting: Setting, keys: Sequence[str]) -> list[str]:
    """Return what a name says about the values of these keys: ``["gamma-0.99", "CartPole-v1"]``."""
    labels = _labels(keys)
    return [part for key in keys if key in setting and (part := _part(key, setting[key], labels))]


def _storable(value: Any) -> Any:
    """Return paths as text: plans and reports are JSON."""
    return str(value) if isinstance(value, Path) else value


def _differs(key: str, settings: Sequence[Setting]) -> bool:
    first = settings[0]
    return any((key in s) != (key in first) or s.get(key) != first.get(key) for s in settings)


def _labels(keys: Sequence[str]) -> dict[str, str]:
    """Return the last word of each key, or as many as tell it from the others."""
    labels = {}
    for key in keys:
        words = key.split(".")
        ends = [".".join(words[-n:]) for n in range(1, len(words) + 1)]
        others = [other for other in keys if other != key]
        labels[key] = next((e for e in ends if not any(f".{o}".endswith(f".{e}") for o in others)), key)
    return labels


def _part(key: str, value: Any, labels: Mapping[str, str]) -> str:
    if key == CONFIG:
        return _plain(Path(str(value)).stem)
    if key in ("env", "env.id"):
        return _plain(str(value))
    return f"{_plain(labels[key])}-{_plain(_value_text(value))}"


def _plain(text: str) -> str:
    return re.sub(r"[^\w.-]+", "-", text).strip(".-") if not re.fullmatch(r"-?[\d.e+-]+", text) else text


def _shortened(name: str) -> str:
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[: LONGEST_NAME - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


# --------------------------------------------------------------------------------------------------- the total


@dataclass(frozen=True)
class Measured:
    """What runs are known to take, and from where that is known; None: not known."""

    frames_per_s: float | None = None
    run_bytes: float | None = None
    source: str = ""


@dataclass(frozen=True)
class Total:
    """What a plan comes to. None where nobody knows."""

    runs: int
    groups: int
    frames: int
    hours: float | None
    gb: float | None
    recording_gb: float
    source: str


def total_of(plan: Plan, parallel: int, measured: Measured) -> Total:
    """Return the sum over all runs; ``hours`` with ``parallel`` of them at the same time."""
    frames = sum(run.facts.frames for run in plan.runs)
    rate = plan.expect.frames_per_s or measured.frames_per_s
    size = plan.expect.run_mb * 1e6 or measured.run_bytes
    recording = sum(run.facts.recording_gb for run in plan.runs)
    unlimited = any(not run.facts.frames for run in plan.runs)
    at_once = min(parallel, len(plan.runs)) if parallel else len(plan.runs)
    return Total(
        runs=len(plan.runs),
        groups=len({run.group for run in plan.runs}),
        frames=frames,
        hours=None if unlimited or not rate else frames / rate / at_once / 3600,
        gb=None if not size else size * len(plan.runs) / 1e9,
        recording_gb=recording,
        source="expect in the description" if plan.expect.frames_per_s or plan.expect.run_mb else measured.source,
    )
