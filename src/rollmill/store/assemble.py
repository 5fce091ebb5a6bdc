"""Rebuilds episodes from segments: rows of one lane, joined across the segments' borders.

Words
-----
segment   arrays ``[T + 1, L, ...]`` by name: T rows of L lanes, and one that says what the last actions led to
          (``core.slots``).
piece     consecutive rows of one episode in one lane that lie in one segment.
pending   the row after a lane's last piece: what its last action led to. If the next segment never comes (it was not
          kept, it was dropped, the worker died), it is the final observation of a partial episode.

Whether a piece continues the open episode of its lane is seen from episode number and step, so nothing is ever
joined across a hole, whatever made it. Rows that do not count (``valid`` False) hold final observations, agents
that wait for others, or faults: they are never steps.

Which episodes are wanted is the caller's business. For every piece of a segment it asks ``continues``, begins an
episode if it does not and the piece is wanted, and then calls ``add``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from rollmill.core.fields import Array

Rows = Mapping[str, Array]


class PieceOut(Protocol):
    """Where the rows of episodes go, piece by piece."""

    def append(self, key: int, columns: Rows) -> None:
        """Take rows of the open episode ``key``; they are views of a segment, valid during the call."""

    def end(self, key: int, final: Rows, terminated: bool, truncated: bool) -> None:
        """End the episode; ``final`` is one row. With neither flag it stops here without having ended."""


class Piece(NamedTuple):
    """Rows ``start`` .. ``stop`` of the lane ``column`` of a segment."""

    column: int
    start: int
    stop: int
    episode: int
    step: int
    """Of its first row, counted from the beginning of the episode."""


@dataclass(frozen=True)
class Pieces:
    """All pieces of a segment, lane by lane in the order of their rows; ``[pieces]`` each, as in ``Piece``."""

    column: Array
    start: Array
    stop: Array
    episode: Array
    step: Array

    def listed(self, wanted: Array | None = None) -> list[Piece]:
        """Return all pieces, or those where the mask ``wanted`` is True."""
        arrays = (self.column, self.start, self.stop, self.episode, self.step)
        return [Piece(*numbers) for numbers in zip(*((a if wanted is None else a[wanted]).tolist() for a in arrays))]


def find_pieces(segment: Rows) -> Pieces:
    """Find the runs of rows that count in a segment; its last row is never one of them."""
    valid = segment["valid"][:-1]
    padded = np.zeros((valid.shape[1], valid.shape[0] + 2), np.int8)
    padded[:, 1:-1] = valid.T
    change = np.diff(padded, axis=1)
    columns, starts = np.nonzero(change == 1)
    _, stops = np.nonzero(change == -1)
    return Pieces(columns, starts, stops, segment["episode"][starts, columns], segment["step"][starts, columns])


class _Open(NamedTuple):
    """The open episode of a lane: what would continue it, and its final observation if nothing does."""

    episode: int
    next_step: int
    pending: Rows


class Assembler:
    """Gives pieces to ``out`` and says where episodes end. Keys are whatever numbers the caller has for lanes.

    ``columns``: what is given on, names of ``out`` with those in a segment. ``final``: the same for the row after the
    last step.
    """

    def __init__(self, out: PieceOut, columns: Mapping[str, str], final: Mapping[str, str]) -> None:
        self._out, self._columns, self._final = out, dict(columns), dict(final)
        self._open: dict[int, _Open] = {}

    @property
    def open(self) -> list[int]:
        """Lanes whose episode is under way."""
        return list(self._open)

    def continues(self, lane: int, piece: Piece) -> bool:
        """Return whether a piece goes on with the lane's open episode. If not, that episode stops, as a partial one."""
        before = self._open.get(lane)
        if before is None:
            return False
        if piece.start == 0 and before.episode == piece.episode and before.next_step == piece.step:
            return True
        self.leave(lane)
        return False

    def add(self, segment: Rows, lane: int, piece: Piece) -> None:
        """Pass on the rows of a piece, and its end if it has one: by the env, or by a fault within the segment."""
        column, start, stop, episode, step = piece
        self._out.append(lane, {name: segment[source][start:stop, column] for name, source in self._columns.items()})
        pending = {name: np.array(segment[source][stop, column]) for name, source in self._final.items()}
        terminated = bool(segment["terminated"][stop - 1, column])
        truncated = bool(segment["truncated"][stop - 1, column])
        if terminated or truncated or stop < len(segment["valid"]) - 1:
            self._open.pop(lane, None)
            self._out.end(lane, pending, terminated, truncated)
        else:
            self._open[lane] = _Open(episode, step + stop - start, pending)

    def leave(self, lane: int) -> None:
        """End what is open in a lane as a partial episode: the rows that would follow are not coming."""
        before = self._open.pop(lane, None)
        if before is not None:
            self._out.end(lane, before.pending, False, False)

    def leave_all(self) -> None:
        for lane in self.open:
            self.leave(lane)
