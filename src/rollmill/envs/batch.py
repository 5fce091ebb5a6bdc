"""Steps several single environments as one batch, and keeps them alive through their faults.

A lane that ended keeps its final observation for one row; the next ``step`` ignores the action
there and resets the lane (next-step autoreset). An env that raises or returns nonsense is closed,
built again and reset within limits; its row is marked not valid and the fault is reported.
"""

from __future__ import annotations

import bdb
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from math import isfinite, nan, prod
from typing import Any, Protocol

import numpy as np

from rollmill.core.errors import ConfigError, EnvError, error_text, trace_text
from rollmill.core.fields import MASK_FIELD, ActionSpec, Array, EnvSpec, Obs
from rollmill.core.protocols import Env, StepOut
from rollmill.core.seeds import Seeds
from rollmill.core.slots import OPENING, OUTCOME, RECORD_BYTES
from rollmill.core.text import cut
from rollmill.envs.settings import EnvSettings
from rollmill.envs.variables import EnvVariables

MAKE, RESET, STEP, CLOSE = 1, 2, 3, 4
"""What an env is doing right now, as told to the watch (0 = nothing)."""
PHASES = {MAKE: "constructor", RESET: "reset", STEP: "step", CLOSE: "close"}

STOPS = (KeyboardInterrupt, bdb.BdbQuit)
"""Raised in an env's code by somebody who ends the run: Ctrl-C, or leaving the debugger. Everything else that comes out
of there is a fault of the env, ``sys.exit`` too."""

Outcome = tuple[float, bool, bool]
"""(reward, rounded to float32; terminated; truncated) of one lane."""
NOTHING: Outcome = (0.0, False, False)
NUMBERS = frozenset({float, int, bool, np.float64, np.float32, np.int64, np.bool_})
"""Types that need no second look."""
BUILT = "an env is always rebuilt before it is used"
write_outcome, write_opening = OUTCOME.pack_into, OPENING.pack_into


class Watch(Protocol):
    """Told before and after every call into an env, so that a hang can be seen from outside."""

    def enter(self, env: int, phase: int, episode: int, step: int) -> None: ...

    def leave(self) -> None: ...


class NoWatch:
    """For one-process runs: nobody looks from outside, and a pause at a breakpoint is no hang."""

    def enter(self, env: int, phase: int, episode: int, step: int) -> None:
        return None

    def leave(self) -> None:
        return None


@dataclass(frozen=True)
class Fault:
    """One misbehaviour of one env: enough to name it and to reproduce the episode."""

    env_id: str
    env: int
    phase: str
    seed: int
    episode: int
    step: int
    error: str
    trace: str

    def describe(self) -> str:
        return (
            f"env {self.env} ({self.env_id}) failed in {self.phase} "
            f"(seed {self.seed}, episode {self.episode}, step {self.step}): {self.error}"
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class BatchSetup:
    """What a batch needs besides its settings: which envs of the run it holds, and who listens."""

    spec: EnvSpec
    """What every env of the run must promise."""
    make: Callable[[int], Env]
    """Builds env number ``i`` (numbered over the whole run)."""
    envs: range
    """Run-wide numbers of this batch's envs."""
    seeds: Seeds
    watch: Watch
    on_fault: Callable[[Fault], None]
    on_episode: Callable[[int, int, dict[str, float]], None]
    """(lane, episode, the env's own statistics) at the end of an episode that has any."""
    first_episode: Array
    """[envs of the batch] int64: number of the first episode of each env (after a restart: not 0)."""
    decorrelate_steps: int = 0
    keep_actions: bool = False
    """Remember the actions of the running episodes, so that they can be replayed (deterministic resume)."""
    seed_of: Callable[[int, int], int] | None = None
    """The seed of (env, episode), where it is not the one that ``seeds`` gives."""
    variables: tuple[EnvVariables, ...] = ()
    """Those of every env of the batch, if the run has any, which ``make`` hands over; a vector env has the first."""


class _Agent:
    """The running episode of one lane."""

    __slots__ = ("at", "ended", "returns", "steps")

    def __init__(self, lane: int) -> None:
        self.at = lane * RECORD_BYTES
        self.steps = 0
        self.returns = 0.0
        self.ended = False


class _Seat:
    """One env of a batch: its lanes, its episode, and how it has done so far.

    Plain numbers in small objects, not arrays over the batch: a simulator leaves next to nothing of numpy in the
    core's caches, and what is fetched again for every step costs more than what is computed.
    """

    __slots__ = (
        "actions",
        "agents",
        "begin",
        "end",
        "env",
        "episode",
        "faults",
        "good_steps",
        "index",
        "number",
        "over",
        "seeds",
    )

    def __init__(self, index: int, number: int, agents: int, first_episode: int, seeds: Seeds) -> None:
        self.index = index
        self.number = number
        self.begin, self.end = index * agents, (index + 1) * agents  # lanes
        self.agents = [_Agent(lane) for lane in range(self.begin, self.end)]
        self.env: Env | None = None
        self.episode = first_episode - 1
        self.over = False
        """All agents have ended: the next step is a reset."""
        self.faults = 0
        self.good_steps = 0
        self.actions: list[Array] = []
        self.seeds = seeds


class EnvBatch:
    """A ``BatchEnv`` over single envs; see the module's text for what happens at ends and faults."""

    def __init__(self, settings: EnvSettings, setup: BatchSetup) -> None:
        self._settings = settings
        self._setup = setup
        self._watch = setup.watch
        self._keep_actions = setup.keep_actions
        self.spec = setup.spec
        self.agents = setup.spec.agents
        self.lanes = len(setup.envs) * self.agents
        first = np.asarray(setup.first_episode, np.int64)
        self._seats = [
            _Seat(i, number, self.agents, first.item(i), self._branch(number).branch("episode"))
            for i, number in enumerate(setup.envs)
        ]
        self.next_episode = first.copy()
        """[envs] int64: the first episode number of each env that was never used. To be read only."""
        self.begun = 0
        """Episodes begun so far: ``next_episode`` changes with it."""
        self._limit = settings.max_episode_steps or sys.maxsize
        self._floats = [(f.name, *_flags(self.agents, *f.shape)) for f in self.spec.observation if f.is_float]
        self._masked = self.spec.masked
        self._checked = bool(self._floats) or self._masked
        nvec = np.asarray(self.spec.action.nvec, np.int64)
        self._mask_starts = np.cumsum(nvec) - nvec  # where each action component begins in a mask
        self._process = os.getpid()
        self._float32 = memoryview(bytearray(4)).cast("f")  # rounds as numpy does, in a tenth of the time
        self._converted = np.zeros(self.agents, [("reward", "float32"), ("terminated", "bool"), ("truncated", "bool")])
        self._rewards, self._terminated, self._truncated = (
            self._converted[n] for n in self._converted.dtype.names or ()
        )
        try:
            for seat in self._seats:
                self._build(seat)
        except BaseException:
            self.close()  # nobody else knows of those that stand
            raise

    @property
    def envs(self) -> range:
        """Run-wide numbers of the envs in this batch."""
        return self._setup.envs

    # -- the two calls of a BatchEnv -----------------------------------------------------------

    def reset(self, out: StepOut) -> None:
        for seat in self._seats:
            self._begin_episode(seat, out)
            self._decorrelate(seat, out)

    def step(self, actions: Array, out: StepOut) -> None:
        for seat in self._seats:
            if seat.over:
                self._begin_episode(seat, out)
            elif self._step_env(seat, actions[seat.begin : seat.end], out):
                seat.good_steps += 1

    def close(self) -> None:
        for seat in self._seats:
            if seat.env is not None:
                self._close_env(seat)

    # -- one env -------------------------------------------------------------------------------

    def _step_env(self, seat: _Seat, action: Array, out: StepOut) -> bool:
        """Step an env and write its rows; False when it failed and a new episode was begun in its place."""
        if self._keep_actions:
            seat.actions.append(action.copy())
        env = seat.env
        assert env is not None, BUILT
        self._watch.enter(seat.number, STEP, seat.episode, seat.agents[0].steps)
        try:
            obs = out.obs_of(seat.begin, seat.end)
            reward, terminated, truncated, info = env.step(action, obs)
            plain = type(reward) is float and type(terminated) is bool and type(truncated) is bool and self.agents == 1
            if plain:  # nothing to convert, so that numpy is not needed
                self._float32[0] = reward
                reward = self._float32[0]
            if plain and isfinite(reward):
                outcomes = [(reward, terminated, truncated)]
            else:
                outcomes = self._outcomes(seat, reward, terminated, truncated)
            if self._checked:
                self._check_observation(seat, obs, outcomes)
            stats = _own_statistics(info, self.agents) if info else None
        except STOPS:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever user code raises is that env's fault
            self._recover(seat, error, out)
            return False
        finally:
            self._watch.leave()
        if plain:  # without a loop: this is all there is to most steps
            self._account(seat, seat.agents[0], outcomes[0], out)
        else:
            for agent, outcome in zip(seat.agents, outcomes):
                self._account(seat, agent, outcome, out)
        for agent_number, own in enumerate(stats or ()):
            if own:
                self._setup.on_episode(seat.number * self.agents + agent_number, seat.episode, own)
        return True

    def _outcomes(self, seat: _Seat, reward: Any, terminated: Any, truncated: Any) -> list[Outcome]:
        """Return what came of a step, agent by agent; raises ValueError on nonsense. Each of the three values is one
        number for all agents or one per agent."""
        if not (is_number(reward) and is_number(terminated) and is_number(truncated)):
            self._refuse(reward=reward, terminated=terminated, truncated=truncated)
        self._rewards[...], self._terminated[...], self._truncated[...] = reward, terminated, truncated
        outcomes = [NOTHING if agent.ended else came for agent, came in zip(seat.agents, self._converted.tolist())]
        rewards = [reward for reward, _, _ in outcomes]
        if not all(map(isfinite, rewards)):
            raise ValueError(f"reward is NaN or infinite: {rewards}")
        return outcomes

    def _refuse(self, **values: Any) -> None:
        for name, value in values.items():
            if not is_number(value):
                wanted = "a number" if name == "reward" else "true or false"
                raise ValueError(f"{name} is {cut(repr(value), 80)}, expected {wanted}")

    def _begin_episode(self, seat: _Seat, out: StepOut, variables: Array | None = None) -> None:
        """Reset an env into row t + 1, building it anew as often as the limit allows.

        ``variables``: what the episode saw when it was first begun (replay).
        """
        while True:
            if self._setup.variables:  # for every attempt: after a fault it is another episode
                self._setup.variables[seat.index].take(variables)
            seat.episode += 1
            self.next_episode[seat.index] = seat.episode + 1
            self.begun += 1
            seat.over = False
            for agent in seat.agents:
                agent.steps, agent.returns, agent.ended = 0, 0.0, False
            seat.actions.clear()
            self._watch.enter(seat.number, RESET, seat.episode, 0)
            try:
                obs = self._obs_of(seat, out)
                self._env(seat).reset(self._episode_seed(seat), obs)
                self._check_observation(seat, obs, [NOTHING] * self.agents)
                break
            except STOPS:
                raise
            except BaseException as error:  # noqa: BLE001 - as above
                self._note_fault(seat, RESET, error)
                self._close_env(seat)
                self._build(seat)
            finally:
                self._watch.leave()
        for agent in seat.agents:
            self._write_idle(seat, agent, out)

    def _recover(self, seat: _Seat, error: BaseException, out: StepOut) -> None:
        """Report the failure of an env in a step, replace it, and start its next episode."""
        self._note_fault(seat, STEP, error)
        self._close_env(seat)
        self._build(seat)
        self._begin_episode(seat, out)

    def _build(self, seat: _Seat) -> None:
        while True:
            self._watch.enter(seat.number, MAKE, self._episode_number(seat), 0)
            try:
                env = seat.env = self._setup.make(seat.number)
                if env.spec != self.spec:
                    raise ValueError(f"this instance promises {env.spec}, the run was set up for {self.spec}")
                return
            except (*STOPS, ConfigError):
                raise  # settings that do not fit, a missing package: the next try would find the same
            except BaseException as error:  # noqa: BLE001 - as above
                self._note_fault(seat, MAKE, error)
                self._close_env(seat)
            finally:
                self._watch.leave()

    def _close_env(self, seat: _Seat) -> None:
        env, seat.env = seat.env, None
        self._watch.enter(seat.number, CLOSE, self._episode_number(seat), 0)
        try:
            if env is not None:
                env.close()
        except STOPS:
            raise
        except BaseException as error:  # noqa: BLE001 - a broken env may fail to close; say so, go on
            self._report(seat, CLOSE, error)
        finally:
            self._watch.leave()

    def _note_fault(self, seat: _Seat, phase: int, error: BaseException) -> None:
        """Report a fault; raise EnvError when this env has used up its limit."""
        if seat.good_steps >= self._settings.fault_window:
            seat.faults = 0
        seat.good_steps = 0
        seat.faults += 1
        fault = self._report(seat, phase, error)
        if seat.faults > self._settings.fault_limit:
            raise EnvError(
                f"{fault.describe()}\nThat is fault {seat.faults} of this env within "
                f"{self._settings.fault_window} steps; env.fault_limit is {self._settings.fault_limit}."
                f"\n{self._settings.check_hint}\n{fault.trace}"
            ) from error

    def _report(self, seat: _Seat, phase: int, error: BaseException) -> Fault:
        end_stray_fork(self._process)
        fault = Fault(
            env_id=self._settings.id,
            env=seat.number,
            phase=PHASES[phase],
            seed=self._episode_seed(seat),
            episode=self._episode_number(seat),
            step=seat.agents[0].steps,
            error=error_text(error),
            trace=trace_text(error),
        )
        self._setup.on_fault(fault)
        return fault

    # -- rows ----------------------------------------------------------------------------------

    def _account(self, seat: _Seat, agent: _Agent, outcome: Outcome, out: StepOut) -> None:
        """Count a step of one lane, close its episode if it is over, and write the rows."""
        if agent.ended:
            self._write_idle(seat, agent, out)
            return
        reward, terminated, truncated = outcome
        agent.steps = steps = agent.steps + 1
        agent.returns += reward
        if steps >= self._limit and not terminated:
            truncated = True
        episode_return = nan
        if terminated or truncated:
            agent.ended = True
            seat.over = all(other.ended for other in seat.agents)
            self._float32[0] = agent.returns
            episode_return = self._float32[0]
        records, at = out.records, agent.at
        write_outcome(records, out.outcomes_at + at, reward, episode_return, terminated, truncated, True)
        write_opening(records, out.openings_at + at, False, steps, seat.episode)

    def _write_idle(self, seat: _Seat, agent: _Agent, out: StepOut) -> None:
        """Write a row in which the action did not count: an episode has begun, or the agent waits for others."""
        write_outcome(out.records, out.outcomes_at + agent.at, 0.0, nan, False, False, False)
        write_opening(out.records, out.openings_at + agent.at, agent.steps == 0, agent.steps, seat.episode)

    def _check_observation(self, seat: _Seat, obs: Obs, outcomes: list[Outcome]) -> None:
        """Raise ValueError if an observation is NaN or infinite, or a mask forbids everything."""
        for name, array, flags in self._floats:
            np.isfinite(obs[name], array)
            if 0 in flags:
                raise ValueError(f"observation {name!r} is NaN or infinite")
        if not self._masked:
            return
        mask = obs[MASK_FIELD]
        allowed = np.logical_or.reduceat(mask, self._mask_starts, axis=1)  # [agents, action components]
        for agent, components, (_, terminated, truncated) in zip(seat.agents, allowed.tolist(), outcomes):
            # Where an episode is over there is nothing to choose: such a mask may be empty.
            if not (all(components) or agent.ended or terminated or truncated):
                raise ValueError(f"{MASK_FIELD} forbids every choice: {mask.tolist()}")

    # -- decorrelation and replay --------------------------------------------------------------

    def _decorrelate(self, seat: _Seat, out: StepOut) -> None:
        """Walk a random number of random steps first, so that lanes are not all in the same phase."""
        if not self._setup.decorrelate_steps:
            return
        rng = self._branch(seat.number).branch("decorrelate", seat.episode).generator()
        for _ in range(int(rng.integers(self._setup.decorrelate_steps + 1))):
            self._step_env(seat, random_actions(self.spec, rng, self._obs_of(seat, out), self.agents), out)
            if any(agent.ended for agent in seat.agents):
                self._begin_episode(seat, out)

    def replay_state(self) -> dict[str, Any]:
        """Return enough to bring every env back to where it is, given that it is deterministic."""
        agents = [agent for seat in self._seats for agent in seat.agents]
        return {
            "episode": np.array([seat.episode for seat in self._seats], np.int64),
            "steps": np.array([agent.steps for agent in agents], np.int32),
            "returns": np.array([agent.returns for agent in agents], np.float64),
            "ended": np.array([agent.ended for agent in agents], bool),
            "faults": np.array([seat.faults for seat in self._seats], np.int64),
            "good_steps": np.array([seat.good_steps for seat in self._seats], np.int64),
            "actions": [np.stack(s.actions) if s.actions else np.zeros((0,), np.int64) for s in self._seats],
            "variables": [variables.values_now.copy() for variables in self._setup.variables],
        }

    def replay(self, state: dict[str, Any], out: StepOut) -> None:
        """Rebuild the running episodes from their seeds and actions; ``out.obs`` gets the last rows.

        The caller compares ``out.obs`` with what the interrupted run had seen.
        """
        for i, seat in enumerate(self._seats):
            seat.episode = int(state["episode"][i]) - 1
            variables = state.get("variables")
            self._begin_episode(seat, out, variables[i] if variables else None)
            for action in state["actions"][i]:
                self._replay_step(seat, action, out)
                seat.actions.append(action.copy())
            for k, agent in enumerate(seat.agents, seat.begin):
                agent.steps = int(state["steps"][k])
                agent.returns = float(state["returns"][k])
                agent.ended = bool(state["ended"][k])
            seat.over = all(agent.ended for agent in seat.agents)
            seat.faults, seat.good_steps = int(state["faults"][i]), int(state["good_steps"][i])

    def _replay_step(self, seat: _Seat, action: Array, out: StepOut) -> None:
        try:
            self._env(seat).step(action, self._obs_of(seat, out))
        except STOPS:
            raise
        except BaseException as error:
            raise EnvError(
                f"env {seat.number} ({self._settings.id}) cannot be brought back to where it was (seed "
                f"{self._episode_seed(seat)}, episode {seat.episode}, step {len(seat.actions)}): {error_text(error)}\n"
                "It is not reproducible; resume with sampling.mode=sync to go on with fresh episodes."
            ) from error

    # -- small things --------------------------------------------------------------------------

    def _env(self, seat: _Seat) -> Env:
        assert seat.env is not None, BUILT
        return seat.env

    def _obs_of(self, seat: _Seat, out: StepOut) -> Obs:
        return out.obs_of(seat.begin, seat.end)

    def _branch(self, number: int) -> Seeds:
        return self._setup.seeds.branch(number)

    def _episode_number(self, seat: _Seat) -> int:
        """Return the running episode; before the first one, the one to come."""
        return max(0, seat.episode)

    def _episode_seed(self, seat: _Seat) -> int:
        if self._setup.seed_of is not None:
            return self._setup.seed_of(seat.number, self._episode_number(seat))
        return seat.seeds.branch(self._episode_number(seat)).integer()


def end_stray_fork(process: int) -> None:
    """End this process unless it is ``process``.

    An env may fork, and the child come back by an exception out of code that was meant for it alone: with a copy of the
    whole run in its hands.
    """
    if os.getpid() != process:
        os._exit(1)


def _flags(*shape: int) -> tuple[Array, bytearray]:
    """Return booleans for numpy to write, and the same memory for Python to search: cheaper than asking numpy again."""
    flags = bytearray(prod(shape))
    return np.frombuffer(flags, bool).reshape(shape), flags


def is_number(value: Any) -> bool:
    """Return whether it is a number, or an array of them; numpy would make numbers of text and of None, too."""
    return type(value) in NUMBERS or np.asarray(value).dtype.kind in "fiub"


def _own_statistics(info: Mapping[str, Any], agents: int) -> list[dict[str, float]]:
    """Return what an env says of an ended episode, agent by agent, as plain numbers: they may have to travel.

    A number alone is about the episode, and goes with the first agent; else there is one per agent.
    """
    stats: list[dict[str, float]] = [{} for _ in range(agents)]
    for name, value in (info.get("episode_stats") or {}).items():
        if np.ndim(value) == 0:
            stats[0][str(name)] = float(value)
            continue
        for own, of_agent in zip(stats, value, strict=True):
            own[str(name)] = float(of_agent)
    return stats


def random_actions(spec: EnvSpec, rng: np.random.Generator, obs: Obs, lanes: int) -> Array:
    """Return uniformly random actions ``[lanes, ...]``; under a mask only allowed ones."""
    action = spec.action
    if action.kind == "continuous":
        return _random_numbers(action, rng, lanes)
    mask = obs[MASK_FIELD] if spec.masked else None
    columns, begin = [], 0
    for n in action.nvec:
        if mask is None:
            columns.append(rng.integers(n, size=lanes))
        else:
            weight = rng.random((lanes, n)) * (mask[:, begin : begin + n] > 0)
            columns.append(weight.argmax(axis=1))
        begin += n
    choice = np.stack(columns, axis=-1).astype(np.int64)
    if action.kind == "mixed":
        return np.concatenate([choice.astype(np.float32), _random_numbers(action, rng, lanes)], axis=1)
    return choice[:, 0] if action.kind == "discrete" else choice


def _random_numbers(action: ActionSpec, rng: np.random.Generator, lanes: int) -> Array:
    low = np.maximum(np.asarray(action.low), -1e3)
    high = np.minimum(np.asarray(action.high), 1e3)
    return rng.uniform(low, high, (lanes, *action.shape)).astype(np.float32)
