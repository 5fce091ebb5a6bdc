"""MiniGrid and BabyAI: what the agent sees of the grid, which way it faces, and the words of its mission.

Fields: ``image`` (see ``View``), ``direction`` one-hot ``(4,)``, and with ``mission_words`` the mission as one-hot
words ``(mission_words, len(WORDS))``; padding is all zeros. Without them the mission is left out: in most tasks it
never changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import gymnasium as gym
import numpy as np

from rollmill.core.errors import ConfigError, EnvError, MissingExtraError
from rollmill.core.fields import ActionSpec, Array, EnvSpec, Field, Obs
from rollmill.core.protocols import StepReturn
from rollmill.core.text import nearest
from rollmill.envs.levels.snapshot import decode, encode

View = Literal["one_hot", "symbols", "rgb"]
"""``one_hot``: ``(7, 7, 21)``, 255 where a cell is of a kind (11), colour (6) or state (4); ``symbols``: ``(7, 7, 3)``,
the numbers of these; ``rgb``: an image of the same cells."""

KINDS, COLOURS, STATES = 11, 6, 4
"""How many there are; the state of an agent is its direction."""
HOT = np.uint8(255)
"""Networks divide images by 255."""

_ALL_WORDS = (
    "a after and at avoid ball behind blue box door end fetch find from front get go goal green grey hallway in key "
    "lava left matching must near next object of on open opening pick purple put reach red right room rooms square "
    "the then to traverse unlock up use yellow you your"
)
WORDS = tuple(_ALL_WORDS.split())
"""All words of all missions of MiniGrid and BabyAI."""


MODULES = ("minigrid",)
"""Whose objects a level is made of."""
NO_LEVEL = ("spec", "window", "clock", "render_size", "render_mode")
"""Attributes of a task that ``reset`` does not make: its registration, and what draws it."""


class MiniGridEnv:
    """One MiniGrid or BabyAI task. A seed and the actions fix an episode completely."""

    level_free = frozenset({"view", "tile_size", "mission_words", "actions"})
    level_packages = ("minigrid",)

    def __init__(
        self,
        *,
        task: str,
        view: View = "one_hot",
        tile_size: int = 8,
        mission_words: int = 0,
        actions: int = 0,
        **config: Any,
    ) -> None:
        """Make the task.

        Args:
            task: Its id, as ``MiniGrid-MemoryS7-v0``.
            view: How the cells before the agent are shown.
            tile_size: Pixels of a cell's side in ``rgb``.
            mission_words: How many words of the mission are shown; 0 leaves it out. BabyAI's longest have 37.
            actions: Only the first so many of left, right, forward, pick up, drop, toggle, done; 0 for all. To find the
                way, three are enough.
            config: The task's own arguments (``size``, ``agent_view_size``, ``max_steps`` ...).
        """
        if view not in ("one_hot", "symbols", "rgb"):
            raise ConfigError(f"env.args.view={view}: one_hot, symbols and rgb are known")
        if tile_size < 1 or mission_words < 0:
            raise ConfigError(f"tile_size must be at least 1 and mission_words 0, got {tile_size} and {mission_words}")
        self._env = env = _make(task, config)
        self._tile_size, self._mission_words = tile_size, mission_words
        self._first: Any = None  # what the task has shown of this episode's beginning
        cells = tuple(int(n) for n in env.observation_space["image"].shape[:2])  # type: ignore[index]
        shapes = {
            "one_hot": (*cells, KINDS + COLOURS + STATES),
            "symbols": (*cells, 3),
            "rgb": (cells[1] * tile_size, cells[0] * tile_size, 3),
        }
        writers: dict[str, Callable[[Array, Array], None]] = {
            "one_hot": _write_one_hot,
            "symbols": np.copyto,
            "rgb": self._write_rgb,
        }
        self._write_image = writers[view]
        fields = [Field("image", "uint8", shapes[view]), Field("direction", "uint8", (4,))]
        if mission_words:
            fields.append(Field("mission", "uint8", (mission_words, len(WORDS))))
        self.spec = EnvSpec(
            name=task,
            observation=tuple(fields),
            action=ActionSpec("discrete", nvec=(_choices(env, actions),), start=(0,)),
        )

    def reset(self, seed: int, obs: Obs) -> None:
        self._first, _ = self._env.reset(seed=seed)
        self._write(self._first, obs)

    def save_level(self) -> bytes:
        """Return all that the task has made of the seed: the grid and what lies in it, the mission, who has to verify
        it, the random numbers that come next."""
        env = self._env
        made = {
            name: value
            for name, value in vars(env).items()
            if name not in NO_LEVEL and not isinstance(value, type | gym.Space)
        }
        return encode((made, self._first), MODULES, (env,))

    def load_level(self, level: bytes, seed: int, obs: Obs) -> None:
        made, self._first = decode(level, MODULES, (self._env,))
        vars(self._env).update(made)
        self._write(self._first, obs)

    def step(self, action: Array, obs: Obs) -> StepReturn:
        seen, reward, terminated, truncated, _ = self._env.step(int(action[0]))
        self._write(seen, obs)
        return float(reward), terminated, truncated, {}

    def render(self) -> Array | None:
        """Return the whole grid in colour."""
        image: Array = self._env.unwrapped.get_frame(highlight=True, tile_size=32)  # type: ignore[attr-defined]
        return image

    def close(self) -> None:
        self._env.close()

    def _write(self, seen: dict[str, Any], obs: Obs) -> None:
        self._write_image(obs["image"][0], seen["image"])
        direction = obs["direction"][0]
        direction[:] = 0
        direction[seen["direction"]] = 1
        if self._mission_words:
            self._write_mission(obs["mission"][0], seen["mission"])

    def _write_rgb(self, view: Array, symbols: Array) -> None:
        """Write the image, drawn from the grid: ``symbols`` say the same."""
        view[:] = self._env.unwrapped.get_frame(tile_size=self._tile_size, agent_pov=True)  # type: ignore[attr-defined]

    def _write_mission(self, view: Array, mission: str) -> None:
        words = mission.replace(",", " ").split()
        if len(words) > self._mission_words:
            raise EnvError(f"the mission has {len(words)} words ({mission!r}), env.args.mission_words allows fewer")
        view[:] = 0
        for place, word in enumerate(words):
            if word not in WORDS:
                raise EnvError(f"the mission {mission!r} has a word that is not known: {word!r}")
            view[place, WORDS.index(word)] = 1


def _write_one_hot(view: Array, symbols: Array) -> None:
    view[:] = 0
    kind, colour, state = symbols.reshape(-1, 3).T
    flat = view.reshape(len(kind), -1)
    cell = np.arange(len(kind))
    flat[cell, kind] = flat[cell, KINDS + colour] = flat[cell, KINDS + COLOURS + state] = HOT


def _choices(env: gym.Env, wanted: int) -> int:
    if not isinstance(env.action_space, gym.spaces.Discrete):
        raise ConfigError(f"MiniGrid's actions are Discrete, this task has {env.action_space}")
    count = int(env.action_space.n)
    if not 0 <= wanted <= count:
        raise ConfigError(f"env.args.actions={wanted}: the task has {count}")
    return wanted or count


def _make(task: str, config: dict[str, Any]) -> gym.Env:
    try:
        import minigrid
    except ImportError as error:
        raise MissingExtraError(f'{task} needs minigrid ({error}): pip install "rollmill[minigrid]"') from error
    gym.register_envs(minigrid)
    known = [name for name in gym.registry if name.startswith(("MiniGrid-", "BabyAI-"))]
    if task not in known:
        hint = nearest(task, known)
        raise ConfigError(f"MiniGrid has no task {task!r}{f'; {hint}' if hint else ''}")
    # Its step is checked by the tests here; the wrappers would cost a tenth of it.
    try:
        env: gym.Env = gym.make(gym.registry[task], disable_env_checker=True, **config).unwrapped
    except TypeError as error:
        raise ConfigError(f"env.args={config}: {task} cannot be built with them: {error}") from error
    return env
