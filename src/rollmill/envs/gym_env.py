"""Any Gymnasium environment as an ``Env`` that writes into given arrays."""

from __future__ import annotations

import os
from typing import Any

import gymnasium as gym
import numpy as np

from rollmill.core.errors import ConfigError, EnvError
from rollmill.core.fields import MASK_FIELD, ActionSpec, Array, EnvSpec, Field, Obs
from rollmill.core.protocols import StepReturn
from rollmill.envs.spaces import Writer, action_layout, box_writer, mask_field, observation_layout


class GymEnv:
    """Wraps one ``gymnasium.Env``; keeps its terminated/truncated semantics and its seeds.

    ``mask_in_info`` takes the action mask from ``info["action_mask"]`` (as Taxi gives it); a
    Dict observation with an ``action_mask`` entry needs no flag.
    """

    def __init__(self, env: gym.Env, *, name: str, mask_in_info: bool = False) -> None:
        self.env = env
        self.reset_info: Any = None
        """What came with the first observation of the episode."""
        fields, self._write = observation_layout(env.observation_space)
        action, self._to_env = action_layout(env.action_space)
        self._write_info_mask: Writer | None = None
        if mask_in_info:
            fields, self._write_info_mask = _add_mask(name, fields, action)
        # Wrappers hide the attributes of what they wrap, and gymnasium.make always wraps.
        frames = env.get_wrapper_attr("frames_per_step") if env.has_wrapper_attr("frames_per_step") else 1
        self.spec = EnvSpec(name=name, observation=fields, action=action, frames_per_step=int(frames))
        self._check_mask_shape()

    def reset(self, seed: int, obs: Obs) -> None:
        self._begin(obs, self.env.reset(seed=seed))

    def _begin(self, obs: Obs, answer: Any) -> None:
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise ValueError(f"reset() returned {type(answer).__name__}, expected (observation, info)")
        self._write(answer[0], obs, 0)
        self.reset_info = answer[1]
        if self._write_info_mask is not None:
            self._write_info_mask(_mask_of(answer[1]), obs, 0)

    def step(self, action: Array, obs: Obs) -> StepReturn:
        answer = self.env.step(self._to_env(action[0]))
        if not isinstance(answer, tuple) or len(answer) != 5:
            raise ValueError(
                f"step() returned {type(answer).__name__}, expected (observation, reward, terminated, truncated, info)"
            )
        value, reward, terminated, truncated, info = answer
        self._write(value, obs, 0)
        if self._write_info_mask is not None:
            self._write_info_mask(_mask_of(info), obs, 0)
        return reward, terminated, truncated, info

    def render(self) -> Array | None:
        try:
            image = self.env.render()
        except Exception as error:
            if "mujoco" not in type(self.env.unwrapped).__module__:
                raise
            gl = os.environ.get("MUJOCO_GL", "")
            raise EnvError(
                f"{self.spec.name} cannot be drawn with MUJOCO_GL={gl or '(not set, which needs a display)'}: {error}\n"
                "Without a display, set MUJOCO_GL=egl (libEGL, with or without a GPU) or MUJOCO_GL=osmesa (libOSMesa) "
                "before the command"
            ) from error
        return image if isinstance(image, np.ndarray) else None

    def close(self) -> None:
        self.env.close()

    def _check_mask_shape(self) -> None:
        for field in self.spec.observation:
            if field.name == MASK_FIELD and field.shape != mask_field(self.spec.action).shape:
                raise ConfigError(
                    f"{self.spec.name}: the action mask has shape {field.shape}, "
                    f"the action space needs ({self.spec.action.mask_size},)"
                )


class GymLevelEnv(GymEnv):
    """One whose levels can be kept: it has ``save_level() -> bytes``, and its ``reset`` takes such a level back as
    ``options={"level": level}``."""

    def save_level(self) -> bytes:
        level: bytes = self.env.get_wrapper_attr("save_level")()
        return level

    def load_level(self, level: bytes, seed: int, obs: Obs) -> None:
        self._begin(obs, self.env.reset(seed=seed, options={"level": level}))


def _add_mask(name: str, fields: tuple[Field, ...], action: ActionSpec) -> tuple[tuple[Field, ...], Writer]:
    if any(field.name == MASK_FIELD for field in fields):
        raise ConfigError(f"{name} has its action mask in the observation; set env.mask_in_info=false")
    mask = mask_field(action)
    return (*fields, mask), box_writer(mask)


def _mask_of(info: dict[str, Any]) -> Any:
    if MASK_FIELD not in info:
        raise ValueError(f'info has no "{MASK_FIELD}" although env.mask_in_info is set')
    return info[MASK_FIELD]
