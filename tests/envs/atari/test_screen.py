"""The Atari image, worked out from what changed, against the whole screen at once."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from rollmill.core.fields import Array
from rollmill.envs.atari.screen import Palette, Screen, count_blocks

cv2 = pytest.importorskip("cv2")


class Console:
    """Shows whatever screen it is given, as ALE does: colour numbers, or their grays."""

    def __init__(self, screen: Array, grays: Array | None = None) -> None:
        self.screen = screen
        self.grays = np.random.default_rng(0).permutation(256).astype(np.uint8) if grays is None else grays

    def getScreenDims(self) -> tuple[int, ...]:
        return self.screen.shape

    def getScreen(self, out: Array | None = None) -> Any:
        return self._give(self.screen, out)

    def getScreenGrayscale(self, out: Array | None = None) -> Any:
        return self._give(self.grays[self.screen], out)

    def _give(self, values: Array, out: Array | None) -> Array | None:
        if out is None:
            return values.copy()
        out[:] = values
        return None


def whole(console: Console, earlier: Array, last: Array, width: int, height: int) -> Array:
    pooled = np.maximum(console.grays[earlier], console.grays[last])
    image: Array = cv2.resize(pooled, (width, height), interpolation=cv2.INTER_AREA)
    return image


def changes(rows: int) -> st.SearchStrategy[list[tuple[int, int, int]]]:
    """(row, column, colour) of pixels that change between two frames."""
    return st.lists(st.tuples(st.integers(0, rows - 1), st.integers(0, 159), st.integers(0, 255)), max_size=6)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), rows=st.sampled_from([210, 250, 214]), size=st.sampled_from([(84, 84), (64, 96), (80, 105)]))
def test_the_image_is_that_of_the_whole_screen(data: st.DataObject, rows: int, size: tuple[int, int]) -> None:
    screen = data.draw(arrays.arrays(np.uint8, (rows, 160), elements=st.integers(0, 255), fill=st.just(7)))
    console = Console(screen)
    seen = Screen(console, cv2, *size)
    np.testing.assert_array_equal(seen.image(), whole(console, screen, screen, *size))
    for _ in range(3):
        frames = []
        for take in (seen.take_earlier, seen.take_last):
            console.screen = console.screen.copy()
            for row, column, colour in data.draw(changes(rows)):
                console.screen[row, column] = colour
            take()
            frames.append(console.screen)
        np.testing.assert_array_equal(seen.image(), whole(console, *frames, *size))


def test_random_screens_agree_too() -> None:
    rng = np.random.default_rng(1)
    frames = rng.integers(256, size=(6, 210, 160), dtype=np.uint8)
    console = Console(frames[0])
    seen = Screen(console, cv2, 84, 84)
    for earlier, last in zip(frames[::2], frames[1::2]):
        console.screen = earlier
        seen.take_earlier()
        console.screen = last
        seen.take_last()
        np.testing.assert_array_equal(seen.image(), whole(console, earlier, last, 84, 84))


def test_a_frame_alone_is_not_mixed_with_the_one_before() -> None:
    grays = np.arange(256, dtype=np.uint8)
    console = Console(np.full((210, 160), 200, np.uint8), grays)
    seen = Screen(console, cv2, 84, 84)
    console.screen = np.full((210, 160), 10, np.uint8)
    seen.take_last()
    assert (seen.image() == 200).all()
    seen.take_alone()
    assert (seen.image() == 10).all()


def test_only_changed_rows_are_worked_out(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(np.zeros((210, 160), np.uint8))
    seen = Screen(console, cv2, 84, 84)
    seen.image()
    worked: list[int] = []

    def resize(image: Array, *args: Any) -> Any:
        worked.append(len(image))
        return cv2.resize(image, *args)

    monkeypatch.setattr(seen, "_resize", resize)
    seen.take_alone()
    seen.image()
    assert worked == []
    console.screen[17, 3] = 1
    seen.take_alone()
    seen.image()
    console.screen[[30, 44], 100] = 1
    seen.take_alone()
    seen.image()
    assert worked == [5, 15]


@pytest.fixture
def learnt(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many colours were known after each time the palette learnt."""
    counts: list[int] = []
    learn = Palette.learn

    def counted(self: Palette) -> None:
        learn(self)
        counts.append(int(self._known.sum()))

    monkeypatch.setattr(Palette, "learn", counted)
    return counts


@pytest.mark.parametrize("grays", [np.zeros(256, np.uint8), np.arange(256, dtype=np.uint8), None])
def test_colours_are_learnt_once_each(grays: Array | None, learnt: list[int]) -> None:
    """Also where many colours share a gray, and where in the end no gray is left to mark unknown ones."""
    console = Console(np.zeros((210, 160), np.uint8), grays)
    seen = Screen(console, cv2, 84, 84)
    for colour in [*range(256), 0, 255]:
        console.screen = console.screen.copy()
        console.screen[0, :80] = colour
        seen.take_alone()
        np.testing.assert_array_equal(seen.image(), whole(console, console.screen, console.screen, 84, 84))
    assert learnt == list(range(1, 257))


@pytest.mark.parametrize(
    ("screen", "image", "blocks"),
    [
        ((210, 160), (84, 84), 42),
        ((210, 160), (105, 80), 105),
        ((210, 160), (64, 64), 2),
        ((250, 160), (84, 84), 1),  # 125 / 42 has no exact binary fraction
        ((210, 160), (420, 84), 1),  # enlarged: interpolated, rows depend on their neighbours
        ((210, 160), (84, 200), 1),
    ],
)
def test_blocks(screen: tuple[int, int], image: tuple[int, int], blocks: int) -> None:
    assert count_blocks(screen, image) == blocks
