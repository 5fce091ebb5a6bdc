"""``rollmill envs play``: somebody plays an environment with the keyboard, in a window or in the browser.

A step is taken when keys are held that mean an action, at most ``fps`` a second: who does nothing stops the time,
unless there is an action for that (``idle``). Episode n has the same seed as in an evaluation with the same ``--seed``,
so that one can play what an agent has played.
"""

from __future__ import annotations

import contextlib
import itertools
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rollmill.core.errors import ConfigError
from rollmill.core.fields import MASK_FIELD, Array, Obs
from rollmill.core.process_scope import process_scope
from rollmill.core.protocols import Env
from rollmill.core.seeds import Seeds
from rollmill.core.slots import OBS
from rollmill.core.stopping import Interrupt
from rollmill.envs.keys import Keyboard
from rollmill.envs.settings import EnvSettings
from rollmill.runs.evaluate.render_env import (
    has_display,
    image,
    images_per_second,
    make_shown,
    with_images,
    without_display,
)
from rollmill.runs.evaluate.video import blank
from rollmill.runs.watch.page import PageScreen
from rollmill.runs.watch.run import END_SECONDS, Pace
from rollmill.runs.watch.screen import PlayScreen, Shown, WindowScreen, has_pygame
from rollmill.sampling.schedule import EpisodeSchedule
from rollmill.store.episode import EpisodeInfo
from rollmill.store.extract import check_writable
from rollmill.store.format.schema import StoreSchema
from rollmill.store.writer import StoreWriter

WHO = "you"
POLICY = "a person"
"""What the store calls who has played."""
MOST_FPS = 1000.0


@dataclass(frozen=True)
class PlayOptions:
    """How to play."""

    where: Literal["auto", "window", "browser"] = field(default="auto", metadata={"option": False})
    episodes: int = 0
    """Episodes to play; 0 goes on until it is ended."""
    seed: int = 1
    """Seed of the episodes: the same ones as of an evaluation."""
    fps: float | None = None
    """Steps per second while keys are held (unset: the simulator's own speed)."""
    idle: int | None = None
    """Action taken while no key is held (unset: time stands still)."""
    out: Path | None = None
    """Store to add the episodes to that were played to their end."""
    port: int = 0
    """TCP port of the page; 0 takes a free one."""

    def __post_init__(self) -> None:
        for is_wrong, reason in (
            (self.episodes < 0, "--episodes must be 0 (no end) or positive"),
            (self.seed < 0, "--seed must not be negative"),
            (self.fps is not None and not 0 < self.fps <= MOST_FPS, f"--fps must be above 0, up to {MOST_FPS:g}"),
            (not 0 <= self.port < 65536, "--port must be 0 (any free one) to 65535"),
            (bool(self.port) and self.where == "window", "--port is for the browser, not for --window"),
        ):
            if is_wrong:
                raise ConfigError(reason)


def play(settings: EnvSettings, options: PlayOptions, announce: Callable[[str, Mapping[str, Any]], None]) -> int:
    """Play until the episodes are over, the window is closed or a signal comes; returns the exit code.

    ``announce`` is told what there is to know, as a line and as named values: keys, the address of the page, and how
    every episode went.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(process_scope(inside=True))
        without_display()  # process scope restores the variables
        env = stack.enter_context(contextlib.closing(make_shown(with_images(settings))))
        keyboard = Keyboard.of(env)
        if options.idle is not None and not 0 <= options.idle < env.spec.action.nvec[0]:
            raise ConfigError(
                f"--idle {options.idle}: {env.spec.name} has the actions 0 to {env.spec.action.nvec[0] - 1}"
            )
        writer = None
        if options.out is not None:
            check_writable(options.out)
            schema = StoreSchema.for_env(env.spec, **settings.for_store)
            writer = stack.enter_context(StoreWriter(options.out, schema, sync="episode"))
        interrupt = stack.enter_context(Interrupt())
        announce(f"keys: {keyboard.text()}", {"keys": keyboard.text()})
        screen = stack.enter_context(contextlib.closing(_open_screen(env, keyboard, options, announce)))
        pace = Pace(options.fps or images_per_second(env))
        game = Game(env, settings, options, keyboard, screen, pace, lambda: interrupt.signal is not None, writer)
        for number in itertools.count() if not options.episodes else range(options.episodes):
            outcome = game.episode(number)
            if outcome is None:
                break
            announce(_outcome_text(number, outcome), {"episode": number, **outcome})
    return 0 if interrupt.signal in (None, signal.SIGINT) else 128 + int(interrupt.signal)


def _open_screen(
    env: Env, keyboard: Keyboard, options: PlayOptions, announce: Callable[[str, Mapping[str, Any]], None]
) -> PlayScreen:
    where = options.where
    if where == "auto":
        where = "window" if has_display() and has_pygame() else "browser"
    if where == "window":
        if not has_display():
            raise ConfigError("--window: there is no display ($DISPLAY and $WAYLAND_DISPLAY are unset); use --browser")
        return WindowScreen(f"rollmill: {env.spec.name}")
    page = PageScreen(f"{env.spec.name}: play it", options.port, keyboard.keys, f"keys: {keyboard.text()}")
    announce(f"play it at {page.url} (Ctrl-C ends it)", {"url": page.url})
    return page


def _outcome_text(number: int, outcome: Mapping[str, Any]) -> str:
    stats = ", ".join(f"{name} {value:.4g}" for name, value in outcome["stats"].items())
    return f"episode {number}: return {outcome['return']:.4g}, {outcome['steps']} steps{f'; {stats}' if stats else ''}"


@dataclass
class Game:
    """Episodes, one after the other."""

    env: Env
    settings: EnvSettings
    options: PlayOptions
    keyboard: Keyboard
    screen: PlayScreen
    pace: Pace
    is_over: Callable[[], bool]
    writer: StoreWriter | None

    def __post_init__(self) -> None:
        self._schedule = EpisodeSchedule(Seeds(self.options.seed).branch("evaluation"), 1)

    def episode(self, number: int) -> dict[str, Any] | None:
        """Play an episode and return how it went; None where it was ended before its end, which is not kept."""
        env, limit = self.env, self.settings.max_episode_steps
        obs, seed = blank(env), self._schedule.env_seed(0, number)
        env.reset(seed, obs)
        if self.writer is not None:
            self.writer.begin(number, EpisodeInfo(seed=seed, policy=POLICY, lane=0, worker=0))
        so_far, step, ended = 0.0, 0, False
        self._show(number, step, so_far, ended)
        while not ended:
            action = self._decide(obs)
            if action is None:
                if self.writer is not None:
                    self.writer.discard(number)
                return None
            before = self._row(obs) if self.writer is not None else {}
            reward, terminated, truncated, info = env.step(np.array([action]), obs)
            step, so_far = step + 1, so_far + float(np.asarray(reward).item())
            truncated = bool(np.any(truncated)) or bool(limit and step >= limit)
            terminated = bool(np.any(terminated))
            ended = terminated or truncated
            stats = dict(info.get("episode_stats", {})) if ended else {}
            if self.writer is not None:
                row = {**before, "action": np.array([action]), "reward": np.array([reward], np.float32)}
                self.writer.append(number, {**row, "version": 0, "global_step": 0})
                if ended:
                    final = {name: rows[0] for name, rows in self._row(obs).items()}
                    self.writer.end(number, final=final, terminated=terminated, truncated=truncated, stats=stats)
            self._show(number, step, so_far, ended)
        return {"return": so_far, "steps": step, "terminated": terminated, "stats": stats}

    @staticmethod
    def _row(obs: Obs) -> dict[str, Array]:
        return {f"{OBS}{name}": rows.copy() for name, rows in obs.items()}

    def _decide(self, obs: Obs) -> int | None:
        """Wait for keys that mean something; None when it is over."""
        mask = obs[MASK_FIELD][0] if MASK_FIELD in obs else None
        while not self.screen.closed and not self.is_over():
            self.pace.wait()
            action = self.keyboard.choose(self.screen.pressed(), mask)
            if action is not None or self.options.idle is not None:
                return action if action is not None else self.options.idle
        return None

    def _show(self, number: int, step: int, so_far: float, over: bool) -> None:
        self.screen.show(Shown(image(self.env), WHO, number, step, so_far, over))
        if over:
            self.pace.wait(END_SECONDS)
