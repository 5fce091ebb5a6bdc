"""What populations are worth, measured: greed, recovery, rewards, speed, kills, replay.

    python benchmarks/populations.py greed             noisy quadratic: frequent selection against sub-populations
    python benchmarks/populations.py recovery          CartPole, half of the learning rates are hopeless
    python benchmarks/populations.py lander            LunarLander, all learning rates 30 times too low or too high
    python benchmarks/populations.py replay            the way of the best member of ``recovery``, as one policy
    python benchmarks/populations.py reward            a harmful reward term that can be turned down
    python benchmarks/populations.py speed             eight members in one run against one policy
    python benchmarks/populations.py kills             killed at random moments and resumed, against never killed
    python benchmarks/populations.py kills_selfplay    the same of self-play against a pool, with its payoff table
    python benchmarks/populations.py separate          four members as runs, two places, one of them killed
    python benchmarks/populations.py ray               Ray Tune's PBT on the task of ``recovery``, and after a kill

Results are kept in ``runs/benchmarks``; ``--seeds`` says how often.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common import ROOT, peer_venv, record, train_command, train_run

from rollmill.core.checkpoints import Checkpoints
from rollmill.core.run_folder import RunFolder, holder
from rollmill.core.seeds import Seeds
from rollmill.launch.records import LaunchRecords
from rollmill.pbt.evidence import Evidence
from rollmill.pbt.exchange import Exchange
from rollmill.pbt.ledger import NAME, read_ledger
from rollmill.pbt.lineage import ancestors, best_member, schedule
from rollmill.pbt.payoff import PAYOFF_FILE
from rollmill.pbt.population import Population
from rollmill.pbt.settings import PbtSettings
from rollmill.pbt.space import parse_space

RUNS = Path("runs") / "populations"
CARTPOLE = (
    *("env=CartPole-v1", "pbt.members=8", "pbt.tune.learning.learning_rate=[1e-5,1e-1]"),
    *("pbt.tune.learning.entropy_coefficient=[1e-4,1]", "stop.frames=480000", "report.tensorboard=false"),
    *("checkpoints.every_seconds=1e6", "learning.batch_size=512", "sampling.mode=serial"),
)
LANDER_MEMBERS, LANDER_FRAMES, LANDED = 6, 350_000, 200
LANDER_RATES = (3.3e-5, 3e-2)
LANDER = (
    *("-f", "lunar_lander", f"pbt.members={LANDER_MEMBERS}", "learning.lr_schedule=constant"),
    *(f"pbt.tune.learning.learning_rate={list(LANDER_RATES)}", "pbt.resample_rate=0.25"),
    *(f"stop.frames={LANDER_MEMBERS * LANDER_FRAMES}", "stop.mean_return=null", "report.tensorboard=false"),
    *("sampling.workers=2", "sampling.envs_per_worker=24", "learning.batch_size=2048", "learning.minibatches=8"),
)
SEPARATE = """\
experiment: {name}
settings: {{env: CartPole-v1, stop.frames: 20_000, learning.batch_size: 512, sampling.mode: serial}}
population: {{members: 4, period: 4_000, min_episodes: 5, tune: {{learning.learning_rate: [1.0e-5, 1.0e-1]}}}}
seeds: [{seed}]
launch: {{local: {{parallel: 2}}, poll_seconds: 0.5}}
"""
SELFPLAY = (
    *("env=leduc_poker", "learning.gamma=1", "selfplay.rule=pfsp", "selfplay.anchors={random: 0.1}"),
    *("pool.every_updates=5", "pool.keep=8", "stop.frames=400000", "learning.batch_size=512"),
    *("report.tensorboard=false", "sampling.mode=serial"),
)
SOLVED = 475
RATES_WITHIN = 10.0
KILL_SECONDS = (3.0, 12.0)
"""After a start; some are killed before they have come to anything."""
LURE = f"{Path(__file__).resolve().with_name('population_env.py')}:Lure"


# -- greed ----------------------------------------------------------------------------------------------------


def quadratic(
    method: str, seed: int, rounds: int, growth: str = "fixed", members: int = 16, noise: float = 0.1
) -> float:
    """The lowest loss after gradient descent on a noisy quadratic of curvatures 1 and 0.01.

    A low rate lowers the noise of the steep direction at once, and never gets anywhere in the flat one.
    """
    tune = {"rate": [1e-3, 1.9]}
    settings = PbtSettings(
        members=members, method=method, tune=tune, min_episodes=1, significance=1.0, growth=growth, patience=10
    )
    population = Population(settings, parse_space(tune), {}, Seeds(seed), 1)
    rng, curvature = np.random.default_rng(1000 + seed), np.array([1.0, 0.01])
    weights = np.tile(np.array([1.0, 100.0]), (members, 1))
    loss = np.zeros(members)
    for step in range(1, rounds + 1):
        rate = np.array([own["rate"] for own in population.settings])[:, None]
        weights -= rate * (curvature * weights + noise * np.sqrt(curvature) * rng.normal(size=weights.shape))
        loss = 0.5 * (curvature * weights**2).sum(1)
        if population.due([step] * members):
            moves = population.decide([step] * members, [Evidence(-float(x), 0.0, 1) for x in loss]).moves
            for move in sorted(moves, key=lambda move: -loss[move.member]):
                if move.donor is not None:
                    weights[move.member] = weights[move.donor]
    return float(loss.min())


def greed(seeds: int) -> dict[str, Any]:
    kinds = {"pbt": ("pbt", "fixed"), "mf": ("mf", "fixed"), "auto": ("pbt", "auto"), "random": ("random", "fixed")}
    found = {
        name: [quadratic(method, seed, 600, growth) for seed in range(seeds)]
        for name, (method, growth) in kinds.items()
    }
    medians = {name: statistics.median(losses) for name, losses in found.items()}
    passed = medians["mf"] <= medians["pbt"] / 3 and medians["mf"] <= medians["random"]
    return {"losses": found, "medians": medians, "mark": "mf <= pbt / 3 and <= random", "passed": passed}


# -- trainings ------------------------------------------------------------------------------------------------


def train(name: str, *words: str, resume: bool = False) -> Path:
    """Train in a process of its own; returns the run's folder."""
    return train_run(RUNS / name, *words, resume=resume)


def evaluated(folder: Path, *words: str) -> float:
    """Mean return of 20 episodes of most likely actions."""
    words = ("eval", str(folder), "--deterministic", "--episodes", "20", "--json", *words)
    done = subprocess.run(
        [sys.executable, "-m", "rollmill.cli.main", *words], capture_output=True, text=True, check=True
    )
    return float(json.loads(done.stdout)["mean"])


def recovery(seeds: int) -> dict[str, Any]:
    """Members at 475 at the end, with PBT and with the same settings fixed; how near its rates are to the best one."""
    found: dict[str, Any] = {}
    for method in ("pbt", "fixed"):
        rows = []
        for seed in range(seeds):
            begun = time.monotonic()
            folder = train(f"recovery-{method}-{seed}", *CARTPOLE, f"pbt.method={method}", f"run.seed={seed}")
            seconds = time.monotonic() - begun
            returns = [evaluated(folder, "--member", str(k)) for k in range(8)]
            own = Checkpoints(folder / "checkpoints").load_newest().state["population"]["rules"]["settings"]
            rates = [settings["learning.learning_rate"] for settings in own]
            rows.append({"seed": seed, "returns": returns, "rates": rates, "seconds": round(seconds)})
            print(method, seed, [round(x) for x in returns], flush=True)
        found[method] = rows
    solved = {method: [sum(x >= SOLVED for x in row["returns"]) for row in rows] for method, rows in found.items()}
    off = [rates_off(pbt["rates"], fixed) for pbt, fixed in zip(found["pbt"], found["fixed"], strict=True)]
    passed = min(solved["pbt"]) >= 7 and max(off) <= RATES_WITHIN
    mark = f"pbt >= 7 of 8, all its rates at the end within a factor of {RATES_WITHIN:g} of the best fixed one"
    return {**found, "solved": solved, "rates_off": off, "mark": mark, "passed": passed}


def rates_off(rates: Sequence[float], fixed: Mapping[str, Sequence[float]]) -> float:
    """The largest factor between a learning rate and the best fixed one; of several equally good, the middle one."""
    best = max(fixed["returns"])
    good = sorted(rate for rate, own in zip(fixed["rates"], fixed["returns"], strict=True) if own == best)
    middle = good[len(good) // 2]
    return max(max(rate / middle, middle / rate) for rate in rates)


def lander(seeds: int) -> dict[str, Any]:
    """The best member where all begin with a learning rate 30 times too low, or too high, beside random search."""
    rows = []
    for seed in range(seeds):
        wrong = LANDER_RATES[seed % 2]
        ways = {"pbt": ("pbt.begin=config", f"learning.learning_rate={wrong}"), "random": ("pbt.begin=sample",)}
        row: dict[str, Any] = {"seed": seed, "begun": wrong}
        for method, words in ways.items():
            begun = time.monotonic()
            folder = train(f"lander-{method}-{seed}", *LANDER, *words, f"pbt.method={method}", f"run.seed={seed}")
            row[f"{method}_seconds"] = round(time.monotonic() - begun)
            row[method] = max(evaluated(folder, "--member", str(k)) for k in range(LANDER_MEMBERS))
        rows.append(row)
        print(row, flush=True)
    ahead = sum(row["pbt"] >= row["random"] for row in rows)
    passed = all(row["pbt"] >= LANDED for row in rows) and ahead >= 2 / 3 * seeds
    return {"rows": rows, "mark": f"pbt >= {LANDED} always, >= random search in 2 of 3", "passed": passed}


def replay(seeds: int) -> dict[str, Any]:
    """One policy with the settings that the weights of the best member learnt with, for as many frames."""
    rows = []
    for seed in range(seeds):
        source = RUNS / f"recovery-pbt-{seed}"
        entries = read_ledger(source / NAME)
        frames = entries[-1]["members"][0]["frames"] + 1
        words = [word for word in CARTPOLE if not word.startswith(("pbt.", "stop."))]
        folder = train(f"replay-{seed}", *words, f"pbt.replay={source}", f"stop.frames={frames}", f"run.seed={seed}")
        stretches = len(schedule(entries, best_member(entries)))
        rows.append(
            {"winner": evaluated(source), "replay": evaluated(folder), "stretches": stretches, "frames": frames}
        )
        print(rows[-1], flush=True)
    return {"rows": rows, "mark": "replay >= 0.9 winner", "passed": all(r["replay"] >= 0.9 * r["winner"] for r in rows)}


def reward(seeds: int) -> dict[str, Any]:
    """The weight of a harmful reward term of the best member at the end, from 1; judged by the true objective.

    Nearly nobody reaches the goal at first, so chance has to choose: with a test of significance no weight ever moves.
    """
    weights = []
    words = (f"env={LURE}", "pbt.members=8", "pbt.objective=reached")
    words += ("env.variables.lure=1", "pbt.tune.env.variables.lure=[-1,2]", "pbt.begin=config", "pbt.period=2000")
    words += ("pbt.significance=1",)
    words += ("stop.frames=320000", "sampling.mode=serial", "report.tensorboard=false", "learning.batch_size=256")
    for seed in range(seeds):
        folder = train(f"reward-{seed}", *words, f"run.seed={seed}")
        entries = read_ledger(folder / NAME)
        weights.append(entries[-1]["members"][best_member(entries)]["settings"]["env.variables.lure"])
        print(seed, round(weights[-1], 3), flush=True)
    low = sum(weight <= 0.3 for weight in weights)
    return {"weights": weights, "mark": "<= 0.3 in 8 of 10", "passed": low >= 0.8 * seeds}


# -- speed, kills -----------------------------------------------------------------------------------------------


def speed(seeds: int) -> dict[str, Any]:
    """Frames per second of eight members and of one policy with as many environments, by turns."""
    found: dict[str, list[float]] = {"members": [], "one": []}
    words = ("env=CartPole-v1", "sampling.workers=2", "sampling.envs_per_worker=32", "stop.frames=0", "stop.seconds=20")
    words += ("report.tensorboard=false", "pbt.period=1000000", "sampling.groups=4", "model.mlp=[64,64]")
    for turn in range(seeds):
        for name in found:
            members = 8 if name == "members" else 1
            own = words if members > 1 else [word for word in words if not word.startswith("pbt.")]
            folder = train(
                f"speed-{name}", *own, f"run.seed={turn}", *([f"pbt.members={members}"] if members > 1 else [])
            )
            last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
            found[name].append(last["frames"] / last["time/seconds"])
            print(name, round(found[name][-1]), flush=True)
    ratio = statistics.median(found["members"]) / statistics.median(found["one"])
    return {**found, "ratio": ratio, "mark": "ratio >= 0.7", "passed": ratio >= 0.7}


def kills(seeds: int) -> dict[str, Any]:
    """A population, ``seeds`` times killed at a random moment and resumed: at the end all is as in one never killed."""
    words = [w for w in CARTPOLE if not w.startswith(("checkpoints.", "stop."))]
    words += ["stop.frames=400000", "pbt.min_episodes=5", "pbt.period=500"]
    return killed_and_whole("killed", seeds, words, NAME, "population")


def kills_selfplay(seeds: int) -> dict[str, Any]:
    """The same of a policy that plays against a pool of its past selves, and of the payoff table."""
    return killed_and_whole("killed-selfplay", seeds, SELFPLAY, PAYOFF_FILE, "selfplay")


def killed_and_whole(name: str, wanted: int, words: Sequence[str], ledger: str, part: str) -> dict[str, Any]:
    """``wanted`` kills -9 at random moments of one run, compared with another of the same settings that has none.

    ``part``: of the checkpoint, beside the learners. Fewer kills than wanted, because the run was through, do not pass.
    """
    words = [*words, "checkpoints.every_seconds=0.5"]
    whole = train(f"never-{name}", *words)
    folder, rng, killed = RUNS / name, random.Random(0), 0
    shutil.rmtree(folder, ignore_errors=True)
    while killed < wanted:
        process = subprocess.Popen(
            train_command(folder, *words, resume=folder.exists()), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        try:
            process.wait(rng.uniform(*KILL_SECONDS))
            if process.returncode:
                raise SystemExit(f"it does not go on:\n{process.communicate()[1].decode()}")
            break  # it came to its end
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            killed += 1
    train(name, *words, resume=True)
    one, two = (Checkpoints(run / "checkpoints").load_newest().state for run in (whole, folder))
    for model in (model for state in (one, two) for model in state.get("selfplay", {"models": []})["models"]):
        del model["entry"]["file"]  # the settings are in there, and the folder's name is one of them
    same = {
        ledger: (whole / ledger).read_bytes() == (folder / ledger).read_bytes(),
        part: identical(one[part], two[part]),
        "learners": identical(one["learners"], two["learners"]),
    }
    passed = killed == wanted and all(same.values())
    return {"kills": killed, "same": same, "mark": f"{wanted} kills, everything the same", "passed": passed}


def identical(one: Any, two: Any) -> bool:
    """Down to the last bit."""
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(identical(one[key], two[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(two) and all(map(identical, one, two))
    if isinstance(one, np.ndarray):
        return one.dtype == two.dtype and one.tobytes() == two.tobytes()
    return bool(one == two)


# -- members as runs, Ray -----------------------------------------------------------------------------------------


def separate(seeds: int) -> dict[str, Any]:
    """Four members, two places: after the first round one is killed -9, and later the launcher. ``seeds``: times."""
    rows = []
    for seed in range(seeds):
        folder = RUNS.parent / f"separate-{seed}"
        shutil.rmtree(folder, ignore_errors=True)
        description = RUNS.parent / f"separate-{seed}.yaml"
        description.parent.mkdir(exist_ok=True)
        description.write_text(SEPARATE.format(name=folder.name, seed=seed))
        words = [sys.executable, "-m", "rollmill.cli.main", "launch", "run", str(description), f"--root={RUNS.parent}"]
        begun, exchange = time.monotonic(), Exchange(folder)
        killed: list[str] = []
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
        while process.poll() is None:
            time.sleep(0.5)
            if not killed and exchange.newest >= 1:
                busy = [name for name in exchange.about().runs if holder(folder / name)]
                if busy:
                    os.kill(int((folder / busy[0] / ".lock").read_text().split()[1]), signal.SIGKILL)
                    killed.append(busy[0])
            elif len(killed) == 1 and exchange.newest >= 2:
                process.kill()
                process.wait()
                killed.append("launcher")
                process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
        entries = read_ledger(folder / NAME)
        states = [(RunFolder(folder / name).read_state() or {})["state"] for name in exchange.about().runs]
        rows.append(
            {
                "killed": killed,
                "states": states,
                "rounds": len(entries) - 1,
                "copies": sum(move["from"] is not None for entry in entries[1:] for move in entry["moves"]),
                "lineage": all(len(ancestors(entries, k)) == len(entries) for k in range(len(states))),
                "starts": sum(len(LaunchRecords(folder).attempts(name)) for name in exchange.about().runs),
                "seconds": round(time.monotonic() - begun),
            }
        )
        print(rows[-1], flush=True)
    passed = all(
        set(row["states"]) == {"finished"} and row["copies"] and row["lineage"] and len(row["killed"]) == 2
        for row in rows
    )
    return {"rows": rows, "mark": "all finish, weights were exchanged, lineage complete", "passed": passed}


def beside_ray(seeds: int) -> dict[str, Any]:
    """Members at 475 after as many frames, by Ray Tune's PBT; then the same, killed half way and gone on with."""
    rows = []
    for seed in range(seeds):
        whole = ray_run(RUNS / f"ray-{seed}")
        killed = ray_run(RUNS / f"ray-killed-{seed}", kill_after=whole["seconds"] / 2)
        rows.append({"whole": whole, "killed": killed})
        print(json.dumps(rows[-1]), flush=True)
    return {"rows": rows, "mark": "none: it is the comparison", "passed": True}


def ray_run(folder: Path, kill_after: float = 0.0) -> dict[str, Any]:
    """One population, in namespaces of its own; with ``kill_after`` killed so many seconds after its first step."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    begun, before = time.monotonic(), 0
    if kill_after:
        with subprocess.Popen(ray_command(folder), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            while not ray_steps(folder) and process.poll() is None:
                time.sleep(0.5)
            time.sleep(kill_after)
            before = ray_steps(folder)
            process.kill()
    done = subprocess.run(ray_command(folder, *(["--restore"] if kill_after else [])), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"Ray Tune failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    told = json.loads(done.stdout.splitlines()[-1])
    returns = [evaluated(Path(trial["checkpoint"])) if trial["checkpoint"] else None for trial in told["trials"]]
    return {
        "rescued": sum(x is not None and x >= SOLVED for x in returns),
        "returns": returns,
        "rates": [trial["rate"] for trial in told["trials"]],
        "frames": [trial["frames"] for trial in told["trials"]],
        "failed": [trial["failed"] for trial in told["trials"] if trial["failed"]],
        "steps": ray_steps(folder),
        "steps_before_kill": before,
        "seconds": round(time.monotonic() - begun),
    }


def ray_steps(folder: Path) -> int:
    """Steps that all trials have reported, those that were made twice included."""
    return sum(len(path.read_text().splitlines()) for path in folder.glob("tune/*/result.json"))


def ray_command(folder: Path, *words: str) -> list[str]:
    """Ray listens on all interfaces, whatever it is told: it gets a network that has only a loopback."""
    spaces = ["unshare", "--net", "--pid", "--fork", "--mount-proc", "--kill-child"]
    script = Path(__file__).resolve().parent / "peers" / "ray_tune_pbt.py"
    inside = f"ip link set lo up 2>/dev/null; exec {shlex.join([str(ray_python()), str(script), str(folder), *words])}"
    return [*spaces, "sh", "-c", inside]


def ray_python() -> Path:
    """This Python where the extra ``ray`` is installed, else a venv of its own."""
    found = subprocess.run([sys.executable, "-c", "from ray import tune"], capture_output=True)
    if not found.returncode:
        return Path(sys.executable)
    return peer_venv("ray-tune", ["-e", str(ROOT), "ray[tune]==2.60.0"])


PARTS: dict[str, Callable[[int], dict[str, Any]]] = {
    "greed": greed,
    "recovery": recovery,
    "lander": lander,
    "replay": replay,
    "reward": reward,
    "speed": speed,
    "kills": kills,
    "kills_selfplay": kills_selfplay,
    "separate": separate,
    "ray": beside_ray,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--seeds", type=int, default=1, help="seeds, turns or kills")
    options = parser.parse_args()
    result = PARTS[options.part](options.seeds)
    path = record(f"populations_{options.part}", result)
    print(json.dumps({name: value for name, value in result.items() if name != "losses"}, indent=1))
    print(f"{'PASSED' if result['passed'] else 'MISSED'}: {result['mark']}; written to {path}")
    return 0 if result["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
