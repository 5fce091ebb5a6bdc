"""A description of an experiment: in a Python module that makes one ``Experiment``, or in YAML. Nothing starts here.

::

    experiment: gammas                      Experiment(
    config: [cartpole]                          "gammas",
    settings: {stop.frames: 100_000}            config=["cartpole"],
    params:                                     settings={"stop.frames": 100_000},
      - grid:                                   params=ParamGrid({"learning.gamma": [0.98, 0.99]}),
          learning.gamma: [0.98, 0.99]          seeds=5,
    seeds: 5                                )
"""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import ModuleType
from typing import Any

from rollmill.core.config.load import load_config
from rollmill.core.config.schema import settings
from rollmill.core.errors import ConfigError
from rollmill.core.imports import look_here, run_file
from rollmill.core.run_folder import is_folder_name
from rollmill.core.text import nearest, show
from rollmill.launch.params import (
    DRAWS,
    Choice,
    Draw,
    ParamGrid,
    ParamList,
    Params,
    RandomSearch,
    product,
    total,
)
from rollmill.launch.search import Search
from rollmill.launch.settings import LaunchSettings
from rollmill.launch.verbs import SEED, VERBS, describe, has_run_folder, verb_of
from rollmill.pbt.settings import PbtSettings

PROGRAM = ("rollmill", "train")


@settings
class Expect:
    """What one run is known to take, for the forecast of a plan."""

    frames_per_s: float = 0.0
    """Frames per second of one run; 0: not known."""

    run_mb: float = 0.0
    """Megabytes one run leaves in its folder; 0: not known."""


@dataclass(frozen=True)
class Experiment:
    """Describes a set of runs by a name, by what they share, and by what they differ in."""

    name: str
    params: Params = field(default_factory=lambda: ParamList([{}]))
    seeds: int | Sequence[int] = 1
    """How many seeds from 0 on, or which; runs that differ in nothing else are a *group*. 0: parameters decide."""
    config: Sequence[str | Path] = ()
    """YAML files that all runs share."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings that all runs share, by dotted key."""
    program: Sequence[str] = PROGRAM
    """``rollmill`` with a verb that can be launched (``launch.verbs.VERBS``: train, offline, collect, eval, match and
    the stages of world), and words of its own. ``{KEY}`` in a word stands for a setting or parameter. A program of your
    own takes the same words as train: KEY=VALUE, --config FILE, --resume, --overwrite."""
    commands: Sequence[Experiment] = ()
    """Several commands instead of one: each has parameters, seeds and a program of its own. Its name begins the names
    of its runs."""
    search: Search | None = None
    """Choose the parameters of each run by what earlier ones have reached, instead of ``params``."""
    population: PbtSettings | None = None
    """Train so many members side by side, whose settings are tuned while they learn (``pbt``), each as a run."""
    shuffle: int | None = None
    """Start runs in a random order, drawn by this seed: what ends early is then spread over the whole grid."""
    launch: Mapping[str, Any] = field(default_factory=dict)
    """Values of ``LaunchSettings``, nested as in YAML."""
    expect: Expect = field(default_factory=Expect)

    def __post_init__(self) -> None:
        if not is_folder_name(self.name):
            raise ConfigError(f"experiment: {show(self.name)} cannot be the name of a folder")
        if not self.program:
            raise ConfigError(f"experiment {self.name}: program is empty")
        verb = describe(self.program)
        if verb is None:
            known = ", ".join(" ".join(verb) for verb in VERBS)
            raise ConfigError(f"experiment {self.name}: `{' '.join(self.program)}` cannot be launched; {known} can")
        if not verb.seed and len(self.seed_list()) > 1:
            raise ConfigError(f"experiment {self.name}: `{' '.join(self.program)}` has no seed; leave out seeds")
        self._check_commands()
        self._check_search()
        self._check_population()
        if isinstance(self.config, str | Path):
            raise ConfigError(f"experiment {self.name}: config: expected a list of files; write [{self.config!r}]")
        if not isinstance(self.params, Params):
            raise ConfigError(f"experiment {self.name}: params: expected a ParamGrid or the like, got {self.params!r}")
        if isinstance(self.seeds, int) and self.seeds < 0:
            raise ConfigError(f"experiment {self.name}: seeds={self.seeds}: how many seeds cannot be negative")
        if not isinstance(self.seeds, int) and len(set(self.seeds)) != len(self.seeds):
            raise ConfigError(f"experiment {self.name}: seeds: a number stands there twice: {show(self.seeds)}")

    def _check_commands(self) -> None:
        if not self.commands:
            return
        names = [command.name for command in self.commands]
        if len(set(names)) < len(names):
            raise ConfigError(f"experiment {self.name}: two commands have one name: {', '.join(names)}")
        own = (self.seeds, *map(tuple, (self.config, self.settings, self.program)), list(self.params))
        if own != (1, (), (), PROGRAM, [{}]):
            raise ConfigError(
                f"experiment {self.name}: with commands, each of them has params, seeds, config, settings and program"
            )
        if any(command.commands or command.launch or command.shuffle is not None for command in self.commands):
            raise ConfigError(f"experiment {self.name}: a command has no commands, launch or shuffle of its own")

    def _check_search(self) -> None:
        if self.search is None:
            return
        if self.commands or self.shuffle is not None or list(self.params) != [{}]:
            raise ConfigError(f"experiment {self.name}: a search chooses the runs: no params, commands or shuffle")
        if not has_run_folder(self.program):
            raise ConfigError(f"experiment {self.name}: a search needs runs with metrics: train or offline")
        if twice := sorted(self.search.draws.keys() & self.settings.keys()):
            raise ConfigError(f"{', '.join(twice)}: stands under settings and is searched; which one is meant?")

    def _check_population(self) -> None:
        if self.population is None:
            return
        others = self.search is not None or self.commands or self.shuffle is not None or list(self.params) != [{}]
        if others:
            raise ConfigError(f"experiment {self.name}: a population has no params, search, commands or shuffle")
        if verb_of(self.program) != ("train",):
            raise ConfigError(f"experiment {self.name}: members of a population are trained by `rollmill train`")
        if self.population.members < 2:
            raise ConfigError(f"experiment {self.name}: population: members={self.population.members}: at least 2")
        if self.population.replay is not None or self.population.exchange is not None:
            raise ConfigError(f"experiment {self.name}: population: replay, exchange and member are no part of it")
        if fixed := sorted(key for key in self.settings if key == SEED or key.split(".")[0] == "pbt"):
            raise ConfigError(f"experiment {self.name}: settings: {fixed[0]}: say it under population, or by seeds")
        if len(self.seed_list()) != 1:
            raise ConfigError(f"experiment {self.name}: a population has one seed; for others make others: seeds: [7]")

    def seed_list(self) -> Sequence[int]:
        """Return the seeds; none where the parameters set them."""
        return range(self.seeds) if isinstance(self.seeds, int) else self.seeds

    def all_params(self) -> Params:
        """Return the parameters, times the seeds."""
        seeds = self.seed_list()
        return self.params * ParamGrid({SEED: seeds}) if seeds else self.params


def load_experiment(source: str) -> Experiment:
    """Load the experiment that ``grid.yaml``, ``grid.py``, ``package.module``, ``grid.py:NAME`` describes."""
    if source.endswith((".yaml", ".yml")):
        return read_experiment(Path(source))
    place, colon, name = source.rpartition(":")
    module = _load_module(place if colon else source)
    found = {key: value for key, value in vars(module).items() if isinstance(value, Experiment)}
    if colon:
        if name not in found:
            hint = nearest(name, found)
            raise ConfigError(f"{place}: has no Experiment called {name!r}{f'; {hint}' if hint else ''}")
        return found[name]
    unique = {id(value): value for value in found.values()}
    if not unique:
        raise ConfigError(f"{source}: defines no Experiment (from rollmill.launch.experiment)")
    if len(unique) > 1:
        raise ConfigError(f"{source}: defines several experiments; choose one: {source}:{sorted(found)[0]}, ...")
    return next(iter(unique.values()))


# ------------------------------------------------------------------------------------------------------ Python


def _load_module(source: str) -> ModuleType:
    try:
        if source.endswith(".py"):
            path = Path(source)
            if not path.is_file():
                raise ConfigError(f"{path}: there is no such description")
            return run_file(path.resolve(), "description")
        if not all(word.isidentifier() for word in source.split(".")):
            raise ConfigError(f"{source!r}: a description is a YAML file, path/to/file.py or package.module")
        look_here()
        return importlib.import_module(source)
    except ConfigError:
        raise
    except ModuleNotFoundError as error:
        if error.name and f"{source}.".startswith(f"{error.name}."):
            raise ConfigError(
                f"no module named {source!r} (searched: the current folder and sys.path); "
                "a description is a YAML file, path/to/file.py or package.module"
            ) from error
        raise _broken(source, error) from error
    except (Exception, SystemExit) as error:
        raise _broken(source, error) from error  # whatever the user's own code raises is about the description


def _broken(source: str, error: Exception | SystemExit) -> ConfigError:
    frames = traceback.extract_tb(error.__traceback__)
    line = error.lineno if isinstance(error, SyntaxError) else next((f.lineno for f in reversed(frames)), None)
    where = frames[-1].filename if frames and not isinstance(error, SyntaxError) else source
    return ConfigError(f"{source}: cannot be read: {type(error).__name__}: {error} ({where}, line {line})")


# -------------------------------------------------------------------------------------------------------- YAML


@settings
class _Command:
    """The keys of one of several commands."""

    name: str
    config: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    params: tuple[dict[str, Any], ...] = ()
    seeds: int | tuple[int, ...] = 1
    program: tuple[str, ...] = PROGRAM


@settings
class _Keys:
    """Keys of a description in YAML."""

    experiment: str
    """Its name, and that of the folder of its runs."""

    config: tuple[str, ...] = ()
    """Files with settings that all runs share."""

    settings: dict[str, Any] = field(default_factory=dict)
    """Settings that all runs share, by dotted key."""

    params: tuple[dict[str, Any], ...] = ()
    """What the runs differ in: ``grid``, ``list``, ``random`` or ``sum`` in each entry; entries are multiplied."""

    seeds: int | tuple[int, ...] = 1
    """How many seeds from 0 on, or which. 0: parameters decide."""

    program: tuple[str, ...] = PROGRAM
    """``rollmill`` with a verb and words of it, or a program of your own."""

    commands: tuple[_Command, ...] = ()
    """Several commands instead of one, each with a name, params, seeds, settings and a program of its own."""

    search: dict[str, Any] = field(default_factory=dict)
    """Choose the parameters of each run by what earlier ones have reached, instead of ``params``."""

    shuffle: int | None = None
    """Start runs in a random order, drawn by this seed."""

    expect: Expect = field(default_factory=Expect)
    """What one run is known to take, for the forecast of a plan."""


@settings
class _File(_Keys):
    """All keys, as a file is read: what stands below ``population`` and ``launch`` is looked at later."""

    population: dict[str, Any] = field(default_factory=dict)
    launch: dict[str, Any] = field(default_factory=dict)


@settings
class Description(_Keys):
    """All keys with what stands below them: for explanations and for editors."""

    population: PbtSettings | None = None
    """Train so many members side by side, whose settings are tuned while they learn, each as a run."""

    launch: LaunchSettings = field(default_factory=LaunchSettings)
    """How runs are started."""


def read_experiment(path: Path) -> Experiment:
    """Return the experiment of a YAML file."""
    if not path.is_file():
        raise ConfigError(f"{path}: there is no such description")
    file = load_config(_File, [path], [])
    try:
        return Experiment(
            name=file.experiment,
            **_common(file),
            commands=tuple(Experiment(name=command.name, **_common(command)) for command in file.commands),
            search=_search(file.search) if file.search else None,
            population=_population(file.population) if file.population else None,
            shuffle=file.shuffle,
            launch=file.launch,
            expect=file.expect,
        )
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _common(part: _File | _Command) -> dict[str, Any]:
    """Return what a description says about a command, the only one or one of several."""
    params = {"params": product([_params(entry) for entry in part.params])} if part.params else {}
    given = {"seeds": part.seeds, "config": part.config, "settings": flat(part.settings), "program": part.program}
    return {**params, **given}


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return ``{"learning": {"gamma": 1}}`` as ``{"learning.gamma": 1}``; keys that are dotted already stay."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found


def _params(part: Mapping[str, Any]) -> Params:
    """Read one entry of ``params``: a mapping with a single key that says what it is."""
    kinds = {"grid": _grid, "list": _list, "random": _random, "sum": _sum}
    if len(part) != 1 or next(iter(part)) not in kinds:
        raise ConfigError(f"params: expected one of {', '.join(kinds)} in each entry, got {show(dict(part))}")
    ((kind, value),) = part.items()
    return kinds[kind](value)


def _grid(value: Any) -> Params:
    if not isinstance(value, Mapping):
        raise ConfigError(f"grid: expected keys with lists of values, got {show(value)}")
    return ParamGrid(flat(value))


def _list(value: Any) -> Params:
    if not isinstance(value, list):
        raise ConfigError(f"list: expected a list of mappings, got {show(value)}")
    return ParamList([flat(item) if isinstance(item, Mapping) else item for item in value])


def _sum(value: Any) -> Params:
    """Read a sum: each entry is a list of factors, or one of them."""
    if not isinstance(value, list) or not value:
        raise ConfigError(f"sum: expected a list of parameter sets, got {show(value)}")
    return total([product([_params(p) for p in (item if isinstance(item, list) else [item])]) for item in value])


def _search(value: Mapping[str, Any]) -> Search:
    known = {f.name for f in fields(Search)} - {"draws"} | {"params"}
    for key in value:
        if key not in known:
            raise ConfigError(
                f"search: no such key: {key}; {nearest(key, known) or 'known: ' + ', '.join(sorted(known))}"
            )
    if not isinstance(value.get("params"), Mapping):
        raise ConfigError(
            "search: params: expected keys with what to draw, such as learning.gamma: {uniform: [0.9, 1]}"
        )
    draws = {key: _draw(key, draw) for key, draw in value["params"].items()}
    try:
        return Search(draws, **{key: given for key, given in value.items() if key != "params"})
    except TypeError as error:
        raise ConfigError(f"search: {error}") from error


def _population(value: Mapping[str, Any]) -> PbtSettings:
    try:
        return load_config(PbtSettings, [], [], base=value)
    except ConfigError as error:
        raise ConfigError(f"population: {error}") from error


def describe_search(experiment: Experiment) -> dict[str, Any]:
    """Return what is needed to plan more trials of a search, as plain values."""
    search = experiment.search
    assert search is not None
    plain = {f.name: getattr(search, f.name) for f in fields(search) if f.name != "draws"}
    kinds = {kind: name for name, kind in DRAWS.items()}
    params = {
        key: {"choice": list(draw.values)} if isinstance(draw, Choice) else {kinds[type(draw)]: [draw.low, draw.high]}
        for key, draw in search.draws.items()
    }
    return {
        "name": experiment.name,
        "config": [str(file) for file in experiment.config],
        "settings": dict(experiment.settings),
        "program": list(experiment.program),
        "seeds": list(experiment.seed_list()),
        "search": {**plain, "params": params},
    }


def described_search(value: Mapping[str, Any]) -> Experiment:
    """Return the experiment that ``describe_search`` has described."""
    return Experiment(**{**value, "search": _search(value["search"])})


def _random(value: Any) -> Params:
    if not isinstance(value, Mapping) or not isinstance(value.get("samples"), int):
        raise ConfigError(f"random: expected samples: N and keys to draw, got {show(value)}")
    seed = value.get("seed", 0)
    if not isinstance(seed, int):
        raise ConfigError(f"random: seed: expected an integer, got {show(seed)}")
    draws = {key: _draw(key, draw) for key, draw in value.items() if key not in ("samples", "seed")}
    return RandomSearch(draws, value["samples"], seed)


def _draw(key: str, value: Any) -> Draw:
    kinds = ", ".join([*DRAWS, "choice"])
    problem = f"random: {key}: expected one of {kinds} with its values, such as {{log_uniform: [1e-4, 1e-2]}}"
    if not isinstance(value, Mapping) or len(value) != 1:
        raise ConfigError(f"{problem}; got {show(value)}")
    ((kind, values),) = value.items()
    if kind == "choice" and isinstance(values, list):
        return Choice(values)
    numbers = isinstance(values, list) and len(values) == 2 and all(isinstance(v, int | float) for v in values)
    if kind not in DRAWS or not numbers:
        raise ConfigError(f"{problem}; got {show(dict(value))}")
    if kind == "integers" and not all(float(v).is_integer() for v in values):
        raise ConfigError(f"random: {key}: integers are needed, got {show(values)}")
    return DRAWS[kind](*(map(int, values) if kind == "integers" else values))
