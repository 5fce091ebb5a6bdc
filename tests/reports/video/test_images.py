"""Images side by side, larger and smaller."""

import numpy as np
import pytest

from rollmill.reports.video.images import BLACK, GAP, WHITE, contact_sheet, enlarge, framed, shrink, tiled


def grey(value: int, height: int = 3, width: int = 4) -> np.ndarray:
    return np.full((height, width, 3), value, np.uint8)


def test_images_are_enlarged_pixel_by_pixel() -> None:
    image = np.arange(24 * 32 * 3, dtype=np.uint8).reshape(24, 32, 3)
    large = enlarge(image)
    assert large.shape == (240, 320, 3)
    assert np.array_equal(large[::10, ::10], image)
    assert enlarge(image, 2).shape == (48, 64, 3)
    assert enlarge(image, 2, fit=True).shape == (48, 320, 3)
    assert enlarge(np.zeros((480, 640, 3), np.uint8)).shape == (480, 640, 3)


def test_large_images_are_made_smaller() -> None:
    image = np.zeros((300, 520, 3), np.uint8)
    image[:, ::2] = 100
    small = shrink(image, 256)
    assert small.shape == (100, 173, 3)
    assert set(np.unique(small)) <= {33, 67}
    assert shrink(image[:100, :200], 256).shape == (100, 200, 3)
    assert shrink(np.zeros((9, 3000, 3), np.uint8), 256).shape == (1, 250, 3)


def test_an_image_has_a_frame() -> None:
    whole = framed(grey(9), (1, 2, 3), 2)
    assert whole.shape == (7, 8, 3)
    assert np.array_equal(whole[2:5, 2:6], grey(9))
    assert (whole[:2] == (1, 2, 3)).all()


def test_images_of_any_size_are_laid_in_cells() -> None:
    sheet = tiled([grey(1), grey(2, 1, 2), grey(3)], 2, ground=(7, 7, 7))
    assert sheet.shape == (3 + GAP + 3, 4 + GAP + 4, 3)
    assert (sheet[:3, :4] == 1).all()
    assert (sheet[1, 4 + GAP + 1 : 4 + GAP + 3] == 2).all(), "in the middle of its cell"
    assert (sheet[3 + GAP :, :4] == 3).all()
    assert (sheet[3 : 3 + GAP] == 7).all()
    assert (tiled([grey(1)], 1)[0, 0] == 1).all()
    assert (tiled([grey(1), grey(1)], 1)[4] == BLACK).all()


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_a_contact_sheet_shows_any_number_of_channels(channels: int) -> None:
    rows = [np.zeros((5, 8, 6, channels), np.uint8)] * 2
    sheet = contact_sheet(rows)
    assert sheet.shape == (2 * (2 * 10 + 2), 2 * (5 * 8 + 2), 3)
    assert (sheet[:4] == WHITE).all()
    assert (sheet[4:20, 4:16] == BLACK).all()
