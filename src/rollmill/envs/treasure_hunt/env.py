"""The treasure hunt as Gymnasium environments: many at once (``TreasureHuntVector``), or one.

Start somewhere on a large walled map, collect treasures, reach the end in few steps. ``docs/treasure_hunt.md`` has the
rules; ``HuntSettings`` are the arguments.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any, TypeVar

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

from rollmill.core.fields import Array
from rollmill.envs.keys import CODES
from rollmill.envs.treasure_hunt.map import HuntMap, generate_map
from rollmill.envs.treasure_hunt.observation import ACTIONS, SPACE, Observer
from rollmill.envs.treasure_hunt.rewards import HuntRewards
from rollmill.envs.treasure_hunt.settings import HuntSettings
from rollmill.envs.treasure_hunt.world import Moved, World
from rollmill.envs.variables import PROGRESS

T = TypeVar("T")
Variables = Mapping[str, float]
"""Numbers that the run changes; ``progress`` is the share of it that is done."""


def _takes_settings(cls: type[T]) -> type[T]:
    """Show the fields of ``HuntSettings`` as arguments, so that a misspelt one is refused before a run starts."""
    shown = inspect.signature(cls).parameters.values()
    named = [
        inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=getattr(HuntSettings(), f.name))
        for f in dataclasses.fields(HuntSettings)
    ]
    parameters = [*(p for p in shown if p.kind is not p.VAR_KEYWORD), *named]
    cls.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return cls


@_takes_settings
class TreasureHuntVector(gym.vector.VectorEnv):
    """``num_envs`` hunts, stepped by one call. An ended hunt begins anew with the next step."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP, "render_modes": ["rgb_array"], "render_fps": 20}

    def __init__(
        self,
        num_envs: int = 1,
        *,
        variables: Variables | None = None,
        max_episode_steps: int | None = None,
        render_mode: str | None = None,
        **settings: Any,
    ) -> None:
        """Set up the hunts; of ``max_step`` and ``max_episode_steps``, another name of it, the lower limit counts."""
        self.settings = HuntSettings(**settings)
        if max_episode_steps is not None and max_episode_steps < self.settings.max_step:
            self.settings = dataclasses.replace(self.settings, max_step=max_episode_steps)
        self.num_envs, self.render_mode = num_envs, render_mode
        self.single_observation_space, self.single_action_space = SPACE, ACTIONS
        self.observation_space = gym.vector.utils.batch_space(SPACE, num_envs)
        self.action_space = gym.vector.utils.batch_space(ACTIONS, num_envs)
        self._variables = variables if variables is not None else {}
        self._check_progress()
        if self.settings.map_random and num_envs > 1:
            raise ValueError("map_random: hunts that are stepped together share a map; set env.vector=false")
        self.world = World(self.settings, num_envs)
        self._observer, self.rewards = Observer(self.world), HuntRewards(self.world, self._variables)
        self._rng = np.random.default_rng()
        self._over = np.zeros(num_envs, bool)
        self._begun = False

    @property
    def progress(self) -> float:
        """The share of the run that is done; 1 outside of a run, where curricula are over."""
        return self._variables.get(PROGRESS, 1.0)

    def _check_progress(self) -> None:
        """Refuse a curriculum that nothing would ever move: it would be over from the start."""
        for name in self.settings.by_progress:
            if PROGRESS not in self._variables:
                raise ValueError(
                    f"{name}={getattr(self.settings, name)!r} goes by the progress of the run: set "
                    "env.variables.progress=1 (the run moves it from 0 to 1; evaluations see 1)"
                )

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: Any = None
    ) -> tuple[dict[str, Array], dict[str, Any]]:
        if seed is not None:
            self._rng = np.random.default_rng(seed)  # type: ignore[arg-type]  # a list of integers is a seed, too
        if self.settings.map_random:
            self._change_map((options or {}).get("level"))
        self._begun = True
        distances = self._begin(np.arange(self.num_envs))
        return self._observer.look(distances), self._info(None)

    def step(self, actions: Array) -> tuple[dict[str, Array], Array, Array, Array, dict[str, Any]]:
        if not self._begun:
            raise gym.error.ResetNeeded("call reset() before the first step()")
        over = self._over
        moved = self.world.step(np.asarray(actions), self._rng)
        moved.forget(over)
        distances = self.world.site_distances()
        reward = self.rewards.step(moved, distances, self.progress)
        ended = moved.at_end | moved.timed_out
        if over.any():
            reward[over] = 0.0
            distances = self._begin(np.flatnonzero(over))
        info = self._info(moved)
        if ended.any():
            info["episode_stats"], info["_episode_stats"] = self._stats(moved, ended), ended
        self._over = ended
        return self._observer.look(distances), reward, moved.at_end, moved.timed_out, info

    def _change_map(self, level: bytes | None) -> None:
        """Draw the map of this episode, or take the one that was kept."""
        number = int(self._rng.integers(1, 2**31))  # in any case: what follows is drawn from the same numbers
        self.world.use(generate_map(number) if level is None else HuntMap.from_bytes(level))
        self._observer.look_at_map()
        self.rewards.look_at_map()

    def _begin(self, lanes: Array) -> Array:
        """Begin new hunts in these lanes; returns the distances of all."""
        self.world.reset(lanes, self._rng, self.progress)
        distances = self.world.site_distances()
        self.rewards.begin(lanes, distances)
        self._over[lanes] = False
        return distances

    def _info(self, moved: Moved | None) -> dict[str, Any]:
        w, n = self.world, self.num_envs
        return {
            "position": w.position.copy(),
            "step_no": w.step_no.copy(),
            "score": w.score(moved.at_end if moved is not None else np.zeros(n, bool)),
            "treasure_count": w.taken,
            "buff_count": w.buffs.copy(),
            "flash_count": w.flashes.copy(),
            "hit_wall": (moved.hit_wall | moved.hit_flashing) if moved is not None else np.zeros(n, bool),
            "cooldown": w.cooldown.copy(),
            "buff_time": w.buff_left.copy(),
            "distance": moved.distance if moved is not None else np.zeros(n),
        }

    def _stats(self, moved: Moved, ended: Array) -> dict[str, Array]:
        """Return statistics of ended episodes as Gymnasium batches them: values, and which lanes have one."""
        w = self.world
        found = {
            "score": w.score(moved.at_end),
            "reached_end": moved.at_end,
            "treasures": w.taken,
            "treasures_placed": w.at_start.sum(1),
            "treasures_missed": w.treasures.sum(1),
            "buffs": w.buffs,
            "flashes": w.flashes,
            "wall_hits": w.hits,
            **self.rewards.terms.sums(self.settings.reward_scale),
        }
        stats: dict[str, Array] = {}
        for name, values in found.items():
            stats[name], stats[f"_{name}"] = np.asarray(values, np.float64).copy(), ended
        return stats

    def render(self) -> Any:
        from rollmill.envs.treasure_hunt.render import draw

        return tuple(draw(self.world, lane) for lane in range(self.num_envs))


@_takes_settings
class TreasureHuntEnv(gym.Env):
    """One hunt."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}

    def __init__(self, *, render_mode: str | None = None, variables: Variables | None = None, **settings: Any) -> None:
        self.render_mode = render_mode
        self._vector = TreasureHuntVector(1, variables=variables, **settings)
        if self._vector.settings.map_random:
            self.save_level = self._save_map
        self.observation_space, self.action_space = SPACE, ACTIONS

    @property
    def world(self) -> World:
        """The state of the hunt: lane 0 of a world of one."""
        return self._vector.world

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Array], dict[str, Any]]:
        super().reset(seed=seed)
        obs, info = self._vector.reset(seed=seed, options=options)
        return _first(obs), _first(info)

    def _save_map(self) -> bytes:
        """Return the level of an episode with its own map; all else of its start is drawn again from the seed."""
        return self.world.map.to_bytes()

    def step(self, action: Any) -> tuple[dict[str, Array], float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self._vector.step(np.array([action]))
        stats = info.pop("episode_stats", None)
        info.pop("_episode_stats", None)
        own = _first(info)
        if stats is not None:
            own["episode_stats"] = {name: float(x[0]) for name, x in stats.items() if not name.startswith("_")}
        return _first(obs), float(reward[0]), bool(terminated[0]), bool(truncated[0]), own

    def get_keys_to_action(self) -> dict[tuple[int, ...], int]:
        """Return the action of every set of keys: arrows walk, two at a time aslant; with shift they flash."""
        east, north, west, south = (CODES[name] for name in ("right", "up", "left", "down"))
        ways = ((east,), (east, north), (north,), (north, west), (west,), (west, south), (south,), (south, east))
        flashes = [(*way, CODES["shift"]) for way in ways]
        return {tuple(sorted(keys)): action for action, keys in enumerate((*ways, *flashes))}

    def render(self) -> Array | None:
        if self.render_mode is None:
            return None
        from rollmill.envs.treasure_hunt.render import draw

        return draw(self.world, 0)


def _first(batched: Mapping[str, Array]) -> dict[str, Any]:
    return {name: array[0].copy() if array.ndim > 1 else array[0].item() for name, array in batched.items()}
