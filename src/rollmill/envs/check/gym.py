"""Looks at what a Gymnasium environment really returns, before it is laid out in rows (``rollmill envs check``)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rollmill.core.fields import Array
from rollmill.envs.check.calls import Findings, kind_of

FIVE = "(observation, reward, terminated, truncated, info)"

Leaf = tuple[str, spaces.Space[Any], Any]
"""Name, space and value of one part of a nested observation."""


class Inspected(gym.Wrapper[Any, Any, Any, Any]):
    """Passes everything on and compares it with the spaces on its way; ``GymEnv`` lies around it."""

    def __init__(self, env: gym.Env[Any, Any], findings: Findings) -> None:
        super().__init__(env)
        self._findings = findings
        self._episode, self._t, self._seed = -1, 0, 0
        self._call = "reset()"
        self._before: list[tuple[str, Array, Array]] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._episode, self._t, self._seed, self._call = self._episode + 1, 0, seed or 0, "reset()"
        answer = self.env.reset(seed=seed)
        if not isinstance(answer, tuple) or len(answer) != 2:
            self._note("reset-return", kind_of(answer))
            return answer
        self._look(answer[0])
        if not isinstance(answer[1], dict):
            self._note("info-type", kind_of(answer[1]))
        return answer

    def step(self, action: Any) -> Any:
        self._call = f"step() {self._t}"
        answer: Any = self.env.step(action)
        if not isinstance(answer, tuple) or len(answer) != 5:
            self._note("step-return", kind_of(answer), wanted=FIVE)
            return answer
        observation, reward, terminated, truncated, info = answer
        self._look(observation)
        if np.ndim(reward) != 0:
            self._note("reward-type", kind_of(reward), per_agent="")
        for name, value in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(value, bool | np.bool_):
                self._note(f"{name}-type", kind_of(value), per_agent="")
        if not isinstance(info, dict):
            self._note("info-type", kind_of(info))
        self._t += 1
        return answer

    # -- observations ---------------------------------------------------------------------------

    def _look(self, observation: Any) -> None:
        self._look_for_reuse()
        self._before = []
        for name, space, value in self._leaves("", self.observation_space, observation):
            self._look_at(name or "obs", space, value)
            if isinstance(value, np.ndarray):
                self._before.append((name or "obs", value, value.copy()))

    def _look_for_reuse(self) -> None:
        for name, array, copy in self._before:
            if not np.array_equal(array, copy, equal_nan=array.dtype.kind == "f"):
                self._note("obs-reused", "the one before has changed in place", name)

    def _leaves(self, name: str, space: spaces.Space[Any], value: Any) -> Iterator[Leaf]:
        if isinstance(space, spaces.Dict):
            if not isinstance(value, dict) or set(value) != set(space.spaces):
                found = f"keys {sorted(map(str, value))}" if isinstance(value, dict) else kind_of(value)
                self._note("obs-structure", found, name or "obs", wanted=f"a dict with keys {sorted(space.spaces)}")
                return
            for key, child in space.spaces.items():
                yield from self._leaves(f"{name}.{key}" if name else str(key), child, value[key])
        elif isinstance(space, spaces.Tuple):
            if not isinstance(value, tuple) or len(value) != len(space.spaces):
                self._note("obs-structure", kind_of(value), name or "obs", wanted=f"a tuple of {len(space.spaces)}")
                return
            for index, child in enumerate(space.spaces):
                yield from self._leaves(f"{name}.{index}" if name else str(index), child, value[index])
        else:
            yield name, space, value

    def _look_at(self, name: str, space: spaces.Space[Any], value: Any) -> None:
        if isinstance(space, spaces.Box):
            self._look_at_box(name, space, value)
        elif not space.contains(value):
            self._note("obs-range", kind_of(value), name, wanted=f"a member of {space}")

    def _look_at_box(self, name: str, space: spaces.Box, given: Any) -> None:
        if not isinstance(given, np.ndarray | np.generic):
            self._note("obs-type", kind_of(given), name, wanted=f"{space.dtype} of shape {space.shape}")
            return
        value: Array = np.asarray(given)
        if value.shape != space.shape:
            self._note("obs-shape", str(value.shape), name, wanted=str(space.shape))
            return
        if value.dtype != space.dtype:
            # rollmill stores floats as float32 either way
            both_float = space.dtype.kind == "f" and value.dtype.kind == "f"
            self._note(
                "obs-float-dtype" if both_float else "obs-dtype", str(value.dtype), name, wanted=str(space.dtype)
            )
        if value.dtype.kind in "fiub":
            self._look_at_values(name, space, value)

    def _look_at_values(self, name: str, space: spaces.Box, value: Array) -> None:
        if value.dtype.kind == "f" and np.isnan(value).any():
            self._note("obs-nan", "nan", name)
            return
        outside = (value < space.low) | (value > space.high)
        if outside.any():
            first = tuple(int(k) for k in np.argwhere(outside)[0])
            found = f"{value[first]:g}{f' at {list(first)}' if first else ''}"
            wanted = f"values between {space.low[first]:g} and {space.high[first]:g}"
            self._note("obs-range", found, name, wanted=wanted)

    def _note(self, rule: str, found: str, field: str = "", **values: Any) -> None:
        begun = f"of episode {self._episode} (seed {self._seed})" if self._episode >= 0 else "before the first reset()"
        where = f"{self._call} {begun}"
        where = f"{where}, observation field {field!r}" if field else where
        self._findings.add(rule, where, found, field, **values)
