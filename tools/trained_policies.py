"""Trains the policies that come with the package again: ``python tools/trained_policies.py [NAME ...]``.

A checkpoint of a run holds all that is needed to go on training. What is shipped is only what playing needs: the
weights, and the settings of the environment and of the network. The card beside it says how it was made and what it
reaches. ``--from RUN NAME`` takes a run that has been trained already.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from rollmill.core import atomic
from rollmill.core.checkpoints import Checkpoints
from rollmill.core.run_folder import RunFolder
from rollmill.core.tree_file import save_tree
from rollmill.runs.evaluate.options import EvalOptions
from rollmill.runs.evaluate.run import evaluate
from rollmill.runs.policies.find import TRAINED

POLICIES = {
    "cartpole": ("train", "-f", "cartpole", "stop.frames=150_000", "stop.mean_return=null"),
    "toy_memory": ("train", "-f", "toy_memory", "stop.frames=100_000"),
    "pendulum": ("train", "-f", "pendulum_sac"),
    "doom_basic": ("train", "-f", "doom_basic"),
}
EPISODES = 100


def strip(run: Path, target: Path) -> None:
    """Write the newest checkpoint of ``run`` without optimizer, counters and settings of the training."""
    loaded = Checkpoints(RunFolder(run).checkpoints).load_newest()
    state = loaded.state
    learners = [{"model": learner["model"], "version": learner["version"]} for learner in state["learners"]]
    config = {name: state["config"][name] for name in ("env", "model")}
    kept = {"kind": "online", "config": config, "spec": state["spec"], "learners": learners}
    save_tree(target, {"frames": loaded.frames, "metric": loaded.metric, "state": kept})


def write_card(name: str) -> None:
    """What it is, how it was made, and what it reaches."""
    found = evaluate(TRAINED / f"{name}.ckpt", EvalOptions(episodes=EPISODES, deterministic=True))
    score = found.policy.summary()
    card = {
        "environment": found.env,
        "frames": found.frames,
        "command": " ".join(("rollmill", *POLICIES[name])),
        "evaluation": f"rollmill eval policy:{name} --deterministic --episodes {EPISODES}",
        "mean_return": score["mean"],
        "standard_error": score["standard_error"],
        "licence": "MIT",
    }
    atomic.write_json(TRAINED / f"{name}.json", card)


def main() -> None:
    words = sys.argv[1:]
    if words[:1] == ["--from"]:
        strip(Path(words[1]), TRAINED / f"{words[2]}.ckpt")
        write_card(words[2])
        return
    with tempfile.TemporaryDirectory() as folder:
        for name in words or POLICIES:
            command = [sys.executable, "-m", "rollmill.cli.main", *POLICIES[name]]
            subprocess.run([*command, f"run.dir={folder}", f"run.name={name}"], check=True)
            strip(Path(folder) / "default" / name, TRAINED / f"{name}.ckpt")
            write_card(name)


if __name__ == "__main__":
    main()
