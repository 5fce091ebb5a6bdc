"""Gymnasium's car and contact listener, written again for speed: plain floats instead of numpy's, few calls into Box2D.

Every number is computed in the same order and precision as in ``gymnasium.envs.box2d``, so that an episode stays equal
to the bit; a test compares them. Why the physics is what it is, is said there.
"""

from __future__ import annotations

import math
from typing import Any

from gymnasium.envs.box2d import car_dynamics as stock
from gymnasium.envs.box2d import car_racing

GRASS_FRICTION = stock.FRICTION_LIMIT * 0.6
STIFFNESS = 205000 * stock.SIZE * stock.SIZE
BRAKE_FORCE = 15
RIGHT = (1, 0)


class Car(stock.Car):
    """Moves as the stock car."""

    def gas(self, gas: float) -> None:
        gas = min(max(float(gas), 0.0), 1.0)
        for wheel in self.wheels[2:4]:
            wheel.gas += min(gas - wheel.gas, 0.1)

    def brake(self, b: float) -> None:
        b = float(b)
        for wheel in self.wheels:
            wheel.brake = b

    def steer(self, s: float) -> None:
        self.wheels[0].steer = self.wheels[1].steer = float(s)

    def step(self, dt: float) -> None:
        for wheel in self.wheels:
            joint = wheel.joint
            joint.motorSpeed = max(min(50.0 * (wheel.steer - joint.angle), 3.0), -3.0)
            limit = GRASS_FRICTION
            for tile in wheel.tiles:
                limit = max(limit, stock.FRICTION_LIMIT * tile.road_friction)

            right, velocity = wheel.GetWorldVector(RIGHT), wheel.linearVelocity
            right_x, right_y = right.x, right.y  # and forward is (-right_y, right_x)
            x, y = velocity.x, velocity.y
            speed, side_speed = -right_y * x + right_x * y, right_x * x + right_y * y

            omega = self._turn(wheel, dt)
            wheel.phase += omega * dt

            force = (-speed + omega * wheel.wheel_rad) * STIFFNESS
            side_force = -side_speed * STIFFNESS
            total = math.sqrt(force * force + side_force * side_force)
            if total > 2.0 * limit:
                self._skid(wheel)
            else:
                wheel.skid_start = wheel.skid_particle = None
            if total > limit:
                force = force / total * limit
                side_force = side_force / total * limit
            wheel.omega = omega - dt * force * wheel.wheel_rad / stock.WHEEL_MOMENT_OF_INERTIA
            wheel.ApplyForceToCenter(
                (side_force * right_x - force * right_y, side_force * right_y + force * right_x), True
            )

    def _turn(self, wheel: Any, dt: float) -> float:
        """Return how fast a wheel turns by engine and brake, in radians per second."""
        power = dt * stock.ENGINE_POWER * wheel.gas
        self.fuel_spent += power
        omega: float = wheel.omega
        omega += power / stock.WHEEL_MOMENT_OF_INERTIA / (abs(omega) + 5.0)
        if wheel.brake >= 0.9:
            return 0.0
        if wheel.brake > 0:
            omega -= math.copysign(min(BRAKE_FORCE * wheel.brake, abs(omega)), omega)
        return omega

    def _skid(self, wheel: Any) -> None:
        """Lengthen or begin a mark on the ground; only ``render()`` shows them."""
        grass, mark = not wheel.tiles, wheel.skid_particle
        if mark and mark.grass == grass and len(mark.poly) < 30:
            mark.poly.append((wheel.position[0], wheel.position[1]))
        elif wheel.skid_start is None:
            wheel.skid_start = wheel.position
        else:
            wheel.skid_particle = self._create_particle(  # type: ignore[no-untyped-call]
                wheel.skid_start, wheel.position, grass
            )
            wheel.skid_start = None


class FrictionDetector(car_racing.FrictionDetector):
    """Does what the stock listener does, but gives a tile the road's colour only once, and tells the environment."""

    def _contact(self, contact: Any, begin: bool) -> None:
        tile, other = contact.fixtureA.body.userData, contact.fixtureB.body.userData
        if not hasattr(tile, "road_friction"):
            tile, other = other, tile
            if not hasattr(tile, "road_friction"):
                return
        if not tile.touched:
            tile.touched = True
            tile.color[:] = self.env.road_color
            self.env.recolored(tile)
        if not hasattr(other, "tiles"):  # the hull
            return
        if not begin:
            other.tiles.remove(tile)
            return
        other.tiles.add(tile)
        if not tile.road_visited:
            tile.road_visited = True
            env = self.env
            env.reward += 1000.0 / len(env.track)
            env.tile_visited_count += 1
            if tile.idx == 0 and env.tile_visited_count / len(env.track) > self.lap_complete_percent:
                env.new_lap = True
