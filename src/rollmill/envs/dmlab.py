"""DeepMind Lab levels: first-person images, a set of discrete actions, a cache for expensive levels.

There is no distribution of ``deepmind_lab`` for current Pythons; it is built from source. The adapter uses its
published interface only (``Lab``, ``observations``, ``step``, ``level_cache``).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rollmill.core.errors import ConfigError, EnvError, MissingExtraError
from rollmill.core.fields import ActionSpec, Array, EnvSpec, Field, Obs
from rollmill.core.protocols import StepReturn

IMAGE = "RGB_INTERLEAVED"

# Parts of an action, in the order of Lab's action_spec: look left-right and down-up (pixels), strafe, move, fire, jump,
# crouch.
_LOOK_LEFT, _LOOK_RIGHT = (-20, 0, 0, 0, 0, 0, 0), (20, 0, 0, 0, 0, 0, 0)
_LOOK_UP, _LOOK_DOWN = (0, 10, 0, 0, 0, 0, 0), (0, -10, 0, 0, 0, 0, 0)
_FORWARD, _BACKWARD = (0, 0, 0, 1, 0, 0, 0), (0, 0, 0, -1, 0, 0, 0)
_LEFT, _RIGHT = (0, 0, -1, 0, 0, 0, 0), (0, 0, 1, 0, 0, 0, 0)
_FIRE = (0, 0, 0, 0, 1, 0, 0)
_BASIC = (
    _FORWARD,
    _BACKWARD,
    _LEFT,
    _RIGHT,
    _LOOK_LEFT,
    _LOOK_RIGHT,
    (-20, 0, 0, 1, 0, 0, 0),  # forward and look left
    (20, 0, 0, 1, 0, 0, 0),  # forward and look right
    _FIRE,
)
_EXTENDED = (
    *_BASIC,
    (-60, 0, 0, 0, 0, 0, 0),
    (60, 0, 0, 0, 0, 0, 0),
    _LOOK_UP,
    _LOOK_DOWN,
    (-60, 0, 0, 1, 0, 0, 0),
    (60, 0, 0, 1, 0, 0, 0),
)
ACTIONS = {"basic": _BASIC, "extended": _EXTENDED}
"""The 9 actions that are commonly used with Lab's levels, and 15 with faster turns and looking up and down."""


class DmLabEnv:
    """One level with one player. Observation ``obs``: uint8 ``[height, width, 3]``."""

    def __init__(
        self,
        *,
        level: str,
        width: int = 96,
        height: int = 72,
        frame_skip: int = 4,
        actions: Literal["basic", "extended"] = "basic",
        renderer: Literal["software", "hardware"] = "software",
        level_cache: str = "",
        config: dict[str, Any] | None = None,
    ) -> None:
        """Load the level.

        Args:
            level: Its name, as ``contributed/dmlab30/rooms_watermaze``.
            width: Columns of the image.
            height: Rows of the image.
            frame_skip: Frames per step, with the same action.
            actions: Which of ``ACTIONS``.
            renderer: Of Lab: on the CPU or on the GPU.
            level_cache: Folder where made levels are kept, for this and other runs; empty for none.
            config: More of Lab's own settings.
        """
        lab = _import()
        if actions not in ACTIONS:
            raise ConfigError(f"env.args.actions={actions}: {' and '.join(ACTIONS)} are known")
        if min(width, height, frame_skip) < 1:
            raise ConfigError(f"width, height and frame_skip must be positive, got {width}, {height}, {frame_skip}")
        self._actions = [np.array(action, np.intc) for action in ACTIONS[actions]]
        settings = {"width": str(width), "height": str(height), **{k: str(v) for k, v in (config or {}).items()}}
        cache = {"level_cache": LevelCache(Path(level_cache))} if level_cache else {}
        self._lab = lab.Lab(level, [IMAGE], config=settings, renderer=renderer, **cache)
        self._frame_skip = frame_skip
        self._last: Array | None = None
        self.spec = EnvSpec(
            name=f"dmlab:{level}",
            observation=(Field("obs", "uint8", (height, width, 3)),),
            action=ActionSpec("discrete", nvec=(len(self._actions),), start=(0,)),
            frames_per_step=frame_skip,
        )

    def reset(self, seed: int, obs: Obs) -> None:
        self._lab.reset(seed=seed % 2**31)
        self._look(obs)

    def step(self, action: Array, obs: Obs) -> StepReturn:
        if not self._lab.is_running():
            raise EnvError("step() without a running episode: call reset() first")
        reward = float(self._lab.step(self._actions[int(action[0])], num_steps=self._frame_skip))
        running = bool(self._lab.is_running())
        # Lab shows nothing once an episode is over: the last image before stands for the final one.
        self._look(obs, running)
        return reward, not running, False, {}

    def render(self) -> Array | None:
        """The last image; None before the first ``reset``."""
        return self._last

    def close(self) -> None:
        self._lab.close()

    def _look(self, obs: Obs, running: bool = True) -> None:
        if running:
            self._last = np.array(self._lab.observations()[IMAGE])
        assert self._last is not None, "an episode shows its first image before it can end"
        view = obs["obs"][0]
        if self._last.shape != view.shape or self._last.dtype != view.dtype:
            raise ValueError(f"{IMAGE} is {self._last.dtype} {self._last.shape}, expected {view.dtype} {view.shape}")
        view[:] = self._last


class LevelCache:
    """Made levels in a folder: what ``Lab(level_cache=...)`` asks before it makes one, and tells afterwards.

    Several processes may share a folder: a level appears in it whole or not at all. Levels that were made elsewhere
    are imported by copying such a folder.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.found = self.made = 0

    def fetch(self, key: str, pk3_path: str) -> bool:
        """Put the level ``key`` at ``pk3_path``; False when it is not here."""
        try:
            shutil.copyfile(self._path(key), pk3_path)
        except FileNotFoundError:
            return False
        self.found += 1
        return True

    def write(self, key: str, pk3_path: str) -> None:
        """Keep the level that was made at ``pk3_path``."""
        path = self._path(key)
        path.parent.mkdir(exist_ok=True)
        descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=".draft-")
        os.close(descriptor)
        try:
            shutil.copyfile(pk3_path, draft)
            os.replace(draft, path)
        except BaseException:
            os.unlink(draft)
            raise
        self.made += 1

    def _path(self, key: str) -> Path:
        """By a hash: keys hold slashes and may be long. Folders of 256 keep listings short."""
        name = hashlib.sha256(key.encode()).hexdigest()[:40]
        return self.folder / name[:2] / f"{name}.pk3"


def _import() -> Any:
    try:
        import deepmind_lab  # type: ignore[import-not-found]
    except ImportError as error:
        raise MissingExtraError(
            f"DeepMind Lab's levels need deepmind_lab ({error}), which has no package for this Python: build it from "
            "source (github.com/google-deepmind/lab, its docs/users/build.md) and install the wheel that comes of it"
        ) from error
    return deepmind_lab
