"""The roles of the system on one page. Everything else is an implementation of one of these.

The life of one transition::

    Env -> BatchEnv -> (slot in shared memory) -> Policy acts -> Learner trains -> Policy is updated
                                              \\-> observers and recorders look at the same arrays

Shapes use these letters: ``L`` lanes of a group, ``A`` agents of one env, ``T`` steps of a segment,
``B`` lanes of a training batch. Arrays are numpy; only ``models`` and ``learning`` know torch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from rollmill.core.fields import Array, EnvSpec, Obs

if TYPE_CHECKING:
    from rollmill.core.slots import Arena

StepReturn = tuple[Any, Any, Any, Mapping[str, Any]]
"""(reward, terminated, truncated, info); scalars, or arrays ``[A]`` for several agents."""


class Env(Protocol):
    """Is one simulator with one or more agents, which writes what it sees into given arrays.

    Raising is allowed: whoever holds the env restarts it within limits and reports the fault.

    A seed and the actions fix an episode, unless the env has an attribute ``repeatable`` that is False.
    """

    spec: EnvSpec

    def reset(self, seed: int, obs: Obs) -> None:
        """Start a new episode; write the first observation into ``obs`` (each ``[A, *shape]``)."""

    def step(self, action: Array, obs: Obs) -> StepReturn:
        """Apply ``action`` ``[A, ...]``; write the next observation into ``obs``.

        When the episode ends, the *final* observation is written; the holder calls ``reset`` next.
        """

    def render(self) -> Array | None:
        """Return an RGB image uint8 ``[H, W, 3]`` of the current state, or None where there is none."""

    def close(self) -> None: ...


class BatchEnv(Protocol):
    """Several envs stepped by one call; lanes restart by themselves (next-step autoreset).

    The step after an episode's end ignores the action, resets the lane and writes the first
    observation of the next episode: the row that held the final observation is marked not valid.
    """

    spec: EnvSpec
    lanes: int

    def reset(self, out: StepOut) -> None:
        """Start every lane; fills row t + 1 (the observation, ``first``, ``step`` and ``episode``)."""

    def step(self, actions: Array, out: StepOut) -> None:
        """Advance every lane by ``actions`` ``[L, ...]`` and fill all of ``out``."""

    def close(self) -> None: ...


class StepOut(Protocol):
    """Where a batch env writes: two consecutive rows of a slot, lane by lane or as arrays over all lanes.

    The outcome of the action belongs to row t, the observation it led to belongs to row t + 1.
    """

    records: memoryview  # the worker fields of all lanes, ``slots.RECORD_BYTES`` each
    outcomes_at: int  # where in ``records`` lane 0's ``slots.OUTCOME`` of row t begins
    openings_at: int  # where in ``records`` lane 0's ``slots.OPENING`` of row t + 1 begins

    def obs_of(self, begin: int, end: int) -> Obs:
        """Return the observation in row t + 1 of lanes ``begin`` to ``end``: views ``[end - begin, *shape]``."""

    def arrays(self) -> StepArrays:
        """Return the same memory as arrays: worth their making where one expression writes many lanes."""


class StepArrays(Protocol):
    """A ``StepOut`` as arrays."""

    # row t
    reward: Array  # [L] float32
    terminated: Array  # [L] bool
    truncated: Array  # [L] bool
    valid: Array  # [L] bool; False: the action did not count (final observation, or a fault)
    episode_return: Array  # [L] float32; NaN unless the episode ended with this action
    # row t + 1
    obs: Obs  # [L, *shape] each
    first: Array  # [L] bool; first observation of an episode
    step: Array  # [L] int32; steps since the start of the episode
    episode: Array  # [L] int64; index of the episode in its lane


class Saveable(Protocol):
    """Anything that survives in a checkpoint: plain nested dicts of numpy arrays and JSON values."""

    def state(self) -> dict[str, Any]: ...

    def load_state(self, state: Mapping[str, Any]) -> None: ...


class Actor:
    """Decides for lanes, and keeps the recurrent state of every lane it has seen, by lane number.

    A base with defaults: those of a policy without weights, memory or anything that a checkpoint would have to keep.
    """

    state_size: int = 0
    """Floats of recurrent state per lane; 0 for policies without memory."""

    @property
    def version(self) -> int:
        """The version of the weights that the last decision was made with."""
        return 0

    def attach(self, arena: Arena) -> None:
        """Take note, once and before the first request, of where the rows are that will be asked about."""

    def detach(self) -> None:
        """Let go of the arena's memory, which goes away after the last request."""

    def refresh(self) -> int:
        """Take over the newest published weights, if any; returns the version now in use."""
        return self.version

    def remember(self) -> None:
        """Keep the recurrent states as they are now."""

    def rewind(self) -> None:
        """Go back to the states that ``remember`` kept: the decisions since then are made again."""

    def state(self) -> dict[str, Any]:
        """Return memory and randomness, for a checkpoint (``Saveable``)."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state`` was taken."""


class Policy(Actor):
    """Answers requests."""

    def act(self, request: ActRequest) -> PolicyOutput:
        """Return one decision for each lane of the request."""
        raise NotImplementedError


class InPlacePolicy(Actor):
    """Reads the rows of whole groups from the arena by itself, and writes its decisions there."""

    def decide_in_place(self, rows: GroupRows, meanwhile: Callable[[], None]) -> None:
        """Decide for these rows. ``meanwhile`` is called once, with ``version`` known, while a device is at work."""
        raise NotImplementedError


@dataclass(frozen=True)
class GroupRows:
    """Rows that wait for a decision, one per group."""

    groups: Array  # [g] int64
    slots: Array  # [g] int64
    rows: Array  # [g] int64
    closing: Array | None  # [g] int64: the full slot whose bootstrap row this is as well, or -1; None: no slot is full


def _unknown() -> Array:
    raise RuntimeError("whoever asks this policy must tell it the episodes and the last rewards of the lanes")


@dataclass
class ActRequest:
    """Lanes that wait for a decision. What they see, and what came before, is gathered when first asked for."""

    first: Array  # [n] bool
    lanes: Array  # [n] int64, global lane numbers
    groups: Array  # [g] int64, where whole groups ask (n = g * L); empty otherwise
    slots: Array  # [g] int64
    rows: Array  # [g] int64
    closing: Array  # [g] int64: the full slot whose bootstrap row this is as well, or -1
    gather: Callable[[], Obs]
    episodes: Callable[[], Array] = _unknown
    rewards: Callable[[], Array] = _unknown

    @functools.cached_property
    def obs(self) -> Obs:
        """Observations ``[n, *shape]`` by field name, the action mask included."""
        return self.gather()

    @functools.cached_property
    def episode(self) -> Array:
        """The index of each lane's episode, ``[n]`` int64."""
        return self.episodes()

    @functools.cached_property
    def reward(self) -> Array:
        """The reward ``[n]`` float32 of the lane's decision before this one; anything where an episode begins."""
        return self.rewards()

    def part(self, mine: Array | slice) -> ActRequest:
        """Return a request about some of the lanes only; these are no longer whole groups."""
        none = self.groups[:0]
        return ActRequest(
            self.first[mine],
            self.lanes[mine],
            none,
            none,
            none,
            none,
            lambda: {name: array[mine] for name, array in self.obs.items()},
            lambda: self.episode[mine],
            lambda: self.reward[mine],
        )

    @staticmethod
    def outside(first: Array, obs: Obs, episode: Array, reward: Array) -> ActRequest:
        """Make a request about the lanes 0 .. n - 1 that does not come out of an arena."""
        none = np.zeros(0, np.int64)
        lanes = np.arange(len(first))
        return ActRequest(first, lanes, none, none, none, none, lambda: obs, lambda: episode, lambda: reward)


@dataclass
class PolicyOutput:
    """Decisions for n lanes."""

    action: Array  # [n, ...]
    log_prob: Array  # [n] float32
    value: Array  # [n] float32, in units of the return
    state: Array | None = None  # [n, state_size] float32: the recurrent state *before* this step; None: kept elsewhere

    @staticmethod
    def of(action: Array) -> PolicyOutput:
        """Wrap actions of a policy that knows neither their probabilities nor what they are worth."""
        blank = np.zeros(len(action), np.float32)
        return PolicyOutput(action, blank, blank)


@dataclass(frozen=True)
class Seats:
    """Who plays some lanes in the episodes that begin there."""

    policy_id: Array  # [n] int16: a policy of the run, or an opponent
    version: Array  # [n] int64: of an opponent's weights; of a policy of the run it is known when it acts
    opponent: Array  # [n] int16: the policy_id of whom the lane plays against


class Matchmaker(Protocol):
    """Self-play: chooses who meets whom, and plays those who do not learn.

    Policies of the run are numbered from 0; every higher ``policy_id`` is an opponent's.
    """

    @property
    def plays_all(self) -> bool:
        """Whether it decides for policies of the run as well, so that there is one pass for all."""

    def seat(self, lanes: Array, episodes: Array) -> Seats:
        """Choose who plays the lanes ``[n]`` in the episodes ``[n]`` that begin there: all agents of each environment.

        It is asked once for an episode, at its first row: within an episode nobody changes.
        """

    def act_for(self, policy_ids: Array, request: ActRequest) -> PolicyOutput:
        """Decide for lanes that ``policy_ids`` ``[n]`` play: opponents, or anybody where it ``plays_all``."""

    def acting_state(self) -> dict[str, Any]:
        """Return memory and randomness of the opponents in the running episodes, for a checkpoint of serial mode."""

    def load_acting_state(self, state: Mapping[str, Any]) -> None:
        """Go on where ``acting_state`` was taken."""


class Ensemble(Protocol):
    """Several policies in one pass: those of a population, to each of which whole groups belong."""

    def act_for(self, owners: Array, request: ActRequest) -> PolicyOutput:
        """Decide for whole groups; ``owners`` ``[g]``, in ascending order: the policy of each."""


class Learner(Saveable, Protocol):
    """Turns finished segments into better weights."""

    version: int
    """How often the weights have changed; 0 for those it began with."""
    policy_id: int

    @property
    def oldest_useful(self) -> int:
        """The oldest version of weights whose segments it learns from: older ones are dropped before they get here."""

    def train(self, segments: Mapping[str, Array], progress: float = 0.0) -> Mapping[str, float]:
        """Train once on arrays ``[T + 1, B, ...]`` (see ``core.slots``); returns metrics by name.

        ``progress`` is the share of the run that is done (0..1), for schedules.
        """

    def counts(self) -> Mapping[str, float]:
        """Return metrics of its replay buffer as they stand (``docs/metrics.md``); none where it has none."""

    def publish(self) -> None:
        """Make the current weights visible to policies."""

    def agree(self) -> None:
        """Go on from what rank 0 holds, where there are several ranks; publish it."""


class Sink(Protocol):
    """Where metrics go (a file, TensorBoard, a console)."""

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add a row; ``step``: how far the run is, in whatever unit it counts (frames, updates, generations)."""

    def close(self) -> None: ...
