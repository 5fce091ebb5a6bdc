"""Environments that show themselves, for videos and watching: every image tells the step it was taken at."""

from __future__ import annotations

import numpy as np

from rollmill.core.fields import ActionSpec, Array, EnvSpec, Field, Obs
from rollmill.core.protocols import StepReturn


class Shown:
    """Images are grey, 10 brighter with every step. Actions are rewarded by their number; lengths come from the seed.

    ``shade``: of the first image. ``drift``: an instance's rewards depend on how often the class was made, so that no
    episode repeats. ``broken``: what is wrong with its images. ``render_width``: as ViZDoom, it can be told how large
    images are.
    """

    made = 0

    def __init__(
        self,
        shade: int = 0,
        drift: bool = False,
        broken: str = "",
        agents: int = 1,
        render_width: int = 0,
        render_height: int = 0,
    ) -> None:
        Shown.made += 1
        self._shade = shade
        self._drift, self._broken, self._agents = Shown.made if drift else 0, broken, agents
        self._size = (render_height or 24, render_width or 32)
        self.spec = EnvSpec(
            name="shown",
            observation=(Field("obs", "uint8", (8, 8, 3)),),
            action=ActionSpec("discrete", nvec=(3,), start=(0,)),
            agents=agents,
            frames_per_step=4,
        )
        self._t = self._length = 0

    def reset(self, seed: int, obs: Obs) -> None:
        self._t, self._length = 0, 4 + seed % 5
        obs["obs"][:] = 255

    def step(self, action: Array, obs: Obs) -> StepReturn:
        self._t += 1
        obs["obs"][:] = 255  # what the agent sees is white: a video of it would be, too
        ends = self._t >= self._length - np.arange(self._agents)
        reward = np.asarray(action, np.float32) + self._drift
        if self._agents == 1:
            return float(reward[0]), bool(ends[0]), False, {}
        return reward, ends, np.zeros(self._agents, bool), {}

    def render(self) -> Array | None:
        if self._broken == "raise":
            raise RuntimeError("no screen")
        if self._broken == "none":
            return None
        if self._broken == "shape":
            return np.zeros(self._size, np.uint8)
        return np.full((*self._size, 3), self._shade + 10 * self._t, np.uint8)

    def close(self) -> None:
        return None


def picky(**given: object) -> Shown:
    """Takes any argument by its signature, and refuses them all."""
    if given:
        raise TypeError(f"what is {', '.join(given)}?")
    return Shown()
