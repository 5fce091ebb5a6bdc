"""``rollmill watch``: an agent plays, one episode after the other, at the speed of its simulator.

A ``Player`` makes the images; where they go (a window, the terminal, a page in the browser) is in
``runs.watch.screen`` and ``runs.watch.page``. Episode n has the same seed as in an evaluation with the same ``--seed``.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from rollmill.core.errors import CheckpointError, ConfigError
from rollmill.core.fields import EnvSpec, Obs
from rollmill.core.process_scope import process_scope
from rollmill.core.protocols import Env
from rollmill.core.run_folder import RunFolder
from rollmill.core.seeds import Seeds
from rollmill.core.stopping import Interrupt
from rollmill.runs.evaluate.options import check_chosen
from rollmill.runs.evaluate.render_env import (
    has_display,
    image,
    images_per_second,
    make_shown,
    takes,
    with_args,
    with_images,
    without_display,
)
from rollmill.runs.evaluate.video import blank
from rollmill.runs.policies.base import LoadedPolicy
from rollmill.runs.policies.find import find_checkpoints
from rollmill.runs.policies.load import load_policy
from rollmill.runs.policies.simple import RANDOM
from rollmill.runs.watch.page import PageScreen
from rollmill.runs.watch.screen import Screen, Shown, TerminalScreen, WindowScreen, has_pygame
from rollmill.sampling.schedule import EpisodeSchedule

log = logging.getLogger("rollmill")

Where = Literal["auto", "window", "terminal", "browser"]
END_SECONDS = 0.7
"""How long the last image of an episode stays."""


@dataclass(frozen=True)
class WatchOptions:
    """What to watch, and how."""

    where: Where = field(default="auto", metadata={"option": False})  # --window, --terminal or --browser
    episodes: int = 0
    """Episodes to play; 0 goes on until it is ended."""
    deterministic: bool = False
    """Take the most likely action instead of sampling one."""
    best: bool = False
    """Take the run's best checkpoint instead of the newest: by its checkpoints.best_metric."""
    random: bool = False
    """Watch a random policy in the run's environment."""
    target: float | None = None
    """Return to ask a Decision Transformer for (unset: the highest of its run's own)."""
    seed: int = 1
    """Seed of environments and actions."""
    fps: float | None = None
    """Images per second (unset: the simulator's own speed, frame skip included; 0: as fast as it goes)."""
    port: int = 0
    """TCP port of the page; 0 takes a free one."""
    overrides: tuple[str, ...] = ()
    """Settings that differ from the run's own."""
    trust_code: bool = False
    """Run the code that the checkpoint names; else your own words have to name it (env=my_env.py:MyEnv)."""

    def check(self) -> None:
        for is_wrong, reason in (
            (self.episodes < 0, "--episodes must be 0 (no end) or positive"),
            (self.seed < 0, "--seed must not be negative"),
            (self.fps is not None and not 0 <= self.fps <= 1000, "--fps must be 0 (no limit) to 1000"),
            (not 0 <= self.port < 65536, "--port must be 0 (any free one) to 65535"),
            (self.port and self.where not in ("auto", "browser"), f"--port is for the browser, not for --{self.where}"),
            (self.random and self.deterministic, "--random and --deterministic exclude each other"),
            (self.random and self.best, "--random and --best exclude each other: a random policy has no checkpoint"),
        ):
            if is_wrong:
                raise ConfigError(str(reason))


class Player:
    """Plays episodes with any policy; a run's newer checkpoints are taken over between episodes."""

    def __init__(self, target: str | Path, options: WatchOptions) -> None:
        self._target, self._options = target, options
        if options.best:
            check_chosen("--best", [target])
        self.policy = self._load()
        """Whose weights are playing."""
        self.env = self.policy.require_env()
        # What the agent sees must not change; an image for people comes from a twin, where that makes a difference.
        own, large = with_images(self.env, large=False), with_images(self.env)
        if options.where == "window" and takes(self.env, "visible"):
            large = with_args(large, visible=True)
        self._settings = (own, large)
        self._schedule = EpisodeSchedule(Seeds(options.seed).branch("evaluation"), 1)

    def _load(self) -> LoadedPolicy:
        o = self._options
        policy = load_policy(
            self._target,
            overrides=o.overrides,
            best=o.best,
            target=o.target,
            deterministic=True if o.deterministic else None,
            seed=o.seed,
            trust_code=o.trust_code,
        )
        return load_policy(RANDOM, env=policy.require_env(), seed=o.seed) if o.random else policy

    @property
    def policy_name(self) -> str:
        return self.policy.name.removesuffix(".ckpt")

    @property
    def shows_itself(self) -> bool:
        """Whether the simulator has opened a window of its own."""
        return bool(self._settings[1].args.get("visible"))

    def _follow(self, spec: EnvSpec) -> None:
        """Take over a newer checkpoint of a run that is still training."""
        if self._options.random or not RunFolder(Path(self._target)).checkpoints.is_dir():
            return
        try:
            if find_checkpoints(Path(self._target), self._options.best)[0] != self.policy.path:
                newest = self._load()
                newest.fit(spec)
                self.policy = newest
        except CheckpointError as error:  # it may be gone again; the one at hand is good
            log.warning("going on with the weights at hand: %s", error)

    def frames(self, on_rate: Callable[[float], None]) -> Generator[Shown]:
        """Yield images until the episodes are played; ``on_rate`` hears how many a second the simulator would show."""
        own, large = self._settings
        with contextlib.ExitStack() as stack:
            env = stack.enter_context(contextlib.closing(make_shown(own)))
            self.policy.fit(env.spec)
            twin = stack.enter_context(contextlib.closing(make_shown(large))) if large != own else env
            on_rate(images_per_second(env))
            obs, unused = blank(env), blank(twin)
            number = 0
            while not self._options.episodes or number < self._options.episodes:
                self._follow(env.spec)
                yield from self._episode(env, twin, obs, unused, number)
                number += 1

    def _episode(self, env: Env, twin: Env, obs: Obs, unused: Obs, number: int) -> Iterator[Shown]:
        agents = env.spec.agents
        seed = self._schedule.env_seed(0, number)
        env.reset(seed, obs)
        if twin is not env:
            twin.reset(seed, unused)
        so_far, step, limit = np.zeros(agents), 0, self.env.max_episode_steps
        reward, ended = np.zeros(agents), np.zeros(agents, bool)
        self.policy.reset()
        yield Shown(image(twin), self.policy_name, number, 0, 0.0, False)
        while not ended.all():
            action = self.policy.act(obs, reward)
            reward, terminated, truncated, _ = env.step(action, obs)
            if twin is not env:
                twin.step(action, unused)
            step += 1
            so_far += np.where(ended, 0.0, np.asarray(reward, np.float64))
            ended |= np.broadcast_to(np.asarray(terminated) | np.asarray(truncated), ended.shape)
            ended |= bool(limit) and step >= limit
            yield Shown(image(twin), self.policy_name, number, step, float(so_far.mean()), bool(ended.all()))


class Pace:
    """Keeps images at a rate; late ones are not made up for."""

    def __init__(
        self,
        fps: float | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.fps = fps
        self._clock, self._sleep = clock, sleep
        self._due = 0.0

    def wait(self, extra: float = 0.0) -> None:
        """Return when the next image is due; ``extra`` seconds later than usual."""
        if not self.fps:
            return
        now = self._clock()
        self._due = max(self._due + 1.0 / self.fps, now) + extra
        if self._due > now:
            self._sleep(self._due - now)


def watch(target: str | Path, options: WatchOptions, announce: Callable[[str], None]) -> int:
    """Show the agent until the episodes are played, the window is closed or a signal comes; returns the exit code.

    ``announce`` is told the address of the page, where there is one.
    """
    options.check()
    with contextlib.ExitStack() as stack:
        stack.enter_context(process_scope(inside=True))
        without_display()  # process scope restores the variables
        player = Player(target, options)
        interrupt = stack.enter_context(Interrupt())  # before anybody is told that Ctrl-C ends it
        screen = stack.enter_context(contextlib.closing(_open_screen(player, options, announce)))
        pace = Pace(options.fps)

        def on_rate(fps: float) -> None:
            pace.fps = fps if options.fps is None else options.fps

        for shown in stack.enter_context(contextlib.closing(player.frames(on_rate))):
            screen.show(shown)
            pace.wait(END_SECONDS if shown.over else 0.0)
            if screen.closed or interrupt.signal is not None:
                break
    # Ctrl-C is the usual way to end it.
    return 0 if interrupt.signal in (None, signal.SIGINT) else 128 + int(interrupt.signal)


def _open_screen(player: Player, options: WatchOptions, announce: Callable[[str], None]) -> Screen:
    where = options.where
    if where == "auto":
        where = "window" if has_display() and has_pygame() else "browser"
    if where == "terminal":
        return TerminalScreen()
    if where == "window":
        if not has_display():
            raise ConfigError("--window: there is no display ($DISPLAY and $WAYLAND_DISPLAY are unset); use --browser")
        return WindowScreen(f"rollmill: {player.policy_name}", own=player.shows_itself)
    page = PageScreen(f"{player.env.id}: {player.policy_name}", options.port)
    announce(page.url)
    return page
