"""Trains the policies of this folder again: ``python examples/policies/make.py`` (some three minutes on 2 cores).

A checkpoint of a run holds all that is needed to go on training. What is shipped is only what playing needs: the
weights, and the settings of the environment and of the network.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from rollmill.core.checkpoints import Checkpoints
from rollmill.core.run_folder import RunFolder
from rollmill.core.tree_file import save_tree

HERE = Path(__file__).parent
CONFIGS = HERE.parents[1] / "src/rollmill/configs"
POLICIES = {
    "cartpole": ("cartpole.yaml", "stop.frames=150_000", "stop.mean_return=null"),
    "memory": ("toy_memory.yaml", "stop.frames=100_000"),
}


def strip(run: Path, target: Path) -> None:
    """Write the newest checkpoint of ``run`` without optimizer, counters and settings of the training."""
    loaded = Checkpoints(RunFolder(run).checkpoints).load_newest()
    state = loaded.state
    learners = [{"model": learner["model"], "version": learner["version"]} for learner in state["learners"]]
    config = {name: state["config"][name] for name in ("env", "model")}
    kept = {"kind": "online", "config": config, "spec": state["spec"], "learners": learners}
    save_tree(target, {"frames": loaded.frames, "metric": loaded.metric, "state": kept})


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, (config, *words) in POLICIES.items():
            command = [sys.executable, "-m", "rollmill.cli.main", "train", "-f", str(CONFIGS / config)]
            subprocess.run([*command, f"run.dir={folder}", f"run.name={name}", *words], check=True)
            strip(Path(folder) / "default" / name, HERE / f"{name}.ckpt")


if __name__ == "__main__":
    main()
