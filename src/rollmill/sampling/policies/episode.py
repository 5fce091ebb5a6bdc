"""Collects data with policies that are no networks: random, smoothed random, and the user's own.

Their randomness belongs to the episode, not to the process: an episode's number (``sampling.schedule``) decides
every draw in it, whichever lane plays it and whatever other lanes do meanwhile.
"""

from __future__ import annotations

import bdb
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rollmill.core.errors import ConfigError, PolicyError
from rollmill.core.fields import MASK_FIELD, ActionSpec, Array, EnvSpec, Obs
from rollmill.core.imports import import_object
from rollmill.core.protocols import ActRequest, Policy, PolicyOutput
from rollmill.core.seeds import Seeds
from rollmill.core.shapes import check_shape
from rollmill.sampling.schedule import EpisodeSchedule

AHEAD = 64
"""Draws made at a time for one lane: numpy's calls cost more than its numbers."""
WIDEST = 1e3
"""Bound for action components that have none."""

OwnAct = Callable[[Any], Any]
"""What a user's factory returns: observation -> action; may have a method ``reset(seed)``."""


class EpisodePolicy(Policy):
    """Base of policies that are told when a lane begins an episode; values and log-probabilities are 0."""

    def __init__(self, spec: EnvSpec, schedule: EpisodeSchedule) -> None:
        self.spec = spec
        self.lanes = schedule.envs * spec.agents
        self._schedule = schedule
        self._begun: dict[int, int] = {}
        """The episode that each lane is in."""

    def act(self, request: ActRequest) -> PolicyOutput:
        fresh = np.flatnonzero(request.first)
        if fresh.size:
            for k in fresh.tolist():
                self._begin(int(request.lanes[k]), int(request.episode[k]))
        return PolicyOutput.of(self.decide(request.lanes, request.obs))

    def _begin(self, lane: int, episode: int) -> None:
        self._begun[lane] = episode
        env, agent = divmod(lane, self.spec.agents)
        self.begin(lane, self._schedule.policy_seeds(env, episode, agent))

    def state(self) -> dict[str, Any]:
        """Return which episode each lane is in: what it has drawn or remembered there begins anew when it goes on."""
        return {"begun": [[lane, episode] for lane, episode in self._begun.items()]}

    def load_state(self, state: Mapping[str, Any]) -> None:
        check_shape(state, {"begun": [[int]]})
        for lane, episode in state["begun"]:
            self._begin(lane, episode)

    def begin(self, lane: int, seeds: Seeds) -> None:
        """Begin an episode of a lane, before its first action; all its randomness grows from ``seeds``."""
        raise NotImplementedError

    def decide(self, lanes: Array, obs: Obs) -> Array:
        """Return actions ``[n, ...]`` for the lanes ``[n]`` that see ``obs``."""
        raise NotImplementedError


class _Draws:
    """Uniform numbers in [0, 1) for every lane, from a generator that begins anew with each episode."""

    def __init__(self, lanes: int, width: int) -> None:
        self._rng: list[np.random.Generator | None] = [None] * lanes
        self._numbers = np.zeros((lanes, AHEAD, width))
        self._next = np.full(lanes, AHEAD)

    def begin(self, lane: int, seeds: Seeds) -> None:
        self._rng[lane] = seeds.generator()
        self._next[lane] = AHEAD

    def take(self, lanes: Array) -> Array:
        """Return ``[n, width]``, the next numbers of these lanes."""
        for lane in lanes[self._next[lanes] == AHEAD].tolist():
            rng = self._rng[lane]
            assert rng is not None, "every lane begins an episode first"
            rng.random(out=self._numbers[lane])
            self._next[lane] = 0
        drawn: Array = self._numbers[lanes, self._next[lanes]]
        self._next[lanes] += 1
        return drawn


class _Uniform:
    """Turns uniform numbers into actions that are all equally likely, among the allowed ones where there is a mask."""

    def __init__(self, spec: EnvSpec) -> None:
        self.action: ActionSpec = spec.action
        self.masked = spec.masked
        self._nvec = np.asarray(self.action.nvec, np.int64)
        self._low = np.maximum(np.asarray(self.action.low, np.float64), -WIDEST)
        self._high = np.minimum(np.asarray(self.action.high, np.float64), WIDEST)
        self._choices = self.action.mask_size if self.masked else len(self._nvec)
        self.width = self._choices + len(self._low)

    def actions(self, numbers: Array, obs: Obs) -> Array:
        """Turn numbers ``[n, width]`` into actions ``[n, ...]``."""
        first, second = numbers[:, : self._choices], numbers[:, self._choices :]
        choice = self._masked_choice(first, obs[MASK_FIELD]) if self.masked else (first * self._nvec).astype(np.int64)
        number = self._low + second * (self._high - self._low)
        chosen: Array = np.concatenate([choice, number], axis=1).astype(self.action.field.dtype)
        return chosen.reshape(len(numbers), *self.action.field.shape)

    def _masked_choice(self, numbers: Array, mask: Array) -> Array:
        # The largest of equally distributed numbers is anywhere with the same chance; 1 is added as 0 may be drawn.
        weight = (numbers + 1.0) * (mask.reshape(len(numbers), -1) > 0)
        ends = np.cumsum(self._nvec)
        parts = [weight[:, end - n : end].argmax(axis=1) for n, end in zip(self._nvec, ends)]
        return np.stack(parts, axis=-1)

    def allowed(self, actions: Array, obs: Obs) -> Array:
        """Return ``[n]`` bool, whether the mask lets every component of these actions pass."""
        mask = obs[MASK_FIELD].reshape(len(actions), -1)
        starts = np.cumsum(self._nvec) - self._nvec
        choices = actions.reshape(len(actions), -1)[:, : len(starts)].astype(np.int64)
        chosen = np.take_along_axis(mask, choices + starts, axis=1)
        every: Array = np.logical_and.reduce(chosen > 0, axis=1)
        return every


class EpisodeRandom(EpisodePolicy):
    """Uniformly random actions (allowed ones, where there is a mask)."""

    def __init__(self, spec: EnvSpec, schedule: EpisodeSchedule) -> None:
        super().__init__(spec, schedule)
        self._uniform = _Uniform(spec)
        self._draws = _Draws(self.lanes, self._uniform.width)

    def begin(self, lane: int, seeds: Seeds) -> None:
        self._draws.begin(lane, seeds)

    def decide(self, lanes: Array, obs: Obs) -> Array:
        return self._uniform.actions(self._draws.take(lanes), obs)


class SmoothedRandom(EpisodePolicy):
    """Random actions that last: uniform ones would cancel each other out and never leave the start.

    Every so often (after 1 .. 2 * ``hold`` - 1 steps, equally likely) a uniformly random action is drawn.
    Discrete: it is repeated until the next one; where a mask forbids it by then, another one is drawn.
    Continuous: the action moves there in a straight line, one part each step.
    """

    def __init__(self, spec: EnvSpec, schedule: EpisodeSchedule, hold: int = 8) -> None:
        super().__init__(spec, schedule)
        self._hold = hold
        self._uniform = _Uniform(spec)
        self._draws = _Draws(self.lanes, self._uniform.width + 1)  # the last one decides how long it lasts
        field = spec.action.field
        self._now = np.zeros((self.lanes, *field.shape), field.dtype)
        self._target = self._now.copy()
        self._left = np.zeros(self.lanes, np.int64)
        self._fresh = np.zeros(self.lanes, bool)

    def begin(self, lane: int, seeds: Seeds) -> None:
        self._draws.begin(lane, seeds)
        self._left[lane] = 0
        self._fresh[lane] = True

    def decide(self, lanes: Array, obs: Obs) -> Array:
        due = self._left[lanes] == 0
        if self._uniform.masked:
            due |= ~self._uniform.allowed(self._now[lanes], obs)
        if due.any():
            self._redraw(lanes[due], {name: array[due] for name, array in obs.items()})
        if self.spec.action.kind == "continuous":
            left = self._left[lanes].reshape(-1, *(1 for _ in self.spec.action.shape))
            self._now[lanes] += (self._target[lanes] - self._now[lanes]) / left
        self._left[lanes] -= 1
        return self._now[lanes]

    def _redraw(self, lanes: Array, obs: Obs) -> None:
        numbers = self._draws.take(lanes)
        self._target[lanes] = self._uniform.actions(numbers[:, :-1], obs)
        self._left[lanes] = 1 + (numbers[:, -1] * (2 * self._hold - 1)).astype(int)
        # An episode begins at its first target; from then on continuous actions travel.
        there = lanes if self.spec.action.kind != "continuous" else lanes[self._fresh[lanes]]
        self._now[there] = self._target[there]
        self._fresh[lanes] = False


class OwnPolicy(EpisodePolicy):
    """The user's ``module:callable``: ``make(spec)`` once for every lane gives ``act(observation) -> action``.

    ``observation`` is an array ``[*shape]``, or a dict of them where the env has several fields; it is only good
    until ``act`` returns. ``action`` is what ``spec.action`` says: an integer from 0, several, or floats.
    ``act.reset(seed)``, where there is one, is called before the first observation of every episode.
    """

    def __init__(self, spec: EnvSpec, schedule: EpisodeSchedule, target: str) -> None:
        super().__init__(spec, schedule)
        self._target = target
        make = find_factory(target)
        self._acts: list[OwnAct] = [self._make(make) for _ in range(self.lanes)]
        self._only = spec.observation[0].name if len(spec.observation) == 1 else None
        field = spec.action.field
        self._shape, self._dtype = field.shape, np.dtype(field.dtype)
        self._nvec = np.asarray(spec.action.nvec, np.int64)

    def _make(self, make: Callable[..., Any]) -> OwnAct:
        act = self._call("could not be made", make, self.spec)
        if not callable(act):
            raise ConfigError(
                f"--policy {self._target}: called with the env's spec it returned {type(act).__name__}, "
                "expected a callable: observation -> action"
            )
        own: OwnAct = act
        return own

    def begin(self, lane: int, seeds: Seeds) -> None:
        reset = getattr(self._acts[lane], "reset", None)
        if reset is not None:
            self._call("failed in reset", reset, seeds.integer())

    def decide(self, lanes: Array, obs: Obs) -> Array:
        actions = np.empty((len(lanes), *self._shape), self._dtype)
        for k, lane in enumerate(lanes.tolist()):
            seen: Array | Mapping[str, Array]
            seen = obs[self._only][k] if self._only else {name: array[k] for name, array in obs.items()}
            actions[k] = self._checked(self._call("failed", self._acts[lane], seen))
        return actions

    def _call(self, what: str, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except bdb.BdbQuit:  # leaving the debugger
            raise
        except Exception as error:
            raise PolicyError(f"--policy {self._target} {what}: {type(error).__name__}: {error}") from error

    def _checked(self, answer: Any) -> Array:
        try:
            action = np.asarray(answer)
        except ValueError as error:  # lists of different lengths
            raise PolicyError(f"--policy {self._target} answered {answer!r}, which is no action: {error}") from error
        kinds = "fiu" if self._dtype.kind == "f" else "iu"
        if action.shape != self._shape or action.dtype.kind not in kinds:
            raise PolicyError(
                f"--policy {self._target} answered {answer!r} ({action.dtype} of shape {action.shape}), "
                f"expected {self._dtype} of shape {self._shape}"
            )
        choices = action.reshape(-1)[: len(self._nvec)]
        good = np.isfinite(action).all() and ((choices >= 0) & (choices < self._nvec) & (choices % 1 == 0)).all()
        if not good:
            limits = self._nvec.tolist() if self._shape else int(self._nvec[0])
            wanted = [f"0 up to below {limits}"] if self._nvec.size else []
            wanted += ["finite numbers"] if self._dtype.kind == "f" else []
            raise PolicyError(f"--policy {self._target} answered {answer!r}, expected {', then '.join(wanted)}")
        return action


def find_factory(target: str) -> Callable[..., Any]:
    """Return the user's factory; raises ConfigError if it is not there or cannot be called with the spec alone."""
    make: Callable[..., Any] = import_object(target, "--policy")
    try:
        signature = inspect.signature(make)
    except (TypeError, ValueError):  # some C callables have none: calling will tell
        return make
    try:
        signature.bind(None)
    except TypeError as error:
        raise ConfigError(
            f"--policy {target}: it is called with one argument, the env's spec, and cannot be: {error} "
            f"(its signature is {signature})"
        ) from error
    return make
