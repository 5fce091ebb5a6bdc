"""The fit of IQL and TD3+BC: transitions in, critics and policy out (``offline.actor_critic``)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from rollmill.core.fields import Array, EnvSpec
from rollmill.core.room import check_room
from rollmill.core.seeds import Seeds
from rollmill.core.slots import OBS
from rollmill.offline.actor_critic import Losses, Steps, ValuePolicy, value_precision
from rollmill.offline.data import Selection
from rollmill.offline.fit import OfflineFitter, plan_of
from rollmill.offline.settings import FitSettings
from rollmill.optim.device import matmul_dtype
from rollmill.optim.replicas import Replicas
from rollmill.store.reader import Store
from rollmill.store.views import NEXT, Transitions

IN_MEMORY = 2_000_000_000
"""Bytes of transitions that are read once and kept; more of them are read when they are drawn."""
HELD_OUT_ROWS = 4096
_CHUNK = 4096
Arrays = Mapping[str, Array]


class TransitionLoader:
    """Random transitions without end, and held-out ones.

    ``position``: batches given so far. A loader that starts there continues the same order.
    """

    def __init__(self, store: Store, selection: Selection, spec: EnvSpec, batch_size: int, seed: int) -> None:
        self.position = 0
        self._spec, self._batch_size, self._seeds = spec, batch_size, Seeds(seed).branch("transitions")
        columns = [*(OBS + field.name for field in spec.observation), "action", "reward", "terminated"]
        self.training = Transitions(store, episodes=selection.training, columns=columns)
        self._held_out = Transitions(store, episodes=selection.validation, columns=columns)
        size = self.training.windows.nbytes(len(self.training))
        check_room(0, self.training.windows.nbytes(batch_size), f"fit.batch_size={batch_size} transitions")
        self._kept = _all_rows(self.training) if size <= IN_MEMORY else None

    def __iter__(self) -> Iterator[Steps]:
        for number in itertools.count(self.position):
            drawn = self.training.sample(self._batch_size, self._seeds.branch(number).generator())
            rows = self.training.batch(drawn) if self._kept is None else _picked(self._kept, drawn)
            self.position += 1
            yield self._steps(rows)

    def validation(self) -> Steps | None:
        """Return some held-out transitions, always the same ones; None where nothing was held out."""
        count = len(self._held_out)
        if not count:
            return None
        return self._steps(self._held_out.batch(np.linspace(0, count - 1, min(count, HELD_OUT_ROWS)).astype(np.int64)))

    def _steps(self, rows: Arrays) -> Steps:
        tensors = {name: torch.as_tensor(x) for name, x in rows.items()}
        names = [field.name for field in self._spec.observation]
        obs = {name: tensors[OBS + name] for name in names}
        next_obs = {name: tensors[NEXT + OBS + name] for name in names}
        return Steps(obs, tensors["action"], tensors["reward"].float(), tensors["terminated"].bool(), next_obs)


def _all_rows(view: Transitions) -> Arrays:
    chunks = [view.batch(np.arange(k, min(k + _CHUNK, len(view)))) for k in range(0, len(view), _CHUNK)]
    return {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}


def _picked(rows: Arrays, indices: Array) -> Arrays:
    return {name: x[indices] for name, x in rows.items()}


class ValueFitter(OfflineFitter[ValuePolicy, Steps]):
    """Fits critics and policy; the slow copies follow after every step."""

    loader: TransitionLoader

    def __init__(self, model: ValuePolicy, loader: TransitionLoader, settings: FitSettings, seed: int) -> None:
        self.loader = loader
        device = next(model.parameters()).device
        learnt = [p for p in model.parameters() if p.requires_grad]
        super().__init__(
            Replicas.on_threads(model, 1),  # batches are too small to be shared out
            torch.optim.Adam(learnt, lr=settings.learning_rate),
            plan_of(settings),
            matmul_dtype(value_precision(settings.precision), device),
        )
        torch.manual_seed(seed)

    def train_step(self) -> None:
        super().train_step()
        self.model.follow(self.step - 1)

    def samples(self, batch: Steps) -> int:
        return len(batch.reward)

    def pieces(self, batch: Steps) -> Sequence[Steps]:
        return [batch]

    def piece_loss(self, network: ValuePolicy, piece: Steps, number: int, samples: int) -> Losses:
        with self.precision():
            loss, metrics = network.loss(piece.to(self.device), self.step)
        return loss, {"loss": loss.detach(), **{name: x.detach() for name, x in metrics.items()}}

    def inputs(self, batch: Steps) -> dict[str, Tensor]:
        seen = {f"observation {name!r}": x for name, x in batch.obs.items()}
        led_to = {f"next observation {name!r}": x for name, x in batch.next_obs.items()}
        return {**seen, **led_to, "action": batch.action, "reward": batch.reward}

    def validate(self) -> dict[str, float]:
        """Return roots of mean squares on held-out transitions. None of them says which weights play best."""
        held_out = self.loader.validation()
        if held_out is None:
            return {}
        self.model.eval()
        found = self.model.errors(held_out.to(self.device))
        return {f"validation/{name}": math.sqrt(float(x.mean())) for name, x in found.items()}
