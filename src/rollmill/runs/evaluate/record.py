"""``rollmill eval --record``: the episodes of an evaluation in a store, each written as it ends."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import numpy as np

from rollmill.core.fields import Array
from rollmill.runs.collect.extract import Harvest, ProgressFile, check_writable
from rollmill.runs.collect.quota import Census
from rollmill.sampling.sampler import Sampler, SamplerPlan
from rollmill.store.care.recover import recover
from rollmill.store.episode import EpisodeEnd, EpisodeInfo
from rollmill.store.format.schema import STORE_FILE, StoreSchema
from rollmill.store.writer import StoreWriter


class QuotaSelection:
    """The first ``quota[lane]`` episodes of every lane that come to an end: those that an evaluation counts.

    ``name`` says all that decides what is played. Episodes that are in the store already (an earlier recording was
    interrupted) are counted, not written again.
    """

    def __init__(self, plan: SamplerPlan, quota: Array, name: str, policy: str, present: frozenset[int]) -> None:
        self._plan, self._name, self._policy, self._present = plan, name, policy, present
        self._left = quota.copy()

    def begin(self, lane: int, episode: int) -> EpisodeInfo | None:
        if not self._left[lane]:
            return None
        uid = self._uid(lane, episode)
        if uid in self._present:
            self._left[lane] -= 1
            return None
        env = lane // self._plan.spec.agents
        worker = env // self._plan.settings.envs_per_worker
        schedule = self._plan.schedule
        seed = None if schedule is None else schedule.env_seed(env, episode)
        return EpisodeInfo(seed=seed, policy=self._policy, worker=worker, lane=lane, uid=uid, probability=1.0)

    def _uid(self, lane: int, episode: int) -> int:
        text = f"{self._name}|{self._policy}|{lane}|{episode}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")

    def end(self, lane: int, episode: int, record: EpisodeEnd) -> None:
        self._left[lane] -= 1

    def lost(self, lane: int, episode: int) -> None:
        """The lane's next episode takes its place, as in the evaluation's own count."""


class EvalRecording(contextlib.AbstractContextManager["EvalRecording"]):
    """A store that the episodes of one evaluation go to. StoreError at once when it cannot be written."""

    def __init__(self, folder: Path, schema: StoreSchema, name: str) -> None:
        check_writable(folder)
        if (folder / STORE_FILE).is_file():
            recover(folder)
        with contextlib.closing(Census(folder)) as census:
            self._present = frozenset(census.all_uids.tolist())
        self._name = name
        self._writer = StoreWriter(folder, schema, sync="episode")
        self._file = ProgressFile(self._writer)
        self.folder = folder

    def harvest(self, sampler: Sampler, quota: Array, policy: str, constants: Mapping[str, int]) -> Harvest:
        """What takes the episodes of ``policy`` from the sampler's slots."""
        selection = QuotaSelection(sampler.plan, quota, self._name, policy, self._present)
        return Harvest(sampler.arena, self._writer, selection, constants)

    def note(self, policy: str, done: int, wanted: int) -> None:
        """Write down how far it is; called whenever episodes have ended."""
        figures = {"policy": policy, "episodes": done, "episodes_wanted": wanted, "recorded": self._writer.acknowledged}
        self._file.write("running", figures, now=done == wanted)

    def __exit__(
        self, _type: type[BaseException] | None, error: BaseException | None, _t: TracebackType | None
    ) -> None:
        self._writer.close()
        interrupted = isinstance(error, KeyboardInterrupt)
        state = "finished" if error is None else "interrupted" if interrupted else "failed"
        self._file.write(state, {"recorded": self._writer.acknowledged, "steps": self._writer.steps_written}, now=True)


def share_out(episodes: int, lanes: int) -> Array:
    """[lanes]: how many of the episodes each lane plays."""
    quota = np.full(lanes, episodes // lanes)
    quota[: episodes % lanes] += 1
    return quota
