"""What is put around an environment by settings alone: fields for what was done before, and what ``info`` says.

``PreviousEnv`` shows the last action and its reward as fields of the observation, so they are in whatever reads
observations: acting, learning, evaluation, recordings, exports. ``InfoEnv`` writes fields that no network reads.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from rollmill.core.errors import ConfigError
from rollmill.core.fields import INFO, PREVIOUS_ACTION, PREVIOUS_REWARD, ActionSpec, Array, EnvSpec, Field, Obs
from rollmill.core.protocols import Env, StepReturn
from rollmill.envs.info import LOOSE, TEXT, flat, info_field, info_fields, word_for, write_info
from rollmill.envs.settings import EnvSettings

log = logging.getLogger("rollmill")


def around(env: Env, settings: EnvSettings) -> Env:
    """Return the environment with all that the settings add to it."""
    try:
        if settings.info:
            env = InfoEnv(env, settings)
        if settings.previous_action or settings.previous_reward:
            env = PreviousEnv(env, settings)
    except ConfigError:
        env.close()
        raise
    return env


def without_around(spec: EnvSpec, settings: EnvSettings) -> EnvSpec:
    """Return what the environment alone promises."""
    added = _added(settings)
    return replace(spec, observation=tuple(f for f in spec.observation if f.name not in added), info=())


def _added(settings: EnvSettings) -> tuple[str, ...]:
    pairs = ((PREVIOUS_ACTION, settings.previous_action), (PREVIOUS_REWARD, settings.previous_reward))
    return tuple(name for name, on in pairs if on)


def previous_field(name: str, action: ActionSpec) -> Field:
    """Return the field for the last action (choices as zeros and ones, numbers as they are), or for its reward."""
    if name == PREVIOUS_REWARD:
        return Field(name, "float32", (1,))
    if action.discrete:
        return Field(name, "uint8", (action.mask_size,))
    numbers = len(action.low) if action.kind == "mixed" else math.prod(action.shape)
    return Field(name, "float32", (action.mask_size + numbers,))


def shown_action(spec: ActionSpec, action: Array, out: Array) -> None:
    """Write actions ``[n, ...]`` into ``out`` ``[n, size]``, as ``previous_field`` says."""
    rows = action.reshape(len(action), -1)
    out[...] = 0
    begin = 0
    for column, count in enumerate(spec.nvec):
        out[np.arange(len(rows)), begin + rows[:, column].astype(np.int64)] = 1
        begin += count
    if not spec.discrete:
        out[:, begin:] = rows[:, len(spec.nvec) :]


class Around:
    """An ``Env`` around another; what it does not know by itself, that one does (``engine_pid``, for instance)."""

    def __init__(self, env: Env) -> None:
        self.env = env

    def render(self) -> Array | None:
        return self.env.render()

    def close(self) -> None:
        self.env.close()

    def __getattr__(self, name: str) -> Any:
        if name == "env":
            raise AttributeError(name)
        return getattr(self.env, name)


class PreviousEnv(Around):
    """Shows the last action and its reward as fields; both are zero at the start of an episode."""

    def __init__(self, env: Env, settings: EnvSettings) -> None:
        super().__init__(env)
        self._names = _added(settings)
        taken = next((field.name for field in env.spec.observation if field.name in self._names), None)
        if taken is not None:
            raise ConfigError(f"env.{taken}: {settings.id} has a field {taken!r} of its own")
        fields = tuple(previous_field(name, env.spec.action) for name in self._names)
        self.spec = replace(env.spec, observation=(*env.spec.observation, *fields))

    def reset(self, seed: int, obs: Obs) -> None:
        self.env.reset(seed, obs)
        for name in self._names:
            obs[name][...] = 0

    def step(self, action: Array, obs: Obs) -> StepReturn:
        came = self.env.step(action, obs)
        if PREVIOUS_ACTION in self._names:
            shown_action(self.spec.action, action, obs[PREVIOUS_ACTION])
        if PREVIOUS_REWARD in self._names:
            obs[PREVIOUS_REWARD][:, 0] = came[0]
        return came


class InfoEnv(Around):
    """Writes what ``info`` says into fields that no network reads, where whoever asks has room for them.

    A row holds what came with its observation, the final observation's included.
    """

    def __init__(self, env: Env, settings: EnvSettings) -> None:
        super().__init__(env)
        self._fields = info_fields(settings.info)
        self._loose = {info_field(word).name for word in settings.info if word.endswith(LOOSE) and word != LOOSE}
        self._tells_others = LOOSE in settings.info
        self._told = {field.name.removesuffix(TEXT) for field in self._fields}
        self._misfits: set[str] = set()
        self.spec = replace(env.spec, info=self._fields)

    def reset(self, seed: int, obs: Obs) -> None:
        self.env.reset(seed, obs)
        self._write(getattr(self.env, "reset_info", None), obs)

    def step(self, action: Array, obs: Obs) -> StepReturn:
        came = self.env.step(action, obs)
        self._write(came[3], obs)
        return came

    def _write(self, info: Any, obs: Obs) -> None:
        given = flat(info)
        for field in self._fields:
            out = obs.get(INFO + field.name)
            if out is not None:
                self._write_field(field, given, out)
        if self._tells_others and not given.keys() <= self._told:
            self._tell_others(given)

    def _write_field(self, field: Field, given: Mapping[str, Any], out: Array) -> None:
        try:
            write_info(field, given, out)
        except ValueError as error:
            if field.name not in self._loose:
                raise
            if field.name not in self._misfits:
                self._misfits.add(field.name)
                log.warning("%s; texts are cut, other values are NaN (said once)", error)

    def _tell_others(self, given: Mapping[str, Any]) -> None:
        for name in given.keys() - self._told:
            self._told.add(name)
            if word_for(name, given[name]) is not None:
                log.warning("info[%r] is not kept: it was not found in the steps at the start; name it", name)
