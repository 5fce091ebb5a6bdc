"""``rollmill world encode``: a store of images into a store of latents, by any number of instances and machines.

Words
-----
group    input shards that become one output shard, of a size that is easy to handle (``runs.world.groups``).
share    the groups an instance looks at: every ``shards``-th one, from number ``shard`` on.
claim    a locked file that says who encodes a group right now; the lock ends with its holder.

An output shard is written aside, in ``work/``, and put into the store by one hard link, which only one instance can
win: whatever is killed or started twice, the group's episodes are there once or not yet.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import re
import secrets
import shutil
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rollmill.core import atomic
from rollmill.core.errors import ConfigError, StoreError, WorkerError
from rollmill.core.fields import Array
from rollmill.core.opening import read_json
from rollmill.optim.device import choose_device
from rollmill.runs.settings.world import EncodeShare, SplitName
from rollmill.runs.world.groups import Groups
from rollmill.store.care.recover import recover
from rollmill.store.derive.derivation import RECIPE_FILE, SHARD_BYTES, open_quietly
from rollmill.store.episode import Episode
from rollmill.store.format.schema import INDEX_FOLDER, SHARD_FOLDER, STORE_FILE, StoreSchema, create_store
from rollmill.store.format.shards import index_path, shard_path
from rollmill.store.parallel import ProcessDiedError, map_unordered
from rollmill.store.reader import Store
from rollmill.store.split import Split
from rollmill.store.writer import StoreWriter
from rollmill.worldmodel.encoder.encode import EpisodeEncoder, latent_names, latent_schema
from rollmill.worldmodel.encoder.file import ImageEncoder, load_encoder
from rollmill.worldmodel.encoder.images import image_column
from rollmill.worldmodel.files import ENCODER
from rollmill.worldmodel.own import NOBODY, Trust

log = logging.getLogger("rollmill")

CLAIMS, WORK = "claims", "work"
UNBOUNDED = 1 << 60
"""Bytes of an output shard: as many as its group needs."""

Progress = Callable[[int, int], None]
"""Input shards done, and all there are."""


@dataclass(frozen=True)
class EncodeOptions(EncodeShare):
    """What is encoded with what, and which part of it."""

    store: Path
    encoder: Path
    out: Path
    shard_bytes: int = SHARD_BYTES
    """Size that output shards are to have; smaller ones where there is less than that for every instance."""
    trust: Trust = NOBODY
    """Code that the encoder's file may name."""

    def check(self) -> None:
        """Raise ConfigError for what is wrong or contradicts itself."""
        if self.shards < 1 or not 0 <= self.shard < self.shards:
            raise ConfigError(
                f"--shard {self.shard} of --shards {self.shards}: the first is 0, the last {max(0, self.shards - 1)}"
            )
        if self.sub_shards < 1 or self.batch_size < 1 or self.shard_bytes < 1:
            raise ConfigError("--sub-shards, --batch-size and --shard-mb must be at least 1")
        if len(set(self.field)) < len(self.field):
            raise ConfigError(f"--field {' '.join(self.field)}: every field once")
        if self.store.absolute() == self.out.absolute():
            raise ConfigError(f"--out {self.out} is the store that is read; choose another folder")
        if self.gpu is not None and not 0 <= self.gpu < torch.cuda.device_count():
            raise ConfigError(f"--gpu {self.gpu}: this machine has {torch.cuda.device_count()} usable GPUs")

    @property
    def device(self) -> torch.device:
        return choose_device("auto" if self.gpu is None else f"cuda:{self.gpu}")


@dataclass
class Encoded:
    """What an instance has done, and how the new store stands."""

    out: Path
    encoded: list[str] = field(default_factory=list)
    """Input shards encoded by this instance."""
    already: int = 0
    """Of this share: done before, or by others."""
    busy: list[str] = field(default_factory=list)
    """Of this share: another instance is at it."""
    failed: dict[str, str] = field(default_factory=dict)
    """Input shards that cannot be encoded, and why."""
    made: int = 0
    """Output shards that it has put there."""
    episodes: int = 0
    images: int = 0
    done: int = 0
    """Input shards in the new store, of all instances."""
    total: int = 0

    @property
    def complete(self) -> bool:
        """Whether every input shard is in the new store."""
        return self.done == self.total and not self.failed

    @property
    def exit_code(self) -> int:
        return 1 if self.failed else 0

    def to_dict(self) -> dict[str, Any]:
        names = ("encoded", "already", "busy", "failed", "made", "episodes", "images", "done", "total", "complete")
        return {"out": str(self.out), **{name: getattr(self, name) for name in names}}

    def text(self) -> str:
        lines = [
            f"{self.out}: encoded {len(self.encoded):,} shards ({self.episodes:,} episodes, {self.images:,} "
            f"images) into {self.made:,}, {self.already:,} were done; {self.done:,} of {self.total:,} shards are there"
        ]
        if self.busy:
            lines.append(f"{len(self.busy):,} shards are being encoded by other instances")
        lines += [f"not encoded: {name}: {why}" for name, why in self.failed.items()]
        if self.failed:
            lines.append("`rollmill data repair` makes a store of what is still good; the same command does the rest")
        return "\n".join(lines)

    def add(self, other: Encoded) -> None:
        """Take in what a process with a part of this share has done."""
        self.encoded += other.encoded
        self.busy += other.busy
        self.failed |= other.failed
        self.already += other.already
        self.made += other.made
        self.episodes += other.episodes
        self.images += other.images


def encode_store(options: EncodeOptions, progress: Progress | None = None) -> Encoded:
    """Encode this instance's share. Bad input shards are listed in the outcome; other errors are raised."""
    options.check()
    job = _Job(options)
    job.prepare()
    result = Encoded(options.out)
    if options.sub_shards == 1:
        job.work(result, progress or (lambda done, total: None))
    else:
        _in_processes(options, result)
    result.failed |= job.unreadable()
    job.settle(result)
    if progress is not None:
        progress(result.done, result.total)
    return result


class _Job:
    """One instance's view of source, encoder and target."""

    def __init__(self, options: EncodeOptions) -> None:
        self.options = options
        self.out = options.out.absolute()
        self.source = open_quietly(options.store)
        self.columns = [
            image_column(self.source.schema, field, str(options.store), key="--field ")
            for field in options.field or ("",)
        ]
        self._file = ENCODER.find(options.encoder)
        self._checksum = ENCODER.checksum(self._file)
        self._host = re.sub(r"[^A-Za-z0-9]+", "_", socket.gethostname()) or "host"
        self._numbers = {ref.name: number for number, ref in enumerate(self.source.shards)}

    @property
    def sealed(self) -> list[str]:
        """Names of the input shards, sorted."""
        return sorted(ref.name for ref in self.source.shards if ref.sealed)

    def unreadable(self) -> dict[str, str]:
        """Return input shards of this share that cannot even be tried, with the reason: missing, or not sealed."""
        problems = [p for p in self.source.problems if p.shard in _lost(self.source, self._numbers)]
        lost = {problem.shard: problem.reason for problem in reversed(problems)}
        lost |= {
            ref.name: "it is not sealed: its writer is at work, or died (`rollmill data repair` seals it)"
            for ref in self.source.shards
            if not ref.sealed
        }
        names = sorted(lost)[self.options.shard :: self.options.shards]
        return {name: lost[name] for name in names}

    # -- the new store -------------------------------------------------------------------------

    def prepare(self) -> None:
        """Begin the new store, or agree with the one that is there."""
        o, encoder = self.options, load_encoder(self._file, trust=self.options.trust)
        for column in self.columns:
            if tuple(column.shape) != tuple(encoder.image_shape):
                raise ConfigError(
                    f"{self._file} encodes images of {encoder.image_shape}, {o.store} has {column.name}: {column.shape}"
                )
        self._chosen = chosen_episodes(self.source, o.split, encoder)
        self._agree(
            {
                "tool": "world encode",
                "source": str(self.source.path),
                "field": ",".join(column.name for column in self.columns),
                "split": o.split,
                "encoder": str(self._file.absolute()),
                "encoder_checksum": self._checksum,
                "latent_size": encoder.size,
            }
        )
        create_store(self.out, self._schema)
        for folder in (CLAIMS, WORK):
            (self.out / folder).mkdir(exist_ok=True)
        self._groups = Groups(self.out)
        self._groups.plan(self._sizes(), o.shard_bytes, o.shards * o.sub_shards)

    def _sizes(self) -> dict[str, int]:
        """Return about how many bytes the latents of every sealed input shard take: numbers that do not compress."""
        table, row = self.source.table, self._schema.row_bytes
        steps = np.bincount(table.shard[self._chosen], table.length[self._chosen] + 1, len(self._numbers))
        return {name: int(steps[self._numbers[name]]) * row for name in self.sealed}

    def _agree(self, recipe: dict[str, Any]) -> None:
        """Write the recipe if there is none: it comes before anything else, so every folder can be told from others."""
        path = self.out / RECIPE_FILE
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            if (self.out / STORE_FILE).exists() and not path.exists():
                raise StoreError(f"{self.out} holds other data; choose another --out")
            atomic.create_bytes(path, [json.dumps({**recipe, "finished": False}, indent=2).encode()])
            found = read_json(path)
        except (OSError, ValueError) as error:
            raise StoreError(f"{path} cannot be used: {error}") from error
        found = {"split": "all", **found}  # what earlier versions did
        for name in ("tool", "source", "field", "split", "encoder_checksum"):
            if found.get(name) != recipe[name]:
                raise StoreError(
                    f"{self.out} was begun with {name}={found.get(name)!r}, not {recipe[name]!r}; choose another --out"
                )
        self._recipe = recipe

    def settle(self, result: Encoded) -> None:
        """Count what is there; note the end when everything is."""
        recover(self.out)  # an instance that died between a shard and its index has left only the shard
        result.total = len(self.source.shards) + len(_lost(self.source, self._numbers))
        result.done = len(self._groups.done().intersection(self.sealed))
        if result.complete:
            atomic.write_json(self.out / RECIPE_FILE, {**self._recipe, "finished": True, "shards": result.done})

    # -- the work ------------------------------------------------------------------------------

    def work(self, result: Encoded, progress: Progress) -> None:
        """Encode what is left of this share."""
        share = list(self._groups.all().items())[self.options.shard :: self.options.shards]
        torch.set_num_threads(1)  # --sub-shards brings more cores to work, without changing a single bit
        encoder = load_encoder(self._file, self.options.device, self.options.trust)
        encode = EpisodeEncoder(encoder, self._names, self.options.batch_size)
        before, total = 0, sum(len(shards) for _, shards in share)
        for group, named in share:
            shards = [name for name in named if name in self._numbers]  # others have been repaired since

            def tell(done: int, before: int = before) -> None:
                progress(before + done, total)

            if self._groups.is_done(group):
                result.already += len(shards)
            else:
                with self._claim(group) as held:
                    if not held:
                        result.busy += shards
                    elif self._groups.is_done(group):
                        result.already += len(shards)
                    else:
                        self._take(group, shards, encode, result, tell)
            before += len(named)

    @contextlib.contextmanager
    def _claim(self, name: str) -> Iterator[bool]:
        """Yield whether this process may encode the group now; True where the file system cannot lock, too.

        Without locks two instances may do the same work; the link that publishes it still lets only one through.
        """
        descriptor = os.open(self.out / CLAIMS / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            except OSError as error:
                if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                    raise
                log.warning("%s: this file system has no locks; instances may do the same work twice", self.out)
            yield True
        finally:
            os.close(descriptor)

    def _take(
        self, group: str, shards: Sequence[str], encode: EpisodeEncoder, result: Encoded, tell: Callable[[int], None]
    ) -> None:
        """Encode a group and put it into the new store; a damaged shard is noted and left out as a whole."""
        self._sweep(group)
        work = self.out / WORK / f"{group}.{self._host}.{secrets.token_hex(4)}"
        taken: list[str] = []
        episodes = images = 0
        try:
            with StoreWriter(work, self._schema, shard_bytes=UNBOUNDED, sync="seal", name=group) as writer:
                for number, name in enumerate(shards):
                    tell(number)
                    piece = self._piece(name, work.with_name(f"{work.name}.piece"), encode)
                    if isinstance(piece, str):
                        result.failed[name] = piece
                        continue
                    with piece:
                        for i in range(len(piece)):
                            writer.copy_episode(piece, i)
                        episodes += len(piece)
                        images += (piece.table.steps + len(piece)) * len(self.columns)
                    taken.append(name)
            for shard in writer.shards:
                self._publish(work, shard)
            if taken:
                self._groups.finish(group, taken, episodes=episodes, images=images)
                result.made += len(writer.shards)
        finally:
            for folder in (work, work.with_name(f"{work.name}.piece")):
                shutil.rmtree(folder, ignore_errors=True)
        result.encoded += taken
        result.episodes += episodes
        result.images += images

    def _piece(self, name: str, folder: Path, encode: EpisodeEncoder) -> Store | str:
        """Write the latents of one input shard into a store of their own; returns a sentence where it is damaged."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()  # not its parents: a store that somebody has removed stays away
        with StoreWriter(folder, self._schema, shard_bytes=UNBOUNDED, sync="seal", name="piece") as writer:
            for found in self._episodes(name):
                if isinstance(found, str):
                    return found
                writer.add_episode(encode(found))
        return open_quietly(folder)

    @property
    def _names(self) -> dict[str, tuple[str, str]]:
        return latent_names([column.name for column in self.columns])

    @property
    def _schema(self) -> StoreSchema:
        return latent_schema(self.source.schema, self._names, self._recipe["latent_size"])

    def _episodes(self, name: str) -> Iterator[Episode | str]:
        """Yield the episodes of an input shard; where it is damaged, a sentence that says so, and nothing more."""
        for problem in self.source.problems:
            if problem.shard == name and not problem.harmless:
                yield str(problem)
                return
        number = self._numbers[name]
        for i in self._chosen[self.source.table.shard[self._chosen] == number].tolist():
            try:
                episode = self.source.episode(i)
            except StoreError as error:
                yield str(error)
                return
            yield episode

    def _publish(self, work: Path, shard: str) -> None:
        """Put a sealed shard of the private store into the new one, unless somebody else was faster."""
        try:
            os.link(shard_path(work, shard, True), shard_path(self.out, shard, True))
        except FileExistsError:
            return  # its mark is missing: an earlier instance died just before writing it
        except OSError as error:
            raise StoreError(f"{self.out}: shard {shard} cannot be put there: {error.strerror or error}") from error
        os.replace(index_path(work, shard), index_path(self.out, shard))
        for folder in (SHARD_FOLDER, INDEX_FOLDER):
            atomic.sync_folder(self.out / folder)

    def _sweep(self, group: str) -> None:
        """Remove what dead instances of this machine have left of a group; its claim is held, so nobody is at it."""
        for entry in (self.out / WORK).iterdir():
            if entry.name.startswith(f"{group}.{self._host}."):
                shutil.rmtree(entry, ignore_errors=True)


def chosen_episodes(source: Store, split: SplitName, encoder: ImageEncoder) -> Array:
    """Return numbers of the episodes that a split means: the encoder's file says how it was trained."""
    if split == "all":
        return np.arange(len(source))
    try:
        config = encoder.metadata["config"]
        share, seed = config["images"]["validation"], config["seed"]
    except (KeyError, TypeError) as error:
        raise ConfigError(
            f"--split {split}: the encoder's file does not say which episodes it has learnt from"
        ) from error
    training, held_out = Split(share, seed)(source.table)
    return training if split == "train" else held_out


def _lost(source: Store, numbers: dict[str, int]) -> set[str]:
    return {problem.shard for problem in source.problems if not problem.harmless} - set(numbers)


def _in_processes(options: EncodeOptions, result: Encoded) -> None:
    """Divide a share among processes; the share of one is a share of the whole store, too."""
    parts = [
        replace(
            options,
            shards=options.shards * options.sub_shards,
            shard=options.shard + options.shards * number,
            sub_shards=1,
        )
        for number in range(options.sub_shards)
    ]
    try:
        for _, done in map_unordered(_part, parts, len(parts)):
            result.add(done)
    except ProcessDiedError as error:
        raise WorkerError(
            f"{options.out}: a process that encodes was killed (out of memory?); the same command does the rest"
        ) from error


def _part(options: EncodeOptions) -> Encoded:
    job = _Job(options)
    job.prepare()
    result = Encoded(options.out)
    job.work(result, lambda done, total: None)
    return result
