"""What ``rollmill watch`` and ``envs play`` show, and where on this machine: in the terminal, or in a window."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from dataclasses import dataclass
from typing import IO, Any, Protocol

import numpy as np

from rollmill.core.errors import MissingExtraError
from rollmill.core.fields import Array
from rollmill.core.terminal import drawing, printable

HALF_BLOCK = "\u2580"
MIN_WINDOW = 480
"""Pixels of the window's longer side, at least."""


@dataclass(frozen=True)
class Shown:
    """One image and what there is to say about it."""

    image: Array
    """RGB uint8 ``[height, width, 3]``"""
    policy: str
    episode: int
    step: int
    so_far: float
    """Return, the mean over agents."""
    over: bool

    @property
    def text(self) -> str:
        return f"{self.policy}  episode {self.episode}  step {self.step}  return {self.so_far:+.4g}"


class Screen(Protocol):
    """Where images go."""

    closed: bool
    """Whether the user has closed it."""

    def show(self, shown: Shown) -> None: ...

    def close(self) -> None: ...


class PlayScreen(Screen, Protocol):
    """One that has a keyboard."""

    def pressed(self) -> frozenset[str]:
        """Return the keys that are held, or were since the last call, by their names (``envs.keys``)."""


class TerminalScreen:
    """Two pixels to a character: the upper half block in the colour of one, on a background of the other.

    Needs a terminal with 24 bit colours and UTF-8.
    """

    closed = False

    def __init__(self, stream: IO[str] | None = None, size: tuple[int, int] | None = None) -> None:
        self._stream = stream or drawing(sys.stdout)
        self._size = size
        self._stream.write("\033[?1049h\033[?25l\033[2J")  # another page, no cursor

    def show(self, shown: Shown) -> None:
        columns, lines = self._size or shutil.get_terminal_size()
        text = printable(shown.text)[:columns]
        self._stream.write(f"\033[H{half_blocks(shown.image, columns, max(1, lines - 2))}\033[0m{text}\033[K")
        self._stream.flush()

    def close(self) -> None:
        self._stream.write("\033[0m\033[?25h\033[?1049l")
        self._stream.flush()


def half_blocks(image: Array, columns: int, lines: int) -> str:
    """Return the image as text of at most ``columns`` x ``lines`` characters, its shape kept."""
    height, width = image.shape[:2]
    scale = min(columns / width, 2 * lines / height)
    across, down = max(1, int(width * scale)), max(2, int(height * scale) // 2 * 2)
    rows = (np.arange(down) + 0.5) * height / down
    cells = (np.arange(across) + 0.5) * width / across
    small = image[rows.astype(int)][:, cells.astype(int)]
    return "".join(_line(small[y], small[y + 1]) for y in range(0, down, 2))


def _line(upper: Array, lower: Array) -> str:
    """Return two rows of pixels as a line of text; colours are told only where they change."""
    parts: list[str] = []
    before: tuple[bytes, bytes] | None = None
    for top, bottom in zip(upper, lower):
        colours = (top.tobytes(), bottom.tobytes())
        if colours != before:
            front, back = (";".join(map(str, c)) for c in colours)
            parts.append(f"\033[38;2;{front};48;2;{back}m")
            before = colours
        parts.append(HALF_BLOCK)
    return "".join(parts) + "\033[0m\033[K\r\n"


def has_pygame() -> bool:
    return importlib.util.find_spec("pygame") is not None


class WindowScreen:
    """A window by pygame; ``own``: the simulator shows a window of its own, so none is opened."""

    def __init__(self, title: str, own: bool = False) -> None:
        self.closed = False
        self._own, self._title = own, title
        self._window: Any = None
        self._held: set[str] = set()
        self._tapped: set[str] = set()
        if not own and not has_pygame():
            raise MissingExtraError('--window needs pygame: pip install "rollmill[classic]" (or use --browser)')

    def show(self, shown: Shown) -> None:
        if self._own:
            return
        import pygame

        height, width = shown.image.shape[:2]
        if self._window is None:
            pygame.display.init()
            scale = max(1, -(-MIN_WINDOW // max(height, width)))
            self._window = pygame.display.set_mode((width * scale, height * scale))
        surface = pygame.surfarray.make_surface(shown.image.swapaxes(0, 1))
        self._window.blit(pygame.transform.scale(surface, self._window.get_size()), (0, 0))
        pygame.display.set_caption(shown.text)
        pygame.display.flip()
        self._take_events()

    def pressed(self) -> frozenset[str]:
        if self._window is not None:
            self._take_events()
        found = frozenset(self._held | self._tapped)
        self._tapped.clear()
        return found

    def _take_events(self) -> None:
        import pygame

        for event in pygame.event.get():
            self.closed |= event.type == pygame.QUIT
            if event.type == pygame.KEYDOWN:
                self._held.add(_name(pygame.key.name(event.key)))
                self._tapped.add(_name(pygame.key.name(event.key)))
            elif event.type == pygame.KEYUP:
                self._held.discard(_name(pygame.key.name(event.key)))
            elif event.type == pygame.WINDOWFOCUSLOST:
                self._held.clear()  # their release will not be seen

    def close(self) -> None:
        if self._window is not None:
            import pygame

            pygame.display.quit()
            self._window = None


def _name(pygames: str) -> str:
    """Return our name of a key: ``left shift`` and ``right shift`` are one, so are 7 and that of the number pad."""
    return pygames.strip("[]").rpartition(" ")[2]
