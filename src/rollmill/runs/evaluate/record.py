"""``rollmill eval --record``: the episodes of an evaluation in a store, each written as it ends."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from rollmill.envs.make import EnvInstance
from rollmill.envs.tasks.suite import task_name
from rollmill.sampling.sampler import SamplerPlan
from rollmill.store.care.recover import recover
from rollmill.store.episode import EpisodeInfo
from rollmill.store.extract import EpisodeExtractor, EpisodeQuota, ProgressFile, check_writable
from rollmill.store.format.schema import STORE_FILE, StoreSchema
from rollmill.store.reader import Store
from rollmill.store.writer import StoreWriter


class EvalRecording(contextlib.AbstractContextManager["EvalRecording"]):
    """A store that the episodes of one evaluation go to. StoreError at once when it cannot be written.

    ``name`` says all that decides what is played. Episodes that are in the store already (an earlier recording was
    interrupted) are counted, not written again.
    """

    def __init__(self, folder: Path, schema: StoreSchema, name: str) -> None:
        check_writable(folder)
        self._present: frozenset[int] = frozenset()
        if (folder / STORE_FILE).is_file():
            recover(folder)
            with Store(folder) as store:
                self._present = frozenset(store.table.uid.tolist())
        self._name = name
        self._writer = StoreWriter(folder, schema, sync="episode")
        self._file = ProgressFile(self._writer)
        self.folder = folder

    def extractor(
        self, plan: SamplerPlan, quota: EpisodeQuota, policy: str, constants: Mapping[str, int]
    ) -> EpisodeExtractor:
        """Return what takes the episodes of ``policy`` from a sampler's segments."""

        def describe(lane: int, episode: int) -> EpisodeInfo:
            env = lane // plan.spec.agents
            text = f"{self._name}|{policy}|{lane}|{episode}"
            return EpisodeInfo(
                env_id=task_name(plan.env, EnvInstance(index=env)),
                seed=None if plan.schedule is None else plan.schedule.env_seed(env, episode),
                policy=policy,
                worker=env // plan.settings.envs_per_worker,
                lane=lane,
                uid=int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big"),
                probability=1.0,
            )

        return EpisodeExtractor(self._writer, quota, describe, constants, plan.spec.agents, self._present)

    def note(self, policy: str, done: int, wanted: int) -> None:
        """Write down how far it is; called whenever episodes have ended."""
        metrics = {"policy": policy, "episodes": done, "episodes_wanted": wanted, "recorded": self._writer.acknowledged}
        self._file.write("running", metrics, now=done == wanted)

    def __exit__(
        self, _type: type[BaseException] | None, error: BaseException | None, _t: TracebackType | None
    ) -> None:
        self._writer.close()
        interrupted = isinstance(error, KeyboardInterrupt)
        state = "finished" if error is None else "interrupted" if interrupted else "failed"
        self._file.write(state, {"recorded": self._writer.acknowledged, "steps": self._writer.steps_written}, now=True)
