"""Trains the policies that come with the package again: ``python tools/trained_policies.py [NAME ...]``.

What is shipped is only what playing needs (``rollmill checkpoint export``). The card beside it says how it was made and
what it reaches. ``--from RUN NAME`` takes a run that has been trained already.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from rollmill.core import atomic
from rollmill.core.checkpoints import load_checkpoint
from rollmill.runs.checkpoints.saved import export_checkpoint
from rollmill.runs.evaluate.options import EvalOptions
from rollmill.runs.evaluate.run import evaluate
from rollmill.runs.policies.find import TRAINED

POLICIES = {
    "cartpole": ("train -f cartpole stop.frames=150_000 stop.mean_return=null",),
    "toy_memory": ("train -f toy_memory stop.frames=100_000",),
    "pendulum": ("train -f pendulum_sac",),
    "lunar_lander": ("train -f lunar_lander",),
    "minigrid_memory": ("train -f minigrid_memory stop.frames=200_000 stop.mean_return=null",),
    "doom_basic": ("train -f doom_basic",),
    "doom_health_gathering_supreme": (  # on 2 cores with bfloat16: half an hour
        "train -f doom_health_gathering_supreme learning.micro_batch=256 sampling.envs_per_worker=64"
        " stop.frames=15_000_000 run.seed=0",
    ),
    "car_racing": ("train -f car_racing stop.frames=1_500_000",),
    "crazy_climber": ("train -f crazy_climber",),
    "doom_basic_dt": (
        "train -f doom_basic recording=all recording.when=spread recording.budget_gb=1 run.name=agent",
        "offline runs/default/agent -f offline_dt data.filter='[\"partial=no\"]' evaluation.episodes=0",
    ),
}
"""The commands that make each; the last one leaves the policy."""
TARGETS = {"doom_basic_dt": 70.0}
"""The return that a Decision Transformer is asked for."""
HALVED = ("doom_health_gathering_supreme",)
"""The weights of these are shipped in float16: all policies together stay below 20 MB."""
EPISODES, SEED = 100, 1


def train(name: str, folder: Path) -> Path:
    """The run that the commands leave. They run in ``folder``, so that no path of this machine is saved."""
    for words in POLICIES[name]:
        subprocess.run([sys.executable, "-m", "rollmill.cli.main", *shlex.split(words)], cwd=folder, check=True)
    return max(folder.glob("runs/default/*"), key=lambda run: run.stat().st_mtime)


def command(name: str) -> str:
    """What a user types to train it again."""
    return " && ".join(f"rollmill {words}" for words in POLICIES[name])


def write_card(name: str) -> None:
    """What it is, how it was made, and what it reaches."""
    target = TARGETS.get(name)
    targets = () if target is None else (target,)
    options = EvalOptions(episodes=EPISODES, deterministic=True, seed=SEED, targets=targets)
    found = evaluate(TRAINED / f"{name}.ckpt", options)
    score = found.policy.summary()
    asked = "" if target is None else f" --targets {target:g}"
    card = {
        "environment": found.env,
        "frames" if target is None else "updates": found.frames,
        "command": command(name),
        "training_seed": load_checkpoint(TRAINED / f"{name}.ckpt").state["config"]["run"]["seed"],
        "evaluation": f"rollmill eval policy:{name} --deterministic --episodes {EPISODES} --seed {SEED}{asked}",
        "mean_return": score["mean"],
        "standard_error": score["standard_error"],
        "licence": "MIT",
    }
    atomic.write_json(TRAINED / f"{name}.json", card)


def keep(run: Path, name: str) -> None:
    export_checkpoint(run, TRAINED / f"{name}.ckpt", best=False, model=None, overwrite=True, half=name in HALVED)
    write_card(name)


def main() -> None:
    words = sys.argv[1:]
    if words[:1] == ["--from"]:
        keep(Path(words[1]), words[2])
        return
    for name in words or POLICIES:
        with tempfile.TemporaryDirectory() as folder:
            keep(train(name, Path(folder)), name)


if __name__ == "__main__":
    main()
