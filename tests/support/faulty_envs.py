"""Environments that tests name as ``faulty_envs:Something``: one that misbehaves to order, and some that look around.

Workers and subprocesses import this module, so it must not import torch.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from rollmill.core.fields import MASK_FIELD, ActionSpec, Array, EnvSpec, Field, Obs
from rollmill.core.protocols import StepReturn
from rollmill.envs.make import EnvInstance

HANG_SECONDS = 3600.0
PAUSE_SECONDS = 0.7  # longer than the pool's interval of looking around
WORK_SECONDS = 0.002  # of a core: so long that whoever looks into the process now and then finds it there


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Misbehave(gym.Env):
    """Does ``what`` in ``where``; otherwise a plain env whose observation counts its steps.

    ``what``: a key of ``_deeds`` (or several, ``fork+helper``) or ``_nonsense``, or raise_close.
    ``where``: constructor, reset, step or close. ``env``: only in this one of the run's envs. ``at_step``: not before
    this step of the instance's life. ``once``: a file; only whoever creates it misbehaves. ``journal``: a file for what
    happens; a line ``helper PID`` names a process that was started and left.
    """

    def __init__(
        self,
        instance: EnvInstance,
        what: str = "raise",
        where: str = "step",
        env: int | None = None,
        at_step: int = 0,
        once: str = "",
        length: int = 5,
        masked: bool = False,
        journal: str = "",
    ) -> None:
        self._instance, self._what, self._where = instance, what, where
        self._env, self._at_step, self._once = env, at_step, once
        self._length, self._journal = length, journal
        self._life = self._t = 0
        box = gym.spaces.Box(-1e6, 1e6, (2,), np.float32)
        self.observation_space = box
        if masked:
            self.observation_space = gym.spaces.Dict(
                {"obs": box, MASK_FIELD: gym.spaces.Box(0, 1, (3,), np.int8)},
            )
        self.action_space = gym.spaces.Discrete(3)
        self._note(f"constructor {instance.index}")
        self._misbehave("constructor")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._t = 0
        self._note(f"reset {self._instance.index} {seed}")
        obs = self._misbehave("reset")
        return obs if isinstance(obs, str) else (self._observation() if obs is None else obs[0], {})

    def step(self, action: int) -> Any:
        self._t += 1
        self._life += 1
        obs, reward = self._misbehave("step") or (self._observation(), 1.0)
        return obs, reward, self._t >= self._length, False, {}

    def close(self) -> None:
        self._note(f"close {self._instance.index}")
        if self._what == "raise_close" and self._due("step"):
            raise OSError("cannot close")
        self._misbehave("close")

    def _observation(self) -> Any:
        plain = np.array([self._instance.index, self._t], np.float32)
        if isinstance(self.observation_space, gym.spaces.Dict):
            return {"obs": plain, MASK_FIELD: np.array([1, 0, 1], np.int8)}
        return plain

    def _due(self, where: str) -> bool:
        if where != self._where or self._life < self._at_step:
            return False
        if self._env is not None and self._instance.index != self._env:
            return False
        if not self._once:
            return True
        try:
            os.close(os.open(self._once, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def _misbehave(self, where: str) -> tuple[Any, Any] | None:
        """(observation, reward) of the misbehaviour; None for good behaviour."""
        if not self._due(where):
            return None
        deeds = self._deeds()
        if self._what in self._nonsense():
            return self._nonsense()[self._what]()
        for what in self._what.split("+"):
            deeds[what]()
        return None

    def _deeds(self) -> dict[str, Callable[[], Any]]:
        return {
            "raise": lambda: _raise(RuntimeError(f"told to raise in {self._where}")),
            "raise_close": lambda: _raise(RuntimeError(f"told to raise in {self._where}")),
            "raise_long": lambda: _raise(RuntimeError("z" * 1_100_000)),
            "raise_unprintable": lambda: _raise(Unprintable()),
            "sys_exit": lambda: sys.exit(0),
            "exit": lambda: os._exit(7),
            "exit_0": lambda: os._exit(0),
            "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
            "segfault": lambda: ctypes.string_at(0),
            "hang": lambda: time.sleep(HANG_SECONDS),
            "pause": lambda: time.sleep(PAUSE_SECONDS),
            "work": _work,
            "print": _print,
            "thread": lambda: threading.Thread(target=time.sleep, args=(HANG_SECONDS,)).start(),
            "child": lambda: (
                multiprocessing.get_context("fork").Process(target=time.sleep, args=(HANG_SECONDS,)).start()
            ),
            "fork": self._fork,
            "stray_fork": self._stray_fork,
            "helper": self._start_helper,
        }

    def _nonsense(self) -> dict[str, Callable[[], tuple[Any, Any]]]:
        plain = self._observation()
        return {
            "none": lambda: (None, 0.0),
            "nan": lambda: (np.array([np.nan, 0], np.float32), 0.0),
            "shape": lambda: (np.zeros(3, np.float32), 0.0),
            "dtype": lambda: (np.array(["a", "b"]), 0.0),
            "nan_reward": lambda: (plain, np.nan),
            "none_reward": lambda: (plain, None),
            "text_reward": lambda: (plain, "1.0"),
            "mask": lambda: ({**plain, MASK_FIELD: np.zeros(3, np.int8)}, 0.0),
        }

    def _fork(self) -> None:
        child = os.fork()
        if not child:
            time.sleep(HANG_SECONDS)
            os._exit(0)
        self._note(f"helper {child}")

    def _stray_fork(self) -> None:
        """The child ends as a script would, in the middle of everything."""
        child = os.fork()
        if not child:
            sys.exit(0)
        self._note(f"child {child} {os.waitpid(child, 0)[1]}")

    def _start_helper(self) -> None:
        """Nothing ties it to this process: neither variables nor session."""
        words = [sys.executable, "-c", f"import time; time.sleep({HANG_SECONDS})"]
        self._note(f"helper {subprocess.Popen(words, env={}, start_new_session=True).pid}")

    def _note(self, line: str) -> None:
        if self._journal:
            with open(self._journal, "a", encoding="utf-8") as file:
                file.write(line + "\n")


class EachOnce(Misbehave):
    """Some of the run's envs misbehave, each in its own way and only once (``folder`` is where that is noted)."""

    def __init__(self, instance: EnvInstance, deeds: dict[str, str], folder: str) -> None:
        """``deeds``: what, by the number of the env."""
        what = deeds.get(str(instance.index), "")
        once = str(Path(folder) / str(instance.index))
        super().__init__(instance, what or "raise", env=None if what else -1, at_step=3, once=once)


def _raise(error: Exception) -> None:
    raise error


def _work() -> None:
    begun = time.process_time()
    while time.process_time() < begun + WORK_SECONDS:
        pass


def _print() -> None:
    print("chatter " * 20 + "\n" * 3, flush=True)
    print("complaint", file=sys.stderr, flush=True)


def helpers_of(journal: Path) -> list[int]:
    """Pids of the processes that ``Misbehave`` has started and left."""
    with contextlib.suppress(FileNotFoundError):
        return [int(line.split()[1]) for line in journal.read_text().splitlines() if line.startswith("helper")]
    return []


class Marker:
    """Every row says where it belongs: the observation is (env, agent, episode, step, last action).

    The reward of an action is ``reward_of`` that row, so that any mix-up of rows, lanes or actions shows.
    Episodes are of different lengths; every other one is truncated instead of terminated. Episodes are
    counted per instance: rows of faulty runs repeat their numbers.
    """

    def __init__(self, instance: EnvInstance, agents: int = 1, longest: int = 9) -> None:
        self._index, self._agents, self._longest = instance.index, agents, longest
        self._episode, self._t = -1, 0
        self._last = np.full(agents, -1.0)
        self.spec = EnvSpec(
            name="marker",
            observation=(Field("where", "float32", (5,)), Field("seed", "int64")),
            action=ActionSpec("discrete", nvec=(5,), start=(0,)),
            agents=agents,
            frames_per_step=2,
        )
        self._seed = 0

    @staticmethod
    def length(env: int, episode: int, agent: int = 0, longest: int = 9) -> int:
        return 1 + (3 * env + 5 * episode + 2 * agent) % longest

    @staticmethod
    def reward_of(where: Array, action: Array) -> Array:
        env, agent, episode, step, _ = np.moveaxis(where, -1, 0)
        return (1000 * env + 100 * agent + 10 * (episode % 10) + step % 10 + action / 8).astype(np.float32)

    def reset(self, seed: int, obs: Obs) -> None:
        self._episode += 1
        self._t = 0
        self._last[:] = -1
        self._seed = seed
        self._observe(obs)

    def step(self, action: Array, obs: Obs) -> StepReturn:
        where = np.empty((self._agents, 5), np.float32)
        self._fill(where)
        reward = self.reward_of(where, action)
        self._t += 1
        self._last[:] = action
        self._observe(obs)
        over = np.array(
            [self._t >= self.length(self._index, self._episode, agent, self._longest) for agent in range(self._agents)]
        )
        return reward, over & (self._episode % 2 == 0), over & (self._episode % 2 == 1), {}

    def _observe(self, obs: Obs) -> None:
        self._fill(obs["where"])
        obs["seed"][:] = self._seed

    def _fill(self, where: Array) -> None:
        where[:, 0] = self._index
        where[:, 1] = np.arange(self._agents)
        where[:, 2] = self._episode
        where[:, 3] = self._t
        where[:, 4] = self._last

    def render(self) -> Array | None:
        return None

    def close(self) -> None:
        return None


class Talkative(Marker):
    """Has a statistic with a name of two million characters."""

    def step(self, action: Array, obs: Obs) -> StepReturn:
        reward, terminated, truncated, _ = super().step(action, obs)
        return reward, terminated, truncated, {"episode_stats": {"n" * 2_000_000: 1.0}}


class Inspector(Marker):
    """Writes down what the process it lives in looks like, then behaves."""

    def __init__(self, instance: EnvInstance, folder: str) -> None:
        super().__init__(instance)
        self._report = Path(folder) / f"{instance.index}"

    def reset(self, seed: int, obs: Obs) -> None:
        facts = {
            "torch": "torch" in sys.modules,
            "cores": sorted(os.sched_getaffinity(0)),
            "sigint_ignored": signal.getsignal(signal.SIGINT) is signal.SIG_IGN,
            "token": os.environ.get("ROLLMILL_TOKEN", ""),
            "pid": os.getpid(),
            "frozen": gc.get_freeze_count(),
            "passed_on": [fd for fd in map(int, os.listdir("/proc/self/fd")) if fd > 2 and _inheritable(fd)],
        }
        self._report.write_text(repr(facts), encoding="utf-8")
        super().reset(seed, obs)


def _inheritable(fd: int) -> bool:
    try:
        return os.get_inheritable(fd)
    except OSError:  # the one that listed them
        return False


class Drifting(Marker):
    """Not reproducible: what it shows depends on how many were built before it in this process."""

    built = 0

    def __init__(self, instance: EnvInstance) -> None:
        super().__init__(instance)
        Drifting.built += 1
        self._offset = Drifting.built

    def _observe(self, obs: Obs) -> None:
        super()._observe(obs)
        obs["seed"][:] = self._offset


def not_an_env() -> object:
    return object()


NOT_CALLABLE = 3


class Zoo(gym.Env):
    """Nested observations of every kind and a MultiDiscrete action with a mask."""

    observation_space = gym.spaces.Dict(
        {
            "vector": gym.spaces.Box(-1, 1, (3,), np.float32),
            "inner": gym.spaces.Tuple((gym.spaces.Discrete(4), gym.spaces.MultiBinary(2))),
            "image": gym.spaces.Box(0, 255, (36, 36, 3), np.uint8),
            MASK_FIELD: gym.spaces.Box(0, 1, (5,), np.int8),
        }
    )
    action_space = gym.spaces.MultiDiscrete([2, 3])

    def __init__(self, length: int = 6) -> None:
        self._length, self._t = length, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._t = 0
        return self._observation(), {}

    def step(self, action: Array) -> Any:
        self._t += 1
        return self._observation(), float(action[0] == action[1]), False, self._t >= self._length, {}

    def _observation(self) -> dict[str, Any]:
        rng = self.np_random
        return {
            "vector": rng.uniform(-1, 1, 3).astype(np.float32),
            "inner": (int(rng.integers(4)), rng.integers(2, size=2).astype(np.int8)),
            "image": rng.integers(256, size=(36, 36, 3), dtype=np.uint8),
            MASK_FIELD: np.array([1, 1, 1, *np.roll([1, 0], self._t)], np.int8),
        }


class LongAction(Zoo):
    """An action vector whose bounds alone fill more than a pipe."""

    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)  # type: ignore[assignment]
    action_space = gym.spaces.Box(-1 / 3, 1 / 3, (20_000,), np.float32)  # type: ignore[assignment]
