"""Makes videos of evaluated episodes by playing them once more: the same seed and actions, this time with images.

The evaluation itself renders nothing, and a video may be larger than what the agent sees. Rewards and the end are
compared on the way: what does not repeat is not shown.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from rollmill.core.errors import EnvError
from rollmill.core.fields import Array, Obs
from rollmill.core.protocols import Env
from rollmill.envs.settings import EnvSettings
from rollmill.envs.tasks.suite import tasks_of
from rollmill.reports.video.images import enlarge, tiled
from rollmill.reports.video.panel import BACK, INK, MUTED, captioned
from rollmill.runs.evaluate.play import EvalPlan
from rollmill.runs.evaluate.render_env import image, images_per_second, make_shown, with_images
from rollmill.runs.evaluate.results import Video
from rollmill.store.assemble import Assembler, Rows, find_pieces
from rollmill.store.convert.h264 import VideoFile

TOLERANCE = 1e-4
"""By which a repeated reward may differ: rows hold float32."""


@dataclass(frozen=True)
class Script:
    """All that an episode was made of."""

    episode: int
    seed: int
    actions: Array
    """``[steps, agents, ...]``"""
    rewards: Array
    """``[steps, agents]``; 0 where an agent was done before the others."""


class ScriptWriter:
    """Takes down the actions of some episodes from finished segments (``play.SegmentReader``)."""

    def __init__(self, plan: EvalPlan, episodes: range) -> None:
        self._plan, self._wanted = plan, episodes
        self._assembler = Assembler(self, {"action": "action", "reward": "reward"}, final={})
        self._open: dict[int, tuple[int, list[Rows]]] = {}
        self.scripts: dict[int, Script] = {}

    def take(self, segment: Rows, group: int) -> None:
        rows = _by_env(segment, self._plan.sampler.spec.agents)
        first = group * rows["valid"].shape[1]
        for piece in find_pieces(rows).listed():
            env = first + piece.column
            if not self._assembler.continues(env, piece):
                if piece.step or not self._wants(env, piece.episode):
                    continue
                self._open[env] = (piece.episode, [])
            self._assembler.add(rows, env, piece)

    def _wants(self, env: int, episode: int) -> bool:
        schedule = self._plan.schedule
        return env < schedule.envs and schedule.number(env, episode) in self._wanted

    def append(self, key: int, columns: Rows) -> None:
        self._open[key][1].append({name: rows.copy() for name, rows in columns.items()})

    def end(self, key: int, final: Rows, terminated: bool, truncated: bool) -> None:
        episode, pieces = self._open.pop(key)
        if not terminated:
            return  # a fault has ended it: it has no script
        schedule = self._plan.schedule
        number, seed = schedule.number(key, episode), schedule.env_seed(key, episode)
        actions, rewards = (np.concatenate([piece[name] for piece in pieces]) for name in ("action", "reward"))
        self.scripts[number] = Script(number, seed, actions, rewards)


def _by_env(segment: Rows, agents: int) -> dict[str, Array]:
    """Return a segment with a lane for each environment, ``[T + 1, envs, ...]``; its episode is that of all agents.

    It goes on while any of them does, and ends with the last; ``action`` and ``reward`` are ``[T + 1, envs, agents]``.
    """
    wanted = ("valid", "terminated", "truncated", "episode", "step", "action", "reward")
    rows = {n: segment[n].reshape(len(segment[n]), -1, agents, *segment[n].shape[2:]) for n in wanted}
    valid, over = rows["valid"], rows["terminated"] | rows["truncated"]
    return {
        "valid": valid.any(axis=2),
        "terminated": valid.any(axis=2) & (over | ~valid).all(axis=2),
        "truncated": np.zeros(valid.shape[:2], bool),
        "episode": rows["episode"][:, :, 0],
        "step": rows["step"].max(axis=2),
        "action": rows["action"],
        "reward": rows["reward"],
    }


@dataclass(frozen=True)
class ReplayFrame:
    """One image of an episode and what had happened by then."""

    image: Array
    step: int
    so_far: float
    """Return, the mean over agents."""
    over: bool


@dataclass(frozen=True)
class VideoPlan:
    """What to show in a video, and how it looks."""

    env: EnvSettings
    """The environment as it was evaluated."""
    folder: Path
    episodes: range
    cells: tuple[int, int] | None = None
    fps: float | None = None
    captions: bool = True

    def task_of(self, episode: int) -> str:
        """Return the task of a suite that an episode is of; empty elsewhere."""
        tasks = tasks_of(self.env)
        return self.env.task or (tasks[episode % len(tasks)].name if tasks else "")

    def check(self) -> float:
        """Return images per second, after all has been tried out that can fail: the extra, the folder, one image."""
        VideoFile(self.folder / "probe.mp4", self.fps or 1.0)  # PyAV is there, the rate is possible
        with contextlib.closing(make_shown(with_images(self.env))) as env:
            env.reset(0, blank(env))
            image(env)
            return self.fps or images_per_second(env)


def blank(env: Env) -> Obs:
    """Return arrays for one environment's observations."""
    return {f.name: np.zeros((env.spec.agents, *f.shape), f.dtype) for f in env.spec.observation}


def replay(settings: EnvSettings, script: Script, max_steps: int = 0) -> Generator[ReplayFrame]:
    """Yield the images of an episode, the first one before its first step. Raises EnvError if it does not repeat."""
    env = make_shown(settings)
    obs, so_far, steps = blank(env), 0.0, len(script.actions)
    ended = np.zeros(env.spec.agents, bool)
    try:
        env.reset(script.seed, obs)
        yield ReplayFrame(image(env), 0, 0.0, steps == 0)
        for t in range(steps):
            reward, terminated, truncated, _ = env.step(script.actions[t], obs)
            got = np.where(ended, 0.0, np.asarray(reward, np.float64))
            if not np.allclose(got, script.rewards[t], rtol=TOLERANCE, atol=TOLERANCE):
                raise _no_repetition(script, t, f"reward {got.tolist()}, was {script.rewards[t].tolist()}")
            ended |= np.broadcast_to(np.asarray(terminated) | np.asarray(truncated), ended.shape)
            over = t + 1 == steps
            if ended.all() != over and not (over and max_steps == steps):
                raise _no_repetition(script, t, f"it {'ended' if ended.all() else 'went on'}")
            so_far += float(np.mean(script.rewards[t]))
            yield ReplayFrame(image(env), t + 1, so_far, over)
    finally:
        env.close()


def _no_repetition(script: Script, t: int, what: str) -> EnvError:
    return EnvError(
        f"episode {script.episode} (seed {script.seed}) does not repeat from its seed and actions: step {t}: {what}"
    )


# -- images ----------------------------------------------------------------------------------------


def _shown(frame: ReplayFrame, episode: int, captions: bool) -> Array:
    """Return the image large enough to see; with a caption, large enough to read it."""
    large = enlarge(frame.image, fit=captions)
    if not captions:
        return large
    left, right = f"EPISODE {episode}  STEP {frame.step}", f"RETURN {frame.so_far:+.4g}"
    return captioned(large, left, right, MUTED if frame.over else INK)


# -- files -------------------------------------------------------------------------------------------


def make_videos(plan: VideoPlan, policy: str, scripts: Mapping[int, Script], fps: float) -> list[Video]:
    """Make a video of what the plan asks for; an episode that does not repeat is left out and said so."""
    missing = [n for n in plan.episodes if n not in scripts]
    chosen = [scripts[n] for n in plan.episodes if n in scripts]
    videos = [_not_there(plan, policy, n, fps) for n in missing]
    if plan.cells is not None:
        rows, columns = plan.cells
        path = plan.folder / f"{policy}-grid-{rows}x{columns}.mp4"
        return [*videos, _video(path, policy, chosen, plan, fps)] if chosen else videos
    return [*videos, *(_video(_path(plan, policy, s.episode), policy, [s], plan, fps) for s in chosen)]


def file_name(name: str) -> str:
    """Return a name without what a file should not be called."""
    return re.sub(r"[^\w.-]+", "-", name)


def _path(plan: VideoPlan, policy: str, episode: int) -> Path:
    task = file_name(plan.task_of(episode))
    return plan.folder / f"{policy}{f'-{task}' if task else ''}-episode-{episode:04d}.mp4"


def _not_there(plan: VideoPlan, policy: str, episode: int, fps: float) -> Video:
    reason = "the episode was not played to its end"
    return Video(str(_path(plan, policy, episode)), policy, [episode], fps, reason)


def _video(path: Path, policy: str, scripts: Sequence[Script], plan: VideoPlan, fps: float) -> Video:
    numbers = [script.episode for script in scripts]
    with contextlib.ExitStack() as stack:
        running = [
            stack.enter_context(contextlib.closing(replay(_settings(plan, script), script, plan.env.max_episode_steps)))
            for script in scripts
        ]
        try:
            with VideoFile(path, fps) as video:
                for frame in _grid_frames(running, numbers, plan):
                    video.add(frame)
        except EnvError as error:
            return Video(str(path), policy, numbers, fps, str(error))
    return Video(str(path), policy, numbers, fps)


def _settings(plan: VideoPlan, script: Script) -> EnvSettings:
    return with_images(replace(plan.env, task=plan.task_of(script.episode)))


def _grid_frames(running: Sequence[Iterator[ReplayFrame]], numbers: Sequence[int], plan: VideoPlan) -> Iterator[Array]:
    """Yield whole images of the video; an episode that is over keeps its last one, darkened, until all are."""
    last: list[Array | None] = [None] * len(running)
    while True:
        moved = False
        for k, frames in enumerate(running):
            frame = next(frames, None)
            if frame is not None:
                moved = True
                whole = _shown(frame, numbers[k], plan.captions)
                last[k] = whole // 2 if frame.over and len(running) > 1 else whole
        if not moved:
            return
        images = [p for p in last if p is not None]
        yield images[0] if plan.cells is None else tiled(images, plan.cells[1], ground=BACK)
