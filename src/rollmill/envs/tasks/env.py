"""One task of a suite, in the spaces that all of its tasks share."""

from __future__ import annotations

import numpy as np

from rollmill.core.errors import EnvError
from rollmill.core.fields import MASK_FIELD, TASK_FIELD, Array, EnvSpec, Field, Obs
from rollmill.core.protocols import Env, StepReturn
from rollmill.envs.around import Around
from rollmill.envs.tasks.union import TaskSpace, Translation


class TaskEnv(Around):
    """An ``Env`` that shows and takes what the union of all tasks does (``union_of``)."""

    def __init__(self, env: Env, space: TaskSpace, number: int, spec: EnvSpec) -> None:
        super().__init__(env)
        self.number = number
        """Of the task, in the suite."""
        self.spec = spec
        own = {field.name: field for field in env.spec.inputs}
        self._shared = [f.name for f in spec.inputs if own.get(f.name) == f]
        self._padded = [own[f.name] for f in spec.inputs if f.name in own and own[f.name] != f]
        self._missing = [f.name for f in spec.inputs if f.name not in own and f.name != TASK_FIELD]
        buffers = [*self._padded, *([_mask_field(env.spec)] if env.spec.masked else [])]
        self._buffers: Obs = {f.name: np.zeros((spec.agents, *f.shape), f.dtype) for f in buffers}
        self._translation = Translation.of(space, spec.action) if spec.action.choices else None
        self._nvec = len(spec.action.nvec)

    def reset(self, seed: int, obs: Obs) -> None:
        self.env.reset(seed, self._own(obs))
        self._write(obs)

    def step(self, action: Array, obs: Obs) -> StepReturn:
        result = self.env.step(self._action(action), self._own(obs))
        self._write(obs)
        return result

    def _own(self, obs: Obs) -> Obs:
        return {**{name: obs[name] for name in self._shared}, **self._buffers}

    def _action(self, action: Array) -> Array:
        known = self._translation
        if known is None:
            return action
        chosen = action.reshape(len(action), -1)
        own = np.empty((len(action), len(known.places)), np.int64)
        for agent, row in enumerate(chosen.tolist()):
            found = [choices[int(k)] for choices, k in zip(known.own, row, strict=True)]
            if min(found) < 0:
                raise EnvError(f"action {row} is none of this task: the mask forbids it")
            own[agent] = [found[place] for place in known.places]
        return own.reshape(len(action), *self.env.spec.action.field.shape)

    def _write(self, obs: Obs) -> None:
        for field in self._padded:
            view = obs[field.name]
            view[...] = 0
            view[(slice(None), *map(slice, field.shape))] = self._buffers[field.name]
        for name in self._missing:
            obs[name][...] = 0
        task = obs[TASK_FIELD]
        task[...] = 0
        task[:, self.number] = 1
        if MASK_FIELD in obs:
            obs[MASK_FIELD][...] = self._mask()

    def _mask(self) -> Array:
        own = self._buffers.get(MASK_FIELD)
        if self._translation is None:
            return np.ones(1, np.int8) if own is None else own
        if own is None:
            return self._translation.allowed
        sources = self._translation.sources
        return np.where(sources >= 0, own[:, sources], self._translation.allowed)


def _mask_field(spec: EnvSpec) -> Field:
    return next(field for field in spec.observation if field.name == MASK_FIELD)
