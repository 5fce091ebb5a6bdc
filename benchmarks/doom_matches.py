"""Doom matches: what they survive, how fast they are, and whether the skill of bots means anything.

::

    python benchmarks/doom_matches.py safety      50 duels, then 51 faults of engines and of what is around them
    python benchmarks/doom_matches.py rate        duels against two bare DoomGame threads; layouts of cores; bots
    python benchmarks/doom_matches.py skill       a scripted player against seven bots of five skills

Figures are printed as JSON lines, and kept in ``runs/benchmarks/doom_matches-*.json``. Rates of what is compared are
taken by turns, because other programs come and go. The exit code is 1 where a mark was missed.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import vizdoom
from common import ROOT, Marks, end_on_sigterm, record, train_command, tree

from rollmill.core.errors import EnvError
from rollmill.core.fields import Obs
from rollmill.envs.batch import random_actions
from rollmill.envs.vizdoom.match import DoomMatch
from rollmill.runs.bench.run import load_of_others

RUNS = Path("runs") / "doom_matches"
SHARED_MEMORY = Path("/dev/shm")
NOT_LONGER = 10.0
"""Seconds that no fault may hold a match up."""
TURN_SECONDS = 1.5
BOTS = 7


TOLD: list[dict[str, Any]] = []
"""Everything that was printed."""


def tell(**figures: Any) -> None:
    TOLD.append(figures)
    print(json.dumps(figures), flush=True)


def new_obs(env: DoomMatch) -> Obs:
    return {f.name: np.zeros((env.spec.agents, *f.shape), f.dtype) for f in env.spec.observation}


def play(env: DoomMatch, obs: Obs, rng: np.random.Generator) -> Any:
    """One step of everybody at random."""
    return env.step(random_actions(env.spec, rng, obs, env.spec.agents), obs)


# -- what is left of engines --------------------------------------------------------------------------


def alive(pids: tuple[int, ...]) -> list[int]:
    found = []
    for pid in pids:
        try:
            status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            continue
        found += [pid] if status not in "ZX" else []
    return found


def segments_of(pids: tuple[int, ...]) -> set[str]:
    lines = [line for pid in pids for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    return {line.rpartition("/")[2] for line in lines if "/dev/shm/ViZDoom" in line}


def udp_ports(pid: int | str) -> set[int]:
    lines = Path(f"/proc/{pid}/net/udp").read_text().splitlines()[1:]
    return {int(line.split()[1].rpartition(":")[2], 16) for line in lines}


def left_over(pids: tuple[int, ...], segments: set[str]) -> int:
    return len(alive(pids)) + len(segments & set(os.listdir(SHARED_MEMORY)))


# -- safety -------------------------------------------------------------------------------------------


def safety(matches: int, faults: int, marks: Marks) -> None:
    """Whole matches first, then one fault after the other; each is followed by a match that is played."""
    rng, env = np.random.default_rng(0), DoomMatch(agents=2, timeout=350)
    obs, outside = new_obs(env), udp_ports("self")
    begun, heard = time.monotonic(), 0
    for seed in range(matches):
        env.reset(seed, obs)
        heard += len(udp_ports("self") - outside)
        while not play(env, obs, rng)[2].all():
            pass
    pids, segments = env.engine_pids, segments_of(env.engine_pids)
    inside = len(udp_ports(pids[0]))
    env.close()
    left = left_over(pids, segments)
    seconds = round(time.monotonic() - begun, 1)
    tell(what="whole matches", matches=matches, seconds=seconds, inside=inside, outside=heard, left_over=left)
    marks.at_least("whole matches: sockets inside the namespace", inside, 2)
    marks.equal("whole matches: sockets outside, processes and segments left", heard + left, 0)
    env = DoomMatch(agents=2)
    kinds = {"killed guest": (signal.SIGKILL, 1), "killed host": (signal.SIGKILL, 0), "stopped": (signal.SIGSTOP, 0)}
    for name, (signum, who) in kinds.items():
        note(name, faults, _faults(env, faults, signum, who, rng, outside), marks)
    env.close()
    around = max(1, faults // 2)
    note("killed process around them", around, _orphans(around, outside), marks)
    note("killed main process of a training", around, _killed_runs(around, outside), marks)


def note(name: str, count: int, found: dict[str, Any], marks: Marks) -> None:
    tell(what=name, **found)
    marks.equal(f"{name}: faults", found["faults"], count)
    marks.at_most(f"{name}: longest hold, s", found["longest_s"], NOT_LONGER)
    marks.equal(f"{name}: processes and segments left", found["left_over"], 0)
    marks.equal(f"{name}: sockets outside, right after", found["outside"], 0)


def _faults(
    env: DoomMatch, count: int, signum: int, who: int, rng: np.random.Generator, outside: set[int]
) -> dict[str, Any]:
    obs, held, restarted, left, heard = new_obs(env), [], 0, 0, 0
    for seed in range(count):
        env.reset(seed, obs)
        pids, segments = env.engine_pids, segments_of(env.engine_pids)
        threading.Timer(random.Random(seed).uniform(0.0, 0.2), os.kill, (pids[who], signum)).start()
        returned = time.monotonic()
        try:
            while True:
                play(env, obs, rng)
                returned = time.monotonic()
        except EnvError:
            held.append(time.monotonic() - returned)
        begun = time.monotonic()
        env.close()
        held[-1] += time.monotonic() - begun
        left += left_over(pids, segments)
        heard += len(udp_ports("self") - outside)
        env.reset(seed, obs)  # the next match stands
        play(env, obs, rng)
        restarted += 1
        env.close()
    return {"faults": restarted, "longest_s": round(max(held), 2), "left_over": left, "outside": heard}


ORPHANS = """
import numpy as np, time
from rollmill.envs.vizdoom.match import DoomMatch
env = DoomMatch(); obs = {"obs": np.zeros((2, 72, 128, 3), np.uint8)}; env.reset(0, obs)
print(*env.engine_pids, flush=True)
while True: env.step(np.zeros((2, 6), np.int64), obs)
"""


def _orphans(count: int, outside: set[int]) -> dict[str, Any]:
    """Without a run there is no janitor: engines must go by themselves, and shared memory waits for ``doctor``."""
    longest, left, heard = 0.0, 0, 0
    for _ in range(count):
        parent = subprocess.Popen([sys.executable, "-c", ORPHANS], stdout=subprocess.PIPE, text=True)
        assert parent.stdout is not None
        pids = tuple(map(int, parent.stdout.readline().split()))
        segments = segments_of(pids)
        parent.kill()
        parent.wait()
        longest = max(longest, gone_after(pids, set()))
        left += len(alive(pids))
        heard += len(udp_ports("self") - outside)
        for name in segments:
            (SHARED_MEMORY / name).unlink(missing_ok=True)
    return {"faults": count, "longest_s": round(longest, 2), "left_over": left, "outside": heard}


TRAINING = ("env=doom_match", "sampling.workers=1", "sampling.envs_per_worker=1", "sampling.groups=1")
TRAINING += ("sampling.rollout=16", "learning.batch_size=32", "report.tensorboard=false", "stop.seconds=600")


def _killed_runs(count: int, outside: set[int]) -> dict[str, Any]:
    """The main process of a training goes: engines with their worker, segments by the janitor."""
    longest, left, heard = 0.0, 0, 0
    for _ in range(count):
        folder = RUNS / "killed"
        shutil.rmtree(folder, ignore_errors=True)
        process = subprocess.Popen(
            train_command(folder, *TRAINING), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while len(engines := engines_of(process.pid)) < 2 or len(segments := segments_of(engines)) < 2:
            if process.poll() is not None:
                raise SystemExit(f"the training ended by itself: see {folder / 'log.txt'}")
            time.sleep(0.05)
        process.kill()
        process.wait()
        longest = max(longest, gone_after(engines, segments))
        left += left_over(engines, segments)
        heard += len(udp_ports("self") - outside)
    return {"faults": count, "longest_s": round(longest, 2), "left_over": left, "outside": heard}


def engines_of(pid: int) -> tuple[int, ...]:
    """Engines below a process."""
    found = []
    for member in tree(pid):
        with contextlib.suppress(OSError):  # it ended meanwhile
            if Path(f"/proc/{member}/comm").read_text().startswith("vizdoom"):
                found.append(member)
    return tuple(found)


def gone_after(pids: tuple[int, ...], segments: set[str]) -> float:
    """Seconds until no process of these is alive and no segment is there; at most a little more than is allowed."""
    begun = time.monotonic()
    while left_over(pids, segments) and time.monotonic() - begun <= NOT_LONGER:
        time.sleep(0.01)
    return time.monotonic() - begun


# -- rate ---------------------------------------------------------------------------------------------


class Bare:
    """As many bare ``DoomGame`` as there are players, each with a thread; they meet after every tic, as they must.

    The engines are those of a match, and so are the buttons: nothing else is done with what they show.
    """

    def __init__(self, match: DoomMatch, frame_skip: int) -> None:
        self._games, self._skip, self._match = match._games, frame_skip, match
        self._presses: list[list[float]] = []
        self._rng = np.random.default_rng(0)
        self._barrier = threading.Barrier(len(self._games) + 1)
        self._go = False

    def rate(self, seconds: float) -> float:
        """Steps per second."""
        steps, self._go = 0, True
        threads = [threading.Thread(target=self._play, args=(k,)) for k in range(len(self._games))]
        for thread in threads:
            thread.start()
        begun = time.monotonic()
        while time.monotonic() - begun < seconds:
            actions = random_actions(self._match.spec, self._rng, {}, len(self._games))
            self._presses = [self._match._presses(actions[k : k + 1]) for k in range(len(actions))]
            for _ in range(self._skip):
                self._barrier.wait()
            steps += 1
        self._go = False
        self._barrier.wait()
        for thread in threads:
            thread.join()
        return steps / (time.monotonic() - begun)

    def _play(self, k: int) -> None:
        game = self._games[k]
        while True:
            for tic in range(self._skip):
                self._barrier.wait()
                if tic == 0 and not self._go:  # later the other may be on its way already
                    return
                if tic == 0:
                    game.set_action(self._presses[k])
                game.advance_action(1, tic == self._skip - 1)
            game.get_state()


def rate_of(env: DoomMatch, seconds: float, rng: np.random.Generator) -> float:
    obs, steps, begun = new_obs(env), 0, time.monotonic()
    while time.monotonic() - begun < seconds:
        play(env, obs, rng)
        steps += 1
    return steps / (time.monotonic() - begun)


def rate(turns: int, marks: Marks) -> None:
    rng = np.random.default_rng(0)
    env = DoomMatch(agents=2, timeout=10**9)
    env.reset(0, new_obs(env))
    bare = Bare(env, 4)
    cores = sorted(os.sched_getaffinity(0))
    layouts: dict[str, Callable[[int], set[int]]] = {
        "one core": lambda turn: {cores[turn % len(cores)]},
        "all cores": lambda turn: set(cores),
    }
    found: dict[str, list[float]] = {}
    for turn in range(turns):
        for layout, choose in layouts.items():
            for pid in (*map(int, os.listdir("/proc/self/task")), *env.engine_pids):
                with contextlib.suppress(ProcessLookupError):  # a thread that has just ended
                    os.sched_setaffinity(pid, choose(turn))
            ways: list[tuple[str, Callable[[float], float]]] = [
                ("match", lambda seconds: rate_of(env, seconds, rng)),
                ("bare", bare.rate),
            ]
            for way, measure in ways if turn % 2 else reversed(ways):
                found.setdefault(f"{layout}, {way}", []).append(measure(TURN_SECONDS))
    env.close()
    os.sched_setaffinity(0, cores)
    medians = {name: round(statistics.median(rates), 1) for name, rates in found.items()}
    ratios = [m / b for name in layouts for m, b in zip(found[f"{name}, match"], found[f"{name}, bare"])]
    tell(what="a duel's steps of 4 tics per second", load=os.getloadavg()[0], **medians)
    marks.at_least("a duel's rate against that of bare games, turn by turn", statistics.median(ratios), 0.9)
    _bots(turns, rng, marks)


def _bots(turns: int, rng: np.random.Generator, marks: Marks) -> None:
    envs = {bots: DoomMatch(agents=1, bots=bots, map="map02", timeout=10**9) for bots in (0, 7)}
    for env in envs.values():
        env.reset(0, new_obs(env))
    rates = [{bots: rate_of(env, TURN_SECONDS, rng) for bots, env in envs.items()} for _ in range(turns)]
    for env in envs.values():
        env.close()
    medians = {f"{bots} bots": round(statistics.median(r[bots] for r in rates), 1) for bots in envs}
    tell(what="one agent's steps of 4 tics per second", **medians)
    marks.at_least("one agent's rate with seven bots against none", statistics.median(r[7] / r[0] for r in rates), 0.6)


# -- skill --------------------------------------------------------------------------------------------


def skill(matches: int, marks: Marks) -> None:
    """A scripted player against seven bots: his frags less the mean of theirs."""
    means = []
    for level in (10, 30, 50, 70, 90):
        env = DoomMatch(agents=1, bots=BOTS, map="map02", bot_skill=level, buffers=["labels"])
        differences = [_difference(env, seed) for seed in range(matches)]
        env.close()
        means.append(statistics.mean(differences))
        error = statistics.stdev(differences) / matches**0.5
        tell(what="frags less those of a bot", skill=level, mean=round(means[-1], 2), error=round(error, 2))
    falls = sum(later < earlier for earlier, later in itertools.pairwise(means))
    marks.equal("steps of skill with which the difference falls", falls, len(means) - 1)


def _difference(env: DoomMatch, seed: int) -> float:
    obs, rng = new_obs(env), np.random.default_rng(seed)
    env.reset(seed, obs)
    while True:
        _, _, over, info = env.step(_scripted(env, rng), obs)
        if over[0]:
            variables = [getattr(vizdoom.GameVariable, f"PLAYER{k + 2}_FRAGCOUNT") for k in range(BOTS)]
            theirs = statistics.mean(env._games[0].get_game_variable(v) for v in variables)
            return float(info["episode_stats"]["frags"][0]) - theirs


def _scripted(env: DoomMatch, rng: np.random.Generator) -> Any:
    """Turn to the nearest bot that is seen and shoot when it is ahead; else walk about."""
    state = env._games[0].get_state()
    seen = [label for label in state.labels if label.object_name == "DoomPlayer"]
    if not seen:
        return np.array([[int(rng.random() < 0.8), 0, 0, 0, 0, 10 + int(rng.integers(-3, 6))]])
    nearest = max(seen, key=lambda label: label.width)
    off = (nearest.x + nearest.width / 2) / state.screen_buffer.shape[1] - 0.5  # right is positive, as in turning
    turn = int(np.clip(round(off * 20), -6, 6))
    return np.array([[0, 0, 0, int(abs(off) < 0.06), 0, 10 + turn]])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("safety", "rate", "skill"))
    parser.add_argument("--matches", type=int, default=50, help="whole matches of safety; of skill, a tenth per level")
    parser.add_argument("--faults", type=int, default=13, help="of each kind of engine's; half as many of two around")
    parser.add_argument("--turns", type=int, default=9)
    options = parser.parse_args()
    end_on_sigterm()
    marks, others = Marks(), load_of_others()
    if options.what == "safety":
        safety(options.matches, options.faults, marks)
    elif options.what == "rate":
        rate(options.turns, marks)
    else:
        skill(max(2, options.matches // 10), marks)
    print(marks.table())
    kept = {**vars(options), "busy_cores_before": others, "figures": TOLD, "marks": marks.rows}
    path = record("doom_matches", kept)
    print(f"recorded in {path.relative_to(ROOT)}", file=sys.stderr)
    return int(not marks.all_met)


if __name__ == "__main__":
    sys.exit(main())
