"""A search for good settings: every trial is chosen by what the ones before it have reached. Needs Optuna.

A description says what is drawn and what counts; a *trial* is one choice of settings, run with every seed. Trials are
written down one by one (``records``), and the sampler is made anew from them whenever it is asked. So nothing lives in
a process or a database of its own: whoever continues a search knows as much as who began it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from rollmill.core.errors import ConfigError, MissingExtraError
from rollmill.launch.params import Choice, Draw, Integers, LogUniform, Setting, check_key, rounded
from rollmill.launch.records import Trial

Sampler = Literal["tpe", "random"]
Pruner = Literal["none", "median", "halving"]
PARTS = 10
"""A run is judged after each of so many equal parts."""


@dataclass(frozen=True)
class Search:
    """What is drawn, how often, and what counts."""

    draws: Mapping[str, Draw]
    """Keys and what their values are drawn from."""
    trials: int = 20
    metric: str = "episode/return"
    """Its mean over the last tenth of the frames counts."""
    lower_is_better: bool = False
    sampler: Sampler = "tpe"
    """tpe: near what was good so far (Tree-structured Parzen estimator); random."""
    pruner: Pruner = "none"
    """median: end trials that are below the median of the others at the same place; halving: keep the best third at
    places that lie ever further apart."""
    startup: int = 10
    """So many trials are random and none of them is ended early."""
    seed: int = 0
    parallel: int = 0
    """Trials at the same time; 0: as many as the back end has room for."""

    def __post_init__(self) -> None:
        for key in self.draws:
            check_key(key)
        if not self.draws:
            raise ConfigError("search: params: at least one key to draw is needed")
        if min(self.trials, self.startup) < 1 or self.parallel < 0:
            raise ConfigError("search: trials and startup must be at least 1, parallel not negative")
        for name, known in (("sampler", get_args(Sampler)), ("pruner", get_args(Pruner))):
            if getattr(self, name) not in known:
                raise ConfigError(f"search: {name}={getattr(self, name)!r}: expected one of {', '.join(known)}")


def suggest(search: Search, trials: Sequence[Trial]) -> Setting:
    """Return the settings of the next trial."""
    optuna = _optuna()
    if search.sampler == "tpe":
        sampler: Any = optuna.samplers.TPESampler(
            seed=search.seed + len(trials), n_startup_trials=search.startup, constant_liar=True
        )
    else:
        sampler = optuna.samplers.RandomSampler(seed=search.seed + len(trials))
    study = _study(search, trials, sampler)
    asked = study.ask({key: _distribution(draw) for key, draw in search.draws.items()})
    return {key: _value(draw, asked.params[key]) for key, draw in search.draws.items()}


def hopeless(search: Search, trials: Sequence[Trial], trial: Trial) -> bool:
    """Return whether the pruner would end a running trial, by what it and the others have reached after each part."""
    if search.pruner == "none" or all(value is None for value in trial.parts):
        return False
    optuna = _optuna()
    if search.pruner == "median":
        pruner: Any = optuna.pruners.MedianPruner(n_startup_trials=search.startup, n_warmup_steps=1)
    elif sum(t.state == "finished" for t in trials) < search.startup:
        return False
    else:
        pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3)
    study = _study(search, trials)
    frozen = next(t for t, mine in zip(study.get_trials(deepcopy=True), trials) if mine.number == trial.number)
    return bool(pruner.prune(study, frozen))


def best(search: Search, trials: Sequence[Trial]) -> Trial | None:
    """Return the finished trial with the best value."""
    finished = [trial for trial in trials if trial.state == "finished" and trial.value is not None]
    choose = min if search.lower_is_better else max
    return choose(finished, key=lambda trial: trial.value or 0.0, default=None)


def _study(search: Search, trials: Sequence[Trial], sampler: Any = None) -> Any:
    """Return a study of Optuna's with all trials so far."""
    optuna = _optuna()
    study = optuna.create_study(
        study_name="search", direction="minimize" if search.lower_is_better else "maximize", sampler=sampler
    )
    states = {"running": "RUNNING", "finished": "COMPLETE", "pruned": "PRUNED", "failed": "FAIL"}
    distributions = {key: _distribution(draw) for key, draw in search.draws.items()}
    for trial in trials:
        try:
            params = {key: _drawn(draw, trial.params[key]) for key, draw in search.draws.items()}
            study.add_trial(
                optuna.trial.create_trial(
                    state=optuna.trial.TrialState[states[trial.state]],
                    value=trial.value if trial.state == "finished" else None,
                    params=params,
                    distributions=distributions,
                    intermediate_values={part: v for part, v in enumerate(trial.parts, 1) if v is not None},
                )
            )
        except (KeyError, ValueError) as error:
            raise ConfigError(
                f"search: trial {trial.number} ({dict(trial.params)}) does not lie in what is searched now "
                f"({error}); give the experiment another name"
            ) from error
    return study


def _distribution(draw: Draw) -> Any:
    distributions = _optuna().distributions
    if isinstance(draw, Choice):
        return distributions.CategoricalDistribution(range(len(draw.values)))
    if isinstance(draw, Integers):
        return distributions.IntDistribution(draw.low, draw.high)
    return distributions.FloatDistribution(draw.low, draw.high, log=isinstance(draw, LogUniform))


def _value(draw: Draw, drawn: Any) -> Any:
    """Return what a run is told: of a choice the value, a float with as many digits as a name has room for."""
    if isinstance(draw, Choice):
        return draw.values[drawn]
    return drawn if isinstance(draw, Integers) else min(max(rounded(drawn), draw.low), draw.high)


def _drawn(draw: Draw, value: Any) -> Any:
    return list(draw.values).index(value) if isinstance(draw, Choice) else value


def part_means(frames: Sequence[float], values: Sequence[float], total: int) -> list[float | None]:
    """Return the mean of a metric in each part that a run has been through; of none, that of the part before."""
    means: list[float | None] = []
    for part in range(1, PARTS + 1):
        start, end = total * (part - 1) / PARTS, total * part / PARTS
        if not frames or frames[-1] < end:
            break
        found = [v for f, v in zip(frames, values) if start < f <= end]
        means.append(sum(found) / len(found) if found else means[-1] if means else None)
    return means


def usable(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _optuna() -> Any:
    try:
        import optuna
    except ModuleNotFoundError as error:
        raise MissingExtraError('a search needs Optuna: pip install "rollmill[optuna]"') from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    return optuna
