"""The ground patch: whatever it was painted for, the view from it is that of a fresh one."""

from __future__ import annotations

import numpy as np
import pytest

from rollmill.envs.car_racing.ground import FULL_ZOOM, PLAYFIELD, Ground

cv2 = pytest.importorskip("cv2")

FIELD, GRASS_COLOR = np.array([102, 204, 102]), np.array([102, 230, 102])
RING = 120.0
"""Radius of the road, metres."""


def ring(count: int = 200) -> np.ndarray:
    angles = np.linspace(0, 2 * np.pi, count + 1)
    inner, outer = (np.stack([r * np.cos(angles), r * np.sin(angles)], axis=1) for r in (RING - 6, RING + 6))
    return np.stack([inner[1:], outer[1:], outer[:-1], inner[:-1]], axis=1)


def ground(size: int = 96, colors: np.ndarray | None = None) -> Ground:
    made = Ground(cv2, size)
    quads = ring()
    made.set_track(quads, np.full((len(quads), 3), 102.0) if colors is None else colors, FIELD, GRASS_COLOR)
    return made


def view(of: Ground, car: complex, angle: float, zoom: float = FULL_ZOOM) -> np.ndarray:
    out = np.zeros((84, 96, 4), np.uint8)
    of.paint_view(car, angle, zoom, out)
    return out[..., :3].astype(int)


def test_a_used_patch_shows_what_a_fresh_one_shows() -> None:
    used = ground()
    rng = np.random.default_rng(0)
    for step in range(60):
        place = RING * np.exp(0.02j * step) + complex(*rng.normal(size=2))
        angle = 0.02 * step + rng.normal() * 0.3
        assert np.abs(view(used, place, angle) - view(ground(), place, angle)).mean() < 0.01


def test_zooming_in_paints_again() -> None:
    used = ground()
    for zoom in np.linspace(0.9, FULL_ZOOM, 30):
        assert np.abs(view(used, RING + 0j, 0.0, zoom) - view(ground(), RING + 0j, 0.0, zoom)).mean() < 1.5


def test_the_view_beyond_the_field_is_black() -> None:
    assert view(ground(), complex(PLAYFIELD + 100, 0), 0.0).max() == 0


def test_a_new_track_replaces_the_old_one() -> None:
    used = ground()
    before = view(used, RING + 0j, 0.0)
    used.set_track(ring() + 1000, np.full((200, 3), 102.0), FIELD, GRASS_COLOR)
    after = view(used, RING + 0j, 0.0)
    assert (before[40, 48] == 100).all()
    assert (after[40, 48] != 100).any()


def test_a_tile_that_changes_colour_is_painted_again() -> None:
    used = ground()
    before = view(used, RING + 0j, 0.0)
    colors = np.full((200, 3), 102.0)
    for tile in (4, 3):
        colors[tile] = (250, 10, 20)
        used.recolor(tile, colors[tile])
    after, fresh = view(used, RING + 0j, 0.0), view(ground(colors=colors), RING + 0j, 0.0)
    assert np.abs(after - before).mean() > 1
    assert np.abs(after - fresh).max() <= 1


def test_a_changed_colour_stays_when_the_patch_is_left() -> None:
    colors = np.full((200, 3), 102.0)
    colors[3] = (250, 10, 20)
    used, fresh = ground(), ground(colors=colors)
    used.recolor(3, colors[3])
    view(used, -RING + 0j, 0.0)
    np.testing.assert_array_equal(view(used, RING + 0j, 0.0), view(fresh, RING + 0j, 0.0))
