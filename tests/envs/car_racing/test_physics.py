"""The car written again: every number of every step is that of Gymnasium's car."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("Box2D")
pytest.importorskip("cv2")
car_racing = pytest.importorskip("gymnasium.envs.box2d.car_racing")


class Undrawn(car_racing.CarRacing):  # type: ignore[misc, name-defined]
    """The stock environment without its drawing."""

    def _render(self, mode: str) -> Any:
        return None


def ours(**options: Any) -> Any:
    from rollmill.envs.car_racing.gym import CarRacing  # needs the extra

    env = CarRacing(size=32, **options)
    env.draws = False
    return env


def wheel_state(wheel: Any) -> tuple[Any, ...]:
    mark = wheel.skid_particle
    return (
        tuple(wheel.position),
        wheel.angle,
        tuple(wheel.linearVelocity),
        (wheel.steer, wheel.gas, wheel.brake, wheel.omega, wheel.phase),
        (wheel.joint.angle, wheel.joint.motorSpeed),
        {tile.idx for tile in wheel.tiles},
        (wheel.skid_start and tuple(wheel.skid_start), mark and (mark.grass, mark.poly)),
    )


def state(env: Any) -> tuple[Any, ...]:
    car = env.car
    hull = car.hull
    return (
        (tuple(hull.position), hull.angle, tuple(hull.linearVelocity), hull.angularVelocity),
        [wheel_state(wheel) for wheel in car.wheels],
        [(mark.color, mark.poly, mark.grass) for mark in car.particles],
        (car.fuel_spent, env.reward, env.tile_visited_count, env.new_lap),
    )


def drives(seed: int, continuous: bool, steps: int) -> Any:
    """Actions in phases of 15 steps: gentle and wild, with brakes that slow down and that block, beyond the bounds."""
    rng = np.random.default_rng(seed)
    if not continuous:
        return np.repeat(rng.integers(5, size=steps // 15), 15)
    brakes = rng.choice([0.0, 0.0, -0.5, 0.05, 0.5, 0.95], size=steps // 15)
    actions = np.stack([rng.uniform(-1.5, 1.5, steps // 15), rng.uniform(-0.5, 1.5, steps // 15), brakes], axis=1)
    actions[::2, 0] *= 0.05
    return np.repeat(actions, 15, axis=0).astype(np.float32)


@pytest.mark.parametrize("continuous", [True, False])
def test_every_number_of_the_car_is_that_of_the_stock_car(continuous: bool) -> None:
    stock, mine = Undrawn(continuous=continuous), ours(continuous=continuous)
    marks = 0
    for seed in (1, 2, 3):
        stock.reset(seed=seed)
        mine.reset(seed=seed)
        assert type(mine.car) is not type(stock.car)
        for action in drives(seed, continuous, 450):
            _, reward, terminated, *_ = stock.step(action)
            assert mine.step(action)[1:3] == (reward, terminated)
            assert state(mine) == state(stock)
        marks += len(stock.car.particles)
    assert marks > 0 or not continuous
