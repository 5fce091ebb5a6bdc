"""A bare simulator loop in a process of its own: the upper bound that sampling is measured against.

``python -m rollmill.envs.simulate`` builds one env, waits for a line on stdin, steps it with random actions
for the asked time, and prints how far it came. Nothing is shared, nobody is waited for.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable

import numpy as np

from rollmill.core.fields import Obs
from rollmill.core.machine import wait_for_turn
from rollmill.envs.batch import random_actions
from rollmill.envs.make import EnvInstance, make_env
from rollmill.envs.settings import EnvSettings

ACTIONS = 1024
WARM_UP_STEPS = 50


def simulate(settings: EnvSettings, index: int, seconds: float, on_ready: Callable[[], None]) -> dict[str, float]:
    """Step one env for ``seconds``, from when ``on_ready`` returns; gives steps, frames and the time it really took."""
    env = make_env(settings, EnvInstance(index=index, worker=index))
    spec = env.spec
    obs: Obs = {f.name: np.ones((spec.agents, *f.shape), f.dtype) for f in spec.observation}
    rng = np.random.default_rng(index)
    actions = [random_actions(spec, rng, obs, spec.agents) for _ in range(ACTIONS)]
    episode = index << 16
    env.reset(episode, obs)
    over = np.zeros(spec.agents, bool)  # agents may end one after the other
    steps, limit, begun = 0, WARM_UP_STEPS, 0.0
    end = float("inf")
    while True:
        action = random_actions(spec, rng, obs, spec.agents) if spec.masked else actions[steps % ACTIONS]
        _, terminated, truncated, _ = env.step(action, obs)
        steps += 1
        over |= terminated
        over |= truncated
        if over.all():
            over[:] = False
            episode += 1
            env.reset(episode, obs)
        if steps >= limit:
            now = time.perf_counter()
            if now >= end:
                break
            if not begun:
                on_ready()
                steps, begun = 0, time.perf_counter()
                end = begun + seconds
            limit = steps + 16
    env.close()
    return {"steps": steps, "frames": steps * spec.agents * spec.frames_per_step, "seconds": now - begun}


def main() -> None:
    setup = json.loads(sys.argv[1])
    if setup["core"] is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {setup["core"]})
    wait_for_turn()  # as a worker does: this is the bound, it shall have every advantage
    sys.path[:] = setup["path"]
    # Whatever the env prints goes to stderr: stdout is for the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def on_ready() -> None:
        print("ready", file=answers, flush=True)
        sys.stdin.readline()

    result = simulate(EnvSettings(**setup["env"]), setup["index"], setup["seconds"], on_ready)
    print(json.dumps(result), file=answers, flush=True)


if __name__ == "__main__":
    main()
