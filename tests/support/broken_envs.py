"""Environments with one fault each, for ``rollmill envs check``; named as ``broken_envs:Something``."""

from __future__ import annotations

import ctypes
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

from rollmill.core.errors import MissingExtraError
from rollmill.core.fields import MASK_FIELD, ActionSpec, Array, EnvSpec, Field, Obs
from rollmill.core.protocols import StepReturn

LENGTH = 6


class Sound(gym.Env):
    """Nothing is wrong with it: a random vector, the reward is its first entry, six steps."""

    observation_space: gym.Space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space: gym.Space = gym.spaces.Discrete(2)

    def __init__(self) -> None:
        self.t = LENGTH

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self.observation(), {}

    def step(self, action: Any) -> Any:
        if self.t >= LENGTH:
            raise RuntimeError("call reset() first")
        self.t += 1
        shown = self.observation()
        return shown, self.reward(), self.terminated(), False, self.info()

    def observation(self) -> Any:
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)

    def reward(self) -> Any:
        return 1.0

    def terminated(self) -> Any:
        return self.t >= LENGTH

    def info(self) -> Any:
        return {}


def observing(change: Callable[[Sound, Array], Any]) -> type[Sound]:
    """Sound, but for what it shows."""

    class Changed(Sound):
        def observation(self) -> Any:
            return change(self, super().observation())

    return Changed


WrongDtype = observing(lambda env, shown: np.sign(shown).astype(np.int64))
Float64 = observing(lambda env, shown: shown.astype(np.float64))
WrongShape = observing(lambda env, shown: shown[:2])
OutOfBounds = observing(lambda env, shown: shown + 2 * (env.t == 3))
NanObservation = observing(lambda env, shown: shown * (np.nan if env.t == 2 else 1))
NoArray = observing(lambda env, shown: shown.tolist())
LeakingSeed = observing(lambda env, shown: np.random.uniform(-1, 1, 3).astype(np.float32))
LeakingInReset = observing(lambda env, shown: np.full(3, random.uniform(-1, 1), np.float32) if env.t == 0 else shown)
TouchesShared = observing(lambda env, shown: shown + 0 * np.float32(np.random.random()))
Irreproducible = observing(lambda env, shown: np.frombuffer(os.urandom(12), np.uint32).astype(np.float32) / 2**32)
Unseeded = observing(lambda env, shown: np.full(3, env.t / LENGTH, np.float32))


class SeedsShared(Sound):
    """Seeds the shared generator in reset and draws from it: alone it looks right."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        np.random.seed(seed)
        return super().reset(seed=seed)

    def observation(self) -> Any:
        return np.random.uniform(-1, 1, 3).astype(np.float32)


class Stale(Sound):
    """What an episode has changed stays for the next."""

    total = 0.0

    def observation(self) -> Any:
        shown = super().observation()
        self.total = (self.total + float(shown[0])) / 2
        shown[1] = self.total
        return shown


class Reused(Sound):
    """Returns the same array every time."""

    def __init__(self) -> None:
        super().__init__()
        self.shown = np.zeros(3, np.float32)

    def observation(self) -> Any:
        self.shown[:] = super().observation()
        return self.shown


class NoResetNeeded(Sound):
    def __init__(self) -> None:
        super().__init__()
        self.t = 0


class ForgetsEnd(Sound):
    def step(self, action: Any) -> Any:
        self.t = self.t + 1 if self.t < 2 * LENGTH else 1
        return self.observation(), 1.0, self.t == LENGTH, False, {}


class NanReward(Sound):
    def reward(self) -> Any:
        return float("nan") if self.t == 4 else 0.0


class NoReward(Sound):
    def reward(self) -> Any:
        return None


class ArrayReward(Sound):
    def reward(self) -> Any:
        return np.ones(1)


class IntTerminated(Sound):
    def terminated(self) -> Any:
        return int(self.t >= LENGTH)


class ListInfo(Sound):
    def info(self) -> Any:
        return []


class TextStatistics(Sound):
    def info(self) -> Any:
        return {"episode_stats": {"name": "Ann"}}


class StepRaises(Sound):
    def reward(self) -> Any:
        if self.t == 3:
            raise ZeroDivisionError("no fuel")
        return 0.0


class OldApi(Sound):
    def step(self, action: Any) -> Any:
        return super().step(action)[:4]


class LeakingThenRaising(LeakingInReset):
    def reward(self) -> float:
        raise ZeroDivisionError("no fuel")


class LeakingOldApi(LeakingInReset):
    def step(self, action: Any) -> Any:
        return super().step(action)[:4]


class OldReset(Sound):
    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()


class OnlyObservation(Sound):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=seed)[0]


class OldGym(OnlyObservation):
    def step(self, action: Any) -> Any:
        return self.observation(), 1.0, False, {}


class ClosesOnce(Sound):
    closed = False

    def close(self) -> None:
        if self.closed:
            raise OSError("already closed")
        self.closed = True


class Endless(Sound):
    def step(self, action: Any) -> Any:
        return self.observation(), 0.0, False, False, {}


class Unbounded(Sound):
    action_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)


class MissingEntry(Sound):
    observation_space = gym.spaces.Dict(
        {"a": gym.spaces.Box(-1, 1, (3,), np.float32), "b": gym.spaces.Tuple((gym.spaces.Discrete(2),))}
    )

    def observation(self) -> Any:
        return {"a": super().observation(), "b": (0, 0)} if self.t else {"a": super().observation()}


class WrongChoice(Sound):
    observation_space = gym.spaces.Discrete(3)

    def observation(self) -> Any:
        return 3


class Masked(Sound):
    """With a mask that ``mask`` may spoil."""

    observation_space = gym.spaces.Dict(
        {"obs": gym.spaces.Box(-1, 1, (3,), np.float32), MASK_FIELD: gym.spaces.Box(0, 9, (2,), np.int8)}
    )
    mask = (1, 0)

    def observation(self) -> Any:
        return {"obs": super().observation(), MASK_FIELD: np.array(self.mask, np.int8)}


class EmptyMask(Masked):
    mask = (0, 0)


class OddMask(Masked):
    mask = (7, 0)


class Hangs(Sound):
    def reward(self) -> Any:
        while self.t == 2:
            time.sleep(0.01)
        return 0.0


class Announces(Hangs):
    """Says which process it is in, to whoever reads the file that ANNOUNCE names, then hangs."""

    def __init__(self) -> None:
        super().__init__()
        with open(os.environ["ANNOUNCE"], "w", encoding="utf-8") as file:
            file.write(str(os.getpid()))


class Dies(Sound):
    def reward(self) -> Any:
        print("farewell", flush=True)
        os._exit(3)


class DiesWell(Sound):
    """With an exit code that says all is well."""

    def reward(self) -> Any:
        os._exit(0)


class Exits(Sound):
    def reward(self) -> Any:
        sys.exit(0)


class ExitsInReset(Sound):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        sys.exit(0)


class ExitsWhenBuilt(Sound):
    def __init__(self) -> None:
        sys.exit(0)


class ExitsOutOfOrder(Sound):
    def step(self, action: Any) -> Any:
        if self.t >= LENGTH:
            sys.exit("call reset() first")
        return super().step(action)


class Crashes(Sound):
    def reward(self) -> Any:
        return ctypes.string_at(0)


class Leaves(Sound):
    """Starts a helper in a session of its own, without variables, and never ends it; its pid is written down."""

    def __init__(self) -> None:
        super().__init__()
        helper = subprocess.Popen(["sleep", "3600"], env={}, start_new_session=True)
        with open(os.environ["ANNOUNCE"], "a", encoding="utf-8") as file:
            file.write(f"{helper.pid}\n")


class LeavesAndHangs(Leaves, Hangs):
    pass


class ShowsNothing(Sound):
    observation_space = gym.spaces.Box(-1, 1, (0,), np.float32)

    def observation(self) -> Any:
        return np.zeros(0, np.float32)


class TextReward(Sound):
    def reward(self) -> Any:
        return "1.0"


class BuildFails(Sound):
    def __init__(self) -> None:
        raise ValueError("no map")


class NeedsMore(Sound):
    def __init__(self) -> None:
        raise MissingExtraError('it needs more: pip install "rollmill[more]"')


class Native:
    """Nothing is wrong with it, by rollmill's own protocol: two agents, ``step`` may be changed."""

    def __init__(self) -> None:
        fields = (Field("obs", "float32", (2,)), Field("image", "uint8", (4, 4, 1)))
        self.spec = EnvSpec("native", fields, ActionSpec("discrete", nvec=(2,), start=(0,)), agents=2)
        self.t = -1

    def reset(self, seed: int, obs: Obs) -> None:
        self.rng = np.random.default_rng(seed)
        self.t = 0
        self.observe(obs)

    def step(self, action: Array, obs: Obs) -> StepReturn:
        if not 0 <= self.t < LENGTH:
            raise RuntimeError("call reset() first")
        self.t += 1
        self.observe(obs)
        over = np.full(2, self.t >= LENGTH)
        return self.rng.random(2), over, np.zeros(2, bool), {}

    def observe(self, obs: Obs) -> None:
        obs["obs"][:] = self.rng.random((2, 2))
        obs["image"][:] = self.t

    def render(self) -> Array | None:
        return None

    def close(self) -> None:
        return None


class Unwritten(Native):
    def observe(self, obs: Obs) -> None:
        obs["obs"][0] = self.rng.random(2)
        obs["image"][:] = self.t


class WritesBack(Native):
    """Keeps the arrays of the call before and writes into them."""

    kept: Obs | None = None

    def observe(self, obs: Obs) -> None:
        super().observe(obs)
        if self.kept is not None:
            self.kept["image"][:] = 9
        self.kept = obs


class ChangesAction(Native):
    def step(self, action: Array, obs: Obs) -> StepReturn:
        action += 1
        return super().step(action, obs)


class ThreeRewards(Native):
    def step(self, action: Array, obs: Obs) -> StepReturn:
        _, terminated, truncated, info = super().step(action, obs)
        return np.ones(3), terminated, truncated, info


class FloatEnds(Native):
    def step(self, action: Array, obs: Obs) -> StepReturn:
        reward, terminated, _, info = super().step(action, obs)
        return reward, terminated, np.zeros(2), info


class FiveValues(Native):
    def step(self, action: Array, obs: Obs) -> Any:
        return (obs, *super().step(action, obs))


class LacksModule(Sound):
    """Its constructor imports what is not installed."""

    def __init__(self) -> None:
        super().__init__()
        import no_such_module  # noqa: F401
