"""Opponents that can play: models of the pool and anchors, behind the role that the sampler knows (``Matchmaker``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rollmill.core.errors import ConfigError
from rollmill.core.fields import Array, EnvSpec
from rollmill.core.protocols import ActRequest, Matchmaker, Policy, PolicyOutput, Seats
from rollmill.core.seeds import Seeds
from rollmill.core.shapes import MAPPING, Shape, check_shape
from rollmill.pbt.matchmaking import TOP, Draw, Numbers
from rollmill.runs.policies.base import LoadedPolicy, LoadOptions
from rollmill.runs.policies.load import load_each
from rollmill.runs.policies.simple import RANDOM
from rollmill.runs.settings.selfplay_checks import learning_sides, policies_of_sides, sides_of
from rollmill.runs.settings.train import TrainConfig
from rollmill.sampling.policies.random import RandomPolicy
from rollmill.sampling.schedule import EpisodeSchedule

if TYPE_CHECKING:
    from rollmill.models.acting.frozen import FrozenNetworks

STATE_SHAPE: Shape = {"models": MAPPING, "anchors": {str: MAPPING}}


def load_anchors(config: TrainConfig) -> dict[str, LoadedPolicy]:
    """Load the opponents that never change, by name. Raises ConfigError if one does not exist."""
    found = {}
    for word in config.selfplay.anchors:
        (policy,) = load_each(word, LoadOptions(env=config.env), flag="selfplay.anchors: ")
        if policy.asked:
            raise ConfigError(f"selfplay.anchors: {word} has to be asked for a return, and nobody asks here")
        found[word] = policy
    return found


class Matches(Matchmaker):
    """Who plays whom, and those who do not learn. Built without opponents: they come with ``SelfPlay``."""

    def __init__(self, config: TrainConfig, spec: EnvSpec, networks: FrozenNetworks, envs: int, seeds: Seeds) -> None:
        """Begin without opponents. ``envs``: of the whole run."""
        self.networks = networks
        self.anchors: dict[int, Policy] = {}
        """Those that do not learn and are no models, by number."""
        self.draw = Draw(
            Numbers(config.policy_count),
            sides_of(config, spec),
            policies_of_sides(config, spec),
            learning_sides(config, spec),
            seeds.branch("episode"),
        )
        self._spec, self._seeds, self._envs = spec, seeds, envs
        self._state_size = networks.state_size

    @property
    def plays_all(self) -> bool:
        return self.networks.with_own

    def add_anchor(self, number: int, name: str, policy: LoadedPolicy) -> None:
        """Add one more opponent that never changes. Raises ConfigError if it cannot play in this environment."""
        policy.check(self._spec)
        seeds = self._seeds.branch("anchor", name)
        if name == RANDOM:  # its place in every episode can be kept in a checkpoint
            self.anchors[number] = RandomPolicy(self._spec, seeds.integer())
        else:
            self.anchors[number] = policy.build(
                self._spec, EpisodeSchedule(seeds, self._envs), seeds.integer(), policy.targets
            )

    def seat(self, lanes: Array, episodes: Array) -> Seats:
        return self.draw.seat(lanes, episodes)

    def act_for(self, policy_ids: Array, request: ActRequest) -> PolicyOutput:
        of_models = policy_ids <= TOP - self.draw.numbers.anchors
        if of_models.all():
            return self.networks.act(policy_ids, request)
        parts = [np.nonzero(of_models)[0]] if of_models.any() else []
        answers = [self.networks.act(policy_ids[mine], request.part(mine)) for mine in parts]
        for number in np.unique(policy_ids[~of_models]).tolist():
            mine = np.nonzero(policy_ids == number)[0]
            parts.append(mine)
            answers.append(self.anchors[number].act(request.part(mine)))
        return self._together(len(policy_ids), parts, answers)

    def _together(self, count: int, parts: Sequence[Array], answers: Sequence[PolicyOutput]) -> PolicyOutput:
        action = np.empty((count, *self._spec.action.field.shape), self._spec.action.field.dtype)
        log_prob, value = np.empty(count, np.float32), np.empty(count, np.float32)
        # What others remember is of another kind, and nobody learns from these rows: to the run's networks it is blank.
        state = np.zeros((count, self._state_size), np.float32)
        for mine, answer in zip(parts, answers, strict=True):
            action[mine], log_prob[mine], value[mine] = answer.action, answer.log_prob, answer.value
            if answer.state is not None and answer.state.shape[1] == self._state_size:
                state[mine] = answer.state
        return PolicyOutput(action, log_prob, value, state if self._state_size else None)

    def acting_state(self) -> dict[str, Any]:
        return {
            "models": self.networks.state(),
            "anchors": {str(number): policy.state() for number, policy in self.anchors.items()},
        }

    def load_acting_state(self, state: Mapping[str, Any]) -> None:
        check_shape(state, STATE_SHAPE)
        self.networks.load_state(state["models"])
        for number, policy in self.anchors.items():
            if (saved := state["anchors"].get(str(number))) is not None:
                policy.load_state(saved)
