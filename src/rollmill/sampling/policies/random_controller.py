"""Random small controllers for collecting data: linear in what is seen, drawn anew for every episode.

Uniform actions cancel each other out, smoothed ones ignore the scene. A random controller reacts to it, always in the
same way, so its episodes get to places that neither of the others reaches.
"""

from __future__ import annotations

import numpy as np

from rollmill.core.fields import MASK_FIELD, Array, EnvSpec, Field, Obs
from rollmill.core.seeds import Seeds
from rollmill.sampling.policies.episode import WIDEST, EpisodePolicy
from rollmill.sampling.schedule import EpisodeSchedule

GRID = 8
"""Images are looked at as ``GRID`` x ``GRID`` grey cells."""
GAIN = 2.0
"""Standard deviation of what the scene adds to an action, before it is squashed; that of the constant part is 1."""
COLOURS = 3


class RandomController(EpisodePolicy):
    """Choices: the component with the highest score. Numbers: tanh of the score, scaled and cut off at the bounds.

    Bounds on one side of 0 (gas, brake) are cut off there: half of all controllers never touch such a component.
    """

    def __init__(self, spec: EnvSpec, schedule: EpisodeSchedule) -> None:
        super().__init__(spec, schedule)
        self._fields = spec.inputs
        inputs = sum(_features(field) for field in self._fields)
        action = spec.action
        self._nvec = np.asarray(action.nvec, np.int64)
        self._low = np.maximum(np.asarray(action.low, np.float64), -WIDEST)
        self._high = np.minimum(np.asarray(action.high, np.float64), WIDEST)
        middle = (self._low + self._high) / 2
        self._centre = np.where((self._low <= 0) & (self._high >= 0), 0.0, middle)
        self._reach = np.maximum(self._high - self._centre, self._centre - self._low)
        self._outputs = int(self._nvec.sum()) + len(self._low)
        self._weights = np.zeros((self.lanes, inputs, self._outputs), np.float32)
        self._bias = np.zeros((self.lanes, self._outputs), np.float32)

    def begin(self, lane: int, seeds: Seeds) -> None:
        rng = seeds.generator()
        inputs = self._weights.shape[1]
        self._weights[lane] = rng.standard_normal((inputs, self._outputs)) * (GAIN / np.sqrt(inputs))
        self._bias[lane] = rng.standard_normal(self._outputs)

    def decide(self, lanes: Array, obs: Obs) -> Array:
        seen = np.concatenate([_look(field, obs[field.name]) for field in self._fields], axis=1)
        scores = np.einsum("ni,nio->no", seen, self._weights[lanes]) + self._bias[lanes]
        split = int(self._nvec.sum())
        choices = self._choose(scores[:, :split], obs)
        numbers = np.clip(self._centre + self._reach * np.tanh(scores[:, split:]), self._low, self._high)
        field = self.spec.action.field
        chosen: Array = np.concatenate([choices, numbers], axis=1).astype(field.dtype)
        return chosen.reshape(len(lanes), *field.shape)

    def _choose(self, scores: Array, obs: Obs) -> Array:
        if self.spec.masked:
            scores = np.where(obs[MASK_FIELD].reshape(len(scores), -1) > 0, scores, -np.inf)
        ends = np.cumsum(self._nvec)
        picked = [scores[:, end - n : end].argmax(axis=1) for n, end in zip(self._nvec, ends)]
        return np.stack(picked, axis=1) if picked else np.zeros((len(scores), 0))


def _features(field: Field) -> int:
    if field.is_image:
        return min(GRID, field.shape[0]) * min(GRID, field.shape[1])
    return int(np.prod(field.shape))


def _look(field: Field, values: Array) -> Array:
    """Return what a controller sees of a field: ``[n, features]`` between -1 and 1."""
    if not field.is_image:
        return np.tanh(values.reshape(len(values), -1).astype(np.float32))
    rows, columns = (np.linspace(0, side, min(GRID, side) + 1).astype(int)[:-1] for side in field.shape[:2])
    grey = values[..., -COLOURS:].mean(axis=-1, dtype=np.float32)
    cells = np.add.reduceat(np.add.reduceat(grey, rows, axis=1), columns, axis=2)
    height = np.diff([*rows, field.shape[0]])
    width = np.diff([*columns, field.shape[1]])
    means = cells / (height[:, None] * width[None, :])
    seen: Array = (means / 127.5 - 1.0).reshape(len(values), -1)
    return seen
