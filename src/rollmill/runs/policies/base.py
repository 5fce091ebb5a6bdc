"""What every policy that can play has in common, wherever it comes from.

``load_policy`` (``runs.policies.load``) gives one of these. A person asks it with ``reset`` and ``act``; an evaluation
or a collection lets it ``build`` what acts for the lanes of a sampler.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from rollmill.core.errors import ConfigError
from rollmill.core.fields import PREVIOUS_ACTION, PREVIOUS_REWARD, Array, EnvSpec, Obs
from rollmill.core.process_scope import process_scope
from rollmill.core.protocols import ActRequest, Policy, PolicyOutput
from rollmill.core.seeds import Seeds
from rollmill.envs.around import shown_action
from rollmill.envs.make import check_env_settings
from rollmill.envs.probe import Probe
from rollmill.envs.settings import EnvSettings
from rollmill.runs.settings.train import TrainConfig
from rollmill.runs.trust import load_saved
from rollmill.sampling.schedule import EpisodeSchedule
from rollmill.sampling.settings import SamplingSettings

PROBE_SECONDS = 120.0
RUN_BLOCKS = frozenset(item.name for item in fields(TrainConfig))
PREVIOUS = (PREVIOUS_ACTION, PREVIOUS_REWARD)
"""Fields of the observation that need not be given to ``act``."""

BLOCKS = ("env", "sampling", "model", "learning")
"""Blocks of settings that a policy at play reads."""


def refuse_idle(words: Sequence[str], what: str, also: Sequence[str] = ()) -> None:
    """Raise ConfigError for a word ``KEY=VALUE`` of a block that nothing reads.

    ``what``: what is done here instead of a training, for the message.
    """
    for word in words:
        block = re.split(r"[.=]", word, maxsplit=1)[0]
        if block in RUN_BLOCKS and block not in (*BLOCKS, *also):
            raise ConfigError(f"{word}: settings of {block!r} mean nothing to {what}")


@dataclass(frozen=True)
class LoadOptions:
    """What a user can say about the policy that is to be loaded; see ``load_policy``."""

    env: EnvSettings | None = None
    """Where it is to play, instead of its own environment and whatever ``overrides`` say about that."""
    files: Sequence[Path] = ()
    """YAML files with settings, below ``overrides``."""
    overrides: Sequence[str] = ()
    machine: bool = True
    """Whether the settings for the machine that it was trained on apply, too (``sampling``)."""
    best: bool = False
    member: int | None = None
    targets: tuple[float, ...] = ()
    deterministic: bool | None = None
    device: str | None = None
    last: bool = False
    encoder: Path | None = None
    dynamics: Path | None = None
    hold: int | None = None
    seed: int = 1
    trust_code: bool = False

    def settings(self, saved: Mapping[str, Any], path: Path) -> TrainConfig:
        """Return settings that a file holds, below what the user says; code that only the file names is refused."""
        if not self.machine:
            saved = {name: block for name, block in saved.items() if name != "sampling"}
        if self.env is not None:  # its own is not built, so it does not matter what that names
            saved = {**saved, "env": {"policies": saved["env"].get("policies", [])}}
        given: dict[str, Any] = {"files": self.files, "overrides": self.overrides}
        config = load_saved(TrainConfig, saved, path, **given, trust_code=self.trust_code)
        return config if self.env is None else replace(config, env=replace(self.env, policies=config.env.policies))


@dataclass(kw_only=True, eq=False, repr=False)
class LoadedPolicy:
    """A policy and all that playing it needs."""

    name: str
    """Short and the same on every machine: ``<run>/<checkpoint>``, ``random``, ``module:callable``."""
    env: EnvSettings | None = None
    """The environment it was made for, or was loaded for; None: any that fits."""
    spec: EnvSpec | None = None
    """What it sees and does there; None: only the environment can tell."""
    probe: bool = True
    """Whether the environment must be looked at, as it may be another than the one the policy was made in."""
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    """Time limits and the like of the run that made it."""
    path: Path | None = None
    """Its file."""
    frames: int = 0
    """How far it was trained, in ``unit``."""
    unit: str = "frames"
    version: int = 0
    targets: tuple[float, ...] = ()
    """Returns that it is asked for; none: it is not asked."""
    asked: bool = False
    """Whether it has to be asked for a return."""
    deterministic: bool = False
    """Whether it takes the most likely action instead of sampling one."""
    variant: str = ""
    """Which of several in its file it is, where the user has chosen another than the usual one."""
    note: str = ""
    """What a reader of its results should know."""
    seed: int = 1
    """Of the actions that ``act`` gives."""
    _acting: _Acting | None = field(default=None, init=False, repr=False)

    def __repr__(self) -> str:
        trained = f", {self.frames:,} {self.unit}" if self.frames else ""
        return f"<{type(self).__name__} {self.name}{f' for {self.env.id}' if self.env is not None else ''}{trained}>"

    # -- what the kinds of policies do ----------------------------------------------------------

    def build(self, spec: EnvSpec, schedule: EpisodeSchedule, seed: int, targets: Sequence[float] = ()) -> Policy:
        """Build what acts for the ``schedule.envs * spec.agents`` lanes of a sampler; ``targets``: one per lane."""
        raise NotImplementedError

    def check(self, spec: EnvSpec) -> None:
        """Raise ConfigError unless it can play in an environment with this spec."""

    @property
    def run(self) -> str:
        """The name of its run; of a policy without one, its own."""
        if self.path is None:
            return self.name
        return self.name.rpartition("/")[0] or self.name.removesuffix(".ckpt")

    def require_targets(self) -> tuple[float, ...]:
        """Return ``targets``. Raises ConfigError if it has to be asked for a return and none is known."""
        if self.asked and not self.targets:
            raise ConfigError(f"{self.name} was never judged, so no targets are known: give --targets")
        return self.targets

    def require_env(self) -> EnvSettings:
        """Return ``env``, checked as far as that goes without building it. Raises ConfigError if there is none."""
        if self.env is None:
            raise ConfigError(f"{self.name}: which environment? Name it with env=...")
        check_env_settings(self.env)
        return self.env

    # -- step by step ---------------------------------------------------------------------------

    def reset(self, lanes: ArrayLike | None = None) -> None:
        """Forget what was seen: the next observation begins an episode.

        ``lanes`` (bool ``[n]``): only in these lanes of a batch.
        """
        if self._acting is not None:
            self._acting.begin(lanes)

    def act(self, obs: Any, reward: ArrayLike = 0.0) -> Array:
        """Return the action for an observation, or the actions ``[n, ...]`` for ``n`` of them side by side.

        ``obs``: as ``spec.observation`` says, an array or a dict of them. Each of the ``n`` lanes has a memory of its
        own, which ``reset`` clears; how many there are is settled by the first call. ``reward``: what came of the last
        action; policies that are asked for a return, or see the last reward (``env.previous_reward``), need it. The
        last action need not be given. Actions are as ``spec.action`` says: choices count from 0.
        """
        spec = self.require_spec()
        known = {name for name in PREVIOUS if not (isinstance(obs, Mapping) and name in obs)}
        seen, single = _batch(obs, replace(spec, observation=tuple(f for f in spec.observation if f.name not in known)))
        count = len(next(iter(seen.values())))
        if self._acting is None:
            self._acting = _Acting(self, spec, count)
        action = self._acting.decide(seen, np.full(count, reward, np.float32)).action
        chosen: Array = action[0] if single else action
        return chosen

    def fit(self, spec: EnvSpec) -> None:
        """Take over the spec of the environment that it is asked about. Raises ConfigError if it cannot play there."""
        self.check(spec)
        self.spec = spec

    def require_spec(self) -> EnvSpec:
        """Return ``spec``; where only the environment can tell, that is looked at."""
        if self.spec is None:
            env = self.require_env()
            with process_scope() as environment:
                self.fit(Probe(env, environment).result(PROBE_SECONDS))
        assert self.spec is not None
        return self.spec


def told_apart(policies: Sequence[LoadedPolicy]) -> list[tuple[str, str]]:
    """Return (what tables call it, a name for files) of each policy.

    Tables say the run, with the checkpoint where there are several; files both, with a number where it takes one: runs
    of one name in different folders would write the same files.
    """
    runs = {policy.run: {str(other.path) for other in policies if other.run == policy.run} for policy in policies}
    taken: dict[str, list[str]] = {}
    named = []
    for policy in policies:
        name, path = policy.name.removesuffix(".ckpt"), str(policy.path and policy.path.absolute())
        paths = taken.setdefault(name, [])
        if path not in paths:
            paths.append(path)
        number = f"-{paths.index(path) + 1}" if paths.index(path) else ""
        named.append((policy.run if len(runs[policy.run]) == 1 else name + number, name + number))
    short = [_without_folders(shown) for shown, _ in named]
    return [
        (brief if short.count(brief) == 1 else shown, name) for brief, (shown, name) in zip(short, named, strict=True)
    ]


def _without_folders(name: str) -> str:
    """Return ``players.py:bold`` for ``/some/where/players.py:bold``; other names as they are."""
    file, colon, attribute = name.partition(":")
    return f"{Path(file).name}:{attribute}" if colon and file.endswith(".py") else name


class _Acting:
    """A policy at work outside of a sampler: lanes, and where each of them stands."""

    def __init__(self, policy: LoadedPolicy, spec: EnvSpec, lanes: int) -> None:
        envs, rest = divmod(lanes, spec.agents)
        if rest:
            raise ConfigError(f"{spec.name} has {spec.agents} agents: {lanes} observations cannot be theirs")
        seeds = Seeds(policy.seed)
        schedule = EpisodeSchedule(seeds.branch("evaluation"), envs)
        target = max(policy.require_targets(), default=0.0)
        self._spec = spec
        self._before = [f for f in spec.observation if f.name in PREVIOUS]
        self._action = np.zeros((lanes, *spec.action.field.shape), spec.action.field.dtype)
        self._policy = policy.build(spec, schedule, seeds.branch("actions").integer(), [target] * lanes)
        self._first = np.ones(lanes, bool)
        self._episode = np.zeros(lanes, np.int64)

    def begin(self, lanes: ArrayLike | None) -> None:
        chosen = ~self._first if lanes is None else np.asarray(lanes, bool) & ~self._first
        self._episode[chosen] += 1
        self._first |= chosen

    def decide(self, obs: Obs, reward: Array) -> PolicyOutput:
        if len(reward) != len(self._first):
            raise ConfigError(f"{len(reward)} observations, there were {len(self._first)}: load the policy once more")
        obs = {**self._what_came_before(reward), **obs}
        output = self._policy.act(ActRequest.outside(self._first.copy(), obs, self._episode, reward))
        self._first[:] = False
        self._action[:] = output.action
        return output

    def _what_came_before(self, reward: Array) -> Obs:
        """Return the fields of the last action and its reward; zeros where an episode begins."""
        found: Obs = {}
        for shown in self._before:
            rows = found[shown.name] = np.zeros((len(self._first), *shown.shape), shown.dtype)
            if shown.name == PREVIOUS_ACTION:
                shown_action(self._spec.action, self._action, rows)
            else:
                rows[:, 0] = reward
            rows[self._first] = 0
        return found


def _batch(obs: Any, spec: EnvSpec) -> tuple[Obs, bool]:
    """Return observations as ``[n, *shape]`` each, and whether there was a single one."""
    given = obs if isinstance(obs, Mapping) else {spec.observation[0].name: obs}
    names = [part.name for part in spec.observation]
    if sorted(given) != sorted(names):
        raise ConfigError(f"{spec.name}: observations are a dict of {', '.join(names)}, not of {', '.join(given)}")
    arrays = {part.name: np.asarray(given[part.name], part.dtype, order="C") for part in spec.observation}
    single = all(arrays[part.name].shape == part.shape for part in spec.observation)
    if single:
        arrays = {name: array[None] for name, array in arrays.items()}
    for part in spec.observation:
        if arrays[part.name].shape[1:] != part.shape:
            shape = np.shape(given[part.name])
            raise ConfigError(f"{spec.name}: {part.name} has shape {shape}, expected {part.shape}, or [n, *shape]")
    if len({len(array) for array in arrays.values()}) > 1:
        raise ConfigError(f"{spec.name}: the parts of the observation are of different numbers of lanes")
    return arrays, single
