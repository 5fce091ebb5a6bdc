from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from rollmill.core.errors import ConfigError
from rollmill.core.fields import MASK_FIELD, Array
from rollmill.envs.make import check_env_settings
from rollmill.envs.settings import EnvSettings
from rollmill.envs.treasure_hunt.env import TreasureHuntEnv, TreasureHuntVector
from rollmill.envs.treasure_hunt.map import CELL, CELLS, centres
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
from rollmill.envs.treasure_hunt.world import COOLDOWN, VIEW, WINDOW

EAST, WEST, FLASH = 0, 4, 8
BOOST, GOAL, START = 0, 1, 2
"""Sites."""


def stay_at(env: TreasureHuntEnv, site: int, east: float = 0.0) -> tuple[Any, ...]:
    """Put the agent onto a site, or so many units east of it; returns a step in which it does not move."""
    env.world.position[0] = env.world.map.positions[site] + (east, 0)
    env.world.cooldown[0] = COOLDOWN
    return env.step(FLASH)


def hunt(**settings: Any) -> TreasureHuntEnv:
    env = TreasureHuntEnv(**settings)
    env.reset(seed=0)
    return env


def test_observations_are_in_their_space() -> None:
    env = TreasureHuntVector(4, treasure_num="uniform")
    obs, _ = env.reset(seed=3)
    rng = np.random.default_rng(0)
    for _ in range(300):
        assert env.observation_space.contains({name: np.asarray(x) for name, x in obs.items()})
        actions = rng.integers(0, 16, 4)
        assert env.action_space.contains(actions)
        obs, *_ = env.step(actions)
    single = {name: x[1] for name, x in obs.items()}
    assert env.single_observation_space.contains(single)
    assert env.single_action_space.n == 16


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


def test_what_is_taken_is_seen_no_more() -> None:
    env = hunt(treasure_num=2)
    obs, *_ = stay_at(env, 3, east=600)
    assert obs["maps"][TREASURES].any()
    obs, *_ = stay_at(env, 3)
    named = unpack(obs)
    assert not named["treasures"].any()
    assert named["treasure_present"].tolist() == [0, 1] + [0] * 11
    assert named["treasure_distance"][0] == 1
    assert named["treasure_distance"][1] < 1
    named = unpack(stay_at(env, BOOST, east=600)[0])
    assert (named["buff_present"], named["buff_distance"]) == (1, pytest.approx(1 / 256))
    named = unpack(stay_at(env, BOOST)[0])
    assert (named["buff_present"], named["buff_distance"]) == (0, 1)


def test_places_of_the_vector_are_those_of_the_settings() -> None:
    """Where others than sites 1 and 2 are end and start, those two can hold treasures, and come last."""
    env = hunt(start=5, end=9, treasure_id=[2, 15])
    obs, info = env.reset(seed=0)
    named, world = unpack(obs), env.world
    assert info["position"].tolist() == world.map.positions[5].tolist()
    assert np.flatnonzero(named["treasure_present"]).tolist() == [10, 11], "3, 4, 6, 7, 8, 10 to 15, then 2"
    between = world.map.between[5]
    np.testing.assert_allclose(named["treasure_distance"][10:12], between[[15, 2]] / 256, rtol=1e-6)
    assert named["end_distance"] == pytest.approx(between[9] / 256)
    assert stay_at(env, 9)[2], "the end"


def test_what_is_far_is_at_the_border_of_its_range() -> None:
    env = hunt(end=3)
    farthest = env.world.map.distances[3].argmax()
    env.world.position[0] = centres(np.array(np.unravel_index(farthest, (CELLS, CELLS))))
    env.world.cooldown[0] = COOLDOWN
    obs, *_ = env.step(FLASH)
    assert env.world.site_distances()[0, 3] > 256
    assert unpack(obs)["end_distance"] == 1


@pytest.mark.parametrize("kind", ["treasures", "end"])
def test_the_window_ends_25_cells_from_the_agent(kind: str) -> None:
    env = hunt(treasure_id=[10]) if kind == "treasures" else hunt(end=10, treasure_num=0)
    row, column = env.world.map.sites[10]
    for down, right in ((25, 0), (-25, 0), (0, 25), (0, -25), (26, 0), (-26, 0), (0, 26), (0, -26)):
        env.world.position[0] = centres(np.array((row - down, column - right)))  # a wall, maybe
        env.world.cooldown[0] = COOLDOWN
        marks = np.argwhere(unpack(env.step(FLASH)[0])[kind]).tolist()
        assert marks == ([[25 + down, 25 + right]] if max(abs(down), abs(right)) == 25 else [])


def test_the_mask_forbids_a_flash_that_is_not_ready() -> None:
    env = hunt()
    obs, *_ = env.step(8)
    assert obs[MASK_FIELD].tolist() == [1] * 8 + [0] * 8
    env.world.cooldown[0] = 2
    assert env.step(0)[0][MASK_FIELD].tolist() == [1] * 8 + [0] * 8
    assert env.step(0)[0][MASK_FIELD].tolist() == [1] * 16


# -- ends, and what is told about them -------------------------------------------------------------


@pytest.mark.parametrize("taken", [(), (4,), (3, 5, 6)])
def test_the_end_terminates_and_only_then_there_is_a_score(taken: tuple[int, ...]) -> None:
    env = hunt(treasure_num=4)
    for site in (*taken, START):
        _, _, terminated, truncated, info = stay_at(env, site)
        assert (terminated, truncated, info["score"]) == (False, False, 0)
    _, _, terminated, truncated, info = stay_at(env, GOAL)
    assert (terminated, truncated) == (True, False)
    score = 150 + 0.2 * (2000 - len(taken) - 2) + 100 * len(taken)
    assert info["score"] == info["episode_stats"]["score"] == pytest.approx(score)


def test_the_end_on_the_last_step_is_the_end() -> None:
    env = hunt(treasure_num=1, max_step=2)
    stay_at(env, 3)
    _, _, terminated, truncated, info = stay_at(env, GOAL)
    assert (terminated, truncated) == (True, False)
    assert info["episode_stats"]["score"] == 250


def test_time_that_runs_out_truncates_and_scores_nothing() -> None:
    for env in (
        hunt(treasure_num=1, max_step=2),
        hunt(treasure_num=1, max_episode_steps=2),
        hunt(max_step=2, max_episode_steps=3),
    ):
        *_, terminated, truncated, _ = stay_at(env, 3)
        assert (terminated, truncated) == (False, False)
        *_, terminated, truncated, info = stay_at(env, 3)
        assert (terminated, truncated) == (False, True)
        assert (info["score"], info["episode_stats"]["score"]) == (0, 0)


def test_statistics_of_an_episode() -> None:
    env = hunt(treasure_num=3, max_step=9)
    env.step(FLASH)
    for site in (4, BOOST, 5):
        stay_at(env, site)
    env.world.position[0] = env.world.map.positions[START]
    walls = 0
    while not walls:
        walls = env.step(WEST)[4]["hit_wall"]
    info = stay_at(env, GOAL)[4]
    stats = info.pop("episode_stats")
    assert info.keys() == hunt().reset(seed=0)[1].keys(), "nothing else is told"
    told = {name: value for name, value in stats.items() if not name.startswith("reward_")}
    assert told == {
        "score": stats["score"],
        "reached_end": 1,
        "treasures": 2,
        "treasures_placed": 3,
        "treasures_missed": 1,
        "buffs": 1,
        "flashes": 1,
        "wall_hits": 1,
    }


def test_the_info_of_a_step() -> None:
    env = TreasureHuntEnv(treasure_num=2)
    _, info = env.reset(seed=0)
    nothing = {name: 0 for name in info if name != "position"}
    assert {type(value) for name, value in info.items() if name in nothing} == {int, float, bool}, "no arrays"
    start = env.world.map.positions[START]
    assert info.pop("position").tolist() == start.tolist()
    assert info == nothing

    def told(info: dict[str, Any]) -> dict[str, Any]:
        """What is not 0, without the position."""
        assert info.keys() == {"position", *nothing}
        assert info["position"].tolist() == env.world.position[0].tolist()
        return {name: value for name, value in info.items() if name != "position" and value}

    info = next(info for k in range(8) if (info := env.reset(seed=0) and env.step(FLASH + k)[4])["hit_wall"])
    assert told(info) == {"step_no": 1, "flash_count": 1, "cooldown": COOLDOWN, "hit_wall": True}
    info = told(stay_at(env, BOOST)[4])
    assert info == {"step_no": 2, "flash_count": 1, "cooldown": COOLDOWN - 1, "buff_count": 1, "buff_time": 50}
    info = told(env.step(EAST)[4])
    assert info.pop("distance") == env.world.position[0, 0] - env.world.map.positions[BOOST][0]
    assert info == {"step_no": 3, "flash_count": 1, "cooldown": COOLDOWN - 2, "buff_count": 1, "buff_time": 49}
    info = told(stay_at(env, 4)[4])
    assert (info["treasure_count"], info["step_no"]) == (1, 4)


def test_nothing_of_a_hunt_is_left_in_the_next_one() -> None:
    """Neither in its world nor in what is told and seen, with the step in which it begins as after ``reset``."""
    env, fresh = (TreasureHuntVector(1, treasure_num=3, max_step=5) for _ in range(2))
    seen, info = fresh.reset(seed=0)
    env.reset(seed=0)
    while not env.step(np.array([WEST]))[3]:
        pass
    for name, value in vars(env.world).items():
        if isinstance(value, np.ndarray) and not name.startswith("_"):
            value[:] = 1
    begun, *_, told = env.step(np.array([EAST]))
    for name in seen:
        np.testing.assert_array_equal(begun[name], seen[name], name)
    assert told.keys() == info.keys()
    for name in info:
        np.testing.assert_array_equal(told[name], info[name], name)
    for name, value in vars(fresh.world).items():
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(getattr(env.world, name), value, name)


def test_a_reset_begins_a_hunt_that_counts() -> None:
    """Also after one that has ended: the next step is its first."""
    env = hunt(max_step=2)
    for _ in range(2):
        stay_at(env, BOOST)
        assert stay_at(env, BOOST)[3], "time is up"
        env.reset()
    _, reward, *_, info = stay_at(env, 3)
    assert (info["step_no"], info["treasure_count"]) == (1, 1)
    assert reward > 0


def test_episodes_without_a_seed_follow_from_the_last_one() -> None:
    def played() -> list[float]:
        env = TreasureHuntEnv(treasure_num="uniform")
        env.reset(seed=4)
        return [float(env.reset()[0]["vector"][2:28].sum()) for _ in range(5)]

    assert played() == played()
    assert len(set(played())) > 1


@pytest.mark.parametrize("name", ["treasure_num", "random_start", "step_from"])
def test_what_goes_by_progress_needs_somebody_who_moves_it(name: str) -> None:
    value = [1, 3] if name == "treasure_num" else 0.5
    with pytest.raises(ValueError, match=rf"{name}=.* goes by the progress of the run: set env.variables.progress=1"):
        TreasureHuntVector(1, **{name: value})
    TreasureHuntVector(1, **{name: value}, variables={"progress": 0.0})
    TreasureHuntVector(1, treasure_num=[3], random_start=0.0, step_from=0.0)


def test_a_step_before_the_first_reset_is_refused() -> None:
    with pytest.raises(gym.error.ResetNeeded, match="reset"):
        TreasureHuntVector(1).step(np.array([0]))


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
    assert hunt().render() is None, "none was asked for"
    many = TreasureHuntVector(2, render_mode="rgb_array")
    many.reset(seed=0)
    assert [own.shape for own in many.render()] == [image.shape] * 2


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
