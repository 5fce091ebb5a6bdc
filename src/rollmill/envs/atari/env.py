"""Plays Atari 2600 games: ALE's emulator is driven directly, with the usual preprocessing.

One step is ``frame_skip`` frames of the same action; the agent sees the pixel-wise maximum of the last two,
in gray, shrunk by averaging, and stacked with the images of earlier steps. Images and rewards are those
of Gymnasium's ``AtariPreprocessing`` and ``FrameStackObservation`` for the same seed and actions; what differs:

- The last observation of an episode that ended amid a step is the screen at its end, not an older one.
- Sticky actions are drawn from the episode's own random numbers; ALE's can only be seeded by loading the
  ROM again, which takes as long as 300 steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rollmill.core.errors import ConfigError, EnvError, MissingExtraError
from rollmill.core.fields import ActionSpec, Array, EnvSpec, Field, Obs
from rollmill.core.protocols import StepReturn
from rollmill.core.text import nearest
from rollmill.envs.atari.screen import Screen

NO_INFO: Mapping[str, Any] = {}
NOOP, FIRE = 0, 1
"""ALE's numbers of these actions, in every game."""


class AtariEnv:
    """One Atari game with one player.

    Observation ``obs``: uint8 ``[height, width, stack]``, the newest image last. An episode begins with
    its first image repeated.

    A seed and the actions fix an episode completely, in any process and whatever was played before. The one
    exception is ``episodic_life``: an episode is then one life, and all but a game's first begin where the
    life before ended.
    """

    def __init__(
        self,
        *,
        game: str = "pong",
        frame_skip: int = 4,
        width: int = 84,
        height: int = 84,
        stack: int = 4,
        noop_max: int = 30,
        fire_reset: bool = False,
        episodic_life: bool = False,
        sticky: float = 0.0,
        full_action_set: bool = False,
        max_frames: int = 108_000,
        mode: int | None = None,
        difficulty: int | None = None,
    ) -> None:
        """Load the game.

        Args:
            game: ALE's name of it, in snake case.
            frame_skip: Frames per step.
            width: Columns of the image.
            height: Rows of the image.
            stack: Images in one observation.
            noop_max: Begin with 1 to this many idle frames, drawn from the seed; 0 for none.
            fire_reset: Press FIRE for the first step, in games that know it (some wait for it).
            episodic_life: End the episode, not the game, when a life is lost.
            sticky: Probability per frame of doing again what was done the frame before.
            full_action_set: All 18 actions instead of those that matter in the game.
            max_frames: Truncate after so many frames; 0 for never.
            mode: The game's mode; None for its default.
            difficulty: The game's difficulty; None for its default.
        """
        ale_py, cv2 = _import_extras()
        _check_numbers(frame_skip=frame_skip, width=width, height=height, stack=stack)
        _check_numbers(0, noop_max=noop_max, max_frames=max_frames)
        _check_sticky(sticky)
        cv2.setNumThreads(1)  # it would start a pool of threads, for images too small to share out
        self._ale = ale = _load(ale_py, game, max_frames, mode, difficulty)
        # Games keep traces of earlier play through ``reset_game``; this is how the console is switched on.
        self._switched_on = ale.cloneState(include_rng=True)
        ale.reset_game()
        self._set_buttons(full_action_set, fire_reset)
        self.spec = EnvSpec(
            name=f"atari_{game}",
            observation=(Field("obs", "uint8", (height, width, stack)),),
            action=ActionSpec("discrete", nvec=(len(self._presses),), start=(0,)),
            frames_per_step=frame_skip,
        )
        self._screen = Screen(ale, cv2, width, height)
        self._merge = cv2.merge
        self._stack = [np.zeros((height, width), np.uint8) for _ in range(stack)]
        self._frame_skip, self._noop_max, self._sticky = frame_skip, noop_max, sticky
        self._episodic_life = episodic_life
        self._rng = np.random.default_rng(0)
        self._pressed = NOOP
        self._lives, self._game_return = 0, 0.0
        self._running = False
        self._between_lives = False

    def _set_buttons(self, all_of_them: bool, fire_reset: bool) -> None:
        """Set which buttons the choices of the action press, and whether an episode begins with FIRE."""
        minimal = self._ale.getMinimalActionSet()
        actions = self._ale.getLegalActionSet() if all_of_them else minimal
        self._presses = [int(a.value) for a in actions]
        self.choice_names = tuple(str(a.name) for a in actions)
        self._fire = fire_reset and any(int(a.value) == FIRE for a in minimal)

    def reset(self, seed: int, obs: Obs) -> None:
        self._running = True
        if not (self._between_lives and self._next_life()):
            self._new_game(seed)
        self._between_lives = False
        image = self._screen.image()
        for plane in self._stack:
            plane[:] = image
        self._write(obs)

    def step(self, action: Array, obs: Obs) -> StepReturn:
        choice = action.item()
        if not self._running:
            raise EnvError("step() without a running episode: call reset() first")
        if not 0 <= choice < len(self._presses):
            raise EnvError(f"action {choice} is not one of 0 to {len(self._presses) - 1}")
        reward, ended = self._play(self._presses[choice])
        oldest = self._stack.pop(0)
        oldest[:] = self._screen.image()
        self._stack.append(oldest)
        self._write(obs)
        if not ended:
            return reward, False, False, NO_INFO
        return self._end(reward)

    def render(self) -> Array | None:
        """Return the screen in colour, at the console's own size."""
        image: Array = self._ale.getScreenRGB()
        return image

    def close(self) -> None:
        self._running = self._between_lives = False

    # -- playing -------------------------------------------------------------------------------

    def _play(self, press: int) -> tuple[float, bool]:
        """Play one action for ``frame_skip`` frames, or until the episode ends: (reward, whether it ended)."""
        ale, last, reward, ended = self._ale, self._frame_skip - 1, 0, False
        for frame in range(self._frame_skip):
            if not self._sticky or self._rng.random() >= self._sticky:
                self._pressed = press
            reward += ale.act(self._pressed)
            ended = ale.game_over() or (self._episodic_life and self._lost_life())
            if ended:
                break
            if frame == last - 1:
                self._screen.take_earlier()
        if frame == last > 0:
            self._screen.take_last()
        else:
            self._screen.take_alone()
        self._game_return += reward
        return float(reward), ended

    def _lost_life(self) -> bool:
        before, self._lives = self._lives, self._ale.lives()
        return self._lives < before

    def _end(self, reward: float) -> StepReturn:
        ale = self._ale
        self._running = False
        terminated = ale.game_over(with_truncation=False)
        truncated = not terminated and ale.game_truncated()
        self._between_lives = not (terminated or truncated)
        if self._between_lives:
            return reward, True, False, NO_INFO
        info = {"episode_stats": {"game_return": self._game_return}} if self._episodic_life else NO_INFO
        return reward, terminated, truncated, info

    # -- beginning -----------------------------------------------------------------------------

    def _new_game(self, seed: int) -> None:
        noop_seed, sticky_seed = np.random.SeedSequence(seed).generate_state(2).tolist()
        if self._sticky:
            self._rng = np.random.default_rng(sticky_seed)
        self._switch_on()
        if self._noop_max:
            for _ in range(np.random.default_rng(noop_seed).integers(1, self._noop_max + 1)):
                self._ale.act(NOOP)
                if self._ale.game_over():
                    self._switch_on()
        self._lives = self._ale.lives()
        if self._fire:
            if not self._play(FIRE)[1]:
                return  # which has taken its frames
            self._switch_on()
        self._screen.take_alone()

    def _switch_on(self) -> None:
        self._ale.restoreState(self._switched_on)
        self._ale.reset_game()
        self._lives = self._ale.lives()
        self._pressed = NOOP
        self._game_return = 0.0

    def _next_life(self) -> bool:
        """Go on with the game after a life was lost; False when it ended in doing so."""
        return not self._play(FIRE if self._fire else NOOP)[1]

    # -- observations --------------------------------------------------------------------------

    def _write(self, obs: Obs) -> None:
        view = obs["obs"][0]
        wanted = self.spec.observation[0]
        if view.shape != wanted.shape or view.dtype != np.uint8 or not view.flags.c_contiguous:
            raise EnvError(f"obs is {view.dtype} {view.shape}, expected contiguous {wanted.dtype} {wanted.shape}")
        if len(self._stack) == 1:
            view[..., 0] = self._stack[0]
        else:
            self._merge(self._stack, view)


def _import_extras() -> tuple[Any, Any]:
    try:
        import ale_py
        import cv2
    except ImportError as error:
        raise MissingExtraError(
            f'Atari environments need ale-py and OpenCV ({error}): pip install "rollmill[atari]"'
        ) from error
    return ale_py, cv2


def _check_numbers(least: int = 1, **numbers: int) -> None:
    for name, value in numbers.items():
        if value < least:
            raise ConfigError(f"{name} must be at least {least}, got {value}")


def _check_sticky(sticky: float) -> None:
    if not 0 <= sticky < 1:
        raise ConfigError(f"sticky must be at least 0 and below 1, got {sticky}")


def _load(ale_py: Any, game: str, max_frames: int, mode: int | None, difficulty: int | None) -> Any:
    """Return a console with the game in it, switched on and not yet reset."""
    rom = _find_rom(ale_py, game)
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # it would greet on stderr
    ale = ale_py.ALEInterface()
    ale.setFloat("repeat_action_probability", 0.0)
    ale.setInt("random_seed", 0)
    ale.setInt("max_num_frames_per_episode", max_frames)
    ale.loadROM(rom)
    for name, value, available, choose in (
        ("mode", mode, ale.getAvailableModes(), ale.setMode),
        ("difficulty", difficulty, ale.getAvailableDifficulties(), ale.setDifficulty),
    ):
        if value is None:
            continue
        if value not in available:
            raise ConfigError(f"{game} has no {name} {value}; it has: {', '.join(map(str, available))}")
        choose(value)
    return ale


def _find_rom(ale_py: Any, game: str) -> Any:
    from ale_py import roms

    known = roms.get_all_rom_ids()
    if game not in known:
        hint = nearest(game, known)
        raise ConfigError(f"no Atari game {game!r}{f'; {hint}' if hint else ''} (names are in snake case: ms_pacman)")
    rom = roms.get_rom_path(game)
    # Asked first: on a ROM it cannot play, ALE would end this process.
    if rom is None or ale_py.ALEInterface.isSupportedROM(rom) is None:
        raise ConfigError(f"ALE has the game {game!r}, but not for one player")
    return rom
