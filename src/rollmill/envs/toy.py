"""Tiny environments with known best returns, for tests, examples and learning checks.

========================  =============================================  ======  ================
name                      what has to be learnt                          best    random
========================  =============================================  ======  ================
``toy_target``            repeat the number shown                        10      2.5
``toy_memory``            remember the first observation for some steps  1       0 (no memory: 0)
``toy_masked``            pick the best of the allowed actions           10      about 4.4
``toy_image``             say in which corner the square is              10      2.5
``toy_reach``             move a point to the origin (continuous)        near 0  about -25
``toy_agents``            two agents, each repeats its own number        10      2.5
``toy_coin``              nothing: a coin says how long an episode is    39      39
========================  =============================================  ======  ================
"""

from __future__ import annotations

import numpy as np

from rollmill.core.errors import EnvError
from rollmill.core.fields import MASK_FIELD, ActionSpec, Array, EnvSpec, Field, Obs
from rollmill.core.protocols import StepReturn


class _Toy:
    """What all toys share: a random generator per episode, a step counter, a fixed length."""

    spec: EnvSpec

    def __init__(self, length: int) -> None:
        if length < 1:
            raise ValueError(f"length must be at least 1, got {length}")
        self.length = length
        self._rng = np.random.default_rng(0)
        self._t = -1  # until the first reset

    def reset(self, seed: int, obs: Obs) -> None:
        self._rng = np.random.default_rng(seed)
        self._t = 0
        self._begin()
        self._observe(obs)

    def _advance(self) -> bool:
        """Count a step; True when the episode ends with it."""
        if self._t < 0:
            raise EnvError("step() without a running episode: call reset() first")
        self._t += 1
        return self._t >= self.length

    def _begin(self) -> None:
        raise NotImplementedError

    def _observe(self, obs: Obs) -> None:
        raise NotImplementedError

    def render(self) -> Array | None:
        return None

    def close(self) -> None:
        return None


class Target(_Toy):
    """A number in 0..choices-1 is shown one-hot; repeating it gives 1. Best return: ``length``.

    ``agents`` > 1 gives every agent its own number and its own reward. ``shift``, what has to be added to the number,
    and ``reward_scale``, what the right answer gives, make different tasks of it (the suite ``toy_pair``).
    """

    def __init__(
        self, length: int = 10, choices: int = 4, agents: int = 1, shift: int = 0, reward_scale: float = 1.0
    ) -> None:
        super().__init__(length)
        self.choices = choices
        self._shift, self._scale = shift, np.float32(reward_scale)
        self.agents = agents
        self._target = np.zeros(agents, np.int64)
        self.spec = EnvSpec(
            name="toy_agents" if agents > 1 else "toy_target",
            observation=(Field("obs", "float32", (choices,)),),
            action=ActionSpec("discrete", nvec=(choices,), start=(0,)),
            agents=agents,
        )

    def _begin(self) -> None:
        self._target = self._rng.integers(self.choices, size=self.agents)

    def _observe(self, obs: Obs) -> None:
        obs["obs"][:] = 0
        obs["obs"][np.arange(self.agents), self._target] = 1

    def step(self, action: Array, obs: Obs) -> StepReturn:
        reward = (np.asarray(action) == (self._target + self._shift) % self.choices) * self._scale
        ended = self._advance()
        self._begin()
        self._observe(obs)
        return reward, ended, False, {}


class Memory(_Toy):
    """A cue (+1 or -1) is shown once; after ``delay`` blank steps the agent must name it.

    Return 1 for the right answer, -1 for the wrong one: a policy without memory averages 0.
    """

    def __init__(self, delay: int = 5) -> None:
        super().__init__(delay + 1)
        self._cue = 0
        self.spec = EnvSpec(
            name="toy_memory",
            observation=(Field("obs", "float32", (3,)),),
            action=ActionSpec("discrete", nvec=(2,), start=(0,)),
        )

    def _begin(self) -> None:
        self._cue = int(self._rng.integers(2))

    def _observe(self, obs: Obs) -> None:
        shown = (1 if self._cue else -1) if self._t == 0 else 0
        obs["obs"][0] = (shown, self._t == 0, self._t == self.length - 1)

    def step(self, action: Array, obs: Obs) -> StepReturn:
        asked = self._t == self.length - 1
        reward = (1.0 if int(action[0]) == self._cue else -1.0) if asked else 0.0
        ended = self._advance()
        self._observe(obs)
        return reward, ended, False, {}


class Masked(_Toy):
    """Six actions worth 0, 0.2 .. 1, shown in random order; a random half is forbidden each step.

    The best allowed action counts 1. A forbidden action raises: a policy that ever takes one fails.
    """

    worths = np.linspace(0, 1, 6, dtype=np.float32)

    def __init__(self, length: int = 10) -> None:
        super().__init__(length)
        self._worth = self.worths.copy()
        self._mask = np.ones(6, np.int8)
        self.spec = EnvSpec(
            name="toy_masked",
            observation=(Field("worth", "float32", (6,)), Field(MASK_FIELD, "int8", (6,))),
            action=ActionSpec("discrete", nvec=(6,), start=(0,)),
        )

    def _begin(self) -> None:
        self._worth = self._rng.permutation(self.worths)
        self._mask[:] = 0
        self._mask[self._rng.choice(6, 3, replace=False)] = 1

    def _observe(self, obs: Obs) -> None:
        obs["worth"][0] = self._worth
        obs[MASK_FIELD][0] = self._mask

    def step(self, action: Array, obs: Obs) -> StepReturn:
        chosen = int(action[0])
        if not self._mask[chosen]:
            raise ValueError(f"action {chosen} is forbidden by the mask {self._mask.tolist()}")
        best = self._worth[self._mask == 1].max()
        reward = 1.0 if self._worth[chosen] == best else float(self._worth[chosen]) / 2
        ended = self._advance()
        self._begin()
        self._observe(obs)
        return reward, ended, False, {}


class Image(_Toy):
    """A white square in one corner of a small image; naming the corner gives 1."""

    def __init__(self, length: int = 10, size: int = 36) -> None:
        super().__init__(length)
        self.size = size
        self._corner = 0
        self.spec = EnvSpec(
            name="toy_image",
            observation=(Field("obs", "uint8", (size, size, 3)),),
            action=ActionSpec("discrete", nvec=(4,), start=(0,)),
            frames_per_step=1,
        )

    def _begin(self) -> None:
        self._corner = int(self._rng.integers(4))

    def _observe(self, obs: Obs) -> None:
        obs["obs"][0] = self.render()

    def render(self) -> Array:
        half = self.size // 2
        top, left = divmod(self._corner, 2)
        image = np.zeros((self.size, self.size, 3), np.uint8)
        image[top * half : (top + 1) * half, left * half : (left + 1) * half] = 255
        return image

    def step(self, action: Array, obs: Obs) -> StepReturn:
        reward = float(int(action[0]) == self._corner)
        ended = self._advance()
        self._begin()
        self._observe(obs)
        return reward, ended, False, {}


class Reach(_Toy):
    """A point on the plane moves by the action (each axis within -1..1); reward is minus its distance.

    The episode is *truncated* after ``length`` steps: nothing about the state says it is near.
    """

    def __init__(self, length: int = 20) -> None:
        super().__init__(length)
        self._position = np.zeros(2, np.float32)
        self.spec = EnvSpec(
            name="toy_reach",
            observation=(Field("obs", "float32", (2,)),),
            action=ActionSpec("continuous", shape=(2,), low=(-1.0, -1.0), high=(1.0, 1.0)),
        )

    def _begin(self) -> None:
        self._position = self._rng.uniform(-1, 1, 2).astype(np.float32)

    def _observe(self, obs: Obs) -> None:
        obs["obs"][0] = self._position

    def step(self, action: Array, obs: Obs) -> StepReturn:
        move = np.clip(action[0], -1, 1)
        self._position = np.clip(self._position + 0.5 * move, -2, 2)
        ended = self._advance()
        self._observe(obs)
        return -float(np.linalg.norm(self._position)), False, ended, {}


class Coin(_Toy):
    """Episodes of ``short`` or ``long`` steps by the toss of a coin; every step gives about 1.

    Whoever keeps, counts or learns from survivors is found out by it: half of all episodes are long.
    """

    def __init__(self, short: int = 3, long: int = 75) -> None:
        super().__init__(short)
        self._lengths = (short, long)
        self.spec = EnvSpec(
            name="toy_coin",
            observation=(Field("obs", "float32", (2,)),),
            action=ActionSpec("discrete", nvec=(2,), start=(0,)),
        )

    def _begin(self) -> None:
        self.length = self._lengths[int(self._rng.integers(2))]

    def _observe(self, obs: Obs) -> None:
        obs["obs"][:] = self._rng.uniform(-1, 1, 2)

    def step(self, action: Array, obs: Obs) -> StepReturn:
        reward = np.float32(1 + 0.1 * self._rng.normal())
        ended = self._advance()
        self._observe(obs)
        return reward, ended, False, {}
