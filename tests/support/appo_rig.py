"""A serial sampler and its learner, on small environments of all kinds."""

from __future__ import annotations

import os
from pathlib import Path

from running import config_of

from rollmill.core.fields import Array
from rollmill.envs.probe import probe_here
from rollmill.learning.appo import Appo
from rollmill.models.acting.weights import WeightBoard
from rollmill.models.actor_critic import build_model
from rollmill.runs.settings.train import TrainConfig
from rollmill.runs.train.build import Parts, build_parts

Segments = dict[str, Array]

# All four groups (64 rows of single-agent envs) are one batch, so that nothing is older than the learner.
WHOLE = ("sampling.mode=serial", "learning.batch_size=64", "learning.learning_rate=0.01", "learning.adam_eps=1e-5")
MEMORY = ("env=toy_memory", "model.memory=gru")
KINDS = {
    "mlp": ("env=toy_target",),
    "gru": MEMORY,
    "gru in pieces": (*MEMORY, "learning.recurrence=4"),
    "lstm": ("env=toy_memory", "model.memory=lstm", "model.memory_layers=2"),
    "masked": ("env=toy_masked",),
    "gaussian": ("env=toy_reach",),
    "gaussian, bounded": ("env=Pendulum-v1", "model.log_std=state"),
    "squashed": ("env=Pendulum-v1", "model.action_distribution=tanh_gaussian"),
    "squashed mean": ("env=Pendulum-v1", "model.action_distribution=bounded_gaussian"),
    "buttons": ("env=action_envs:Buttons",),
    "choices and numbers": ("env=action_envs:Toolbox",),
    "nested, multi-discrete, masked": ("env=faulty_envs:Zoo", "model.fc=[8]"),
    "two trunks": ("env=toy_memory", "model.memory=gru", "model.separate_critic=true"),
    "image": ("env=toy_image", "model.fc=[8]"),
    "agents": ("env=toy_agents", "learning.batch_size=128"),
}


class Rig:
    """A serial sampler and its learner, without a run around them."""

    def __init__(self, *overrides: str) -> None:
        self.config: TrainConfig = config_of(Path(), *WHOLE, *overrides)
        self.spec = probe_here(self.config.env)
        self.parts: Parts = build_parts(self.config, self.spec, os.environ)
        self.learner: Appo = self.parts.learners[0]
        self.parts.sampler.start()

    def collect(self) -> Segments:
        sampler = self.parts.sampler
        while (slots := sampler.take(self.parts.segments_per_batch, timeout=0)) is None:
            sampler.round()
        segments = {name: array.copy() for name, array in sampler.arena.gather(slots).items()}
        sampler.release(slots)
        return segments

    def twin(self, *overrides: str) -> Appo:
        """A learner with the same weights and other settings."""
        config = config_of(Path(), *WHOLE, *overrides)
        model = build_model(self.spec, self.config.model)
        model.load_state_dict(self.learner.model.state_dict())
        return Appo(model, WeightBoard(model), config.learning, seed=0)
