"""Several single environments stepped as one batch, kept alive through their faults.

A lane that ended keeps its final observation for one row; the next ``step`` ignores the action
there and resets the lane (next-step autoreset). An env that raises or returns nonsense is closed,
built again and reset within limits; its row is marked not valid and the fault is reported.
"""

from __future__ import annotations

import bdb
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np

from rollmill.core.errors import EnvError
from rollmill.core.fields import MASK_FIELD, ActionSpec, Array, EnvSpec, Obs
from rollmill.core.protocols import Env, StepOut
from rollmill.core.seeds import Seeds
from rollmill.envs.dials import Dials
from rollmill.envs.settings import EnvSettings

MAKE, RESET, STEP, CLOSE = 1, 2, 3, 4
"""What an env is doing right now, as told to the watch (0 = nothing)."""
PHASES = {MAKE: "constructor", RESET: "reset", STEP: "step", CLOSE: "close"}


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
    dials: tuple[Dials, ...] = ()
    """Those of every env of the batch, if the run has any; ``make`` hands them over."""


class EnvBatch:
    """A ``BatchEnv`` over single envs; see the module's text for what happens at ends and faults."""

    def __init__(self, settings: EnvSettings, setup: BatchSetup) -> None:
        self._settings = settings
        self._setup = setup
        count = len(setup.envs)
        self.spec = setup.spec
        self.agents = setup.spec.agents
        self.lanes = count * self.agents
        self._envs: list[Env | None] = [None] * count
        self._episode = np.asarray(setup.first_episode, np.int64) - 1
        self._faults = np.zeros(count, np.int64)
        self._good_steps = np.zeros(count, np.int64)
        self._episode_seeds = [self._branch(i).branch("episode") for i in range(count)]
        self._actions: list[list[Array]] = [[] for _ in range(count)]
        self._slices = [slice(i * self.agents, (i + 1) * self.agents) for i in range(count)]
        self._ended = np.zeros(self.lanes, bool)
        self._steps = np.zeros(self.lanes, np.int32)
        self._returns = np.zeros(self.lanes, np.float64)
        self._float_fields = [f.name for f in self.spec.observation if f.is_float]
        self._only_field = self.spec.observation[0].name if len(self.spec.observation) == 1 else None
        nvec = np.asarray(self.spec.action.nvec, np.int64)
        self._mask_starts = np.cumsum(nvec) - nvec  # where each action component begins in a mask
        try:
            for i in range(count):
                self._build(i)
        except BaseException:
            self.close()  # nobody else knows of those that stand
            raise

    @property
    def envs(self) -> range:
        """Run-wide numbers of the envs in this batch."""
        return self._setup.envs

    @property
    def next_episode(self) -> Array:
        """[envs] int64: the first episode number of each env that was never used."""
        return self._episode + 1

    # -- the two calls of a BatchEnv -----------------------------------------------------------

    def reset(self, out: StepOut) -> None:
        for i in range(len(self._envs)):
            self._begin_episode(i, out)
            self._decorrelate(i, out)
        self._write_counters(out)

    def step(self, actions: Array, out: StepOut) -> None:
        self._open_row(out)
        over = self._ended
        if self.agents > 1:
            over = np.logical_and.reduce(over.reshape(-1, self.agents), axis=1)
        for i, (lanes, ended) in enumerate(zip(self._slices, over.tolist(), strict=True)):
            if ended:
                out.valid[lanes] = False
                self._begin_episode(i, out)
            else:
                self._step_env(i, lanes, actions[lanes], out)
        self._repair_nonsense(out)
        self._account(out)

    def close(self) -> None:
        for i, env in enumerate(self._envs):
            if env is not None:
                self._close_env(i)

    # -- one env -------------------------------------------------------------------------------

    def _step_env(self, i: int, lanes: slice, action: Array, out: StepOut) -> bool:
        """Step env ``i``; False when it failed and a new episode was begun in its place."""
        setup = self._setup
        if setup.keep_actions:
            self._actions[i].append(action.copy())
        waiting = self._ended[lanes] if self.agents > 1 else None
        setup.watch.enter(setup.envs[i], STEP, self._episode.item(i), self._steps.item(lanes.start))
        try:
            reward, terminated, truncated, info = self._env(i).step(action, self._views(lanes, out))
            if waiting is None and type(reward) is float and type(terminated) is bool and type(truncated) is bool:
                lane = lanes.start  # plain numbers for one lane: nothing to check, and cheaper than by slice
                out.reward[lane], out.terminated[lane], out.truncated[lane] = reward, terminated, truncated
            else:
                _write_outcome(lanes, (reward, terminated, truncated), out)
            stats = _own_statistics(info) if info else {}
        except bdb.BdbQuit:  # leaving the debugger ends the run, it is no fault
            raise
        except Exception as error:  # noqa: BLE001 - whatever user code raises is that env's fault
            self._recover(i, STEP, error, out)
            return False
        finally:
            setup.watch.leave()
        if waiting is not None and waiting.any():
            self._silence(lanes, waiting, out)
        if stats:
            setup.on_episode(setup.envs[i] * self.agents, int(self._episode[i]), stats)
        return True

    def _begin_episode(self, i: int, out: StepOut, dials: Array | None = None) -> None:
        """Reset env ``i`` into row t + 1, building it anew as often as the limit allows.

        ``dials``: what the episode saw when it was first begun (replay).
        """
        lanes = self._lanes(i)
        if self._setup.dials:
            self._setup.dials[i].take(dials)
        while True:
            self._episode[i] += 1
            self._steps[lanes] = 0
            self._returns[lanes] = 0.0
            self._ended[lanes] = False
            self._actions[i].clear()
            self._setup.watch.enter(self._setup.envs[i], RESET, int(self._episode[i]), 0)
            try:
                self._env(i).reset(self._episode_seed(i), self._views(lanes, out))
                self._check_observation(lanes, out)
            except bdb.BdbQuit:
                raise
            except Exception as error:  # noqa: BLE001 - as above
                self._note_fault(i, RESET, error)
                self._close_env(i)
                self._build(i)
                continue
            finally:
                self._setup.watch.leave()
            out.first[lanes] = True
            return

    def _recover(self, i: int, phase: int, error: Exception, out: StepOut) -> None:
        """An env failed in a step: report, replace it, start its next episode; the row does not count."""
        lanes = self._lanes(i)
        self._note_fault(i, phase, error)
        self._close_env(i)
        self._build(i)
        out.reward[lanes] = 0.0
        out.terminated[lanes] = False
        out.truncated[lanes] = False
        out.valid[lanes] = False
        self._begin_episode(i, out)

    def _build(self, i: int) -> None:
        while True:
            self._setup.watch.enter(self._setup.envs[i], MAKE, self._episode_number(i), 0)
            try:
                env = self._envs[i] = self._setup.make(self._setup.envs[i])
                if env.spec != self.spec:
                    raise ValueError(f"this instance promises {env.spec}, the run was set up for {self.spec}")
                return
            except bdb.BdbQuit:
                raise
            except Exception as error:  # noqa: BLE001 - as above
                self._note_fault(i, MAKE, error)
                self._close_env(i)
            finally:
                self._setup.watch.leave()

    def _close_env(self, i: int) -> None:
        env, self._envs[i] = self._envs[i], None
        self._setup.watch.enter(self._setup.envs[i], CLOSE, self._episode_number(i), 0)
        try:
            if env is not None:
                env.close()
        except Exception as error:  # noqa: BLE001 - a broken env may fail to close; say so, go on
            self._report(i, CLOSE, error)
        finally:
            self._setup.watch.leave()

    def _note_fault(self, i: int, phase: int, error: Exception) -> None:
        """Report a fault; raise EnvError when this env has used up its limit."""
        if self._good_steps[i] >= self._settings.fault_window:
            self._faults[i] = 0
        self._good_steps[i] = 0
        self._faults[i] += 1
        fault = self._report(i, phase, error)
        if self._faults[i] > self._settings.fault_limit:
            raise EnvError(
                f"{fault.describe()}\nThat is fault {self._faults[i]} of this env within "
                f"{self._settings.fault_window} steps; env.fault_limit is {self._settings.fault_limit}."
                f"\n{fault.trace}"
            ) from error

    def _report(self, i: int, phase: int, error: Exception) -> Fault:
        fault = Fault(
            env_id=self._settings.id,
            env=self._setup.envs[i],
            phase=PHASES[phase],
            seed=self._episode_seed(i),
            episode=self._episode_number(i),
            step=int(self._steps[self._lanes(i).start]),
            error=f"{type(error).__name__}: {error}",
            trace="".join(traceback.format_exception(error)),
        )
        self._setup.on_fault(fault)
        return fault

    # -- rows ----------------------------------------------------------------------------------

    def _open_row(self, out: StepOut) -> None:
        out.reward.fill(0.0)
        out.terminated.fill(False)
        out.truncated.fill(False)
        out.valid.fill(True)
        out.first.fill(False)
        out.episode_return.fill(np.nan)

    def _silence(self, lanes: slice, waiting: Array, out: StepOut) -> None:
        """Agents that are done wait for the others: their rows do not count."""
        index = np.arange(lanes.start, lanes.stop)[waiting]
        out.reward[index] = 0.0
        out.terminated[index] = out.truncated[index] = out.valid[index] = False

    def _account(self, out: StepOut) -> None:
        """Count steps and returns of the rows that happened, and close ended episodes."""
        valid = out.valid
        self._steps += valid
        self._returns += out.reward  # which is 0 where the row does not count
        limit = self._settings.max_episode_steps
        if limit:
            out.truncated |= valid & ~out.terminated & (self._steps >= limit)
        ended = valid & (out.terminated | out.truncated)
        if np.count_nonzero(ended):
            out.episode_return[ended] = self._returns[ended]
            self._ended |= ended
        self._good_steps += valid if self.agents == 1 else valid.reshape(-1, self.agents).any(axis=1)
        self._write_counters(out)

    def _write_counters(self, out: StepOut) -> None:
        out.step[:] = self._steps
        out.episode[:] = self._episode if self.agents == 1 else self._episode.repeat(self.agents)

    def _repair_nonsense(self, out: StepOut) -> None:
        """NaN, infinity or a mask that forbids everything is a fault of the env that made it."""
        good = np.isfinite(out.reward)
        for name in self._float_fields:
            finite = np.isfinite(out.obs[name])
            if np.count_nonzero(finite) < finite.size:
                good &= finite.reshape(self.lanes, -1).all(axis=1)
        if self.spec.masked:
            # Where an episode is over there is nothing to choose: such a mask may be empty.
            over = self._ended | out.terminated | out.truncated
            good &= over | self._allows_some(out.obs[MASK_FIELD])
        if np.count_nonzero(good) == self.lanes:
            return
        for i in np.unique(np.nonzero(~good)[0] // self.agents):
            lanes = self._lanes(int(i))
            try:
                self._check_row(lanes, out)
            except ValueError as error:
                self._recover(int(i), STEP, error, out)

    def _check_row(self, lanes: slice, out: StepOut) -> None:
        if not np.isfinite(out.reward[lanes]).all():
            raise ValueError(f"reward is NaN or infinite: {out.reward[lanes].tolist()}")
        self._check_observation(lanes, out)

    def _check_observation(self, lanes: slice, out: StepOut) -> None:
        for name in self._float_fields:
            if not np.isfinite(out.obs[name][lanes]).all():
                raise ValueError(f"observation {name!r} is NaN or infinite")
        if self.spec.masked and not self._allows_some(out.obs[MASK_FIELD][lanes]).all():
            raise ValueError(f"{MASK_FIELD} forbids every choice: {out.obs[MASK_FIELD][lanes].tolist()}")

    def _allows_some(self, mask: Array) -> Array:
        """[lanes] bool: whether every action component has an allowed choice left."""
        component: Array = np.logical_or.reduceat(mask != 0, self._mask_starts, axis=1)
        every: Array = np.logical_and.reduce(component, axis=1)
        return every

    # -- decorrelation and replay --------------------------------------------------------------

    def _decorrelate(self, i: int, out: StepOut) -> None:
        """Walk a random number of random steps first, so that lanes are not all in the same phase."""
        if not self._setup.decorrelate_steps:
            return
        rng = self._branch(i).branch("decorrelate", int(self._episode[i])).generator()
        lanes = self._lanes(i)
        limit = self._settings.max_episode_steps
        for _ in range(int(rng.integers(self._setup.decorrelate_steps + 1))):
            action = random_actions(self.spec, rng, self._views(lanes, out), self.agents)
            if not self._step_env(i, lanes, action, out):
                continue
            over = (out.terminated[lanes] | out.truncated[lanes]).any()
            if over or self._steps[lanes.start] + 1 == limit:
                self._begin_episode(i, out)
                continue
            try:
                self._check_row(lanes, out)
            except ValueError as error:
                self._recover(i, STEP, error, out)
                continue
            self._steps[lanes] += 1
            self._returns[lanes] += out.reward[lanes]
            out.first[lanes] = False

    def replay_state(self) -> dict[str, Any]:
        """Enough to bring every env back to where it is, given that it is deterministic."""
        return {
            "episode": self._episode.copy(),
            "steps": self._steps.copy(),
            "returns": self._returns.copy(),
            "ended": self._ended.copy(),
            "faults": self._faults.copy(),
            "good_steps": self._good_steps.copy(),
            "actions": [np.stack(log) if log else np.zeros((0,), np.int64) for log in self._actions],
            "dials": [dials.values_now.copy() for dials in self._setup.dials],
        }

    def replay(self, state: dict[str, Any], out: StepOut) -> None:
        """Rebuild the running episodes from their seeds and actions; ``out.obs`` gets the last rows.

        The caller compares ``out.obs`` with what the interrupted run had seen.
        """
        for i in range(len(self._envs)):
            self._episode[i] = state["episode"][i] - 1
            dials = state.get("dials")
            self._begin_episode(i, out, dials[i] if dials else None)
            for action in state["actions"][i]:
                self._replay_step(i, action, out)
                self._actions[i].append(action.copy())
        self._steps[:] = state["steps"]
        self._returns[:] = state["returns"]
        self._ended[:] = state["ended"]
        self._faults[:] = state["faults"]
        self._good_steps[:] = state["good_steps"]

    def _replay_step(self, i: int, action: Array, out: StepOut) -> None:
        try:
            self._env(i).step(action, self._views(self._lanes(i), out))
        except Exception as error:
            raise EnvError(
                f"env {self._setup.envs[i]} ({self._settings.id}) cannot be brought back to where it was (seed "
                f"{self._episode_seed(i)}, episode {self._episode[i]}, step {len(self._actions[i])}): {error!r}\n"
                "It is not reproducible; resume with sampling.mode=sync to go on with fresh episodes."
            ) from error

    # -- small things --------------------------------------------------------------------------

    def _env(self, i: int) -> Env:
        env = self._envs[i]
        assert env is not None, "an env is always rebuilt before it is used"
        return env

    def _lanes(self, i: int) -> slice:
        return self._slices[i]

    def _views(self, lanes: slice, out: StepOut) -> Obs:
        if self._only_field is not None:
            return {self._only_field: out.obs[self._only_field][lanes]}
        return {name: array[lanes] for name, array in out.obs.items()}

    def _branch(self, i: int) -> Seeds:
        return self._setup.seeds.branch(self._setup.envs[i])

    def _episode_number(self, i: int) -> int:
        """The running episode; before the first one, the one to come."""
        return max(0, int(self._episode[i]))

    def _episode_seed(self, i: int) -> int:
        if self._setup.seed_of is not None:
            return self._setup.seed_of(self._setup.envs[i], self._episode_number(i))
        return self._episode_seeds[i].branch(self._episode_number(i)).integer()


def _write_outcome(lanes: slice, outcome: tuple[Any, Any, Any], out: StepOut) -> None:
    """Write (reward, terminated, truncated) of one env, scalars or one value per agent; ValueError on nonsense."""
    reward, terminated, truncated = outcome
    if terminated is None or truncated is None:  # numpy would take it for False
        raise ValueError(f"terminated is {terminated} and truncated is {truncated}, expected true or false")
    out.reward[lanes] = reward
    out.terminated[lanes] = terminated
    out.truncated[lanes] = truncated


def _own_statistics(info: Mapping[str, Any]) -> dict[str, float]:
    """What an env says about an ended episode, as plain numbers: they may have to travel."""
    return {str(name): float(value) for name, value in (info.get("episode_stats") or {}).items()}


def random_actions(spec: EnvSpec, rng: np.random.Generator, obs: Obs, lanes: int) -> Array:
    """Uniformly random actions ``[lanes, ...]``; under a mask only allowed ones."""
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
