"""Car and bar of CarRacing: what is kept from step to step is what would be drawn anew."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rollmill.core.fields import Array
from rollmill.envs.car_racing.draw import HULL_COLOR, RIM_COLOR, Bar, CarDrawing, CarShapes
from rollmill.envs.car_racing.env import CarRacingEnv
from rollmill.envs.car_racing.ground import FULL_ZOOM

cv2 = pytest.importorskip("cv2")
pytest.importorskip("Box2D")
dynamics = pytest.importorskip("gymnasium.envs.box2d.car_dynamics")

SHAPES = CarShapes(dynamics)


def wheels(steering: float, phase: float) -> list[Any]:
    return [SimpleNamespace(joint=SimpleNamespace(angle=angle), phase=phase) for angle in (steering, steering, 0, 0)]


def drawn(
    steering: float, phase: float, zoom: float = FULL_ZOOM, ground: int = 0, by: CarDrawing | None = None
) -> Array:
    out = np.full((96, 96, 3), ground, np.uint8)
    (by or CarDrawing(cv2, 96, SHAPES)).draw(wheels(steering, phase), zoom, out)
    return out.astype(int)


def test_the_car_hides_the_ground_where_it_is_and_nowhere_else() -> None:
    black, white = drawn(0.0, 0.0), drawn(0.0, 0.0, ground=255)
    assert (black[72, 47] == HULL_COLOR).all()
    assert (white[72, 47] == HULL_COLOR).all()
    hidden = (white - black)[..., 1] < 255
    rows, columns = np.flatnonzero(hidden.any(axis=1)), np.flatnonzero(hidden.any(axis=0))
    assert (rows[0], rows[-1], columns[0], columns[-1]) == (66, 76, 45, 50)
    np.testing.assert_array_equal(hidden, hidden[:, ::-1])  # left as right


def test_steering_turns_the_front_wheels() -> None:
    straight, left = drawn(0.0, 0.0, ground=255), drawn(0.4, 0.0, ground=255)
    assert np.abs(straight - left)[:72].max() > 30
    np.testing.assert_array_equal(straight[72:], left[72:])


def test_the_bright_part_of_a_wheel_comes_and_goes() -> None:
    below, above = drawn(0.0, 1.0), drawn(0.0, 4.0)
    assert below[..., 1].max() == 0  # the hull is red
    assert RIM_COLOR[1] // 2 < above[..., 1].max() <= RIM_COLOR[1]
    np.testing.assert_array_equal(drawn(0.0, 4.0 + 20 * np.pi), above)


def test_a_car_drawn_before_is_drawn_as_a_new_one() -> None:
    used = CarDrawing(cv2, 96, SHAPES)
    rng = np.random.default_rng(0)
    for zoom in (2.0, 9.0, FULL_ZOOM, FULL_ZOOM, FULL_ZOOM, 2.0):
        steering, phase = rng.uniform(-0.4, 0.4), rng.uniform(-9, 9)
        np.testing.assert_array_equal(drawn(steering, phase, zoom, 102, used), drawn(steering, phase, zoom, 102))


@pytest.mark.parametrize("size", [64, 96])
def test_the_bar_kept_from_step_to_step_is_a_new_one(size: int) -> None:
    env = CarRacingEnv(size=size)
    obs = {"obs": np.zeros((1, size, size, 3), np.uint8)}
    env.reset(1, obs)
    rng = np.random.default_rng(1)
    fresh = np.zeros((size // 8, size, 3), np.uint8)
    for _ in range(100):
        env.step(rng.uniform((-1, 0, 0), (1, 1, 0.2))[None].astype(np.float32), obs)
        Bar(size).draw(env._game.car, env._game._shown_score, fresh)
        np.testing.assert_array_equal(obs["obs"][0, -(size // 8) :], fresh)
    assert fresh[:, size // 8 :].any()
