"""The fit of dynamics models: sequences of latents in, gradients, metrics out (``optim.fitter``).

What a step reads and draws depends on the seed and the step's number alone: a resumed fit goes on exactly. Several
devices (or threads of a CPU) share every batch; their gradients are added up before the optimizer takes its step.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from rollmill.core.errors import NonFiniteError, StoreError
from rollmill.core.fields import Array
from rollmill.core.room import check_room
from rollmill.core.seeds import Seeds
from rollmill.core.shapes import Shape
from rollmill.core.slots import OBS
from rollmill.models.saving import OPTIMIZER_SHAPE, WEIGHTS_SHAPE, to_numpy
from rollmill.optim.fitter import FitPlan, Fitter
from rollmill.optim.replicas import Replicas, thread_count
from rollmill.optim.schedules import WarmupCosine
from rollmill.store.split import Split
from rollmill.store.views import Source, Windows
from rollmill.worldmodel.actions import ActionCode
from rollmill.worldmodel.dynamics.model import Axes, Dynamics, Origin, Starts
from rollmill.worldmodel.dynamics.recall import Recall
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
    owner: Tensor  # [B]: number of the episode
    hidden: Tensor  # [B, L] bool: latents that infilling hides; [B, 0] for others
    noise: Tensor  # [B, L, Z, K + 1] for the draws that an adversary judges; [B, 0] for others

    def to(self, device: torch.device) -> Sequences:
        return Sequences(*(getattr(self, f.name).to(device) for f in fields(self)))

    def split(self, parts: int) -> list[Sequences]:
        """Split into about equal parts along ``B``."""
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
        asked = f"batch_size={settings.batch_size}, sequence_length={settings.sequence_length}"
        check_room(0, self.windows.nbytes(settings.batch_size), asked)
        self.held_out = self._windows(held_out) if len(held_out) else None

    def _windows(self, episodes: Array) -> Windows:
        length = self.settings.sequence_length
        return Windows(
            self.source, length, episodes=episodes, columns=COLUMNS, overhang=False, next_obs=True, gamma=None
        )

    def batch(self, number: int) -> Sequences:
        """Read the batch of optimizer step ``number``."""
        return self._draw(self.windows, "batch", number)

    def validation(self) -> list[Sequences]:
        """Read held-out batches, always the same ones; none where no episode was held out."""
        if self.held_out is None:
            return []
        return [self._draw(self.held_out, "validation", k) for k in range(VALIDATION_BATCHES)]

    def _draw(self, windows: Windows, purpose: str, number: int) -> Sequences:
        s, rng = self.settings, self._seeds.branch(purpose, number).generator()
        chosen = windows.sample(s.batch_size, rng, "length")
        read = windows.batch(chosen)
        latents = read[MEAN]
        if s.sample_latents:
            latents = latents + read[STD] * rng.standard_normal(latents.shape, np.float32)
        return Sequences(
            torch.from_numpy(latents),
            torch.from_numpy(read["action"]),
            torch.from_numpy(read["reward"].astype(np.float32)),
            torch.from_numpy(read["terminated"].astype(np.float32)),
            torch.from_numpy(read["step"]),
            torch.from_numpy(read["mask"]),
            torch.from_numpy(windows.episodes[windows.where(chosen)[0]].astype(np.int64)),
            torch.from_numpy(spans(read["mask"].shape, s.hidden, s.hidden_span, rng))
            if s.objective == "infilling"
            else torch.zeros(len(latents), 0, dtype=torch.bool),
            torch.from_numpy(draw_noise((*read["mask"].shape, latents.shape[-1]), s.mixtures, rng))
            if s.objective == "adversarial"
            else torch.zeros(len(latents), 0),
        )

    def remember(self, recall: Recall, code: ActionCode) -> None:
        """Fill the model's stored steps: as many as it has room for, drawn from the training episodes."""
        rng = self._seeds.branch("recall").generator()
        need, keys, values, owners = len(recall.owner), [], [], []
        while need > 0:
            chosen = self.windows.sample(self.settings.batch_size, rng, "length")
            read = self.windows.batch(chosen)
            row, step = np.nonzero(read["mask"])
            mean = read[MEAN]
            actions = code(torch.from_numpy(read["action"])).numpy()
            change = mean[row, step + 1] - mean[row, step]
            keys.append(np.concatenate([mean[row, step], actions[row, step]], 1)[:need])
            values.append(np.concatenate([change, read["reward"][row, step][:, None]], 1)[:need])
            owners.append(self.windows.episodes[self.windows.where(chosen)[0]][row][:need])
            need -= len(keys[-1])
        recall.store(np.concatenate(keys), np.concatenate(values), np.concatenate(owners))

    def origin(self) -> Origin:
        """Return what a model fitted to these data must know of them."""
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
            remembered=self.settings.recall_size if self.settings.recall else 0,
            env_settings=None if schema.env_settings is None else dict(schema.env_settings),
        )

    def starts(self) -> Starts:
        """Read first latents of training episodes that were recorded from their beginning."""
        whole = self.training[~np.asarray(self.source.table["partial_start"])[self.training]]
        rng = self._seeds.branch("starts").generator()
        chosen = rng.permutation(whole)[: self.settings.starts]
        rows = [self.source.read(int(i), 0, 1, [MEAN, STD]) for i in np.sort(chosen)]
        if not rows:
            raise StoreError("no episode of the store of latents was recorded from its beginning: dreams cannot start")
        return Starts(np.concatenate([row[MEAN] for row in rows]), np.concatenate([row[STD] for row in rows]))


def check_latents(source: Source) -> None:
    """Raise StoreError unless the store holds means and standard deviations of latents."""
    names = source.schema.names
    missing = [name for name in (MEAN, STD, "action", "reward") if name not in names]
    several = [name.removesuffix("_mean") for name in names if name.startswith(OBS) and name.endswith("_mean")]
    if missing and len(several) > 1:
        fields = ", ".join(name.removeprefix(OBS) for name in several)
        raise StoreError(
            f"a store of the latents of several images ({fields}): dynamics models and controllers read those of one; "
            f"`rollmill world encode --field {several[0].removeprefix(OBS)}` makes a store of them"
        )
    if missing:
        raise StoreError(
            f"not a store of latents: it has no {', '.join(missing)} (it has {', '.join(names)}); "
            "`rollmill world encode` makes one"
        )


def spans(shape: tuple[int, ...], share: float, length: int, rng: np.random.Generator) -> Array:
    """Draw which steps to hide, ``[B, L]`` bool: about ``share`` of all, in spans of ``length`` that begin anywhere."""
    begins = rng.random(shape) < 1 - (1 - share) ** (1 / length)
    hidden: Array = begins.copy()
    for k in range(1, length):
        hidden[:, k:] |= begins[:, :-k]
    return hidden


def draw_noise(shape: tuple[int, ...], mixtures: int, rng: np.random.Generator) -> Array:
    """Draw ``[*shape, mixtures + 1]`` float32 noise, as ``draw_through`` reads it."""
    noise = np.empty((*shape, mixtures + 1), np.float32)
    noise[..., :-1] = rng.random((*shape, mixtures), np.float32)
    noise[..., -1] = rng.standard_normal(shape, np.float32)
    return noise


class DynamicsFitter(Fitter[Dynamics, Sequences]):
    """Fits a model to sequences; batches and noise follow from the step."""

    def __init__(
        self, model: Dynamics, data: LatentData, devices: Sequence[torch.device], read_ahead: bool | None = None
    ) -> None:
        """Set up the fit. ``read_ahead``: read the next batch while this one is fitted; unset: with a GPU, as on a CPU
        the fit itself keeps all cores busy.
        """
        self.data, self.settings = data, model.settings
        s = self.settings
        threads = thread_count(devices[0], s.threads, s.batch_size // SMALLEST_PIECE)
        super().__init__(
            Replicas.on_devices(model, devices)
            if len(devices) > 1
            else Replicas.on_threads(model, threads, caller_works=False),
            torch.optim.Adam(model.parameters(), lr=s.learning_rate),
            FitPlan(WarmupCosine(s.learning_rate, END_RATE), s.steps, s.seconds, s.max_grad_norm),
        )
        ahead = devices[0].type != "cpu" if read_ahead is None else read_ahead
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="read") if ahead else None
        self._next: tuple[int, Future[Sequences]] | None = None

    def next_batch(self) -> Sequences:
        """Return the batch of this step; where there is a reader, it goes on with the one of the next."""
        if self._reader is None:
            return self.data.batch(self.step)
        ahead = self._next
        self._next = None
        batch = ahead[1].result() if ahead is not None and ahead[0] == self.step else self.data.batch(self.step)
        self._next = (self.step + 1, self._reader.submit(self.data.batch, self.step + 1))
        return batch

    def samples(self, batch: Sequences) -> int:
        return int(batch.mask.sum())

    def pieces(self, batch: Sequences) -> list[Sequences]:
        return batch.split(len(self.replicas.networks))

    def gradients(self, batch: Sequences) -> dict[str, float]:
        """Set the gradients: pieces give sums over their steps, which become means here."""
        sums, real = super().gradients(batch), self.samples(batch)
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad /= real
        return {name: value / real for name, value in sums.items()}

    def piece_loss(
        self, network: Dynamics, piece: Sequences, number: int, samples: int
    ) -> tuple[Tensor, dict[str, Tensor]]:
        sums = network.losses(piece.to(network.device))
        return sums["loss"], {name: x.detach() for name, x in sums.items()}

    def inputs(self, batch: Sequences) -> dict[str, Tensor]:
        return {"latents": batch.latents, "actions": batch.action, "rewards": batch.reward}

    @torch.inference_mode()
    def validate(self) -> dict[str, float]:
        """Return mean losses on held-out sequences."""
        self.model.eval()
        sums: dict[str, float] = {}
        real = 0.0
        for batch in self.data.validation():
            found = self.model.losses(batch.to(self.device))
            sums = {name: sums.get(name, 0.0) + float(x) for name, x in found.items()}
            real += float(batch.mask.sum())
        return {f"validation/{name}": value / real for name, value in sums.items()} if real else {}

    @torch.inference_mode()
    def axes(self) -> Axes | None:
        """Return the directions in which memories of training sequences vary; None for a model without memory."""
        if not self.model.memory_size:
            return None
        self.model.eval()
        found = []
        for number in range(AXES_BATCHES):
            batch = self.data.batch(number).to(self.device)
            h = self.model(batch.latents[:, :-1], batch.action, batch.step, batch.mask, batch.owner)
            found.append(to_numpy(h[batch.mask]))
        return principal_axes(np.concatenate(found))

    def close(self) -> None:
        """Let go of threads."""
        super().close()
        if self._reader is not None:
            self._reader.shutdown()


def principal_axes(memories: Array) -> Axes:
    """Return the principal axes of memories ``[N, size]``."""
    mean = memories.mean(0, dtype=np.float64)
    centred = memories - mean
    variances, directions = np.linalg.eigh(centred.T @ centred / len(memories))
    scaled = directions / np.maximum(np.sqrt(np.maximum(variances, 0.0)), FAINT)
    return Axes(mean.astype(np.float32), np.ascontiguousarray(scaled[:, ::-1], np.float32))
