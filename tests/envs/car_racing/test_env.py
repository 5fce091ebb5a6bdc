"""Our CarRacing against Gymnasium's: the same episodes, nearly the same images; and its promises beyond that."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from rollmill.core.errors import ConfigError, EnvError
from rollmill.core.fields import Array, Obs
from rollmill.envs.car_racing.env import CarRacingEnv
from rollmill.envs.make import make_env
from rollmill.envs.settings import EnvSettings

pytest.importorskip("Box2D")
pytest.importorskip("cv2")
car_racing = pytest.importorskip("gymnasium.envs.box2d.car_racing")

STEERING, STRAIGHT = np.array([0.1, 0.4, 0.0], np.float32), np.array([0.0, 0.3, 0.0], np.float32)
BOUND_OPENING, BOUND = 1.0, 0.5
"""Mean absolute difference of an image, of 255 levels; in the opening zoom everything is small and edges are many."""


class Undrawn(car_racing.CarRacing):  # type: ignore[misc, name-defined]
    """The stock environment, drawing only when asked: its images take 98 % of its time."""

    def _render(self, mode: str) -> Any:
        self.shown = self.reward  # a step draws before it counts its own cost
        return None

    def image(self, size: int = 96) -> Array:
        now, self.reward = self.reward, self.shown
        super()._render("state_pixels")
        self.reward = now
        image: Array = self._create_image_array(self.surf, (size, size))
        return image


def new_obs(env: CarRacingEnv) -> Obs:
    return {"obs": np.full((1, *env.spec.observation[0].shape), 77, np.uint8)}


def wander(seed: int, steps: int) -> Array:
    """Much gas and little steering: leaves the field soon."""
    return np.random.default_rng(seed).uniform((-0.1, 0.2, 0), (0.1, 0.9, 0.05), (steps, 3)).astype(np.float32)


# -- agreement with Gymnasium ------------------------------------------------------------------------


@pytest.mark.parametrize(("continuous", "lap"), [(True, 0.95), (False, 0.95), (True, 0.001)])
def test_tracks_rewards_and_ends_are_those_of_the_stock_environment(continuous: bool, lap: float) -> None:
    stock = Undrawn(continuous=continuous, lap_complete_percent=lap)
    ours = CarRacingEnv(size=64, continuous=continuous, lap_complete_percent=lap, max_frames=0)
    obs, ends = new_obs(ours), 0
    for seed in (1, 2):
        actions = wander(seed, 700) if continuous else np.random.default_rng(seed).integers(5, size=300)
        stock.reset(seed=seed)
        ours.reset(seed, obs)
        assert ours._game.track == stock.track
        for action in actions:
            _, reward, terminated, truncated, _ = stock.step(action)
            assert ours.step(action[None], obs)[:3] == (reward, terminated, truncated)
            ends += terminated
            if terminated:
                break
    assert ends == (2 if continuous else 0)


@pytest.mark.parametrize("size", [96, 64])
@pytest.mark.parametrize("randomize", [False, True])
def test_images_are_nearly_those_of_the_stock_environment(size: int, randomize: bool) -> None:
    for seed in (3, 4):
        stock = Undrawn(domain_randomize=randomize)
        ours = CarRacingEnv(size=size, domain_randomize=randomize)
        obs = new_obs(ours)
        stock.reset(seed=seed)
        ours.reset(seed, obs)
        for step in range(161):
            if step in (0, 5, 25, 60, 110, 160):
                difference = np.abs(stock.image(size).astype(int) - obs["obs"][0])
                assert difference.mean() < (BOUND_OPENING if step < 50 else BOUND), (seed, step)
                assert (difference <= 2).mean() > (0.9 if step < 50 else 0.95), (seed, step)
            stock.step(STEERING)
            ours.step(STEERING[None], obs)


def test_a_touched_tile_changes_its_colour_in_a_patch_that_is_painted_already() -> None:
    stock, ours = Undrawn(), CarRacingEnv()
    obs = new_obs(ours)
    stock.reset(seed=5)
    ours.reset(5, obs)
    for _ in range(75):
        stock.step(STRAIGHT)
        ours.step(STRAIGHT[None], obs)
        stock_road, road = stock.road_poly, ours._game.road_poly
        assert all(np.array_equal(a[1], b[1]) for a, b in zip(stock_road, road, strict=True))
    behind, ahead = slice(79, 83), slice(20, 60)
    image, wanted = obs["obs"][0].astype(int), stock.image().astype(int)
    np.testing.assert_allclose(image[behind, 46:50], wanted[behind, 46:50], atol=1)
    assert len(np.unique(wanted[ahead, 48])) > len(np.unique(wanted[behind, 48])) == 1


def test_render_is_the_stock_image() -> None:
    stock, ours = Undrawn(), CarRacingEnv()
    assert ours.render() is None
    stock.reset(seed=6)
    ours.reset(6, new_obs(ours))
    np.testing.assert_array_equal(ours.render(), car_racing.CarRacing._render(stock, "rgb_array"))


# -- our own promises --------------------------------------------------------------------------------


def walk(env: CarRacingEnv, seed: int, steps: int = 60) -> list[Any]:
    obs = new_obs(env)
    env.reset(seed, obs)
    seen: list[Any] = [obs["obs"].tobytes()]
    for action in wander(seed, steps):
        seen += [env.step(action[None], obs)[:3], obs["obs"].tobytes()]
    return seen


def test_a_seed_fixes_the_episode_whatever_was_played_before() -> None:
    used = CarRacingEnv(domain_randomize=True)
    walk(used, 8, 120)
    assert walk(used, 9) == walk(CarRacingEnv(domain_randomize=True), 9)


def test_frame_skip_plays_frames_and_shows_the_last() -> None:
    every, skipping = CarRacingEnv(), CarRacingEnv(frame_skip=4, max_frames=18)
    assert skipping.spec.frames_per_step == 4
    obs, shown = new_obs(every), new_obs(skipping)
    every.reset(7, obs)
    skipping.reset(7, shown)
    for frames in (4, 4, 4, 4, 2):
        rewards = [every.step(STEERING[None], obs)[0] for _ in range(frames)]
        reward, terminated, truncated, info = skipping.step(STEERING[None], shown)
        assert reward == pytest.approx(sum(rewards))
        assert (terminated, truncated) == (False, frames == 2)
        # Not equal in the opening: the ground is painted at other moments, for other zooms.
        assert np.abs(shown["obs"].astype(int) - obs["obs"]).mean() < BOUND_OPENING
    assert 0 < info["episode_stats"]["tiles"] < 1
    with pytest.raises(EnvError, match="without a running episode"):
        skipping.step(STEERING[None], shown)


def test_continuous_actions_beyond_the_bounds_are_as_good_as_the_bounds() -> None:
    one, other = CarRacingEnv(), CarRacingEnv()
    obs, shown = new_obs(one), new_obs(other)
    one.reset(1, obs)
    other.reset(1, shown)
    for step in range(120):
        wild = np.array([[-3 if step % 40 < 20 else 2, 7, -1 if step < 60 else 3]], np.float32)
        tame = np.clip(wild, (-1, 0, 0), (1, 1, 1)).astype(np.float32)
        assert one.step(wild, obs)[:3] == other.step(tame, shown)[:3]
        np.testing.assert_array_equal(obs["obs"], shown["obs"])


def test_an_impossible_action_is_refused() -> None:
    env = CarRacingEnv(continuous=False)
    obs = new_obs(env)
    env.reset(1, obs)
    with pytest.raises(EnvError, match="action 5 is not one of 0 to 4"):
        env.step(np.array([5]), obs)


@pytest.mark.parametrize("bad", [np.zeros((1, 64, 64, 3), np.uint8), np.zeros((1, 96, 96, 6), np.uint8)[..., ::2]])
def test_memory_of_another_shape_is_refused(bad: Array) -> None:
    with pytest.raises(EnvError, match="expected contiguous uint8"):
        CarRacingEnv().reset(1, {"obs": bad})


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"size": 84}, "size must be a multiple of 8"),
        ({"size": 24}, "at least 32"),
        ({"frame_skip": 0}, "frame_skip must be at least 1"),
        ({"max_frames": -1}, "max_frames must be at least 0"),
        ({"lap_complete_percent": 95.0}, "lap_complete_percent must be above 0 and at most 1"),
    ],
)
def test_wrong_settings_are_refused(args: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_env(EnvSettings(id="car_racing", args=args))


def test_a_missing_package_is_named_with_the_extra() -> None:
    code = (
        "import sys; sys.modules['cv2'] = None\n"
        "from rollmill.envs.car_racing.env import CarRacingEnv\n"
        "from rollmill.core.errors import MissingExtraError\n"
        "try: CarRacingEnv()\n"
        "except MissingExtraError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert 'pip install "rollmill[box2d]"' in done.stdout


# -- as a Gymnasium environment ----------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_gymnasium_makes_it_by_id() -> None:
    import gymnasium as gym
    from gymnasium.utils.env_checker import check_env

    from rollmill.envs.registration import CAR_RACING, register

    register()
    register()  # a second time changes nothing
    env: Any = gym.make(CAR_RACING, size=64)
    assert env.spec.max_episode_steps == gym.spec("CarRacing-v3").max_episode_steps
    check_env(env.unwrapped, skip_render_check=True)
    own = CarRacingEnv(size=64)
    obs = new_obs(own)
    first, _ = env.reset(seed=11)
    own.reset(11, obs)
    np.testing.assert_array_equal(first, obs["obs"][0])
    second, reward, *_ = env.step(STEERING)
    assert own.step(STEERING[None], obs)[0] == reward
    np.testing.assert_array_equal(second, obs["obs"][0])
    assert first is not second
    assert pickle.loads(pickle.dumps(env.unwrapped)).observation_space.shape == (64, 64, 3)  # noqa: S301


def test_a_score_is_drawn_after_somebody_else_quit_pygame() -> None:
    import pygame

    from rollmill.envs.car_racing.draw import score_image  # needs the extra

    before = score_image("0123", 96)
    pygame.quit()  # the font that is kept does not work any more
    score_image.cache_clear()
    np.testing.assert_array_equal(score_image("0123", 96), before)
