"""From segments to the replay buffer, and from there to the rows of one optimizer step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rollmill.core.fields import Array, EnvSpec
from rollmill.core.slots import OBS
from rollmill.learning.settings import LearningSettings
from rollmill.store.episode import EpisodeInfo
from rollmill.store.format.schema import StoreSchema
from rollmill.store.replay import ReplayBuffer
from rollmill.store.views import NEXT


@dataclass
class Transitions:
    """n rows drawn at random, on the learner's device."""

    obs: dict[str, Tensor]  # [n, *shape]
    action: Tensor  # [n, ...]
    reward: Tensor  # [n] sum over up to n_step steps, discounted
    discount: Tensor  # [n] of the value of ``next_obs``; 0 after a terminal step
    next_obs: dict[str, Tensor]  # [n, *shape] what was seen after those steps: the true final observation, at an end


class Experience:
    """The newest rows of one policy, in the units learning uses (``learning.reward_scale``, ``reward_clip``)."""

    def __init__(self, spec: EnvSpec, capacity: int, settings: LearningSettings, seed: int) -> None:
        self.buffer = ReplayBuffer(StoreSchema.for_env(replace(spec, info=())), capacity, seed)
        self._settings = settings
        self._observed = [OBS + field.name for field in spec.observation]

    def __len__(self) -> int:
        return len(self.buffer)

    @property
    def added(self) -> int:
        """Rows ever added."""
        return self.buffer.added

    @property
    def age(self) -> float:
        """Rows added since those that were drawn last, in the mean."""
        return self.buffer.age

    def add(self, segments: Mapping[str, Array], policy_id: int) -> int:
        """Add what counts of segments ``[T + 1, B, ...]``; returns the number of rows.

        An episode's final observation is a row that does not count (``core.slots``), so each stretch of rows that
        do is followed by the observation it led to, whatever ended it.
        """
        s = self._settings
        reward = segments["reward"] * np.float32(s.reward_scale)
        if s.reward_clip:
            reward = reward.clip(-s.reward_clip, s.reward_clip)
        valid = segments["valid"][:-1] & (segments["policy_id"][:-1] == policy_id)
        for lane, start, stop in stretches(valid):
            rows = slice(start, stop)
            columns = {name: segments[name][rows, lane] for name in (*self._observed, "action", "version")}
            self.buffer.add(
                {**columns, "reward": reward[rows, lane], "global_step": segments["frames"][rows, lane]},
                final={name: segments[name][stop, lane] for name in self._observed},
                terminated=bool(segments["terminated"][stop - 1, lane]),
                truncated=bool(segments["truncated"][stop - 1, lane]),
                info=EpisodeInfo(int(segments["step"][start, lane]), policy_id=policy_id, lane=lane),
            )
        return int(np.count_nonzero(valid))

    def sample(self, count: int, n_step: int, device: torch.device) -> Transitions:
        """``count`` random rows, with replacement."""
        drawn = self.buffer.sample_n_step(count, n_step, self._settings.gamma)

        def tensor(name: str) -> Tensor:
            return torch.from_numpy(drawn[name]).to(device, non_blocking=True)

        return Transitions(
            obs={name.removeprefix(OBS): tensor(name) for name in self._observed},
            action=tensor("action"),
            reward=tensor("reward"),
            discount=tensor("discount"),
            next_obs={name.removeprefix(OBS): tensor(NEXT + name) for name in self._observed},
        )

    def state(self) -> dict[str, Any]:
        return self.buffer.state()

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.buffer.load_state(state)


def stretches(valid: Array) -> Iterator[tuple[int, int, int]]:
    """(lane, start, stop) of all unbroken runs of True in ``[T, B]``, lane by lane."""
    edge = np.zeros((1, valid.shape[1]), np.int8)
    change = np.diff(np.concatenate([edge, valid.astype(np.int8), edge]), axis=0).T  # [B, T + 1]
    lane, start = np.nonzero(change > 0)
    _, stop = np.nonzero(change < 0)
    yield from zip(lane.tolist(), start.tolist(), stop.tolist(), strict=True)
