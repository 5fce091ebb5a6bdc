"""What ``test_mlagents`` looks at: players driven inside a network namespace, as their server listens everywhere.

python mlagents_drive.py PYTHON_OF_MLAGENTS PLAYER FOLDER      prints one JSON object
"""

from __future__ import annotations

import json
import socket
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from rollmill.core.errors import RollmillError
from rollmill.core.fields import EnvSpec, Obs
from rollmill.envs.make import EnvInstance
from rollmill.envs.mlagents.env import MlAgentsEnv

PORT = 6500


def views(spec: EnvSpec) -> Obs:
    return {f.name: np.zeros((spec.agents, *f.shape), f.dtype) for f in spec.observation}


def alive(pid: int) -> bool:
    """A killed orphan may wait for a parent that takes note of its end: that is not alive."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def living(pids: list[int]) -> list[int]:
    """Those that do not end: who was killed a moment ago is given the time to go."""
    deadline = time.monotonic() + 60
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return [pid for pid in pids if alive(pid)]


def play(common: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Two instances at once, while the first one's port is taken."""
    words = ["--agents", 2, "--record", str(folder / "said")]
    with socket.socket() as taken:
        taken.bind(("", PORT))
        envs = [
            MlAgentsEnv(
                **common, arguments=words, base_port=PORT, log_folder=str(folder / "logs"), instance=EnvInstance(i)
            )
            for i in range(2)
        ]
    env, obs = envs[0], views(envs[0].spec)
    found: dict[str, Any] = {"spec": env.spec.to_dict(), "ports": [e.port for e in envs], "behavior": env.behavior}
    env.reset(7, obs)
    found["first"] = {name: array.tolist() for name, array in obs.items()}
    found["steps"] = []
    for _ in range(4):
        reward, terminated, truncated, info = env.step(np.float32([[1, 0, 0.5, 0], [2, 1, -3.0, 0]]), obs)
        row = [reward.tolist(), terminated.tolist(), truncated.tolist(), obs["numbers"].tolist()]
        found["steps"].append([*row, info.get("episode_stats", {}).get("player_threads", 0)])
    env.reset(8, obs)
    found["again"] = obs["numbers"].tolist()
    pids = [e.player_pid for e in envs]
    for e in envs:
        e.close()
        e.close()
    found["left"] = living(pids)
    found["said"] = [json.loads(path.read_text()) for path in sorted(folder.glob("said-*.json"))]
    return found


def fault(common: dict[str, Any], kind: str, left: list[int]) -> str:
    """What the error says when the player does this at its third step; ``left`` gets those that stay."""
    # The limit also holds for the player's start, which must not fail on a slow machine.
    env = MlAgentsEnv(**common, arguments=["--fault", kind], base_port=PORT + 100, time_out=20)
    obs = views(env.spec)
    env.reset(0, obs)
    try:
        for _ in range(3):
            env.step(np.zeros((1, 4), np.float32), obs)
    except RollmillError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        env.close()
        left += living([env.player_pid])
    return "no error"


def main(python: str, build: str, folder: str) -> None:
    common = {"python": python, "build": build}
    found = play(common, Path(folder))
    found["faults"] = {kind: fault(common, kind, found["left"]) for kind in ("hang", "crash")}
    try:
        MlAgentsEnv(**common, behavior="Another", base_port=PORT + 200)
    except RollmillError as error:
        found["behavior_error"] = str(error)
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
