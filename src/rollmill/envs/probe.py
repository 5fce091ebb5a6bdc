"""Learns an environment's spec without building it in the main process.

A constructor may hang, crash the interpreter or start threads; a short-lived process takes that risk,
and it runs while the main process still imports torch. ``python -m rollmill.envs.probe`` is that process.
"""

from __future__ import annotations

import itertools
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, NoReturn

import numpy as np

from rollmill.core.child import begin_errand
from rollmill.core.errors import ConfigError, EnvError, MissingExtraError, RollmillError, error_text, trace_text
from rollmill.core.exits import leave
from rollmill.core.fields import EnvSpec
from rollmill.core.process import Errand
from rollmill.core.protocols import Env
from rollmill.core.terminal import AT_ONCE
from rollmill.envs.batch import STOPS, random_actions
from rollmill.envs.info import note_info
from rollmill.envs.make import make_env
from rollmill.envs.settings import EnvSettings

log = logging.getLogger("rollmill")

CLOSE_SECONDS = 3.0
"""How long an environment that has been looked at may take to close before its process is ended."""


def probe_here(settings: EnvSettings) -> EnvSpec:
    """Build one env in this process, read its spec, close it."""
    env = build_one(settings)
    spec = env.spec
    close_here(settings.id, env)
    return spec


def build_one(settings: EnvSettings) -> Env:
    """Return one env, of whichever kind; raises EnvError with the traceback if its constructor fails."""
    try:
        if not settings.vector:
            return make_env(settings)
        from rollmill.envs.vector import VectorLane  # imports gymnasium, which the others may not need

        return VectorLane(settings)
    except (*STOPS, RollmillError):
        raise
    except BaseException as error:
        said = f"{settings.id}: the constructor failed with {error_text(error)}"
        raise EnvError(f"{said}\n{settings.check_hint}\n{trace_text(error)}") from error


def close_here(name: str, env: Env) -> None:
    """Close an env of this process, and log what goes wrong: also that it takes long, as nothing here can end it."""
    text = "%s: close() has not returned for %g s; no time-out runs in serial mode, Ctrl-C ends the wait"
    late = threading.Timer(CLOSE_SECONDS, log.warning, (text, name, CLOSE_SECONDS), {"extra": AT_ONCE})
    late.daemon = True
    late.start()
    try:
        problem = close_one(env)
    finally:
        late.cancel()
    if problem:
        log.warning("%s: %s", name, problem)


def close_one(env: Env) -> str:
    """Close an env that has served its purpose; returns what went wrong, or nothing."""
    try:
        env.close()
    except STOPS:
        raise
    except BaseException as error:  # noqa: BLE001 - what it was there for is known already
        return f"close() failed with {error_text(error)}"
    return ""


CONFIG_ERRORS = {kind.__name__: kind for kind in (ConfigError, MissingExtraError)}
"""Errors that keep their kind on the way from the probe, because their exit code differs."""


class Probe:
    """A running probe process; ``result`` waits for its answer."""

    def __init__(
        self, settings: EnvSettings, environment: Mapping[str, str], info_steps: int = 0, episode_seconds: float = 0.0
    ) -> None:
        """Start a process that builds the environment. ``info_steps``: play so many steps at random, and look what
        ``info`` says (``info``); ``episode_seconds``: play until an episode ends, at most so long, and look what it
        says then (``statistics``)."""
        self._settings, self._episode_seconds = settings, episode_seconds
        self.info: dict[str, str] = {}
        """What was found in ``info``, by name: the word of ``env.info`` for it; empty where it cannot be kept."""
        self.statistics: Mapping[str, bool] | None = None
        """Names of what the environment tells of an ended episode, and whether it does so of every agent; None: none
        has ended."""
        question = {"env": asdict(settings), "info_steps": info_steps, "episode_seconds": episode_seconds}
        self._errand = Errand("rollmill.envs.probe", question, environment)

    def result(self, timeout: float) -> EnvSpec:
        """Return the spec, or raise an EnvError that says what the constructor did; ``timeout`` 0 waits for ever."""
        name, hint = self._settings.id, self._settings.check_hint
        try:
            answer = self._errand.first_line(timeout + self._episode_seconds if timeout else None)
            if answer is None:
                noise = self._errand.last_noise
                raise EnvError(f"{name}: building it ended the process, which {self._errand.end()}\n{hint}\n{noise}")
            if "error" in answer:
                raise CONFIG_ERRORS.get(answer["kind"], EnvError)(answer["error"])
            note_closing(name, self._errand)
        except TimeoutError:
            raise EnvError(f"{name}: the constructor hangs for more than {timeout:g} s; {hint}") from None
        finally:
            self.close()
        self.info, self.statistics = answer["info"], answer["statistics"]
        try:
            return EnvSpec.from_dict(answer["spec"])
        except (TypeError, ValueError) as error:
            raise EnvError(f"{name}: its spec makes no sense: {error}") from error

    def close(self) -> None:
        self._errand.close()


def note_closing(name: str, errand: Errand) -> None:
    """Give an errand's env a moment to close, so that ports and the like are free again: its answer is known."""
    if not errand.ends_within(CLOSE_SECONDS):
        log.warning("%s: close() did not return within %g s; its process was ended", name, CLOSE_SECONDS)
    for line in errand.lines[1:]:
        log.warning("%s: %s", name, line["closing"])


def answer_about_env(answer_fd: int, look: Callable[[Env, dict[str, Any]], dict[str, Any]]) -> NoReturn:
    """Build the env of a question in a process of its own, answer with what ``look`` finds, close the env."""
    question, reply = begin_errand(answer_fd)
    env = None
    try:
        env = build_one(EnvSettings.of(question["env"]))
        answer = look(env, question)
    except Exception as error:  # noqa: BLE001 - whatever it is, the run is told
        text = str(error) if isinstance(error, RollmillError) else error_text(error)
        answer = {"error": text, "kind": type(error).__name__}
    reply(**answer)
    if env is not None and (problem := close_one(env)):
        reply(closing=problem)
    leave(0)


def look_for_info(env: Env, steps: int) -> dict[str, str]:
    """Play an env at random; return, for each name in ``info``, the word of ``env.info`` for it.

    A name whose values are of several kinds, or none that a row can hold, has no word.
    """
    found: dict[str, str] = {}
    for info, _ in itertools.islice(_play(env, lambda: note_info(found, getattr(env, "reset_info", None))), steps):
        note_info(found, info)
    return found


def look_for_statistics(env: Env, seconds: float) -> dict[str, bool] | None:
    """Play an env at random until the first episode ends; return the names of its statistics, and whether there is a
    number for every agent; None where none has ended in time."""
    begun = time.monotonic()
    for info, over in _play(env):
        if over:
            told = info.get("episode_stats") or {}
            return {str(name): np.ndim(own) > 0 for name, own in told.items() if not str(name).startswith("_")}
        if time.monotonic() - begun > seconds:
            return None
    raise AssertionError("it is played without end")


def _play(env: Env, on_reset: Callable[[], None] = lambda: None) -> Iterator[tuple[Mapping[str, Any], bool]]:
    """Play at random without end: yield what ``info`` says at every step, and whether the episode is over."""
    spec, rng = env.spec, np.random.default_rng(0)
    obs = {f.name: np.zeros((spec.agents, *f.shape), f.dtype) for f in spec.observation}
    for seed in itertools.count():
        env.reset(seed, obs)
        on_reset()
        over = np.zeros(spec.agents, bool)
        while not over.all():
            _, terminated, truncated, info = env.step(random_actions(spec, rng, obs, spec.agents), obs)
            over |= np.asarray(terminated, bool) | np.asarray(truncated, bool)
            yield info or {}, bool(over.all())


def _look(env: Env, question: Mapping[str, Any]) -> dict[str, Any]:
    steps, seconds = question["info_steps"], question["episode_seconds"]
    return {
        "spec": env.spec.to_dict(),
        "info": look_for_info(env, steps) if steps else {},
        "statistics": look_for_statistics(env, seconds) if seconds else None,
    }


if __name__ == "__main__":
    answer_about_env(int(sys.argv[1]), _look)
