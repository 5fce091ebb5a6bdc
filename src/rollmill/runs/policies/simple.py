"""Policies that nobody has trained: random ones, and the user's own function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollmill.core.config.load import given_keys, load_config
from rollmill.core.fields import EnvSpec
from rollmill.core.protocols import Policy
from rollmill.envs.settings import EnvSettings
from rollmill.runs.policies.base import LoadedPolicy, LoadOptions
from rollmill.runs.settings.train import TrainConfig
from rollmill.sampling.policies.episode import EpisodeRandom, OwnPolicy, SmoothedRandom, find_factory
from rollmill.sampling.policies.random_controller import RandomController
from rollmill.sampling.schedule import EpisodeSchedule
from rollmill.sampling.settings import SamplingSettings

RANDOM, SMOOTHED, CONTROLLER = "random", "smoothed-random", "random-controller"
BUILT_IN = (RANDOM, SMOOTHED, CONTROLLER)
HOLD = 8
"""Steps that an action of smoothed-random lasts, in the mean, where nothing else is said."""


@dataclass(kw_only=True, eq=False, repr=False)
class BuiltInPolicy(LoadedPolicy):
    """Random play of one of three kinds."""

    kind: str = RANDOM
    hold: int = HOLD

    def build(self, spec: EnvSpec, schedule: EpisodeSchedule, seed: int, targets: Sequence[float] = ()) -> Policy:
        if self.kind == SMOOTHED:
            return SmoothedRandom(spec, schedule, self.hold)
        if self.kind == CONTROLLER:
            return RandomController(spec, schedule)
        return EpisodeRandom(spec, schedule)


@dataclass(kw_only=True, eq=False, repr=False)
class ScriptedPolicy(LoadedPolicy):
    """The user's ``module:callable`` (``sampling.policies.episode.OwnPolicy``)."""

    def build(self, spec: EnvSpec, schedule: EpisodeSchedule, seed: int, targets: Sequence[float] = ()) -> Policy:
        return OwnPolicy(spec, schedule, self.name)


def load_built_in(kind: str, how: LoadOptions) -> BuiltInPolicy:
    hold = how.hold or HOLD
    name = f"{kind}:{hold}" if kind == SMOOTHED else kind
    env, sampling = _place(how)
    return BuiltInPolicy(name=name, env=env, sampling=sampling, seed=how.seed, kind=kind, hold=hold)


def load_scripted(target: str, how: LoadOptions) -> ScriptedPolicy:
    """Load the user's own policy. Raises ConfigError unless there is such a callable."""
    find_factory(target)
    env, sampling = _place(how)
    return ScriptedPolicy(name=target, env=env, sampling=sampling, seed=how.seed)


def _place(how: LoadOptions) -> tuple[EnvSettings | None, SamplingSettings]:
    """Return the environment that the user has named, if any, and how it is sampled."""
    config = load_config(TrainConfig, how.files, how.overrides)
    named = ("env", "id") in given_keys(TrainConfig, how.files, how.overrides)
    return config.env if named else how.env, config.sampling
