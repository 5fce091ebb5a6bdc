"""Policies that an online run has trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rollmill.core.checkpoints import Loaded, load_checkpoint, restoring, saved_settings
from rollmill.core.errors import ConfigError
from rollmill.core.fields import EnvSpec
from rollmill.core.protocols import Policy
from rollmill.runs.policies.base import LoadedPolicy, LoadOptions
from rollmill.runs.policies.find import checkpoint_name, require_fit
from rollmill.runs.policies.online_state import require_online
from rollmill.runs.settings.train import TrainConfig
from rollmill.runs.trust import SavedEnv
from rollmill.sampling.policies.per_agent import PolicyPerAgent
from rollmill.sampling.schedule import EpisodeSchedule


@dataclass(kw_only=True, eq=False, repr=False)
class OnlinePolicy(LoadedPolicy):
    """The network of a checkpoint; several (``env.policies``) act as a team.

    Weights are read when they are needed: there may be many checkpoints.
    """

    config: TrainConfig
    """The run's settings below what the user has said."""
    member: int | None = None
    """Of a population: which member plays."""

    def check(self, spec: EnvSpec) -> None:
        assert self.spec is not None
        require_fit(self.spec, spec)

    def build(self, spec: EnvSpec, schedule: EpisodeSchedule, seed: int, targets: Sequence[float] = ()) -> Policy:
        import torch

        from rollmill.models.acting.policy import TorchPolicy
        from rollmill.models.acting.weights import WeightBoard
        from rollmill.models.actor_critic import build_model
        from rollmill.models.saving import load_weights
        from rollmill.optim.device import choose_device

        assert self.path is not None
        state = require_online(load_checkpoint(self.path)).state
        learners = state["learners"] if self.member is None else [state["learners"][self.member]]
        owners = self._owners(spec, len(learners))
        torch.set_num_threads(1)  # as in training; how an operator is shared out to threads changes the last bits
        members: list[Policy] = []
        for number, learner in enumerate(learners):
            model = build_model(spec, self.config.model)
            with restoring(self.path, f"learners.{number}.model"):
                load_weights(model, learner["model"])
            model.to(choose_device(self.config.learning.device))
            lanes = schedule.envs * spec.agents
            members.append(TorchPolicy(model, WeightBoard(model), lanes, seed + number, self.deterministic))
        return members[0] if len(members) == 1 else PolicyPerAgent(members, owners)

    def _owners(self, spec: EnvSpec, learners: int) -> Sequence[int]:
        env = self.config.env
        owners = env.policies or (0,) * spec.agents
        if len(owners) != spec.agents or env.policy_count != learners:
            raise ConfigError(
                f"env.policies={list(env.policies)} does not fit: {spec.name} has {spec.agents} agents, "
                f"the checkpoint {learners} policies"
            )
        return owners


def load_online(loaded: Loaded, how: LoadOptions) -> OnlinePolicy:
    """Return the policy of a checkpoint that an online run has written; nothing is built yet."""
    state, path = require_online(loaded).state, loaded.path
    config = how.settings(state["config"], path)
    if how.device is not None:
        config = replace(config, learning=replace(config.learning, device=how.device))
    member = _member(state, how.member, path)
    own = saved_settings(SavedEnv, {"env": state["config"]["env"]}, path).env
    return OnlinePolicy(
        name=checkpoint_name(loaded.path),
        env=config.env,
        spec=EnvSpec.from_dict(state["spec"]),
        probe=config.env != own,
        sampling=config.sampling,
        path=path,
        frames=loaded.step,
        version=int(state["learners"][member or 0]["version"]),
        member=member,
        variant="" if how.member is None else f"member {how.member}",
        deterministic=bool(how.deterministic),
        seed=how.seed,
        config=config,
    )


def _member(state: Mapping[str, Any], asked: int | None, path: Path) -> int | None:
    """Return the member of a population that plays: the best, if nothing is said; None: this is no population."""
    if "population" not in state:
        if asked is not None:
            raise ConfigError(f"{path} holds no population: leave out the member")
        return None
    member = state["population"]["best"] if asked is None else asked
    if not 0 <= member < len(state["learners"]):
        raise ConfigError(f"{path} has no member {member}: there are {len(state['learners'])}, the first is 0")
    return int(member)
