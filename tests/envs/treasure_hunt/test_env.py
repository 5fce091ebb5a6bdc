from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from rollmill.core.errors import ConfigError
from rollmill.core.fields import MASK_FIELD, Array
from rollmill.envs.make import check_env_settings
from rollmill.envs.settings import EnvSettings
from rollmill.envs.treasure_hunt.env import TreasureHuntEnv, TreasureHuntVector
from rollmill.envs.treasure_hunt.map import CELL
from rollmill.envs.treasure_hunt.observation import END, FREE, TREASURES, VISITS, unpack
from rollmill.envs.treasure_hunt.render import (
    AGENT,
    AT_END,
    BUFF,
    GAP,
    OPEN,
    PANEL,
    READY,
    TAKEN,
    TRAIL,
    TREASURE,
    ZOOM,
)
from rollmill.envs.treasure_hunt.rewards import TERMS
from rollmill.envs.treasure_hunt.world import VIEW, WINDOW


def test_observations_are_in_their_space() -> None:
    env = TreasureHuntVector(4, treasure_num="uniform")
    obs, _ = env.reset(seed=3)
    rng = np.random.default_rng(0)
    for _ in range(300):
        assert env.observation_space.contains({name: np.asarray(x) for name, x in obs.items()})
        obs, *_ = env.step(rng.integers(0, 16, 4))


def test_the_window_shows_what_is_around_with_north_at_the_top() -> None:
    env = TreasureHuntEnv(treasure_num=13)
    env.reset(seed=0)
    world = env.world
    world.position[0] = world.map.positions[3] + (0, 3 * CELL)  # three cells north of a treasure
    obs, *_ = env.step(0)
    row, column = world.cell[0]
    around = np.pad(world.map.free, VIEW)[row : row + WINDOW, column : column + WINDOW]
    np.testing.assert_array_equal(obs["maps"][FREE] > 0, around)
    sites = world.map.sites
    down, right = sites[3] - (row, column)
    assert down > 0, "the treasure is south of the agent"
    assert obs["maps"][TREASURES][VIEW + down, VIEW + right] == 255
    assert obs["maps"][VISITS][VIEW, VIEW] == 51


def test_the_end_is_on_its_map() -> None:
    env = TreasureHuntEnv()
    env.reset(seed=0)
    env.world.position[0] = env.world.map.positions[1] + (4 * CELL, 0)
    obs, *_ = env.step(0)
    ends = np.argwhere(obs["maps"][END])
    assert len(ends) == 1
    assert ends[0][1] < VIEW, "west of the agent"


def test_the_vector_by_name() -> None:
    env = TreasureHuntEnv(treasure_num=2)
    obs, _ = env.reset(seed=0)
    named = unpack(obs)
    world = env.world
    np.testing.assert_allclose(named["position"], world.position[0] / 64000, rtol=1e-6)
    assert named["treasure_present"].tolist() == [1, 1] + [0] * 11
    away = [world.map.distances[site][tuple(world.cell[0])] / 256 for site in (3, 4)]
    np.testing.assert_allclose(named["treasure_distance"], [*away, *[1.0] * 11], rtol=1e-6)
    assert named["buff_present"] == 1
    assert named["end_distance"] == pytest.approx(world.map.distances[1][tuple(world.cell[0])] / 256)
    assert named["mask"].tolist() == [1] * 16


def test_the_mask_forbids_a_flash_that_is_not_ready() -> None:
    env = TreasureHuntEnv()
    env.reset(seed=0)
    obs, *_ = env.step(8)
    assert obs[MASK_FIELD].tolist() == [1] * 8 + [0] * 8


def test_the_same_seed_gives_the_same_hunt() -> None:
    def play(env: Any) -> list[Array]:
        env.reset(seed=5)
        return [env.step(np.array([k % 16, (3 * k) % 16]))[0]["vector"].copy() for k in range(200)]

    for one, two in zip(play(TreasureHuntVector(2)), play(TreasureHuntVector(2)), strict=True):
        np.testing.assert_array_equal(one, two)


def test_one_hunt_is_a_vector_of_one() -> None:
    one, many = TreasureHuntEnv(treasure_num=3), TreasureHuntVector(1, treasure_num=3)
    one.reset(seed=7)
    many.reset(seed=7)
    for k in range(100):
        obs, reward, *_ = one.step(k % 16)
        batch, rewards, *_ = many.step(np.array([k % 16]))
        np.testing.assert_array_equal(obs["maps"], batch["maps"][0])
        assert reward == rewards[0]


def test_an_ended_hunt_begins_anew_in_the_next_step() -> None:
    env = TreasureHuntVector(2, max_step=3)
    env.reset(seed=0)
    for _ in range(2):
        *_, truncated, _ = env.step(np.array([0, 0]))
        assert not truncated.any()
    *_, truncated, info = env.step(np.array([0, 0]))
    assert truncated.all()
    assert info["_episode_stats"].all()
    _, reward, terminated, truncated, info = env.step(np.array([0, 0]))
    assert not reward.any()
    assert not (terminated | truncated).any()
    assert "episode_stats" not in info
    assert (env.world.step_no == 0).all()


def test_every_reward_term_is_logged_by_itself_and_they_add_up() -> None:
    env = TreasureHuntEnv(max_step=60, treasure_num=5, dynamic_treasures=True)
    env.reset(seed=1)
    rng, total = np.random.default_rng(1), 0.0
    over = False
    while not over:
        _, reward, terminated, truncated, info = env.step(int(rng.integers(16)))
        total += reward
        over = terminated or truncated
    stats = info["episode_stats"]
    assert {f"reward_{name}" for name in TERMS} <= stats.keys()
    assert sum(stats[f"reward_{name}"] for name in TERMS) == pytest.approx(total)


def test_weights_of_terms() -> None:
    silent = TreasureHuntEnv(rewards=dict.fromkeys(TERMS, 0))
    silent.reset(seed=0)
    assert silent.step(0)[1] == 0
    only = TreasureHuntEnv(rewards={**dict.fromkeys(TERMS, 0), "step": 5.0}, reward_scale=1.0)
    only.reset(seed=0)
    assert only.step(0)[1] == pytest.approx(-1.0)
    with pytest.raises(ValueError, match="no reward term 'stepp'; did you mean 'step'"):
        TreasureHuntEnv(rewards={"stepp": 1.0})


def test_steps_cost_nothing_before_their_time() -> None:
    variables = {"progress": 0.2}
    env = TreasureHuntEnv(rewards={**dict.fromkeys(TERMS, 0), "step": 1.0}, step_from=0.5, variables=variables)
    env.reset(seed=0)
    assert env.step(0)[1] == 0
    variables["progress"] = 0.5
    assert env.step(0)[1] < 0


def test_a_list_of_counts_follows_the_progress() -> None:
    variables = {"progress": 0.0}
    env = TreasureHuntEnv(treasure_num=[1, 5, 13], variables=variables)
    for progress, count in ((0.0, 1), (0.4, 5), (0.7, 13), (1.0, 13)):
        variables["progress"] = progress
        env.reset(seed=0)
        assert env.world.treasures[0].sum() == count


def test_an_image() -> None:
    env = TreasureHuntEnv(render_mode="rgb_array")
    env.reset(seed=0)
    image = env.render()
    assert image.dtype == np.uint8
    assert image.shape[0] == 512
    before = image.copy()
    env.step(0)
    assert (env.render() != before).any()


def at(env: TreasureHuntEnv, cell: Array, down: int = 0, right: int = 0) -> list[int]:
    """The colour in the middle of a cell on the image's map, or some pixels beside it."""
    row, column = (cell * ZOOM + ZOOM // 2).tolist()
    return env.render()[row + down, column + right].tolist()


def test_what_the_image_tells() -> None:
    """Treasures that are there and those that were taken, the way, the flash, the buff."""
    env = TreasureHuntEnv(render_mode="rgb_array", treasure_num=2)
    env.reset(seed=0)
    world, sites = env.world, env.world.map.sites
    assert at(env, world.cell[0]) == list(READY), "the flash is ready"
    assert at(env, sites[3]) == at(env, sites[4]) == list(TREASURE)
    begun = world.cell[0].copy()
    for _ in range(4):
        env.step(2)
    assert at(env, (begun + world.cell[0]) // 2) == list(TRAIL), "all cells on the way, those between two steps, too"
    world.position[0] = world.map.positions[3]
    env.step(8)
    world.position[0] = world.map.positions[1]
    world.cell[0] = sites[1]
    assert not world.treasures[0, 3]
    assert at(env, sites[3]) == list(TAKEN)
    assert at(env, sites[4]) == list(TREASURE)
    assert at(env, world.cell[0]) == list(AGENT), "the flash is not ready"
    world.buff_left[0] = 5
    assert at(env, world.cell[0], down=8) == list(BUFF)


def test_local_maps_have_their_colours() -> None:
    env = TreasureHuntEnv(render_mode="rgb_array", treasure_num=13)
    env.reset(seed=0)
    env.world.position[0] = env.world.map.positions[3] + (0, 6 * CELL)
    env.step(0)
    panels = env.render()[:, -PANEL:]
    colours = [set(map(tuple, panels[k * (PANEL + GAP) :][:PANEL].reshape(-1, 3).tolist())) for k in range(4)]
    assert all(AGENT in found for found in colours)
    assert OPEN in colours[FREE]
    assert TREASURE in colours[TREASURES]
    assert AT_END not in colours[END], "it is far away"


def test_gymnasium_checks_it() -> None:
    check_env(TreasureHuntEnv(render_mode="rgb_array"), skip_render_check=True)


def test_unknown_settings_are_refused() -> None:
    for vector in (False, True):
        misspelt = EnvSettings(id="treasure_hunt", vector=vector, args={"treasure_nun": 3})
        with pytest.raises(ConfigError, match=r"env\.args\.treasure_nun: .*did you mean 'treasure_num'"):
            check_env_settings(misspelt)
        check_env_settings(EnvSettings(id="treasure_hunt", vector=vector, args={"treasure_num": 3, "rewards": {}}))
