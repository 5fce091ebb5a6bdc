"""Episodes whose return decides whether they are kept: held in memory, compressed, until they have ended."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

import numpy as np
import zstandard

from rollmill.core.fields import Array
from rollmill.recording.assemble import EpisodeOut
from rollmill.store.assemble import Rows
from rollmill.store.episode import EpisodeInfo

LEVEL = -3
"""zstd level while held: fast, because most episodes are thrown away."""


@dataclass
class HeldEpisode:
    """The rows of one episode, piece by piece."""

    info: EpisodeInfo
    level: int = 0
    steps: int = 0
    return_: float = 0.0
    nbytes: int = 0
    final: Rows = field(default_factory=dict)
    ended: tuple[bool, bool] = (False, False)
    """(terminated, truncated)"""
    _pieces: list[dict[str, tuple[bytes, str, tuple[int, ...]]]] = field(default_factory=list)

    def add(self, columns: Rows, compressor: zstandard.ZstdCompressor) -> int:
        """Keep rows; returns the bytes they take."""
        piece = {}
        size = 0
        for name, rows in columns.items():
            packed = compressor.compress(np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data)
            piece[name] = (packed, rows.dtype.str, rows.shape)
            size += len(packed)
        self._pieces.append(piece)
        self.steps += len(columns["action"])
        self.return_ += float(columns["reward"].sum(dtype=np.float64))
        self.nbytes += size
        return size

    def pieces(self) -> Iterator[dict[str, Array]]:
        decompress = zstandard.ZstdDecompressor().decompress
        for piece in self._pieces:
            yield {
                name: np.frombuffer(decompress(packed), dtype).reshape(shape)
                for name, (packed, dtype, shape) in piece.items()
            }


class ReturnFilter:
    """An ``EpisodeOut`` that passes on whole episodes with at least ``min_return``, the best of every ``best_of``.

    Partial episodes are thrown away: their return is not known. ``memory``: bytes for episodes that are held; beyond it
    the longest open one is given up (``overflows``).
    """

    def __init__(self, out: EpisodeOut, min_return: float | None, best_of: int, memory: int) -> None:
        self._out, self._min_return, self._best_of, self._memory = out, min_return, best_of, memory
        self._open: dict[Hashable, HeldEpisode] = {}
        self._compressor = zstandard.ZstdCompressor(level=LEVEL)
        self._held = 0
        self._best: HeldEpisode | None = None
        self._seen = 0
        self.settled = 0
        """Rows of episodes over which it is decided."""
        self.rejected = 0
        """Episodes that were judged, or partial, and not kept."""
        self.overflows = 0

    def reserve(self, steps: int, episodes: int) -> None:
        """Do nothing: nothing is written yet."""

    def begin(self, key: Hashable, info: EpisodeInfo, level: int = 0) -> None:
        self._open[key] = HeldEpisode(info, level)

    def append(self, key: Hashable, columns: Rows) -> None:
        episode = self._open.get(key)
        if episode is None:
            return  # given up
        self._held += episode.add(columns, self._compressor)
        while self._held > self._memory and self._open:
            longest = max(self._open, key=lambda k: self._open[k].nbytes)
            given_up = self._open.pop(longest)
            self._held -= given_up.nbytes
            self.settled += given_up.steps
            self.overflows += 1

    def end(self, key: Hashable, final: Rows, terminated: bool, truncated: bool) -> None:
        episode = self._open.pop(key, None)
        if episode is None:
            return
        episode.final, episode.ended = final, (terminated, truncated)
        whole = episode.info.first_step == 0 and (terminated or truncated)
        if not whole:
            self._forget(episode)
        elif self._best_of > 1:
            self._compare(episode)
        else:
            self._pass_on(episode)

    def _compare(self, episode: HeldEpisode) -> None:
        """Keep the better of two; the best of a full round goes on."""
        worse: HeldEpisode | None = episode
        if self._best is None or episode.return_ > self._best.return_:
            self._best, worse = episode, self._best
        if worse is not None:
            self._forget(worse)
        self._seen += 1
        if self._seen == self._best_of:
            best, self._best, self._seen = self._best, None, 0
            self._pass_on(best)

    def _pass_on(self, episode: HeldEpisode) -> None:
        if self._min_return is not None and episode.return_ < self._min_return:
            self._forget(episode)
            return
        self._held -= episode.nbytes
        self.settled += episode.steps
        self._out.reserve(episode.steps, 1)
        key = object()
        self._out.begin(key, episode.info, episode.level)
        for rows in episode.pieces():
            self._out.append(key, rows)
        self._out.end(key, episode.final, *episode.ended)

    def _forget(self, episode: HeldEpisode) -> None:
        self._held -= episode.nbytes
        self.settled += episode.steps
        self.rejected += 1

    def close(self) -> None:
        """Pass on the best of an unfinished round too: the run is over."""
        best, self._best = self._best, None
        if best is not None:
            self._pass_on(best)
