"""Writing a store: rows of many lanes come in chunks and go out as blocks of whole records.

Words
-----
key            the caller's name for an open episode, usually its lane.
acknowledged   ``end`` has returned: the episode is in the store, whatever happens to this process.
durable        its shard was synced after that: it survives a power cut too.

A writer has files of its own and takes no locks, so any number of writers may share a store. It belongs to
one thread. Memory: one block per open episode.
Which shard an episode goes to: see ``store.format.shard_set``.
"""

from __future__ import annotations

import operator
import re
import secrets
import time
from collections.abc import Hashable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from rollmill.core.errors import StoreError
from rollmill.store.episode import Episode, EpisodeEnd, EpisodeInfo, Stats
from rollmill.store.format import owner
from rollmill.store.format.block_buffer import LaneBuffer, OpenEpisode, check_final, check_rows
from rollmill.store.format.codec import make_encoder
from rollmill.store.format.open_shard import OpenShard
from rollmill.store.format.records import check_stats, encode_block, encode_end
from rollmill.store.format.schema import StoreSchema, agree, create_store
from rollmill.store.format.shard_set import ShardSet, parse_sync
from rollmill.store.format.shards import BlockPlace

if TYPE_CHECKING:
    from rollmill.store.reader import Store

BLOCK_BYTES = 256 << 10
"""Raw bytes that an automatic block length aims at, within 16..256 steps."""

MAX_BLOCK_BYTES = 1 << 30

_INT64 = range(-(2**63), 2**63)


class StoreWriter:
    """Appends episodes to a store; see the module's words. Close it (or use ``with``) to seal its shards.

    - ``block``: steps per block; 0 chooses 16 for large rows and up to 256 for small ones.
    - ``shard_bytes``: size at which shards are sealed.
    - ``sync``: ``episode``: ``end`` returns when the episode is on the disk; ``seconds:N``: synced by the first call
      N seconds after the last sync; ``seal``: when a shard is sealed or the writer closed.
    - ``expected_steps``: length of an episode to plan with before one has ended.
    - ``create``: make the store where there is none.
    """

    def __init__(
        self,
        path: Path | str,
        schema: StoreSchema,
        *,
        block: int = 0,
        shard_bytes: int = 128 << 20,
        sync: str = "seconds:10",
        expected_steps: int = 1000,
        name: str | None = None,
        create: bool = True,
    ) -> None:
        if block < 0 or shard_bytes < 1 or expected_steps < 1:
            raise StoreError("block must be 0 (automatic) or positive, shard_bytes and expected_steps positive")
        parse_sync(sync)  # before anything is created
        self.path = Path(path).absolute()
        self.schema = create_store(self.path, schema) if create else agree(self.path, schema)
        self.name = name or owner.writer_name()
        if not re.fullmatch(r"[A-Za-z0-9][\w-]*", self.name):
            raise StoreError(f"writer name {self.name!r}: letters, digits, - and _ are allowed")
        self.block = block or automatic_block(self.schema)
        if self.block * self.schema.row_bytes > MAX_BLOCK_BYTES:
            raise StoreError(f"{self.block} steps of {self.schema.row_bytes} bytes are too much for one block")
        self.raw_bytes = 0
        self.steps_written = 0
        self._shards = ShardSet(
            self.path,
            self.schema,
            self.name,
            budget=shard_bytes,
            sync=sync,
            expected_bytes=expected_steps * self.schema.row_bytes / 3,
        )
        self._encoders = [(column, make_encoder(column)) for column in self.schema.columns]
        self._episodes: dict[Hashable, tuple[OpenEpisode, OpenShard]] = {}
        self._spare: list[LaneBuffer] = []
        self._closed = False

    @property
    def shards(self) -> list[str]:
        """Names of all shards of this writer, sealed or not."""
        return list(self._shards.names)

    @property
    def bytes_written(self) -> int:
        return self._shards.bytes_written

    @property
    def acknowledged(self) -> int:
        """Episodes that survive the death of this process."""
        return self._shards.acknowledged

    @property
    def durable(self) -> int:
        """Episodes that survive a power cut too."""
        return self._shards.durable

    # ---------------------------------------------------------------------------------------- episodes

    def begin(self, key: Hashable, info: EpisodeInfo | None = None) -> int:
        """Open an episode under ``key``; returns its uid."""
        self._check_usable()
        if key in self._episodes:
            raise StoreError(f"an episode is already open under {key!r}; end or discard it first")
        info = _clean(info or EpisodeInfo())
        uid = secrets.randbits(64) if info.uid is None else info.uid
        shard = self._shards.place(uid)
        buffer = self._spare.pop() if self._spare else LaneBuffer(self.schema, self.block)
        buffer.rows = 0
        self._episodes[key] = (OpenEpisode(uid, info, buffer), shard)
        return uid

    def append(self, key: Hashable, columns: Mapping[str, Any]) -> None:
        """Add rows: ``[n, ...]`` of every column, observations too (row t: seen, done, got).

        A number stands for n equal ones. The arrays are copied and may be reused by the caller.
        """
        self._check_usable()
        episode, shard = self._find(key)
        checked, count = check_rows(self.schema, columns)
        done = 0
        while done < count:
            # A full block waits until more rows come: if the episode ends here, its final observation joins it.
            if episode.buffer.free == 0:
                self._write_block(episode, shard, episode.buffer.rows, last=False)
            part = min(episode.buffer.free, count - done)
            episode.buffer.take(checked, done, part)
            done += part
        self._shards.sync_if_due()

    def end(
        self,
        key: Hashable,
        *,
        final: Mapping[str, Any] | None,
        terminated: bool = False,
        truncated: bool = False,
        stats: Stats | None = None,
    ) -> EpisodeEnd | None:
        """Acknowledge an episode. ``final`` is one row of every observation column: what the last action led to.

        Without ``terminated`` or ``truncated`` it is partial. Only then ``final`` may be None: the last step is given
        up and its observation becomes the final one. Returns None if no step is left; nothing is stored then.
        """
        self._check_usable()
        episode, shard = self._find(key)
        buffer, plain = episode.buffer, check_stats(stats or {})
        if final is None and (terminated or truncated):
            raise StoreError("an episode that terminated or was truncated needs its final observation")
        last = None if final is None else check_final(self.schema, final)
        steps = episode.steps - (last is None)
        if steps < 1:
            self.discard(key)
            return None
        if last is None:
            buffer.rows -= 1
        else:
            buffer.finish(last)
        self._write_block(episode, shard, buffer.rows, last=True)
        record = self._end_record(episode, steps, bool(terminated), bool(truncated), plain)
        del self._episodes[key]
        self._spare.append(buffer)
        self._shards.acknowledge(shard, record, episode.places, encode_end(record))
        self.steps_written += steps
        return record

    def discard(self, key: Hashable) -> None:
        """Forget an open episode. What was written of it stays in the file but is not listed."""
        episode, shard = self._find(key)
        del self._episodes[key]
        self._spare.append(episode.buffer)
        self._shards.abandon(shard, episode.uid, episode.places)

    def end_all(self) -> int:
        """End every open episode as partial, without a final observation; returns how many were kept."""
        return sum(self.end(key, final=None) is not None for key in self.open_keys())

    def open_keys(self) -> list[Hashable]:
        return list(self._episodes)

    def steps(self, key: Hashable) -> int:
        """Return how many steps an open episode has so far."""
        return self._find(key)[0].steps

    def add_episode(self, episode: Episode) -> EpisodeEnd:
        """Write a whole episode."""
        key = object()
        final = {c.name: _last_row(episode, c.name) for c in self.schema.obs_columns}
        rows = {c.name: episode.column(c.name)[: episode.length] for c in self.schema.columns}
        self.begin(key, episode.info)
        try:
            self.append(key, rows)
            record = self.end(
                key,
                final=final,
                terminated=episode.terminated,
                truncated=episode.truncated,
                stats=episode.stats,
            )
        except StoreError:
            if key in self._episodes:
                self.discard(key)
            raise
        if record is None:
            raise StoreError("an episode needs at least one step")
        return record

    def copy_episode(self, source: Store, i: int) -> EpisodeEnd:
        """Copy episode ``i`` of another store record by record, nothing decoded.

        Checksums are verified, and that every record is this episode's; otherwise BadBlock is raised and nothing is
        copied.
        """
        self._check_usable()
        if source.schema.layout != self.schema.layout:
            lines = "".join(f"\n  {line}" for line in self.schema.differences(source.schema))
            raise StoreError(f"{source.path} has other columns than {self.path}:{lines}")
        *blocks, (last, end) = source.records(i)
        if not isinstance(end, EpisodeEnd):
            raise StoreError(f"{source.path}, episode {i} is unfinished: read and add it instead")
        known = source.end_record(i)  # with what thinning has made of its probability
        if known.probability != end.probability:
            end = replace(end, probability=known.probability)
            last = b"".join(encode_end(end))
        shard = self._shards.place(end.uid)
        try:
            places = [self._shards.write(shard, [payload]) for payload, _ in blocks]
        except StoreError:
            shard.abandon(end.uid, [])
            raise
        self._shards.acknowledge(shard, end, places, [last])
        self.raw_bytes += end.length * self.schema.row_bytes
        self.steps_written += end.length
        return end

    # ---------------------------------------------------------------------------------------- records

    def _write_block(self, episode: OpenEpisode, shard: OpenShard, steps: int, last: bool) -> None:
        buffer = episode.buffer
        rows = {"obs": steps + last, "step": steps}
        buffers = [encode(buffer.arrays[column.name][: rows[column.per]]) for column, encode in self._encoders]
        info = episode.info if not episode.places else None
        payload = encode_block(episode.uid, episode.stored, steps, rows["obs"], buffers, info)
        place = self._shards.write(shard, payload)
        episode.note(steps)
        which = (episode.stored, steps, last, info)
        episode.places.append(BlockPlace(place.offset, place.length, place.record, *which))
        episode.stored += steps
        buffer.rows = 0
        self.raw_bytes += steps * self.schema.row_bytes

    def _end_record(
        self, episode: OpenEpisode, steps: int, terminated: bool, truncated: bool, stats: Stats
    ) -> EpisodeEnd:
        info = episode.info
        low, high = episode.versions or (0, 0)
        return EpisodeEnd(
            uid=episode.uid,
            length=steps,
            block=self.block,
            blocks=len(episode.places),
            return_=episode.return_,
            terminated=terminated,
            truncated=truncated,
            first_step=info.first_step,
            seed=info.seed,
            env_id=info.env_id or self.schema.env_id,
            policy=info.policy,
            policy_id=info.policy_id,
            version_min=low,
            version_max=high,
            global_step_first=episode.global_first or 0,
            global_step_last=episode.global_last,
            worker=info.worker,
            lane=info.lane,
            time=time.time(),
            stats=stats,
            probability=info.probability,
        )

    def sync(self) -> None:
        """Bring everything acknowledged to the disk."""
        self._check_usable()
        self._shards.sync()

    # ---------------------------------------------------------------------------------------- life

    def close(self) -> None:
        """End what is open as partial and seal all shards. After a failure: seal what was acknowledged."""
        if self._closed:
            return
        try:
            if not self._shards.failed:
                self.end_all()
        finally:
            self._closed = True
            for episode, shard in self._episodes.values():
                shard.abandon(episode.uid, episode.places)
            self._episodes.clear()
            self._spare.clear()
            self._shards.close()

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_usable(self) -> None:
        if self._closed:
            raise StoreError(f"{self.path}: the writer is closed")
        if self._shards.failed:
            raise StoreError(f"{self.path}: an earlier write failed; close this writer and start a new one")

    def _find(self, key: Hashable) -> tuple[OpenEpisode, OpenShard]:
        try:
            return self._episodes[key]
        except KeyError:
            raise StoreError(f"no episode is open under {key!r}; begin it first") from None


def automatic_block(schema: StoreSchema) -> int:
    """Return the steps per block: 16 for rows of 16 KB or more, twice as many while they fit in 256 KB, 256 at most."""
    block = 16
    while block < 256 and 2 * block * schema.row_bytes <= BLOCK_BYTES:
        block *= 2
    return block


def _clean(info: EpisodeInfo) -> EpisodeInfo:
    """Check the values and return them with Python's own integers."""
    plain: dict[str, Any] = {}
    for name in ("first_step", "policy_id", "worker", "lane", "seed", "uid"):
        value = getattr(info, name)
        try:
            plain[name] = None if value is None and name in ("seed", "uid") else operator.index(value)
        except TypeError:
            raise StoreError(f"{name} {value!r} is not an integer") from None
        if plain[name] is not None and plain[name] not in (range(2**64) if name == "uid" else _INT64):
            raise StoreError(f"{name} {value} does not fit in 64 bits")
    if plain["first_step"] < 0:
        raise StoreError(f"first_step {info.first_step} is negative")
    if info.probability is not None:
        plain["probability"] = float(info.probability)
        if not 0 < plain["probability"] <= 1:
            raise StoreError(
                f"probability {info.probability} must be above 0 and at most 1, or None if it is not known"
            )
    return replace(info, **plain)


def _last_row(episode: Episode, name: str) -> Any:
    array = np.asarray(episode.column(name))
    if len(array) != episode.length + 1:
        raise StoreError(f"column {name} has {len(array)} rows; an episode of {episode.length} steps needs one more")
    return array[-1]
