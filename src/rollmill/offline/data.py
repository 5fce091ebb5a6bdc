"""Which episodes are learnt from, what is wrong with the store before anything starts, and batches of windows.

Nothing here holds the data in memory: windows are read from the shards (or from a decoded, memory-mapped copy) when
they are needed, by as many threads or processes as there are workers.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import warnings
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from rollmill.core.errors import ConfigError, StoreError
from rollmill.core.fields import PREVIOUS_ACTION, PREVIOUS_REWARD, Array, EnvSpec
from rollmill.core.machine import available_cores
from rollmill.core.room import check_room
from rollmill.core.seeds import Seeds
from rollmill.core.slots import OBS
from rollmill.models.encoders import ObservationNormaliser
from rollmill.offline.model import Scales
from rollmill.offline.settings import Algorithm, DataSettings, SequenceSettings
from rollmill.offline.tokens import Inputs, columns_for, inputs, make_windows
from rollmill.store.cache import DecodedCache
from rollmill.store.filters import Filter
from rollmill.store.reader import Store, StoreWarning
from rollmill.store.split import Split
from rollmill.store.torch_data import Batches, Tensors, WindowStream
from rollmill.store.views import Source, Windows

log = logging.getLogger("rollmill")

MOMENT_EPISODES = 200
"""Episodes whose observations give the moments that float fields are scaled by."""
MAX_TIMESTEPS = 10_000
"""Rows of the table of timesteps at most, however long an episode is."""
SHORTEST_WINDOW = 8
AHEAD = 2
"""Batches that each worker reads ahead."""


@dataclass(frozen=True)
class Selection:
    """The episodes that are learnt from, by their numbers in the store."""

    training: Array
    validation: Array
    whole_returns: Array
    """Returns of the chosen episodes that were recorded from beginning to end; what the policies that made them got."""
    dropped: dict[str, int]
    """Episodes that were left out, by reason."""

    def summary(self, store: Store) -> dict[str, Any]:
        """Describe what is learnt from, in numbers."""
        lengths = store.table.length
        returns = self.whole_returns
        return {
            "episodes": len(self.training),
            "steps": int(lengths[self.training].sum()),
            "validation_episodes": len(self.validation),
            "whole_episodes": len(returns),
            "dropped": self.dropped,
            "return_mean": float(returns.mean()) if len(returns) else None,
            "return_std": float(returns.std()) if len(returns) else None,
            "return_max": float(returns.max()) if len(returns) else None,
        }


def open_store(path: Path, settings: DataSettings) -> Store:
    """Open a store and refuse one that is damaged, unfinished or empty, naming the place."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StoreWarning)  # what it would say is raised below
        store = Store(path)
    if store.problems:
        first, more = store.problems[0], len(store.problems) - 1
        raise StoreError(
            f"{path}: {first}{f' (and {more} more)' if more else ''}; `rollmill data verify {path}` "
            f"lists what is wrong, `rollmill data repair` makes a store of what is good"
        )
    unsealed = [ref.path.name for ref in store.shards if not ref.sealed]
    if unsealed and settings.open_shards == "refuse":
        raise StoreError(
            f"{path}: shard {unsealed[0]} is not finished{f' (and {len(unsealed) - 1} more)' if unsealed[1:] else ''}: "
            "its writer is still at work, or died; wait, make a store of what is good with `rollmill data repair`, or "
            "take what is there with data.open_shards=read"
        )
    if len(store) == 0:
        raise StoreError(f"{path}: the store holds no finished episode")
    return store


def select(store: Store, settings: DataSettings, algorithm: Algorithm, seed: int) -> Selection:
    """Choose episodes, split off validation; raises StoreError where rewards are not finite or nothing is left."""
    wanted, table = Filter.parse(settings.filter), store.table
    ranks = wanted.top is not None or wanted.return_min is not None or wanted.return_max is not None
    keep = dataclasses.replace(wanted, top=None).mask(table)
    _check_rewards(store, np.flatnonzero(keep))
    dropped: dict[str, int] = {"by the filter": int((~keep).sum())}
    if settings.unknown_returns == "drop":
        no_end, no_start = keep & table["partial_end"], keep & table["partial_start"]
        if algorithm == "dt" or ranks:
            dropped["end not recorded"] = int(no_end.sum())
            keep &= ~no_end
        if ranks:  # what such an episode had brought before is not known either
            dropped["beginning not recorded"] = int((no_start & ~no_end).sum())
            keep &= ~no_start
    chosen = np.flatnonzero(keep)
    if wanted.top is not None and len(chosen):
        best = np.argsort(-table.return_[chosen], kind="stable")[: max(1, round(wanted.top * len(chosen)))]
        dropped["below the top"] = len(chosen) - len(best)
        chosen = np.sort(chosen[best])
    if not len(chosen):
        reasons = ", ".join(f"{count:,} {why}" for why, count in dropped.items() if count)
        raise StoreError(f"{store.path}: no episode of {len(store):,} is left to learn from ({reasons})")
    training, validation = Split(settings.validation, seed)(table, chosen)
    if not len(training):
        training, validation = chosen, chosen[:0]
    whole = ~(table["partial_end"] | table["partial_start"])
    returns = np.asarray(table.return_[chosen[whole[chosen]]], np.float64)
    return Selection(training, validation, returns, {why: count for why, count in dropped.items() if count})


def _check_rewards(store: Store, episodes: Array) -> None:
    """Refuse rewards that are not finite: a return is the sum of its rewards, so one NaN shows in the table."""
    returns = store.table.return_[episodes]
    finished = store.table["finished"][episodes]
    bad = episodes[finished & ~np.isfinite(returns)]
    if not len(bad):
        return
    i = int(bad[0])
    rewards = store.read(i, 0, int(store.table.length[i]), ["reward"])["reward"]
    steps = np.flatnonzero(~np.isfinite(rewards))
    where = f"step {steps[0]} ({rewards[steps[0]]})" if len(steps) else "its sum"
    shard = store.shards[int(store.table.shard[i])].path.name
    raise StoreError(
        f"{store.path}: {len(bad):,} episode{'s have' if len(bad) > 1 else ' has'} rewards that are not finite, first "
        f"episode {i} (uid {int(store.table.uid[i]):016x}, shard {shard}) at {where}; leave them out with a filter, "
        f'for example data.filter=["return_min=-1e9"]'
    )


def check_spec(stored: EnvSpec, env: EnvSpec, where: str) -> None:
    """Raise ConfigError unless what the store holds is what the environment shows and takes."""
    have = {field.name: field for field in stored.observation}
    want = {field.name: field for field in env.observation}
    for name, field in want.items():
        if name not in have:
            raise ConfigError(
                f"{where} has no observation {name!r}, which {env.name} shows (it has {', '.join(have)}); "
                "set env to the environment of the data"
            )
        if (have[name].dtype, have[name].shape) != (field.dtype, field.shape):
            raise ConfigError(
                f"{where}: observation {name!r} is {have[name].dtype} {have[name].shape}, {env.name} shows "
                f"{field.dtype} {field.shape}; set env and env.args as when the data were made"
            )
    lacks = next((name for name in have if name not in want), None)
    if lacks is not None:
        settings = {PREVIOUS_ACTION: f"env.{PREVIOUS_ACTION}=true", PREVIOUS_REWARD: f"env.{PREVIOUS_REWARD}=true"}
        what = settings.get(lacks, "env and env.args as when the data were made")
        raise ConfigError(f"{where} has an observation {lacks!r}, which {env.name} does not show; set {what}")
    mine, theirs = stored.action, env.action
    if (mine.kind, mine.nvec, mine.shape, len(mine.low)) != (theirs.kind, theirs.nvec, theirs.shape, len(theirs.low)):
        raise ConfigError(
            f"{where} holds {_action_text(stored)} actions, {env.name} takes {_action_text(env)} ones; "
            "set env and env.args as when the data were made"
        )


def _action_text(spec: EnvSpec) -> str:
    action = spec.action
    parts = [f"{list(action.nvec)} choices" if action.nvec else "", f"shape {action.shape}" if action.low else ""]
    return f"{action.kind} ({', '.join(part for part in parts if part)})"


def scales_of(store: Store, selection: Selection) -> Scales:
    """Return scale and timesteps from the table alone: no row is read."""
    table, chosen = store.table, selection.training
    returns = selection.whole_returns if len(selection.whole_returns) else table.return_[chosen]
    spread = float(max(np.std(returns), 0.1 * np.abs(returns).max()))
    last = int((table["first_step"][chosen] + table.length[chosen]).max())
    return Scales(float(np.mean(returns)), spread or 1.0, min(max(last, 1), MAX_TIMESTEPS))


def automatic_targets(selection: Selection) -> tuple[float, ...]:
    """Choose five returns from the data's median up to the best; fewer where these coincide."""
    returns = selection.whole_returns
    if not len(returns):
        raise ConfigError("no whole episode to take target returns from; set evaluation.targets")
    found = np.quantile(returns, (0.5, 0.75, 0.9, 0.97, 1.0))
    return tuple(dict.fromkeys(float(f"{value:.4g}") for value in found))


@torch.no_grad()
def fit_normaliser(normaliser: ObservationNormaliser, store: Store, episodes: Array, seed: int) -> None:
    """Compute moments of the float observations of some episodes; they stay fixed while learning."""
    names = list(normaliser.names)
    if not names:
        return
    picked = np.random.default_rng(seed).permutation(episodes)[:MOMENT_EPISODES]
    for i in np.sort(picked).tolist():
        rows = store.read(i, 0, int(store.table.length[i]), [OBS + name for name in names])
        bad = next((name for name, x in rows.items() if not np.isfinite(x).all()), None)
        if bad is not None:
            raise StoreError(f"{store.path}: episode {i} (uid {int(store.table.uid[i]):016x}) has NaN in column {bad}")
        normaliser.update({name: torch.from_numpy(rows[OBS + name]) for name in names})


class WindowLoader:
    """Batches of training windows without end, and the validation windows once.

    ``position``: batches given so far. With ``order="random"`` a loader that starts there continues the same order,
    however many workers there are.
    """

    def __init__(
        self,
        store: Store,
        selection: Selection,
        spec: EnvSpec,
        data: DataSettings,
        model: SequenceSettings,
        batch_size: int,
        seed: int,
        device: torch.device,
    ) -> None:
        self.spec, self.position = spec, 0
        self._data, self._batch_size, self._seed = data, batch_size, seed
        self.workers = _worker_count(data, device)
        self._pin = device.type == "cuda"
        self.length = data.window or max(model.context, SHORTEST_WINDOW)
        self.source = self._source(store, selection)
        self.windows = self._windows(selection.training)
        check_room(0, self.windows.nbytes(batch_size), f"fit.batch_size={batch_size}, windows of {self.length} steps")
        self.held_out = self._windows(selection.validation) if len(selection.validation) else None

    def _source(self, store: Store, selection: Selection) -> Source:
        if self._data.cache is None:
            return store
        chosen = np.concatenate([selection.training, selection.validation])
        log.info("decoding into %s", self._data.cache)
        return DecodedCache(
            store,
            self._data.cache,
            columns=[*columns_for(self.spec), "reward"],
            episodes=chosen,
            limit_bytes=int(self._data.cache_gb * 1e9),
        )

    def _windows(self, episodes: Array) -> Windows:
        # Drawn by length, windows need no overhang for every step to be as likely as any other; in a pass they do.
        return make_windows(self.source, self.length, episodes, self.spec, overhang=self._data.order == "stream")

    def __iter__(self) -> Iterator[Inputs]:
        batches = self._random() if self._data.order == "random" else self._stream()
        for batch in batches:
            self.position += 1
            yield inputs(batch, self.spec)

    def _random(self) -> Iterator[Tensors]:
        draws = draw_windows(self.windows, self._batch_size, self._seed, self.position)
        return self._ahead(draws) if self.workers else map(self._read, draws)

    def _read(self, indices: Array) -> Tensors:
        batch = {name: torch.as_tensor(x) for name, x in self.windows.batch(indices).items()}
        return {name: x.pin_memory() for name, x in batch.items()} if self._pin else batch

    def _ahead(self, draws: Iterator[Array]) -> Iterator[Tensors]:
        """Yield batches in their order, read ahead by threads: decoding and copying leave the interpreter to others."""
        pool = ThreadPoolExecutor(self.workers, thread_name_prefix="windows")
        waiting: deque[Future[Tensors]] = deque()
        try:
            for indices in draws:
                waiting.append(pool.submit(self._read, indices))
                if len(waiting) > AHEAD * self.workers:
                    yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)

    def _stream(self) -> Iterator[Tensors]:
        stream = WindowStream(self.windows, self._batch_size, seed=self._seed, repeat=True)
        stream.set_epoch(self.position)  # another order than any pass before
        loader: DataLoader[Tensors] = DataLoader(
            stream,
            batch_size=None,
            num_workers=self.workers,
            prefetch_factor=AHEAD if self.workers else None,
            pin_memory=self._pin,
            generator=torch.Generator(),  # or every new pass would draw from the numbers that learning uses
        )
        return iter(loader)

    def validation(self, batches: int) -> Iterator[Inputs]:
        """Yield up to so many batches of held-out windows, always the same ones; the last may be short."""
        if self.held_out is None:
            return
        order = Batches(self.held_out, self._batch_size, seed=self._seed, weights="length")
        for number, indices in enumerate(order):
            if number >= batches:
                return
            batch = {name: torch.as_tensor(x) for name, x in self.held_out.batch(indices).items()}
            yield inputs(batch, self.spec)


def draw_windows(windows: Windows, batch_size: int, seed: int, first: int = 0) -> Iterator[Array]:
    """Yield numbers ``[batch_size]`` of windows, drawn by length, from the ``first``-th draw on and without end.

    Each draw has random numbers of its own, so that a place in the order is a number and nothing else.
    """
    seeds = Seeds(seed).branch("windows")
    for number in itertools.count(first):
        yield windows.sample(batch_size, seeds.branch(number).generator(), "length")


def _worker_count(data: DataSettings, device: torch.device) -> int:
    if data.workers >= 0:
        return data.workers
    return min(12, max(1, available_cores() - 1)) if device.type == "cuda" else 0
