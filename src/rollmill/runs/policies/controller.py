"""Loads controllers of world models: few weights behind an encoder and a memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from rollmill.core.config.load import load_config
from rollmill.core.errors import ConfigError
from rollmill.core.fields import Array, EnvSpec
from rollmill.core.protocols import Policy
from rollmill.core.run_kind import FOLDERS
from rollmill.optim.device import choose_device
from rollmill.runs.policies.base import LoadedPolicy, LoadOptions
from rollmill.sampling.schedule import EpisodeSchedule
from rollmill.store.reader import Store
from rollmill.worldmodel.controller.model import ControllerAgent, ControllerState, image_field, load_controller
from rollmill.worldmodel.controller.settings import ControllerSettings
from rollmill.worldmodel.controller.trials import ControllerPolicy
from rollmill.worldmodel.dynamics.model import Dynamics, load_dynamics
from rollmill.worldmodel.dynamics.retrieval import RetrievalIndex, build_index
from rollmill.worldmodel.encoder.file import ImageEncoder, load_encoder
from rollmill.worldmodel.own import NOBODY, PARTS, Trust


@dataclass(frozen=True)
class Models:
    """What a controller sees the world through."""

    encoder: ImageEncoder
    dynamics: Dynamics | None
    index: RetrievalIndex | None
    device: torch.device

    def agent(self, settings: ControllerSettings, spec: EnvSpec, lanes: int) -> ControllerAgent:
        return ControllerAgent(self.encoder, self.controller_state(settings, spec, lanes))

    def controller_state(self, settings: ControllerSettings, spec: EnvSpec, lanes: int) -> ControllerState:
        return ControllerState(settings, spec.action, self.encoder.size, self.dynamics, lanes, self.device, self.index)

    def check(self, spec: EnvSpec) -> None:
        """Raise ConfigError unless the encoder can read what the environment shows and the memory knows its actions."""
        image_field(spec, self.encoder)
        known = self.dynamics.origin.spec.action if self.dynamics is not None else spec.action
        if known != spec.action:
            raise ConfigError(
                f"the dynamics model was fitted to other actions ({known}) than {spec.name} takes ({spec.action})"
            )


def load_models(
    settings: ControllerSettings, encoder_path: Path, dynamics_path: Path | None, trust: Trust = NOBODY
) -> Models:
    """Read encoder and dynamics model, and remember what is to be retrieved. ``trust``: code that they may name."""
    device = choose_device(settings.device)
    torch.set_num_threads(settings.threads)
    encoder = load_encoder(encoder_path, device, trust)
    dynamics = load_dynamics(dynamics_path, device, trust) if dynamics_path else None
    if settings.inputs == "zh" and (dynamics is None or not dynamics.memory_size):
        raise ConfigError("inputs=zh needs a dynamics model with a memory; use inputs=z")
    index = None
    if settings.retrieval.neighbours:
        assert settings.retrieval.store is not None
        with Store(settings.retrieval.store) as store:
            index = build_index(store, dynamics, settings.retrieval, settings.seed).to(device)
    return Models(encoder, dynamics, index, device)


@dataclass(kw_only=True, eq=False, repr=False)
class WorldModelPolicy(LoadedPolicy):
    """A controller with the models that it sees the world through; it always takes the same action."""

    settings: ControllerSettings
    models: Models
    weights: Array

    def check(self, spec: EnvSpec) -> None:
        self.models.check(spec)

    def build(self, spec: EnvSpec, schedule: EpisodeSchedule, seed: int, targets: Sequence[float] = ()) -> Policy:
        agent = self.models.agent(self.settings, spec, schedule.envs * spec.agents)
        return ControllerPolicy(agent, self.weights, image_field(spec, self.models.encoder))


def _trust(how: LoadOptions) -> tuple[Trust, LoadOptions]:
    """Return what the user says about the parts of a world model (``encoder.custom=...``), and the rest they say."""
    words = [word for word in how.overrides if word.partition(".")[0] in PARTS]
    rest = [word for word in how.overrides if word not in words]
    return replace(load_config(Trust, (), words), trust_code=how.trust_code), replace(how, overrides=rest)


def load_world_model(file: Path, how: LoadOptions) -> WorldModelPolicy:
    """Load the controller in a file; its models are found where they were when it was made, unless given."""
    saved = load_controller(file)
    trust, how = _trust(how)
    own = trust.settle("controller", saved.settings.custom, saved.settings.custom_args, file)
    settings = replace(saved.settings, custom=own.custom, custom_args=own.custom_args)
    settings = settings if how.device is None else replace(settings, device=how.device)
    dynamics = how.dynamics or (Path(saved.dynamics) if saved.dynamics else None)
    models = load_models(settings, how.encoder or Path(saved.encoder), dynamics, trust)
    place = how.settings({"env": saved.env}, file)
    folder = file.absolute().parent
    run = folder.parent if folder.name == FOLDERS["controller"] else folder
    return WorldModelPolicy(
        name=f"{run.name}/{file.name}",
        env=place.env,
        sampling=place.sampling,
        path=file,
        frames=int(saved.metadata.get("generation") or 0),
        unit="generations",
        deterministic=True,
        seed=how.seed,
        settings=settings,
        models=models,
        weights=saved.weights,
    )
