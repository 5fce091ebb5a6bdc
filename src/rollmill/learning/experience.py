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
from rollmill.learning.batch import own_rows
from rollmill.learning.settings import LearningSettings
from rollmill.store.episode import EpisodeInfo
from rollmill.store.format.schema import Column, StoreSchema
from rollmill.store.replay import ReplayBuffer
from rollmill.store.views import MASK, NEXT

STATE, OPENS = "state", "opens"
"""Columns of the buffer where there is memory: the policy's recurrent state before the first row of a segment (zero in
the others), and whether a row opens an episode."""
CHUNK_BYTES = 64 << 20
"""Of rows that are drawn in one go, for several updates."""


@dataclass
class Transitions:
    """Rows drawn at random, on the learner's device: n of them, or n sequences of L steps (with memory)."""

    obs: dict[str, Tensor]  # [n, *shape]; [L + 1, n, *shape]
    action: Tensor  # [n, ...]; [L, n, ...]
    reward: Tensor  # [n] sum over up to n_step steps, discounted; [L, n]
    discount: Tensor  # [n] of the value of ``next_obs``; 0 after a terminal step; [L, n]
    next_obs: dict[str, Tensor]  # [n, *shape] what was seen after those steps; sequences have none beside ``obs``
    state: Tensor | None = None  # [n, S] of the policy before a sequence
    weight: Tensor | None = None  # [L, n] 1 for the steps of a sequence that count

    @property
    def is_sequence(self) -> bool:
        return self.weight is not None

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by name."""
        named = {"action": self.action, "reward": self.reward, "discount": self.discount}
        named |= {f"observation {name!r}": x for name, x in self.obs.items()}
        named |= {f"next observation {name!r}": x for name, x in self.next_obs.items()}
        return named | {n: x for n, x in (("state", self.state), ("weight", self.weight)) if x is not None}

    def clone(self) -> Transitions:
        return Transitions(
            {name: x.clone() for name, x in self.obs.items()},
            *(self.action.clone(), self.reward.clone(), self.discount.clone()),
            {name: x.clone() for name, x in self.next_obs.items()},
            *(None if x is None else x.clone() for x in (self.state, self.weight)),
        )

    def copy_(self, other: Transitions) -> None:
        """Fill the tensors in place."""
        mine, its = self.tensors(), other.tensors()
        torch._foreach_copy_(list(mine.values()), [its[name] for name in mine])


@dataclass(frozen=True)
class Sequences:
    """How an experience with memory is drawn."""

    length: int
    """Steps of a sequence: those of a rollout, which no segment exceeds."""
    state_size: int
    burn_in: int
    """Steps that only fill memories, where a sequence does not open an episode."""


class Experience:
    """The newest rows of one policy, in the units learning uses (``learning.reward_scale``, ``reward_clip``).

    ``sequences``: draw whole segments, for networks with memory.
    """

    def __init__(
        self, spec: EnvSpec, capacity: int, settings: LearningSettings, seed: int, sequences: Sequences | None = None
    ) -> None:
        extra = () if sequences is None else (Column(STATE, "float32", (sequences.state_size,)), Column(OPENS, "bool"))
        schema = StoreSchema.for_env(replace(spec, info=()), extra=extra)
        self.buffer = ReplayBuffer(schema, capacity, seed)
        self._settings, self._sequences = settings, sequences
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
        valid = own_rows(segments, policy_id)
        for lane, start, stop in stretches(valid):
            rows = slice(start, stop)
            columns = {name: segments[name][rows, lane] for name in (*self._observed, "action", "version")}
            if self._sequences is not None:
                columns |= self._memory_columns(segments, lane, start, stop)
            self.buffer.add(
                {**columns, "reward": reward[rows, lane], "global_step": segments["frames"][rows, lane]},
                final={name: segments[name][stop, lane] for name in self._observed},
                terminated=bool(segments["terminated"][stop - 1, lane]),
                truncated=bool(segments["truncated"][stop - 1, lane]),
                info=EpisodeInfo(int(segments["step"][start, lane]), policy_id=policy_id, lane=lane),
            )
        return int(np.count_nonzero(valid))

    def _memory_columns(self, segments: Mapping[str, Array], lane: int, start: int, stop: int) -> dict[str, Array]:
        """Return the columns from which a stretch gets the policy's state (memory) before its first row.

        A stretch begins with a rollout, whose state the policy has noted, or with an episode, where it is zero.
        """
        assert self._sequences is not None
        opens = segments["step"][start:stop, lane] == 0
        state = np.zeros((stop - start, self._sequences.state_size), np.float32)
        if start == 0 and not opens[0]:
            state[0] = segments["state"][0, lane]
        return {STATE: state, OPENS: opens}

    def draw(self, updates: int, count: int, n_step: int, device: torch.device) -> list[Transitions]:
        """Draw what ``updates`` updates learn from: ``count`` random rows each (or sequences of as many).

        Rows are drawn with replacement. What several updates need is gathered, and brought to the device, by one call
        each.
        """
        if self._sequences is not None:
            return self._draw_sequences(updates, max(1, count // self._sequences.length), device)
        drawn = self.buffer.sample_n_step(updates * count, n_step, self._settings.gamma)

        def parts(name: str) -> tuple[Tensor, ...]:
            return _parts(drawn[name], count, device)

        action, reward, discount = (parts(name) for name in ("action", "reward", "discount"))
        now = {name.removeprefix(OBS): parts(name) for name in self._observed}
        then = {name.removeprefix(OBS): parts(NEXT + name) for name in self._observed}
        found = []
        for k in range(updates):
            obs, next_obs = ({name: x[k] for name, x in seen.items()} for seen in (now, then))
            found.append(Transitions(obs, action[k], reward[k], discount[k], next_obs))
        return found

    def _draw_sequences(self, updates: int, count: int, device: torch.device) -> list[Transitions]:
        s = self._sequences
        assert s is not None
        drawn = self.buffer.sample_segments(updates * count, s.length)
        weight = drawn[MASK].astype(np.float32)
        weight[~drawn[OPENS][:, 0], : s.burn_in] = 0
        discount = np.where(drawn["terminated"], np.float32(0), np.float32(self._settings.gamma))

        def parts(rows: Array) -> tuple[Tensor, ...]:
            return _parts(np.ascontiguousarray(rows.swapaxes(0, 1)), count, device, axis=1)

        columns = [parts(rows) for rows in (drawn["action"], drawn["reward"], discount, weight)]
        obs = {name.removeprefix(OBS): parts(drawn[name]) for name in self._observed}
        states = _parts(np.ascontiguousarray(drawn[STATE][:, 0]), count, device)
        found = []
        for k in range(updates):
            action, reward, discounts, weights = (column[k] for column in columns)
            seen = {name: x[k] for name, x in obs.items()}
            found.append(Transitions(seen, action, reward, discounts, {}, states[k], weights))
        return found

    def updates_at_once(self, count: int) -> int:
        """Return for how many updates rows are drawn in one go."""
        row = self.buffer.schema.row_bytes + sum(c.row_bytes for c in self.buffer.schema.obs_columns)
        return max(1, CHUNK_BYTES // max(1, row * count))

    def state(self) -> dict[str, Any]:
        return self.buffer.state()

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.buffer.load_state(state)


def _parts(rows: Array, count: int, device: torch.device, axis: int = 0) -> tuple[Tensor, ...]:
    """Bring rows to the device and cut them into parts of ``count`` along an axis."""
    own = torch.from_numpy(rows)
    if device.type != "cpu":
        own = own.pin_memory().to(device, non_blocking=True)
    return torch.split(own, count, dim=axis)


def stretches(valid: Array) -> Iterator[tuple[int, int, int]]:
    """Yield (lane, start, stop) of all unbroken runs of True in ``[T, B]``, lane by lane."""
    edge = np.zeros((1, valid.shape[1]), np.int8)
    change = np.diff(np.concatenate([edge, valid.astype(np.int8), edge]), axis=0).T  # [B, T + 1]
    lane, start = np.nonzero(change > 0)
    _, stop = np.nonzero(change < 0)
    yield from zip(lane.tolist(), start.tolist(), stop.tolist(), strict=True)
