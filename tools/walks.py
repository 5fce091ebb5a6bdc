"""Counts the files that one job enters: ``python tools/walks.py [OTHER_CHECKOUT ...]`` prints a table, this tree first.

A walk is what a reader meets who follows a job from the command line to its end. Nothing is filtered: every file of the
package counts in which a function runs, in the process of the command. Class and module bodies do not count. Another
checkout is run by its own ``.venv``, if it has one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

HERE = Path(__file__).resolve().parent.parent
SERIAL = ("sampling.mode=serial", "sampling.workers=1", "sampling.envs_per_worker=1", "sampling.groups=1")
ONE_STEP = ("learning.batch_size=32", "learning.minibatches=1", "learning.device=cpu", "report.tensorboard=false")
TRAIN = ("train", "env=toy_target", *SERIAL, "sampling.rollout=32", *ONE_STEP, "stop.frames=640", "run.dir=.")
ENCODER = ("encoder.size=3", "encoder.channels=[4,8]", "fit.steps=2", "fit.batch_size=8", "tensorboard=false")
WORLD_ENV = ("env=toy_image", "env.args.size=16", "env.args.length=6")
COLLECT = ("collect", *WORLD_ENV, "--policy", "random", "--episodes", "4", "--out", "rollouts")
FIT = ("fit.steps=2", "evaluation.episodes=0", "run.dir=.")
WALKS = {
    "a transition to the gradient": (*TRAIN, "run.name=agent"),
    "a transition to disk": (*TRAIN, "run.name=recorded", "recording.keep=all", "recording.budget_gb=0.1"),
    "evaluating a run": ("eval", "default/agent", "--episodes", "2"),
    "learning from a recording": (
        "offline",
        "default/recorded/data",
        "fit.steps=2",
        "evaluation.episodes=0",
        "run.dir=.",
    ),
    "a stage of a world model": ("world", "vae", "rollouts", "--out", "vae", *ENCODER),
}


def entered(words: list[str]) -> list[str]:
    """Run the command in this process; return the files of the package in which functions ran."""
    from rollmill import __file__ as package
    from rollmill.cli import main

    root = str(Path(package).parent)
    codes: set[CodeType] = set()

    def see(frame: FrameType, _event: str, _arg: Any) -> None:
        codes.add(frame.f_code)

    threading.setprofile(see)
    sys.setprofile(see)
    try:
        if code := main.main(words):
            raise SystemExit(code)
    finally:
        sys.setprofile(None)
    bodies = {code for code in codes if "__module__" in code.co_names or code.co_name == "<module>"}
    return sorted({code.co_filename for code in codes - bodies if code.co_filename.startswith(root)})


def walk(root: Path, words: tuple[str, ...], folder: Path) -> int:
    """Return how many files of a checkout the command enters, run in ``folder``."""
    own = root / ".venv" / "bin" / "python"
    command = [str(own if own.is_file() else sys.executable), "-P", str(Path(__file__)), "--enter", *words]
    environment = {**os.environ, "PYTHONPATH": str(root / "src")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{root}: {' '.join(words)}:\n{done.stderr[-2000:]}{done.stdout[-2000:]}")
    return len(json.loads(done.stdout.splitlines()[-1]))


def count(root: Path) -> dict[str, int]:
    """Return the files that every walk of a checkout enters."""
    with tempfile.TemporaryDirectory(prefix="rollmill-walks-") as folder:
        walk(root, COLLECT, Path(folder))
        return {name: walk(root, words, Path(folder)) for name, words in WALKS.items()}


def main(words: list[str]) -> None:
    if words[:1] == ["--enter"]:
        files = entered(words[1:])
        print(f"\n{json.dumps(files)}")
        return
    places = [HERE, *map(Path, words)]
    counts = [count(place.resolve()) for place in places]
    print(
        f"| files that are entered | {' | '.join(str(place) if k else 'this tree' for k, place in enumerate(places))} |"
    )
    print(f"|---|{'--:|' * len(places)}")
    for name in WALKS:
        print(f"| {name} | {' | '.join(str(found[name]) for found in counts)} |")


if __name__ == "__main__":
    main(sys.argv[1:])
