"""A bare simulator loop in a process of its own: the upper bound that sampling is measured against.

``python -m rollmill.envs.simulate`` builds one env and says that it is ready. For every line on stdin, a number of
seconds, it steps the env with random actions for so long and prints how far it came. Nothing is shared.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import sys
import time
from typing import Any

import numpy as np

from rollmill.core.fields import Obs
from rollmill.core.machine import pin_to, wait_for_turn
from rollmill.envs.batch import random_actions
from rollmill.envs.make import EnvInstance, make_env
from rollmill.envs.settings import EnvSettings

ACTIONS = 1024
WARM_UP_STEPS = 50
STEPS_PER_LOOK = 16
"""Steps between two looks at the clock."""


class BareLoop:
    """One env, stepped with random actions, and begun anew where an episode ends."""

    def __init__(self, settings: EnvSettings, index: int) -> None:
        self._env = make_env(settings, EnvInstance(index=index, worker=index))
        spec = self._spec = self._env.spec
        self._obs: Obs = {f.name: np.ones((spec.agents, *f.shape), f.dtype) for f in spec.observation}
        self._rng = np.random.default_rng(index)
        drawn = [random_actions(spec, self._rng, self._obs, spec.agents) for _ in range(ACTIONS)]
        self._actions = itertools.cycle(drawn)  # drawing takes longer than some envs do
        self._over = np.zeros(spec.agents, bool)  # agents may end one after the other
        self._episode = index << 16
        self._env.reset(self._episode, self._obs)
        self._step(WARM_UP_STEPS)

    def run(self, seconds: float) -> dict[str, float]:
        """Go on for ``seconds``; gives steps, frames and the time it really took."""
        steps, begun = 0, time.perf_counter()
        while (now := time.perf_counter()) < begun + seconds:
            self._step(STEPS_PER_LOOK)
            steps += STEPS_PER_LOOK
        frames = steps * self._spec.agents * self._spec.frames_per_step
        return {"steps": steps, "frames": frames, "seconds": now - begun}

    def _step(self, count: int) -> None:
        env, spec, obs = self._env, self._spec, self._obs
        single = spec.agents == 1
        for _ in range(count):
            action = random_actions(spec, self._rng, obs, spec.agents) if spec.masked else next(self._actions)
            _, terminated, truncated, _ = env.step(action, obs)
            # Without numpy where it can be: beside an engine that evicts the caches it would take a tenth of a step.
            if (terminated or truncated) if single else self._all_over(terminated, truncated):
                self._episode += 1
                env.reset(self._episode, obs)

    def _all_over(self, terminated: Any, truncated: Any) -> bool:
        """Return whether all agents have ended by now; forgets it then."""
        over = self._over
        over |= terminated
        over |= truncated
        if not over.all():
            return False
        over[:] = False
        return True

    def close(self) -> None:
        self._env.close()


def main() -> None:
    setup = json.loads(sys.argv[1])
    if setup["core"] is not None:
        pin_to(setup["core"])
    wait_for_turn()  # as a worker does: this is the bound, it shall have every advantage
    sys.path[:] = setup["path"]
    # Whatever the env prints goes to stderr: stdout is for the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    loop = BareLoop(EnvSettings.of(setup["env"]), setup["index"])
    gc.collect()
    gc.freeze()  # as a worker does
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(loop.run(float(line))), file=answers, flush=True)
    loop.close()


if __name__ == "__main__":
    main()
