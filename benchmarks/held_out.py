"""What do dynamics models know? The same held-out episodes for all of them, whatever each was fitted by.

    python benchmarks/held_out.py data/car_latents runs/car/dynamics runs/other/dynamics

- **latent**: nats per latent number of what followed; lower is better.
- **reward**: squared error in units of the rewards' variance. **done**: cross-entropy of ends.
- **alone**: squared error of latents after ``--alone`` steps that the model goes on by itself with the real actions, in
  units of the latents' variance: 1 is as good as always saying the mean.

Losses that a fit reports of itself cannot be compared: infilling hides latents from its model there, too.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import torch
from torch.nn import functional

from rollmill.store.reader import Store
from rollmill.store.views import Source
from rollmill.worldmodel.dynamics.fit import LatentData, Sequences
from rollmill.worldmodel.dynamics.mixture import expectation, log_likelihood
from rollmill.worldmodel.dynamics.model import Dynamics, Prediction, load_dynamics

ALONE = 10
FIGURES = ("latent", "reward", "done", "alone")


def known(model: Dynamics, source: Source, alone: int = ALONE) -> dict[str, float]:
    """The figures of one model on the held-out episodes of a store; its settings say which these are."""
    data = LatentData(source, replace(model.settings, objective="autoregressive"))
    batches = data.validation()
    if not batches:
        raise SystemExit("no episode was held out (dynamics.validation)")
    sums = dict.fromkeys(FIGURES, 0.0)
    steps = lonely = 0.0
    latents = torch.cat([batch.latents.flatten(0, 1) for batch in batches])
    for batch in batches:
        for name, value in _one_step(model, batch).items():
            sums[name] += value
        steps += float(batch.mask.sum())
        error, count = _alone(model, batch, alone, latents.var(0).mean())
        sums["alone"] += error
        lonely += count
    return {name: sums[name] / (lonely if name == "alone" else steps) for name in FIGURES}


@torch.inference_mode()
def _one_step(model: Dynamics, batch: Sequences) -> dict[str, float]:
    """Sums over the real steps."""
    before, real = batch.latents[:, :-1], batch.mask.float()
    said = model.predict(model(before, batch.action, batch.step, batch.mask, batch.owner))
    target = batch.latents[:, 1:] - (before if model.settings.differences else 0)
    reward = ((said.reward - batch.reward) / model.origin.reward_std).square()
    done = functional.binary_cross_entropy_with_logits(said.done, batch.done, reduction="none")
    latent = -log_likelihood(target, said.latent).mean(-1)
    return {name: float((x * real).sum()) for name, x in (("latent", latent), ("reward", reward), ("done", done))}


@torch.inference_mode()
def _alone(model: Dynamics, batch: Sequences, alone: int, variance: torch.Tensor) -> tuple[float, float]:
    """Sum of the errors of the sequences that are long enough, and how many these are."""
    long_enough = batch.mask.all(1)
    latents, actions = batch.latents[long_enough], batch.action[long_enough]
    count, length = len(latents), actions.shape[1]
    if length <= alone:
        raise SystemExit(f"sequences of {length} steps are too short for {alone} alone")
    memory, lanes = model.begin(count), torch.arange(count)
    now = latents[:, 0]
    for t in range(length):
        said: Prediction = model.predict(model.read(now, actions[:, t], memory, lanes))
        moved = expectation(said.latent) + (now if model.settings.differences else 0)
        now = latents[:, t + 1] if t + 1 <= length - alone else moved
    error = (now - latents[:, -1]).square().mean(1) / variance
    return float(error.sum()), float(count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("latents", type=Path, help="the store of latents")
    parser.add_argument("models", nargs="+", type=Path, help="dynamics models, or the folders of their fits")
    parser.add_argument("--alone", type=int, default=ALONE, help="steps")
    options = parser.parse_args()
    torch.manual_seed(0)
    with Store(options.latents) as store:
        for path in options.models:
            figures = known(load_dynamics(path), store, options.alone)
            print(json.dumps({"model": str(path), **{name: round(value, 4) for name, value in figures.items()}}))


if __name__ == "__main__":
    main()
