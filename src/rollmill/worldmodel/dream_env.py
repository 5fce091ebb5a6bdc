"""Dreams as a Gymnasium environment, and the real world seen the same way: for any learner that knows Gymnasium.

    rollmill train env=rollmill.worldmodel.dream_env:DreamEnv env.args.dynamics=DYNAMICS
    rollmill eval RUN env=rollmill.worldmodel.dream_env:LatentEnv env.args.env=... env.args.encoder=... \\
        env.args.dynamics=DYNAMICS

Both show the latent, then the memory (none for a model without): float32 ``[Z + H]``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from rollmill.core.errors import ConfigError
from rollmill.core.fields import ActionSpec, Array, EnvSpec, Field, Obs
from rollmill.core.protocols import StepReturn
from rollmill.envs.make import EnvInstance, make_env
from rollmill.envs.settings import EnvSettings
from rollmill.worldmodel.controller.model import image_field
from rollmill.worldmodel.controller.settings import DreamSettings
from rollmill.worldmodel.dream import Dream
from rollmill.worldmodel.dynamics.model import load_dynamics
from rollmill.worldmodel.encoder.file import load_encoder
from rollmill.worldmodel.own import OwnClass, Trust

FAR = 1e4
"""Bound of the numbers that are shown: finite, and out of reach."""
_LANE = torch.zeros(1, dtype=torch.int64)


class DreamEnv(gym.Env[Array, Any]):
    """One dream at a time. ``render`` shows it through the encoder, where one is given."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}

    def __init__(
        self,
        dynamics: str,
        encoder: str = "",
        temperature: float = 1.0,
        max_steps: int = 1_000,
        done_threshold: float = -1.0,
        survival_reward: float | None = None,
        custom: Mapping[str, str] | None = None,
        render_mode: str | None = None,
    ) -> None:
        """Load the models; ``custom``: own classes that the files name, by part: ``{"dynamics": "module:Class"}``."""
        torch.set_num_threads(1)
        try:
            settings = DreamSettings(
                temperature=temperature,
                max_steps=max_steps,
                done_threshold=done_threshold,
                survival_reward=survival_reward,
            )
        except ValueError as error:
            raise ConfigError(str(error)) from error
        trust = _trust(custom)
        self._dream = Dream(load_dynamics(dynamics, trust=trust), settings, 1)
        self._encoder = load_encoder(encoder, trust=trust) if encoder else None
        self.render_mode = render_mode
        model = self._dream.dynamics
        size = model.latent_size + model.memory_size
        self.observation_space = gym.spaces.Box(-FAR, FAR, (size,), np.float32)
        self.action_space = action_space(model.origin.spec.action)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        dream = self._dream
        dream.generator.manual_seed(int(self.np_random.integers(2**31)))
        start = torch.tensor([int(self.np_random.integers(len(dream.dynamics.starts.mean)))])
        noise = self.np_random.standard_normal((1, dream.dynamics.latent_size)).astype(np.float32)
        dream.reset(_LANE, start, torch.from_numpy(noise))
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        given = torch.as_tensor(np.asarray(action))[None]
        reward, ended, truncated = self._dream.step(_LANE, given)
        return self._observe(), float(reward), bool(ended), bool(truncated), {}

    def _observe(self) -> Array:
        return _shown(self._dream.latents[0], self._dream.memory.h[0], self._dream.dynamics.memory_size)

    @torch.inference_mode()
    def render(self) -> Any:
        if self._encoder is None:
            return None
        return self._encoder.decode(self._dream.latents)[0].cpu().numpy()


class LatentEnv:
    """A real environment, shown as dreams are: what is learnt in ``DreamEnv`` is tested here.

    ``env``, ``env_args``: as ``env.id`` and ``env.args`` of a training. ``custom``: as of ``DreamEnv``.
    """

    def __init__(
        self,
        *,
        env: str,
        encoder: str,
        dynamics: str,
        env_args: dict[str, Any] | None = None,
        max_episode_steps: int = 0,
        custom: Mapping[str, str] | None = None,
        instance: EnvInstance | None = None,
    ) -> None:
        torch.set_num_threads(1)
        self._env = make_env(EnvSettings(id=env, args=env_args or {}), instance)
        trust = _trust(custom)
        self._encoder, self._dynamics = load_encoder(encoder, trust=trust), load_dynamics(dynamics, trust=trust)
        self._field = image_field(self._env.spec, self._encoder)
        self._max_steps, self._steps = max_episode_steps, 0
        self._memory = self._dynamics.begin(1)
        self._latent = torch.zeros(1, self._encoder.size)
        self._seen: Obs = {f.name: np.zeros((1, *f.shape), f.dtype) for f in self._env.spec.observation}
        size = self._encoder.size + self._dynamics.memory_size
        self.spec = EnvSpec(
            name=self._env.spec.name,
            observation=(Field("obs", "float32", (size,)),),
            action=self._env.spec.action,
            frames_per_step=self._env.spec.frames_per_step,
        )

    def reset(self, seed: int, obs: Obs) -> None:
        self._env.reset(seed, self._seen)
        self._dynamics.forget(self._memory, _LANE)
        self._steps = 0
        self._write(obs)

    @torch.inference_mode()
    def step(self, action: Array, obs: Obs) -> StepReturn:
        reward, terminated, truncated, info = self._env.step(action, self._seen)
        self._dynamics.read(self._latent, torch.as_tensor(np.asarray(action)), self._memory, _LANE)
        self._write(obs)
        self._steps += 1
        late = bool(self._max_steps) and self._steps >= self._max_steps
        return reward, terminated, bool(np.any(truncated)) or (late and not np.any(terminated)), info

    @torch.inference_mode()
    def _write(self, obs: Obs) -> None:
        self._latent, _ = self._encoder.encode(torch.from_numpy(self._seen[self._field]))
        obs["obs"][0] = _shown(self._latent[0], self._memory.h[0], self._dynamics.memory_size)

    def render(self) -> Array | None:
        return self._env.render()

    def close(self) -> None:
        self._env.close()


def _trust(custom: Mapping[str, str] | None) -> Trust:
    given = custom or {}
    unknown = set(given) - {"encoder", "dynamics"}
    if unknown:
        raise ConfigError(f"custom: names classes of encoder and dynamics, not of {', '.join(sorted(unknown))}")
    named = {part: OwnClass(custom=given.get(part)) for part in ("encoder", "dynamics")}
    return Trust(encoder=named["encoder"], dynamics=named["dynamics"])


def _shown(latent: torch.Tensor, h: torch.Tensor, memory: int) -> Array:
    numbers: Array = torch.cat([latent, h[:memory]]).numpy().copy()
    return numbers


def action_space(action: ActionSpec) -> gym.Space[Any]:
    """Return the Gymnasium space of a spec's actions."""
    if action.kind == "discrete":
        return gym.spaces.Discrete(action.nvec[0])
    if action.kind == "multi_discrete":
        return gym.spaces.MultiDiscrete(np.asarray(action.nvec))
    if action.kind == "continuous":
        low, high = (np.asarray(bound, np.float32).reshape(action.shape) for bound in (action.low, action.high))
        return gym.spaces.Box(low, high, action.shape, np.float32)
    raise ConfigError("dreams have no environment for mixed actions")
