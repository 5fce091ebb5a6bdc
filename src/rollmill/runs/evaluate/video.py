"""Films of evaluated episodes, made by playing them once more: the same seed and actions, this time with pictures.

The evaluation itself renders nothing, and a film may be larger than what the agent sees. Rewards and the end are
compared on the way: what does not repeat is not shown.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rollmill.core.errors import EnvError
from rollmill.core.fields import Array, Obs
from rollmill.core.protocols import Env
from rollmill.envs.settings import EnvSettings
from rollmill.reports.video.images import enlarge, tiled
from rollmill.reports.video.panel import BACK, INK, MUTED, captioned
from rollmill.runs.evaluate.play import EvalPlan
from rollmill.runs.evaluate.render_env import make_shown, picture, pictures_per_second, with_pictures
from rollmill.runs.evaluate.results import Film
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
    """A segment with a lane for each environment, ``[T + 1, envs, ...]``, whose episode is that of all its agents.

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
class Scene:
    """One picture of an episode and what had happened by then."""

    picture: Array
    step: int
    so_far: float
    """Return, the mean over agents."""
    over: bool


@dataclass(frozen=True)
class FilmPlan:
    """What to film, and how it looks."""

    env: EnvSettings
    """The environment as it was evaluated."""
    folder: Path
    episodes: range
    cells: tuple[int, int] | None = None
    fps: float | None = None
    captions: bool = True

    def check(self) -> float:
        """Pictures per second, after all has been tried out that can fail: the extra, the folder, one picture."""
        VideoFile(self.folder / "probe.mp4", self.fps or 1.0)  # PyAV is there, the rate is possible
        with contextlib.closing(make_shown(with_pictures(self.env))) as env:
            env.reset(0, blank(env))
            picture(env)
            return self.fps or pictures_per_second(env)


def blank(env: Env) -> Obs:
    """Arrays for one environment's observations."""
    return {f.name: np.zeros((env.spec.agents, *f.shape), f.dtype) for f in env.spec.observation}


def replay(settings: EnvSettings, script: Script, max_steps: int = 0) -> Generator[Scene]:
    """The pictures of an episode, the first one before its first step. EnvError when it does not repeat."""
    env = make_shown(settings)
    obs, so_far, steps = blank(env), 0.0, len(script.actions)
    ended = np.zeros(env.spec.agents, bool)
    try:
        env.reset(script.seed, obs)
        yield Scene(picture(env), 0, 0.0, steps == 0)
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
            yield Scene(picture(env), t + 1, so_far, over)
    finally:
        env.close()


def _no_repetition(script: Script, t: int, what: str) -> EnvError:
    return EnvError(
        f"episode {script.episode} (seed {script.seed}) does not repeat from its seed and actions: step {t}: {what}"
    )


# -- pictures ----------------------------------------------------------------------------------------


def _shown(scene: Scene, episode: int, captions: bool) -> Array:
    """The picture large enough to see; with a caption, large enough to read it."""
    large = enlarge(scene.picture, fit=captions)
    if not captions:
        return large
    left, right = f"EPISODE {episode}  STEP {scene.step}", f"RETURN {scene.so_far:+.4g}"
    return captioned(large, left, right, MUTED if scene.over else INK)


# -- files -------------------------------------------------------------------------------------------


def make_films(plan: FilmPlan, policy: str, scripts: Mapping[int, Script], fps: float) -> list[Film]:
    """Film what the plan asks for; an episode that does not repeat is left out and said so."""
    missing = [n for n in plan.episodes if n not in scripts]
    chosen = [scripts[n] for n in plan.episodes if n in scripts]
    films = [_not_there(plan, policy, n, fps) for n in missing]
    if plan.cells is not None:
        rows, columns = plan.cells
        path = plan.folder / f"{policy}-grid-{rows}x{columns}.mp4"
        return [*films, _film(path, policy, chosen, plan, fps)] if chosen else films
    return [*films, *(_film(_path(plan, policy, s.episode), policy, [s], plan, fps) for s in chosen)]


def file_name(name: str) -> str:
    """A name without what a file should not be called."""
    return re.sub(r"[^\w.-]+", "-", name)


def _path(plan: FilmPlan, policy: str, episode: int) -> Path:
    return plan.folder / f"{policy}-episode-{episode:04d}.mp4"


def _not_there(plan: FilmPlan, policy: str, episode: int, fps: float) -> Film:
    reason = "the episode was not played to its end"
    return Film(str(_path(plan, policy, episode)), policy, [episode], fps, reason)


def _film(path: Path, policy: str, scripts: Sequence[Script], plan: FilmPlan, fps: float) -> Film:
    numbers = [script.episode for script in scripts]
    settings = with_pictures(plan.env)
    with contextlib.ExitStack() as stack:
        running = [
            stack.enter_context(contextlib.closing(replay(settings, script, plan.env.max_episode_steps)))
            for script in scripts
        ]
        try:
            with VideoFile(path, fps) as video:
                for sheet in _sheets(running, numbers, plan):
                    video.add(sheet)
        except EnvError as error:
            return Film(str(path), policy, numbers, fps, str(error))
    return Film(str(path), policy, numbers, fps)


def _sheets(running: Sequence[Iterator[Scene]], numbers: Sequence[int], plan: FilmPlan) -> Iterator[Array]:
    """Whole pictures of the film; an episode that is over keeps its last one, darkened, until all are."""
    last: list[Array | None] = [None] * len(running)
    while True:
        moved = False
        for k, scenes in enumerate(running):
            scene = next(scenes, None)
            if scene is not None:
                moved = True
                whole = _shown(scene, numbers[k], plan.captions)
                last[k] = whole // 2 if scene.over and len(running) > 1 else whole
        if not moved:
            return
        pictures = [p for p in last if p is not None]
        yield pictures[0] if plan.cells is None else tiled(pictures, plan.cells[1], ground=BACK)
