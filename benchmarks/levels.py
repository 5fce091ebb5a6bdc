"""What kept levels are worth, and whether they can be trusted, measured.

    python benchmarks/levels.py runs       levels of half a second, 8 processes: a second run, and a resumed one
    python benchmarks/levels.py kills      writers killed while they write: what is served afterwards
    python benchmarks/levels.py episodes   episodes and resets on kept levels against generated ones, frame by frame
    python benchmarks/levels.py process    a step of an environment in a process of its own (env.own_process)

Results are kept in ``runs/benchmarks``; ``--times`` says how many levels, kills or seeds.
"""

from __future__ import annotations

import contextlib
import io
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from common import Parts, main_of_parts, train_run

from rollmill.core.protocols import Env
from rollmill.envs.levels.settings import LevelSettings
from rollmill.envs.levels.store import LevelStore
from rollmill.envs.make import make_env
from rollmill.envs.settings import EnvSettings

SLOW = f"{Path(__file__).resolve().with_name('level_env.py')}:Slow"
PROCESSES = 8
TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "BabyAI-BossLevel": ("BabyAI-BossLevel-v0", {"mission_words": 40}),
    "MiniGrid-KeyCorridorS6R3": ("MiniGrid-KeyCorridorS6R3-v0", {}),
    "CarRacing": ("car_racing", {}),
    "treasure hunt": ("treasure_hunt", {"map_random": True}),
}
LONGEST = 200
"""Steps of an episode that are compared."""
LEVEL_BYTES = 300_000
WRITER = f"""
import sys, numpy as np
from pathlib import Path
from rollmill.envs.levels.store import LevelStore
store, seed = LevelStore(Path(sys.argv[1])), int(sys.argv[2])
print("ready", flush=True)
while True:
    seed += 1
    store.put(str(seed), seed, np.random.default_rng(seed).bytes({LEVEL_BYTES}))
"""


def blank(env: Env) -> dict[str, Any]:
    return {field.name: np.zeros((env.spec.agents, *field.shape), field.dtype) for field in env.spec.observation}


# -- runs -----------------------------------------------------------------------------------------------------


def measure_runs(levels: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        first, seconds = _train(folder, "first", 1, levels)
        second, again = _train(folder, "second", 2, levels)
        _train(folder, "second", 2, levels + 100, resume=True)
        resumed = _log(folder, "second")
        made, kept, of_the_processor = _reset_milliseconds(folder)
    seeds = [seed for _, seed in resumed]
    found = {
        "levels of the first run": len(first),
        "hits of the second run": sum(how == "kept" for how, _ in second) / len(second),
        "twice in the second run, resumed": len(seeds) - len(set(seeds)),
        "seconds of the runs": [round(seconds, 1), round(again, 1)],
        "reset, ms": {"made": made, "kept": kept, "of the processor": of_the_processor, "ratio": made / kept},
    }
    passed = found["hits of the second run"] >= 0.99 and made >= 50 * kept and len(seeds) == len(set(seeds))
    return {"mark": ">= 99 % hits, resets >= 50 x faster, no level twice", "passed": passed, **found}


def _train(
    folder: Path, name: str, seed: int, levels: int, resume: bool = False
) -> tuple[list[tuple[str, int]], float]:
    begun = time.monotonic()
    train_run(
        folder / "x" / name,
        *(f"env={SLOW}", f"env.args.log={folder / name}.log", f"env.levels={folder / 'levels'}", f"run.seed={seed}"),
        *(f"sampling.workers={PROCESSES}", "sampling.envs_per_worker=1", "sampling.groups=1", "sampling.rollout=10"),
        *("learning.batch_size=80", "learning.minibatches=1", "model.mlp=[16]", "report.page=false"),
        *(f"stop.frames={levels * 4}", "sampling.affinity=false", "report.tensorboard=false"),
        resume=resume,
    )
    return _log(folder, name), time.monotonic() - begun


def _log(folder: Path, name: str) -> list[tuple[str, int]]:
    lines = (folder / f"{name}.log").read_text().splitlines()
    return [(how, int(seed)) for how, _, seed in (line.partition(" ") for line in lines)]


def _reset_milliseconds(folder: Path, seeds: int = 20) -> tuple[float, float, float]:
    """Medians by the clock of a reset that generates and of one that finds, and what the latter takes a processor."""
    env = make_env(EnvSettings(id=SLOW, levels=LevelSettings(folder=str(folder / "timed"))))
    times: list[list[tuple[float, float]]] = [[], []]
    for turn in times:
        for seed in range(seeds):
            begun, worked = time.perf_counter(), time.thread_time()
            env.reset(seed, blank(env))
            turn.append(((time.perf_counter() - begun) * 1000, (time.thread_time() - worked) * 1000))
    clock = [statistics.median(clock for clock, _ in turn) for turn in times]
    return clock[0], clock[1], statistics.median(work for _, work in times[1])


# -- kills ----------------------------------------------------------------------------------------------------


def measure_kills(kills: int) -> dict[str, Any]:
    rng, wrong, served = random.Random(0), 0, 0
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for k in range(kills):
            _kill_while_writing(folder, 100_000 * k, rng.uniform(0, 0.2))
        store = LevelStore(folder)
        seeds = store.seeds().tolist()
        for seed in seeds:
            level = store.get(str(seed))
            served += level is not None
            wrong += level is not None and level != np.random.default_rng(seed).bytes(LEVEL_BYTES)
        unfinished = len(list(folder.glob("??/.*.tmp")))
        harmed = [folder / level.place for level in store.levels()[:20]]
        for path in harmed:
            path.write_bytes(path.read_bytes()[: rng.randrange(LEVEL_BYTES)])
        fresh = LevelStore(folder)
        refused = sum(fresh.get(path.name.partition("-")[0]) is None for path in harmed)
        named = len(fresh.damaged())
    found = {"kills": kills, "levels served": served, "wrong": wrong, "temporary files left": unfinished}
    found |= {"harmed by hand": len(harmed), "of these refused": refused, "of these named": named}
    passed = served == len(seeds) and not wrong and refused == named == len(harmed)
    return {"mark": "no damaged level is served, damaged ones are named", "passed": passed, **found}


def _kill_while_writing(folder: Path, first: int, seconds: float) -> None:
    with subprocess.Popen([sys.executable, "-c", WRITER, str(folder), str(first)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(seconds)
        process.kill()


# -- episodes -------------------------------------------------------------------------------------------------


def measure_episodes(seeds: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as place, contextlib.redirect_stdout(io.StringIO()):
        for name, (identity, args) in TASKS.items():
            plain = make_env(EnvSettings(id=identity, args=args))
            kept = make_env(EnvSettings(id=identity, args=args, levels=LevelSettings(folder=place)))
            for seed in range(seeds):
                kept.reset(seed, blank(kept))
            found[name] = _compare(plain, kept, seeds)
    passed = all(row["different episodes"] == 0 for row in found.values())
    return {"mark": "no episode differs", "passed": passed, "seeds": seeds, "reset, ms": found}


def _compare(plain: Env, kept: Env, seeds: int) -> dict[str, Any]:
    different = 0
    times: list[list[float]] = [[], []]
    for seed in range(seeds):
        seen = [blank(plain), blank(kept)]
        for turn, env in enumerate((plain, kept)):
            begun = time.thread_time()  # of the processor: whatever else the machine does
            env.reset(seed, seen[turn])
            times[turn].append((time.thread_time() - begun) * 1000)
        different += not _same_episode(plain, kept, seen, np.random.default_rng(seed))
    made, found = map(statistics.median, times)
    return {"made": made, "kept": found, "ratio": made / found, "different episodes": different}


def _same_episode(one: Env, two: Env, seen: list[dict[str, Any]], rng: np.random.Generator) -> bool:
    action = one.spec.action
    for _ in range(LONGEST):
        if not all(np.array_equal(seen[0][name], seen[1][name]) for name in seen[0]):
            return False
        chosen = rng.integers(action.nvec, size=len(action.nvec)) if action.nvec else rng.uniform(-1, 1, (1, 3))
        mask = seen[0].get("action_mask")
        if mask is not None:
            chosen = np.array([rng.choice(np.flatnonzero(mask[0]))])
        came, other = one.step(chosen, seen[0]), two.step(chosen, seen[1])
        if came[:3] != other[:3]:
            return False
        if came[1] or came[2]:
            return True
    return True


# -- process --------------------------------------------------------------------------------------------------


def measure_process(turns: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in ("CartPole-v1", "MiniGrid-Empty-8x8-v0"):
        envs = [make_env(EnvSettings(id=name, own_process=own)) for own in (False, True)]
        times: list[list[float]] = [[], []]
        for turn in range(turns):
            for env, taken in zip(envs, times):
                taken.append(_microseconds(env, turn))
        here, there = map(statistics.median, times)
        found[name] = {"here": here, "own process": there, "added": there - here}
        for env in envs:
            env.close()
    return {"mark": "told", "passed": True, "turns": turns, "microseconds of a step, median": found}


def _microseconds(env: Env, seed: int, steps: int = 500) -> float:
    rng, obs, taken = np.random.default_rng(seed), blank(env), []
    env.reset(seed, obs)
    for k in range(steps):
        action = rng.integers(env.spec.action.nvec)
        begun = time.perf_counter()
        _, terminated, truncated, _ = env.step(action, obs)
        taken.append((time.perf_counter() - begun) * 1e6)
        if terminated or truncated:
            env.reset(k, obs)
    return statistics.median(taken)


PARTS: Parts = {
    "runs": (measure_runs, 500),
    "kills": (measure_kills, 100),
    "episodes": (measure_episodes, 200),
    "process": (measure_process, 7),
}


if __name__ == "__main__":
    sys.exit(main_of_parts("levels", __doc__, PARTS))
