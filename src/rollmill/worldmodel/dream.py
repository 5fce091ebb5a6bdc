"""The dynamics model as a world: episodes that never leave the model, many at a time.

A dream begins at a latent that a real episode began with. Each step reads the latent and the action, and draws the next
latent, the reward and the end from what the model says. ``temperature`` makes the draws more or less certain: a dream
that is harder than the world leaves a controller less to exploit in the model's mistakes (Ha and Schmidhuber 2018).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rollmill.core.errors import CheckpointError
from rollmill.core.fields import Array
from rollmill.core.seeds import Seeds
from rollmill.worldmodel.controller.model import ControllerState
from rollmill.worldmodel.controller.settings import ControllerSettings, DreamSettings
from rollmill.worldmodel.controller.trials import Played
from rollmill.worldmodel.dynamics.mixture import draw
from rollmill.worldmodel.dynamics.model import Dynamics


class Dream:
    """Dreams in ``lanes`` lanes; ``latents`` ``[lanes, Z]`` is what each of them sees now."""

    def __init__(self, dynamics: Dynamics, settings: DreamSettings, lanes: int) -> None:
        if not len(dynamics.starts.mean):
            raise CheckpointError("the dynamics model was saved without first latents: dreams cannot begin")
        self.dynamics, self.settings, self.lanes = dynamics, settings, lanes
        device = dynamics.device
        self._mean = torch.from_numpy(dynamics.starts.mean).to(device)
        self._std = torch.from_numpy(dynamics.starts.std).to(device)
        self.latents = torch.zeros(lanes, dynamics.latent_size, device=device)
        self.age = torch.zeros(lanes, dtype=torch.int64, device=device)
        self.memory = dynamics.begin(lanes)
        self.generator = torch.Generator(device)

    def reset(self, lanes: Tensor, starts: Tensor, noise: Tensor) -> None:
        """Begin episodes in lanes ``[n]``, at the model's ``starts`` ``[n]``; ``noise`` ``[n, Z]`` is normal."""
        self.latents[lanes] = self._mean[starts] + self._std[starts] * noise
        self.age[lanes] = 0
        self.dynamics.forget(self.memory, lanes)

    @torch.inference_mode()
    def step(self, lanes: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return rewards, terminated and truncated ``[n]`` of actions ``[n, ...]`` in lanes ``[n]``."""
        s, before = self.settings, self.latents[lanes]
        said = self.dynamics.predict(self.dynamics.read(before, actions, self.memory, lanes))
        after = draw(said.latent, s.temperature, self.generator)
        self.latents[lanes] = before + after if self.dynamics.settings.differences else after
        chance = torch.sigmoid(said.done)
        if s.done_threshold >= 0:
            ended = chance > s.done_threshold
        else:
            ended = torch.rand(chance.shape, generator=self.generator, device=chance.device) < chance
        self.age[lanes] += 1
        reward = said.reward if s.survival_reward is None else torch.where(ended, 0.0, s.survival_reward)
        return reward, ended, ~ended & (self.age[lanes] >= s.max_steps)


class DreamTrials:
    """Plays generations of controllers in dreams; members of a generation begin at the same places."""

    def __init__(
        self,
        settings: ControllerSettings,
        dream: DreamSettings,
        dynamics: Dynamics,
        state: ControllerState,
        first_generation: int,
    ) -> None:
        self._settings, self._state = settings, state
        self._dream = Dream(dynamics, dream, settings.population * settings.trials)
        self._limit = min(dream.max_steps, settings.max_steps or dream.max_steps)
        self._seeds = Seeds(settings.seed).branch("dreams")
        self._generation = first_generation

    @torch.inference_mode()
    def play(self, members: Array) -> Played:
        """Play the next generation ``[members, P]`` to its end; lane = member * trials + trial."""
        s, dream = self._settings, self._dream
        device = dream.latents.device
        seeds = self._seeds.branch(self._generation)
        self._generation += 1
        dream.generator.manual_seed(seeds.integer())
        rng = seeds.generator()
        starts = torch.from_numpy(rng.integers(len(dream.dynamics.starts.mean), size=s.trials)).repeat(s.population)
        shape = (s.trials, dream.dynamics.latent_size)
        noise = torch.from_numpy(rng.standard_normal(shape).astype(np.float32)).repeat(s.population, 1)
        lanes = torch.arange(dream.lanes, device=device)
        dream.reset(lanes, starts.to(device), noise.to(device))
        self._state.take(lanes, torch.from_numpy(np.asarray(members, np.float32)).repeat_interleave(s.trials, 0))
        returns = torch.zeros(dream.lanes, dtype=torch.float64, device=device)
        steps = 0
        for _ in range(self._limit):
            reward, ended, truncated = dream.step(lanes, self._state.decide(lanes, dream.latents[lanes]))
            returns[lanes] += reward
            steps += len(lanes)
            lanes = lanes[~(ended | truncated)]
            if not len(lanes):
                break
        return Played(returns.reshape(s.population, s.trials).cpu().numpy(), steps)

    def close(self) -> None:
        return None
