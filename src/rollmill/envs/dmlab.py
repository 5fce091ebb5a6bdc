"""DeepMind Lab levels: first-person images, a set of discrete actions, instructions, kept levels.

There is no distribution of ``deepmind_lab`` for current Pythons; it is built from source. The adapter uses its
published interface only (``Lab``, ``observations``, ``step``, ``level_cache``).
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rollmill.core.errors import ConfigError, EnvError, MissingExtraError
from rollmill.core.fields import ActionSpec, Array, EnvSpec, Field, Obs
from rollmill.core.protocols import StepReturn
from rollmill.envs.levels.env import with_kept
from rollmill.envs.levels.store import LevelStore

IMAGE, INSTRUCTION = "RGB_INTERLEAVED", "INSTR"
WORDS = 16
"""Of an instruction; the longest of DMLab-30 have fewer."""

# Parts of an action, in the order of Lab's action_spec: look left-right and down-up (pixels), strafe, move, fire, jump,
# crouch.
_FORWARD, _BACKWARD = (0, 0, 0, 1, 0, 0, 0), (0, 0, 0, -1, 0, 0, 0)
_LEFT, _RIGHT = (0, 0, -1, 0, 0, 0, 0), (0, 0, 1, 0, 0, 0, 0)
_FIRE = (0, 0, 0, 0, 1, 0, 0)


def _look(pixels: int) -> tuple[int, ...]:
    return (pixels, 0, 0, 0, 0, 0, 0)


def _walk(pixels: int) -> tuple[int, ...]:
    """Return the action that walks forward, and turns by ``pixels``."""
    return (pixels, 0, 0, 1, 0, 0, 0)


_BASIC = (_FORWARD, _BACKWARD, _LEFT, _RIGHT, _look(-20), _look(20), _walk(-20), _walk(20), _FIRE)
_EXTENDED = (
    *(_FORWARD, _BACKWARD, _LEFT, _RIGHT),
    *(_look(-10), _look(10), _look(-60), _look(60)),
    *((0, 10, 0, 0, 0, 0, 0), (0, -10, 0, 0, 0, 0, 0)),
    *(_walk(-10), _walk(10), _walk(-60), _walk(60)),
    _FIRE,
)
ACTIONS = {"basic": _BASIC, "extended": _EXTENDED}
"""IMPALA's 9 actions, and the 15 of PopArt and R2D2, with slow and fast turns and looking up and down."""


class DmLabEnv:
    """One level with one player.

    Observations: ``obs``, uint8 ``[height, width, 3]``; with ``instructions`` also ``instructions``, uint8
    ``[16, buckets]``: the words of Lab's instruction one-hot by their hash, all zeros where there is none.
    """

    level_free = frozenset({"width", "height", "frame_skip", "actions", "instructions", "buckets", "renderer"})

    def __init__(
        self,
        *,
        level: str,
        width: int = 96,
        height: int = 72,
        frame_skip: int = 4,
        actions: Literal["basic", "extended"] = "basic",
        instructions: bool = False,
        buckets: int = 1000,
        renderer: Literal["software", "hardware"] = "software",
        config: dict[str, Any] | None = None,
        levels: LevelStore | None = None,
    ) -> None:
        """Load the level.

        Args:
            level: Its name, as ``contributed/dmlab30/rooms_watermaze``.
            width: Columns of the image.
            height: Rows of the image.
            frame_skip: Frames per step, with the same action.
            actions: Which of ``ACTIONS``.
            instructions: Show what the level asks for, where it does so in words.
            buckets: Kinds of words that are told apart.
            renderer: Of Lab: on the CPU or on the GPU.
            config: More of Lab's own settings.
            levels: Where made levels are kept (``env.levels.folder``).
        """
        lab = _import()
        if actions not in ACTIONS:
            raise ConfigError(f"env.args.actions={actions}: {' and '.join(ACTIONS)} are known")
        if min(width, height, frame_skip, buckets) < 1:
            given = f"{width}, {height}, {frame_skip} and {buckets}"
            raise ConfigError(f"width, height, frame_skip and buckets must be positive, got {given}")
        self._actions = [np.array(action, np.intc) for action in ACTIONS[actions]]
        settings = {"width": str(width), "height": str(height), **{k: str(v) for k, v in (config or {}).items()}}
        self._cache = None if levels is None else LabCache(levels)
        cache = {} if self._cache is None else {"level_cache": self._cache}
        asked = [IMAGE, INSTRUCTION] if instructions else [IMAGE]
        self._lab = lab.Lab(level, asked, config=settings, renderer=renderer, **cache)
        self._frame_skip = frame_skip
        self._instructions, self._buckets = instructions, buckets
        self._last: Array | None = None
        self._told = np.zeros((WORDS, buckets), np.uint8)
        fields = [Field("obs", "uint8", (height, width, 3))]
        if instructions:
            fields.append(Field("instructions", "uint8", (WORDS, buckets)))
        self.spec = EnvSpec(
            name=f"dmlab:{level}",
            observation=tuple(fields),
            action=ActionSpec("discrete", nvec=(len(self._actions),), start=(0,)),
            frames_per_step=frame_skip,
        )

    def reset(self, seed: int, obs: Obs) -> None:
        if self._cache is not None:
            self._cache.begin(seed % 2**31)
        self._lab.reset(seed=seed % 2**31)
        self._look(obs)

    def step(self, action: Array, obs: Obs) -> StepReturn:
        if not self._lab.is_running():
            raise EnvError("step() without a running episode: call reset() first")
        reward = float(self._lab.step(self._actions[int(action[0])], num_steps=self._frame_skip))
        running = bool(self._lab.is_running())
        # Lab shows nothing once an episode is over: the last image before stands for the final one.
        self._look(obs, running)
        return reward, not running, False, {} if running else self._info()

    def _info(self) -> Mapping[str, Any]:
        """Say at an episode's end whether its level was there. Half of them are never made, and ask for nothing."""
        if self._cache is None or not self._cache.found + self._cache.made:
            return {}
        return with_kept({}, not self._cache.made)

    def render(self) -> Array | None:
        """Return the last image; None before the first ``reset``."""
        return self._last

    def close(self) -> None:
        self._lab.close()

    def _look(self, obs: Obs, running: bool = True) -> None:
        if running:
            seen = self._lab.observations()
            self._last = np.array(seen[IMAGE])
            if self._instructions:
                self._read(str(seen[INSTRUCTION]))
        assert self._last is not None, "an episode shows its first image before it can end"
        view = obs["obs"][0]
        if self._last.shape != view.shape or self._last.dtype != view.dtype:
            raise ValueError(f"{IMAGE} is {self._last.dtype} {self._last.shape}, expected {view.dtype} {view.shape}")
        view[:] = self._last
        if self._instructions:
            obs["instructions"][0] = self._told

    def _read(self, instruction: str) -> None:
        words = instruction.split()
        if len(words) > WORDS:
            raise EnvError(f"the instruction has {len(words)} words ({instruction!r}), {WORDS} are expected at most")
        self._told[:] = 0
        for place, word in enumerate(words):
            self._told[place, zlib.crc32(word.encode()) % self._buckets] = 1


class LabCache:
    """What ``Lab(level_cache=...)`` asks before it makes a level, and tells afterwards: a store of levels."""

    def __init__(self, store: LevelStore) -> None:
        self._store = store
        self._seed = -1
        self.found = self.made = 0

    def begin(self, seed: int) -> None:
        """Count the next levels as those of an episode with this seed."""
        self._seed = seed
        self.found = self.made = 0

    def fetch(self, key: str, pk3_path: str) -> bool:
        """Put the level ``key`` at ``pk3_path``; False when it is not here."""
        level = self._store.get(key)
        if level is None:
            return False
        Path(pk3_path).write_bytes(level)
        self.found += 1
        return True

    def write(self, key: str, pk3_path: str) -> None:
        """Keep the level that was made at ``pk3_path``."""
        self.made += 1
        self._store.put(key, self._seed, Path(pk3_path).read_bytes())


def _import() -> Any:
    try:
        import deepmind_lab  # type: ignore[import-not-found]
    except ImportError as error:
        raise MissingExtraError(
            f"DeepMind Lab's levels need deepmind_lab ({error}), which has no package for this Python: build it from "
            "source (github.com/google-deepmind/lab, its docs/users/build.md) and install the wheel that comes of it"
        ) from error
    return deepmind_lab
