"""Environments that are stepped as one by their own vectorised code, as a batch (``env.vector``).

Gymnasium's vector environments with next-step autoreset mean by it what ``protocols.BatchEnv`` means, so rows pass
through; what is added is the bookkeeping of episodes, in numpy over all lanes, and the care for faults. One call steps
all lanes and one seed starts them: a fault of one lane restarts the whole batch, and an episode has no seed of its own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

from rollmill.core.errors import ConfigError, EnvError, RollmillError, error_text, trace_text
from rollmill.core.fields import MASK_FIELD, Array, EnvSpec, Obs
from rollmill.core.protocols import StepArrays, StepOut, StepReturn
from rollmill.envs.batch import (
    CLOSE,
    MAKE,
    PHASES,
    RESET,
    STEP,
    STOPS,
    BatchSetup,
    Fault,
    end_stray_fork,
    random_actions,
)
from rollmill.envs.make import make_vector_env, vector_args
from rollmill.envs.settings import EnvSettings
from rollmill.envs.spaces import ALL, action_layout, batch_actions, batch_writer, mask_field, observation_layout


class LaneError(ValueError):
    """Nonsense from one lane of a vector env, whose number is known."""

    def __init__(self, lane: int, reason: str) -> None:
        super().__init__(reason)
        self.lane = lane


def vector_spec(env: gym.vector.VectorEnv, settings: EnvSettings) -> EnvSpec:
    """Return what one lane of a vector env promises; raises ConfigError if it cannot be used as a batch."""
    mode = env.metadata.get("autoreset_mode")
    if mode != AutoresetMode.NEXT_STEP:
        raise ConfigError(
            f"env.vector: {settings.id} has autoreset_mode {mode.name if isinstance(mode, AutoresetMode) else mode}, "
            "only NEXT_STEP can be used: every final observation needs a row of its own; set env.vector=false"
        )
    fields, _ = observation_layout(env.single_observation_space)
    action, _ = action_layout(env.single_action_space)
    for field in fields:
        if field.name == MASK_FIELD and field.shape != mask_field(action).shape:
            raise ConfigError(
                f"{settings.id}: the action mask has shape {field.shape}, the action space needs ({action.mask_size},)"
            )
    return EnvSpec(settings.id, fields, action, frames_per_step=int(getattr(env, "frames_per_step", 1)))


class VectorLane:
    """The vectorised form with a single lane, as an ``Env``: slow, for whoever only wants to see what it shows."""

    def __init__(self, settings: EnvSettings) -> None:
        self._env = make_vector_env(settings, 1)
        try:
            self.spec = vector_spec(self._env, settings)
        except ConfigError:
            self._env.close()
            raise
        self._write = batch_writer(self._env.single_observation_space, 1)
        self._to_env = batch_actions(self._env.single_action_space, self._env.action_space)

    def reset(self, seed: int, obs: Obs) -> None:
        first, _ = self._env.reset(seed=seed)
        self._write(first, obs, ALL)

    def step(self, action: Array, obs: Obs) -> StepReturn:
        after, reward, terminated, truncated, _ = self._env.step(self._to_env(action))
        self._write(after, obs, ALL)
        return float(reward[0]), bool(terminated[0]), bool(truncated[0]), {}

    def render(self) -> Array | None:
        return None

    def close(self) -> None:
        self._env.close()


class VectorBatch:
    """A ``BatchEnv`` over one ``gymnasium.vector.VectorEnv``; see the module's text."""

    def __init__(self, settings: EnvSettings, setup: BatchSetup) -> None:
        if setup.seed_of is not None:
            raise ConfigError(f"env.vector: {settings.id} cannot play numbered episodes; set env.vector=false")
        self._settings = settings
        self._setup = setup
        self.spec = setup.spec
        self.lanes = len(setup.envs)
        self._seeds = setup.seeds.branch(setup.envs.start).branch("vector")
        self._limit: int = vector_args(settings).get("max_episode_steps", 0)
        self._env: gym.vector.VectorEnv | None = None
        self._episode = np.asarray(setup.first_episode, np.int64) - 1
        self.begun = 0
        """Goes up whenever episodes begin: ``next_episode`` changes with it."""
        self._steps = np.zeros(self.lanes, np.int32)
        self._returns = np.zeros(self.lanes, np.float64)
        self._ended = np.zeros(self.lanes, bool)
        self._faults = self._good_steps = 0
        self._process = os.getpid()
        self._variables = setup.variables[0] if setup.variables else None
        self._float_fields = [f.name for f in self.spec.observation if f.is_float]
        nvec = np.asarray(self.spec.action.nvec, np.int64)
        self._mask_starts = np.cumsum(nvec) - nvec  # where each action component begins in a mask
        try:
            self._build()
        except BaseException:
            self.close()  # nobody else knows of it
            raise

    @property
    def envs(self) -> range:
        """Run-wide numbers of the envs in this batch, one per lane."""
        return self._setup.envs

    @property
    def next_episode(self) -> Array:
        """[lanes] int64: the first episode number of each lane that was never used."""
        return self._episode + 1

    # -- the two calls of a BatchEnv -----------------------------------------------------------

    def reset(self, out: StepOut) -> None:
        rows = out.arrays()
        self._begin_episodes(rows)
        self._decorrelate(rows)

    def step(self, actions: Array, out: StepOut) -> None:
        self._step(actions, out.arrays())

    def _step(self, actions: Array, out: StepArrays) -> None:
        setup = self._setup
        if self._variables is not None and np.count_nonzero(self._ended):
            self._variables.take()
        setup.watch.enter(setup.envs.start, STEP, self._episode.item(0), self._steps.item(0))
        try:
            answer = self._vector().step(self._to_env(actions))
            info = self._take(answer, out)
            self._check_row(out)
        except STOPS:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever user code raises is that env's fault
            self._recover(error, out)
            return
        finally:
            setup.watch.leave()
        ended = self._account(out)
        if info and np.count_nonzero(ended):
            self._tell_statistics(info, ended)

    def close(self) -> None:
        if self._env is None:
            return
        env, self._env = self._env, None
        self._setup.watch.enter(self._setup.envs.start, CLOSE, self._episode_number(0), 0)
        try:
            env.close()
        except STOPS:
            raise
        except BaseException as error:  # noqa: BLE001 - a broken env may fail to close; say so, go on
            self._report(CLOSE, error)
        finally:
            self._setup.watch.leave()

    # -- rows ----------------------------------------------------------------------------------

    def _take(self, answer: Any, out: StepArrays) -> Mapping[str, Any]:
        """Write what a step returned, all but the counters; returns its info. Raises ValueError on nonsense."""
        if not isinstance(answer, tuple) or len(answer) != 5:
            raise ValueError(
                f"step() returned {type(answer).__name__}, expected (observations, rewards, terminations, "
                "truncations, infos)"
            )
        obs, reward, terminated, truncated, info = answer
        self._write(obs, out.obs, ALL)
        out.reward[:] = _column("rewards", reward, self.lanes, "fiub")
        out.terminated[:] = _column("terminations", terminated, self.lanes, "b")
        out.truncated[:] = _column("truncations", truncated, self.lanes, "b")
        over = self._ended
        if np.count_nonzero(over):  # these lanes were reset, whatever the action
            if (out.terminated[over] | out.truncated[over]).any():
                lane = int(np.argmax(over & (out.terminated | out.truncated)))
                raise LaneError(lane, "an episode ended in the very step that reset the lane")
            out.reward[over] = 0.0
        np.logical_not(over, out=out.valid)
        out.first[:] = over
        return info if isinstance(info, Mapping) else {}

    def _account(self, out: StepArrays) -> Array:
        """Count steps, returns and episodes of all lanes; returns which episodes ended, [lanes] bool."""
        over = self._ended
        self._steps += 1
        self._returns += out.reward
        if np.count_nonzero(over):
            self._steps[over] = 0
            self._returns[over] = 0.0
            self._episode += over
            self.begun += 1
        ended: Array = out.terminated | out.truncated
        out.episode_return.fill(np.nan)
        if np.count_nonzero(ended):
            out.episode_return[ended] = self._returns[ended]
        if self._limit and self._steps.max() >= self._limit:
            self._check_limit(ended)
        self._ended = ended
        self._good_steps += 1
        self._write_counters(out)
        return ended

    def _write_counters(self, out: StepArrays) -> None:
        out.step[:] = self._steps
        out.episode[:] = self._episode

    def _check_limit(self, ended: Array) -> None:
        if ((self._steps >= self._limit) & ~ended).any():
            raise EnvError(
                f"{self._settings.id}: its vectorised form was given max_episode_steps={self._limit} and lets episodes "
                "run on; set env.vector=false"
            )

    def _check_row(self, out: StepArrays) -> None:
        """Raise LaneError for NaN, infinity or a mask that forbids everything."""
        finite = np.isfinite(out.reward)
        if np.count_nonzero(finite) < self.lanes:
            lane = int(np.argmin(finite))
            raise LaneError(lane, f"reward is NaN or infinite: {out.reward[lane]}")
        self._check_observation(out, out.terminated | out.truncated if self.spec.masked else None)

    def _check_observation(self, out: StepArrays, over: Array | None = None) -> None:
        """Raise LaneError for a bad observation; the mask of lanes in ``over`` may be empty."""
        for name in self._float_fields:
            finite = np.isfinite(out.obs[name])
            if np.count_nonzero(finite) < finite.size:
                lane = int(np.argmin(finite.reshape(self.lanes, -1).all(axis=1)))
                raise LaneError(lane, f"observation {name!r} is NaN or infinite")
        if self.spec.masked:
            mask = out.obs[MASK_FIELD]
            good = np.logical_or.reduceat(mask != 0, self._mask_starts, axis=1).all(axis=1)
            if over is not None:
                good |= over
            if not good.all():
                lane = int(np.argmin(good))
                raise LaneError(lane, f"{MASK_FIELD} forbids every choice: {mask[lane].tolist()}")

    def _tell_statistics(self, info: Mapping[str, Any], ended: Array) -> None:
        """Pass on ``info["episode_stats"]``, batched by Gymnasium: ``name`` an array, ``_name`` whose they are."""
        stats = info.get("episode_stats")
        if not stats:
            return
        names = [name for name in stats if not name.startswith("_")]
        for lane in np.nonzero(ended)[0].tolist():
            own = {name: float(stats[name][lane]) for name in names if stats.get(f"_{name}", ended)[lane]}
            if own:
                self._setup.on_episode(self._setup.envs[lane], int(self._episode[lane]), own)

    def _decorrelate(self, out: StepArrays) -> None:
        """Walk a random number of random steps first; lanes walk together, so it is groups that come apart."""
        if not self._setup.decorrelate_steps:
            return
        rng = self._seeds.branch("decorrelate", int(self._episode.max())).generator()
        for _ in range(int(rng.integers(self._setup.decorrelate_steps + 1))):
            self._step(random_actions(self.spec, rng, out.obs, self.lanes), out)

    # -- the vector env ------------------------------------------------------------------------

    def _vector(self) -> gym.vector.VectorEnv:
        assert self._env is not None, "the env is always rebuilt before it is used"
        return self._env

    def _build(self) -> None:
        """Build the environment, as often as the limit allows."""
        while True:
            self._setup.watch.enter(self._setup.envs.start, MAKE, self._episode_number(0), 0)
            try:
                env = self._env = make_vector_env(self._settings, self.lanes, self._variables)
                spec = vector_spec(env, self._settings)
                if spec != self.spec or env.num_envs != self.lanes:
                    raise ValueError(
                        f"this instance promises {env.num_envs} times {spec}, "
                        f"the run was set up for {self.lanes} times {self.spec}"
                    )
                self._write = batch_writer(env.single_observation_space, self.lanes)
                self._to_env = batch_actions(env.single_action_space, env.action_space)
                return
            except (*STOPS, RollmillError):  # what cannot be used at all does not get better by trying again
                raise
            except BaseException as error:  # noqa: BLE001 - as above
                self._note_fault(MAKE, error)
                self.close()
            finally:
                self._setup.watch.leave()

    def _begin_episodes(self, out: StepArrays) -> None:
        """Reset all lanes into row t + 1, building them anew as often as the limit allows."""
        while True:
            self._episode += 1
            self.begun += 1
            self._steps.fill(0)
            self._returns.fill(0.0)
            self._ended = np.zeros(self.lanes, bool)
            if self._variables is not None:
                self._variables.take()
            self._setup.watch.enter(self._setup.envs.start, RESET, int(self._episode[0]), 0)
            try:
                answer = self._vector().reset(seed=self._seed())
                if not isinstance(answer, tuple) or len(answer) != 2:
                    raise ValueError(f"reset() returned {type(answer).__name__}, expected (observations, infos)")
                self._write(answer[0], out.obs, ALL)
                self._check_observation(out)
            except STOPS:
                raise
            except BaseException as error:  # noqa: BLE001 - as above
                self._note_fault(RESET, error)
                self.close()
                self._build()
                continue
            finally:
                self._setup.watch.leave()
            out.first.fill(True)
            self._write_counters(out)
            return

    def _recover(self, error: BaseException, out: StepArrays) -> None:
        """Report a failed step, replace the env, start the next episode of every lane; the row does not count."""
        self._note_fault(STEP, error)
        self.close()
        self._build()
        out.reward.fill(0.0)
        for flags in (out.terminated, out.truncated, out.valid):
            flags.fill(False)
        out.episode_return.fill(np.nan)
        self._begin_episodes(out)

    def _note_fault(self, phase: int, error: BaseException) -> None:
        """Report a fault; raise EnvError when this batch has used up its limit."""
        if self._good_steps >= self._settings.fault_window:
            self._faults = 0
        self._good_steps = 0
        self._faults += 1
        fault = self._report(phase, error)
        if self._faults > self._settings.fault_limit:
            raise EnvError(
                f"{fault.describe()}\nThat is fault {self._faults} of its group (env.vector) within "
                f"{self._settings.fault_window} steps; env.fault_limit is {self._settings.fault_limit}."
                f"\n{self._settings.check_hint}\n{fault.trace}"
            ) from error

    def _report(self, phase: int, error: BaseException) -> Fault:
        end_stray_fork(self._process)
        lane = error.lane if isinstance(error, LaneError) else 0
        fault = Fault(
            env_id=self._settings.id,
            env=self._setup.envs[lane],
            phase=PHASES[phase],
            seed=self._seed(),
            episode=self._episode_number(lane),
            step=int(self._steps[lane]),
            error=error_text(error),
            trace=trace_text(error),
        )
        self._setup.on_fault(fault)
        return fault

    def _episode_number(self, lane: int) -> int:
        """Return the running episode; before the first one, the one to come."""
        return max(0, int(self._episode[lane]))

    def _seed(self) -> int:
        """Return what a reset of all lanes is seeded with now: never twice the same, as episodes only count up."""
        return self._seeds.branch(max(0, int(self._episode.max()))).integer()


def _column(name: str, values: Any, lanes: int, kinds: str) -> Array:
    """Return one value per lane, or raise a ValueError that says what came instead."""
    array = np.asarray(values)
    if array.shape != (lanes,) or array.dtype.kind not in kinds:
        raise ValueError(f"{name} have shape {array.shape} and dtype {array.dtype}, expected one number for each lane")
    return array
