"""The training loop of dynamics models: sequences of latents in, gradients, metrics out; resumable at every step.

What a step reads and draws depends on the seed and the step's number alone: a resumed fit goes on exactly. Several
devices (or threads of a CPU) share every batch; their gradients are added up before the optimizer takes its step.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from rollmill.core.errors import NonFiniteError, StoreError
from rollmill.core.fields import Array
from rollmill.core.machine import available_cores
from rollmill.core.seeds import Seeds
from rollmill.core.shapes import Shape
from rollmill.core.slots import OBS
from rollmill.core.step_figures import StepFigures
from rollmill.models.saving import (
    OPTIMIZER_SHAPE,
    WEIGHTS_SHAPE,
    load_optimizer,
    load_weights,
    optimizer_state,
    to_numpy,
    weights_of,
)
from rollmill.optim.finite import explain_non_finite
from rollmill.store.split import Split
from rollmill.store.views import Source, Windows
from rollmill.worldmodel.dynamics.mixture import log_likelihood
from rollmill.worldmodel.dynamics.model import Axes, Dynamics, Origin, Starts
from rollmill.worldmodel.dynamics.settings import DynamicsSettings

FIT_SHAPE: Shape = {"step": int, "seconds": float, "model": WEIGHTS_SHAPE, "optimizer": OPTIMIZER_SHAPE}
MEAN, STD = OBS + "mean", OBS + "std"
COLUMNS = (MEAN, STD, "action", "reward", "step", "terminated")
VALIDATION_BATCHES = 8
SMALLEST_PIECE = 4
"""Sequences that are worth a thread."""
END_RATE = 0.1
AXES_BATCHES = 16
"""Batches whose memories tell the axes."""
FAINT = 1e-3
"""Axes along which memories vary less than this are not scaled up any further."""


@dataclass(frozen=True)
class Sequences:
    """A batch of ``B`` sequences of ``L`` steps; the last latent is what the last step led to."""

    latents: Tensor  # [B, L + 1, Z]
    action: Tensor  # [B, L, ...]
    reward: Tensor  # [B, L]
    done: Tensor  # [B, L] float: the episode terminated with this step
    step: Tensor  # [B, L]: number in the episode
    mask: Tensor  # [B, L] bool: a real step

    def to(self, device: torch.device) -> Sequences:
        return Sequences(*(getattr(self, f.name).to(device) for f in fields(self)))

    def split(self, parts: int) -> list[Sequences]:
        """About equal parts along ``B``."""
        pieces = [getattr(self, f.name).tensor_split(parts) for f in fields(self)]
        return [Sequences(*piece) for piece in zip(*pieces, strict=True)]


class LatentData:
    """Sequences of a store of latents, for training and held out."""

    def __init__(self, source: Source, settings: DynamicsSettings) -> None:
        check_latents(source)
        self.source, self.settings = source, settings
        self._seeds = Seeds(settings.seed)
        training, held_out = Split(settings.validation, settings.seed)(source.table)
        if not len(training):
            training, held_out = held_out, training
        if not len(training):
            raise StoreError("the store of latents holds no finished episode")
        self.training = training
        self.windows = self._windows(training)
        self.held_out = self._windows(held_out) if len(held_out) else None

    def _windows(self, episodes: Array) -> Windows:
        length = self.settings.sequence_length
        return Windows(
            self.source, length, episodes=episodes, columns=COLUMNS, overhang=False, next_obs=True, gamma=None
        )

    def batch(self, number: int) -> Sequences:
        """The batch of optimizer step ``number``."""
        return self._draw(self.windows, "batch", number)

    def validation(self) -> list[Sequences]:
        """Held-out batches, always the same ones; none where no episode was held out."""
        if self.held_out is None:
            return []
        return [self._draw(self.held_out, "validation", k) for k in range(VALIDATION_BATCHES)]

    def _draw(self, windows: Windows, purpose: str, number: int) -> Sequences:
        rng = self._seeds.branch(purpose, number).generator()
        read = windows.batch(windows.sample(self.settings.batch_size, rng, "length"))
        latents = read[MEAN]
        if self.settings.sample_latents:
            latents = latents + read[STD] * rng.standard_normal(latents.shape, np.float32)
        return Sequences(
            torch.from_numpy(latents),
            torch.from_numpy(read["action"]),
            torch.from_numpy(read["reward"].astype(np.float32)),
            torch.from_numpy(read["terminated"].astype(np.float32)),
            torch.from_numpy(read["step"]),
            torch.from_numpy(read["mask"]),
        )

    def origin(self) -> Origin:
        """What a model fitted to these data must know of them."""
        schema = self.source.schema
        rewards = [
            self.source.read(int(i), 0, int(self.source.table.length[i]), ["reward"])["reward"]
            for i in self.training[:: max(1, len(self.training) // 200)]
        ]
        values = np.concatenate(rewards).astype(np.float64)
        if not np.isfinite(values).all():
            raise NonFiniteError("the store of latents holds rewards that are NaN or infinite")
        return Origin(
            spec=schema.env,
            env_id=schema.env_id,
            env_kwargs=dict(schema.env_kwargs),
            latent_size=schema[MEAN].shape[0],
            reward_mean=float(values.mean()),
            reward_std=float(values.std()) or 1.0,
        )

    def starts(self) -> Starts:
        """First latents of training episodes that were recorded from their beginning."""
        whole = self.training[~np.asarray(self.source.table["partial_start"])[self.training]]
        rng = self._seeds.branch("starts").generator()
        chosen = rng.permutation(whole)[: self.settings.starts]
        rows = [self.source.read(int(i), 0, 1, [MEAN, STD]) for i in np.sort(chosen)]
        if not rows:
            raise StoreError("no episode of the store of latents was recorded from its beginning: dreams cannot start")
        return Starts(np.concatenate([row[MEAN] for row in rows]), np.concatenate([row[STD] for row in rows]))


def check_latents(source: Source) -> None:
    """StoreError unless the store holds means and standard deviations of latents."""
    names = source.schema.names
    missing = [name for name in (MEAN, STD, "action", "reward") if name not in names]
    if missing:
        raise StoreError(
            f"not a store of latents: it has no {', '.join(missing)} (it has {', '.join(names)}); "
            "`rollmill world encode` makes one"
        )


def losses(model: Dynamics, batch: Sequences) -> dict[str, Tensor]:
    """Sums over the real steps of a batch: ``latent`` (nats per latent number), ``reward``, ``done``, ``loss``."""
    s = model.settings
    before, after = batch.latents[:, :-1], batch.latents[:, 1:]
    said = model.predict(model(before, batch.action, batch.step, batch.mask))
    real = batch.mask.float()
    target = after - before if s.differences else after
    latent = -(log_likelihood(target, said.latent).mean(-1) * real).sum()
    reward = (((said.reward - batch.reward) / model.origin.reward_std).square() * real).sum()
    weight = real * (1 + (s.done_factor - 1) * batch.done)
    done = (functional.binary_cross_entropy_with_logits(said.done, batch.done, reduction="none") * weight).sum()
    return {
        "latent": latent,
        "reward": reward,
        "done": done,
        "loss": latent + s.reward_weight * reward + s.done_weight * done,
    }


class DynamicsFitter:
    """Fits a model to sequences; ``step`` counts optimizer steps over all sessions."""

    def __init__(
        self, model: Dynamics, data: LatentData, devices: Sequence[torch.device], read_ahead: bool | None = None
    ) -> None:
        """``read_ahead``: read the next batch while this one is fitted; unset: with a GPU. On a CPU the fit itself
        keeps all cores busy.
        """
        self.model, self.data, self.settings = model, data, model.settings
        self.step = 0
        self.seconds = 0.0
        """Seconds of fitting, over all sessions."""
        self._models = self._replicas(devices)
        self._pool = ThreadPoolExecutor(len(self._models), thread_name_prefix="fit")
        ahead = devices[0].type != "cpu" if read_ahead is None else read_ahead
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="read") if ahead else None
        self._next: tuple[int, Future[Sequences]] | None = None
        self._optimizer = torch.optim.Adam(model.parameters(), lr=self.settings.learning_rate)
        self._figures = StepFigures()

    def _replicas(self, devices: Sequence[torch.device]) -> list[Dynamics]:
        """One model for each share of a batch. On a CPU all are the same: weights are only read there."""
        if len(devices) > 1:
            return [self.model, *(copy.deepcopy(self.model).to(device) for device in devices[1:])]
        if devices[0].type != "cpu":
            return [self.model]
        most = max(1, self.settings.batch_size // SMALLEST_PIECE)
        return [self.model] * min(self.settings.threads or available_cores(), most)

    # -- learning ------------------------------------------------------------------------------

    def train_step(self) -> None:
        """One batch, one optimizer step; NonFiniteError names the place where a NaN began."""
        begun = time.perf_counter()
        batch = self._batch()
        waited = time.perf_counter() - begun
        rate = self._set_rate()
        figures = self._gradients(batch)
        limit = self.settings.max_grad_norm or math.inf
        norm = float(nn.utils.clip_grad_norm_(self.model.parameters(), limit))
        if not math.isfinite(norm) or not math.isfinite(figures["loss"]):
            self._stop_at_non_finite(batch)
        self._optimizer.step()
        for other in self._models[1:]:
            if other is not self.model:
                _copy_weights(self.model, other)
        self.step += 1
        passed = time.perf_counter() - begun
        self.seconds += passed
        self._figures.note({**figures, "grad_norm": norm, "learning_rate": rate, "wait": waited, "time": passed})

    def _batch(self) -> Sequences:
        """The batch of this step; where there is a reader, it goes on with the one of the next."""
        if self._reader is None:
            return self.data.batch(self.step)
        ahead = self._next
        self._next = None
        batch = ahead[1].result() if ahead is not None and ahead[0] == self.step else self.data.batch(self.step)
        self._next = (self.step + 1, self._reader.submit(self.data.batch, self.step + 1))
        return batch

    def _set_rate(self) -> float:
        s = self.settings
        done = max(self.step / max(1, s.steps), self.seconds / s.seconds if s.seconds else 0.0)
        rate = s.learning_rate * (END_RATE + (1 - END_RATE) * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        return rate

    def _gradients(self, batch: Sequences) -> dict[str, float]:
        """Set the gradient of the mean loss over the batch's real steps; returns the means."""
        real = float(batch.mask.sum())
        pieces = batch.split(len(self._models))
        results = list(self._pool.map(self._piece, self._models, pieces))
        for number, parameter in enumerate(self.model.parameters()):
            parameter.grad = sum(gradients[number].to(parameter.device) for _, gradients in results) / real  # type: ignore[assignment]
        return {name: sum(float(sums[name]) for sums, _ in results) / real for name in results[0][0]}

    def _piece(self, model: Dynamics, piece: Sequences) -> tuple[dict[str, Tensor], tuple[Tensor, ...]]:
        sums = losses(model, piece.to(model.device))
        gradients = torch.autograd.grad(sums["loss"], list(model.parameters()))
        return {name: x.detach() for name, x in sums.items()}, gradients

    def _stop_at_non_finite(self, batch: Sequences) -> None:
        moved = batch.to(self.model.device)
        place = explain_non_finite(
            self.model,
            lambda: losses(self.model, moved),
            {"latents": moved.latents, "actions": moved.action, "rewards": moved.reward},
        )
        raise NonFiniteError(
            f"optimizer step {self.step + 1:,}: NaN or infinity in {place}. "
            "The weights were not changed by this step; the newest checkpoint is good"
        )

    # -- figures -------------------------------------------------------------------------------

    @property
    def fresh(self) -> bool:
        """Whether steps were taken since ``metrics`` was asked last."""
        return self._figures.fresh

    def metrics(self) -> dict[str, float]:
        """Means since the last call; empty if no step was taken since."""
        sums, count = self._figures.take()
        if not count:
            return {}
        waited, passed = sums.pop("wait"), sums.pop("time")
        return {
            **{f"learn/{name}": value / count for name, value in sums.items()},
            "data/wait_share": waited / passed,
            "time/updates_per_s": count / passed,
            "time/samples_per_s": count * self.settings.batch_size * self.settings.sequence_length / passed,
            "time/seconds": self.seconds,
        }

    @torch.inference_mode()
    def validate(self) -> dict[str, float]:
        """Mean losses on held-out sequences."""
        sums: dict[str, float] = {}
        real = 0.0
        for batch in self.data.validation():
            found = losses(self.model, batch.to(self.model.device))
            sums = {name: sums.get(name, 0.0) + float(x) for name, x in found.items()}
            real += float(batch.mask.sum())
        return {f"validation/{name}": value / real for name, value in sums.items()} if real else {}

    @torch.inference_mode()
    def axes(self) -> Axes | None:
        """The directions in which memories of training sequences vary; None for a model without memory."""
        if not self.model.memory_size:
            return None
        found = []
        for number in range(AXES_BATCHES):
            batch = self.data.batch(number).to(self.model.device)
            h = self.model(batch.latents[:, :-1], batch.action, batch.step, batch.mask)
            found.append(to_numpy(h[batch.mask]))
        return principal_axes(np.concatenate(found))

    # -- checkpoints ---------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "seconds": self.seconds,
            "model": weights_of(self.model),
            "optimizer": optimizer_state(self._optimizer),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint; batches and noise follow from the step."""
        load_weights(self.model, state["model"])
        for other in self._models[1:]:
            if other is not self.model:
                _copy_weights(self.model, other)
        load_optimizer(self._optimizer, state["optimizer"])
        self.step, self.seconds = state["step"], state["seconds"]

    def close(self) -> None:
        """Let go of threads."""
        for pool in (self._pool, self._reader):
            if pool is not None:
                pool.shutdown()


def principal_axes(memories: Array) -> Axes:
    """Of memories ``[N, size]``."""
    mean = memories.mean(0, dtype=np.float64)
    centred = memories - mean
    variances, directions = np.linalg.eigh(centred.T @ centred / len(memories))
    scaled = directions / np.maximum(np.sqrt(np.maximum(variances, 0.0)), FAINT)
    return Axes(mean.astype(np.float32), np.ascontiguousarray(scaled[:, ::-1], np.float32))


@torch.no_grad()
def _copy_weights(source: nn.Module, target: nn.Module) -> None:
    for theirs, own in zip(source.parameters(), target.parameters(), strict=True):
        own.copy_(theirs)
