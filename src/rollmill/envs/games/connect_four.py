"""Connect four, which shows and pays what PettingZoo's ``connect_four_v3`` does, and is much faster.

A player's stones are the bits of one integer, seven to a column, lowest row first. The seventh is always empty, so that
no line runs from the top of a column into the next one.
"""

from __future__ import annotations

import numpy as np

from rollmill.core.errors import EnvError
from rollmill.core.fields import MASK_FIELD, ActionSpec, Array, EnvSpec, Field, Obs
from rollmill.core.protocols import StepReturn
from rollmill.envs.spaces import mask_field
from rollmill.envs.turns import TURN_FIELD, waiting_mask

ROWS, COLUMNS = 6, 7
CELLS = ROWS * COLUMNS
BITS = ROWS + 1
"""Bits from a cell to the one beside it."""
DIRECTIONS = (1, BITS, BITS + 1, BITS - 1)
"""Bits from a cell to the next one of a line: up, across, and along both diagonals."""
BOARD = "observation"
WAITING = bytes(waiting_mask(COLUMNS))
PAID = np.array([[1, -1], [-1, 1]], np.float32)
"""Rewards of both players, by the winner."""
UNPAID = np.zeros(2, np.float32)
COLORS = np.array([[235, 235, 235], [214, 69, 65], [244, 208, 63]], np.uint8)
FRAME = np.array([41, 98, 190], np.uint8)
CELL_PIXELS = 32


class ConnectFour:
    """Two players drop stones into seven columns by turns; who first has four in a line wins 1, the other loses 1.

    Both see the board from their own side: their stones, then the other's; row 0 is the top. Whoever waits has a single
    choice, 0, that is not read.
    """

    def __init__(self) -> None:
        action = ActionSpec("discrete", nvec=(COLUMNS,), start=(0,))
        fields = (Field(BOARD, "int8", (ROWS, COLUMNS, 2)), mask_field(action), Field(TURN_FIELD, "uint8", (1,)))
        self.spec = EnvSpec(name="connect_four", observation=fields, action=action, agents=2)
        # What both see: their sides of the board, their masks, whose turn it is.
        self._boards = np.zeros((2, ROWS, COLUMNS, 2), np.int8)
        self._masks = np.zeros((2, COLUMNS), np.uint8)
        self._turn = np.zeros((2, 1), np.uint8)
        # The same memory byte by byte: to set one number of an array takes numpy longer.
        self._board_bytes, self._mask_bytes, self._turn_bytes = map(_as_bytes, (self._boards, self._masks, self._turn))
        self._clear()
        self._running = False

    def reset(self, seed: int, obs: Obs) -> None:
        self._clear()
        self._write(obs)

    def step(self, action: Array, obs: Obs) -> StepReturn:
        if not self._running:
            raise EnvError("step() without a running episode: call reset() first")
        mover, column = self._mover, int(action[self._mover])
        if not 0 <= column < COLUMNS or self._heights[column] == ROWS:
            raise ValueError(f"player {mover} chose {column}, which is not allowed here")
        self._drop(mover, column)
        won = has_line(self._stones[mover])
        over = won or self._left == 0
        self._show_turn(1 - mover, over)
        self._write(obs)
        return PAID[mover] if won else UNPAID, over, False, {}

    def render(self) -> Array:
        """Draw the board: the first player's stones are red, the second one's yellow."""
        cells = self._boards[0, :, :, 0] + 2 * self._boards[0, :, :, 1]
        across = np.arange(CELL_PIXELS) - (CELL_PIXELS - 1) / 2
        disc = across[:, None] ** 2 + across**2 < (0.42 * CELL_PIXELS) ** 2
        size = (ROWS * CELL_PIXELS, COLUMNS * CELL_PIXELS)
        inside = np.tile(disc, (ROWS, COLUMNS))
        stones = COLORS[cells].repeat(CELL_PIXELS, axis=0).repeat(CELL_PIXELS, axis=1)
        image: Array = np.where(inside[..., None], stones, np.broadcast_to(FRAME, (*size, 3)))
        return image

    def close(self) -> None:
        return None

    def _clear(self) -> None:
        self._stones = [0, 0]
        self._heights = [0] * COLUMNS
        self._open = bytearray(b"\1" * COLUMNS)
        self._left = CELLS
        self._boards.fill(0)
        self._show_turn(0, over=False)

    def _drop(self, mover: int, column: int) -> None:
        height = self._heights[column]
        self._heights[column] = height + 1
        self._left -= 1
        self._stones[mover] |= 1 << (column * BITS + height)
        if height + 1 == ROWS:
            self._open[column] = 0
        cell = 2 * ((ROWS - 1 - height) * COLUMNS + column)
        self._board_bytes[cell + mover] = 1  # as player 0 sees it
        self._board_bytes[2 * CELLS + cell + 1 - mover] = 1  # as player 1 does

    def _show_turn(self, player: int, over: bool) -> None:
        """Give the turn to a player; in a game that is over both wait."""
        self._mover, self._running = player, not over
        free, turn = (WAITING, 0) if over else (self._open, 1)
        mine, other = player * COLUMNS, (1 - player) * COLUMNS
        self._mask_bytes[mine : mine + COLUMNS] = free
        self._mask_bytes[other : other + COLUMNS] = WAITING
        self._turn_bytes[player], self._turn_bytes[1 - player] = turn, 0

    def _write(self, obs: Obs) -> None:
        obs[BOARD][:] = self._boards
        obs[MASK_FIELD][:] = self._masks
        obs[TURN_FIELD][:] = self._turn


def _as_bytes(array: Array) -> memoryview:
    return array.data.cast("B")


def has_line(stones: int) -> bool:
    """Return whether four of these stones, bits of one integer, are in a line."""
    for way in DIRECTIONS:
        pairs = stones & (stones >> way)
        if pairs & (pairs >> 2 * way):
            return True
    return False
