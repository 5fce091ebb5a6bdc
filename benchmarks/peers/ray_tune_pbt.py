"""Ray Tune's PBT over the trainings of ``benchmarks/populations.py recovery``: only the population differs.

    python ray_tune_pbt.py FOLDER [--restore]      prints one JSON line

Ray listens on all interfaces: run it in a network of its own.

Each trial is a training of ours, in serial mode, for as many frames between two looks as there are between two rounds.
Ray decides who copies whom and with what settings, keeps the checkpoints, and shares out two places.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray import tune
from ray.tune.schedulers import PopulationBasedTraining

from rollmill.core.checkpoints import Checkpoints, load_checkpoint
from rollmill.core.config.load import load_config
from rollmill.runs.lifecycle import Request
from rollmill.runs.settings.train import TrainConfig
from rollmill.runs.train.run import train

MEMBERS, FRAMES, PERIOD, PLACES = int(os.environ.get("MEMBERS", 8)), int(os.environ.get("FRAMES", 60_000)), 3_000, 2
WORDS = ("env=CartPole-v1", "learning.batch_size=512", "sampling.mode=serial", "report.tensorboard=false")
QUIET = ("checkpoints.every_seconds=1e6", "report.page=false")


class Trial(tune.Trainable):  # type: ignore[misc]
    """One member: a run that goes on for ``PERIOD`` frames at every step."""

    def setup(self, config: dict[str, Any]) -> None:
        self._own = config
        self._restore: Path | None = None
        self._frames = 0

    @property
    def _folder(self) -> Path:
        return Path(self.logdir) / "x" / "run"

    def step(self) -> dict[str, Any]:
        place = (f"run.dir={self.logdir}", "run.experiment=x", "run.name=run", f"run.seed={self._own['seed']}")
        tuned = (f"learning.learning_rate={self._own['rate']}", f"learning.entropy_coefficient={self._own['entropy']}")
        config = load_config(TrainConfig, [], [*WORDS, *QUIET, *place, *tuned, f"stop.frames={self._frames + PERIOD}"])
        mode: Any = "resume" if self._folder.exists() else "new"
        outcome = train(config, Request(mode, self._restore, ("ray",), "off"))
        self._restore, self._frames = None, outcome.frames
        return {"return": outcome.mean_return or 0.0, "frames": outcome.frames, "done": outcome.frames >= FRAMES}

    def save_checkpoint(self, folder: str) -> None:
        newest = Checkpoints(self._folder / "checkpoints").newest()
        assert newest is not None, "a step has been made"
        shutil.copy(newest.path, Path(folder) / "newest.ckpt")

    def load_checkpoint(self, folder: str) -> None:
        own = Path(self.logdir) / "taken.ckpt"
        shutil.copy(Path(folder) / "newest.ckpt", own)
        self._restore = own
        self._frames = load_checkpoint(own).step

    def reset_config(self, config: dict[str, Any]) -> bool:
        """The same process serves another trial; if that has begun, its checkpoint comes next."""
        self.setup(config)
        return True


def tuner(folder: Path) -> tune.Tuner:
    scheduler = PopulationBasedTraining(
        time_attr="frames",
        metric="return",
        mode="max",
        perturbation_interval=PERIOD,
        hyperparam_mutations={"rate": tune.loguniform(1e-5, 1e-1), "entropy": tune.loguniform(1e-4, 1.0)},
    )
    rates = np.geomspace(1e-5, 1e-1, MEMBERS).tolist()
    entropies = np.random.default_rng(0).permutation(np.geomspace(1e-4, 1.0, MEMBERS)).tolist()
    members = [{"rate": r, "entropy": e, "seed": k} for k, (r, e) in enumerate(zip(rates, entropies, strict=True))]
    space = {
        "rate": tune.sample_from(lambda spec: members[spec.config.seed]["rate"]),
        "entropy": tune.sample_from(lambda spec: members[spec.config.seed]["entropy"]),
        "seed": tune.grid_search(list(range(MEMBERS))),
    }
    return tune.Tuner(
        tune.with_resources(Trial, {"cpu": 1}),
        param_space=space,
        tune_config=tune.TuneConfig(scheduler=scheduler, reuse_actors=True),
        run_config=tune.RunConfig(name="tune", storage_path=str(folder), verbose=0),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--restore", action="store_true", help="go on with what was killed")
    options = parser.parse_args()
    folder = options.folder.absolute()
    ray.init(num_cpus=PLACES, include_dashboard=False, log_to_driver=False, object_store_memory=80_000_000)
    begun = time.monotonic()
    made = tune.Tuner.restore(str(folder / "tune"), trainable=Trial) if options.restore else tuner(folder)
    results = made.fit()
    trials = []
    for result in results:
        checkpoint = None if result.checkpoint is None else str(Path(result.checkpoint.path) / "newest.ckpt")
        metrics = result.metrics or {}
        frames = metrics.get("frames", 0)
        failed = None if result.error is None else str(result.error)[:300]
        steps = metrics.get("training_iteration", 0)
        trials.append({"frames": frames, "steps": steps, "checkpoint": checkpoint, "failed": failed, **result.config})
    print(json.dumps({"seconds": time.monotonic() - begun, "trials": trials, "ray": ray.__version__}))


if __name__ == "__main__":
    main()
