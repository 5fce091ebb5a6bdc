"""What can be hooked into a run. Subclass ``Observer`` and override what you need.

Cadence: ``on_training_step`` fires once per training step, after the weights were published. ``run.segments`` and
``run.trajectories()`` then hold exactly the arrays that step has learnt from, in serial, sync and async mode alike.
They are numpy, they are the learner's own batch (nothing was copied for you), and they are filled again for the next.

Observers are given to ``runs.train.run.train`` or named in the config (``observers``); both are told in that order.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rollmill.core.errors import ConfigError, ObserverError, RollmillError
from rollmill.core.fields import INFO, Array
from rollmill.core.imports import import_object
from rollmill.core.slots import OBS
from rollmill.core.text import nearest
from rollmill.runs.settings.train import ObserverSettings

if TYPE_CHECKING:
    from rollmill.runs.train.loop import OnlineRun


class Observer:
    """Is told what happens in a run, hook by hook; the base class does nothing."""

    def on_init(self, run: OnlineRun) -> None:
        """Hear that everything is built, and nothing has started."""

    def on_start(self, run: OnlineRun) -> None:
        """Hear that workers are being started."""

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        """Hear that one batch has been learnt from; ``iteration`` counts from 1 over all sessions of the run."""

    def extra_summaries(self, run: OnlineRun) -> dict[str, float]:
        """Return metrics to add to every row of metrics."""
        return {}

    def on_save(self, run: OnlineRun) -> dict[str, Any]:
        """Return what a checkpoint keeps of the observer: numpy arrays, numbers and text, in dicts and lists."""
        return {}

    def on_load(self, run: OnlineRun, saved: Mapping[str, Any]) -> None:
        """Go on from a checkpoint in which ``on_save`` has left something; called after ``on_init``."""

    def on_stop(self, run: OnlineRun) -> None:
        """Hear that the run is over, for whatever reason; always called once after ``on_init``."""


@dataclass(frozen=True)
class Trajectory:
    """One segment of a batch: ``T`` steps of the ``L`` lanes of one group of one worker. All arrays are views.

    Row ``t`` of ``actions`` was decided on ``obs[t]`` and led to ``rewards[t]`` and ``obs[t + 1]``, if ``valid[t]``:
    rows that are not valid hold an episode's final observation or a fault, and their action did not count.
    """

    worker: int
    """Number of the worker that stepped these lanes."""
    lanes: range
    """Numbers of the lanes, over the whole run."""
    obs: Mapping[str, Array]
    """``[T + 1, L, ...]`` by name, the action mask included; row T is where the segment stopped."""
    actions: Array
    """``[T, L, ...]``"""
    rewards: Array
    """``[T, L]`` float32, as the environment gave them"""
    terminated: Array
    """``[T, L]`` bool"""
    truncated: Array
    """``[T, L]`` bool"""
    valid: Array
    """``[T, L]`` bool"""
    values: Array
    """``[T + 1, L]`` float32, predicted while acting; row T is the bootstrap"""
    log_probs: Array
    """``[T, L]`` float32, of the actions under the policy that chose them"""
    first: Array
    """``[T + 1, L]`` bool: first observation of an episode"""
    steps: Array
    """``[T + 1, L]`` int32: steps since the episode began"""
    episodes: Array
    """``[T + 1, L]`` int64: number of the episode in its lane"""
    versions: Array
    """``[T, L]`` int64: version of the policy that decided"""
    policy_ids: Array
    """``[T, L]`` int16"""
    infos: Mapping[str, Array]
    """``[T + 1, L, ...]`` by the names in ``env.info``; texts (``room:text``) as bytes (``envs.info.texts``)"""


def cut_trajectories(segments: Mapping[str, Array], groups: Array, groups_per_worker: int) -> list[Trajectory]:
    """Cut a batch ``[T + 1, B, ...]`` into the segments it was put together from; ``groups``: who filled each."""
    if not segments:
        return []
    lanes = segments["reward"].shape[1] // len(groups)
    found = []
    for k, group in enumerate(groups.tolist()):
        part = {name: array[:, k * lanes : (k + 1) * lanes] for name, array in segments.items()}
        found.append(
            Trajectory(
                worker=group // groups_per_worker,
                lanes=range(group * lanes, (group + 1) * lanes),
                obs={name.removeprefix(OBS): array for name, array in part.items() if name.startswith(OBS)},
                actions=part["action"][:-1],
                rewards=part["reward"][:-1],
                terminated=part["terminated"][:-1],
                truncated=part["truncated"][:-1],
                valid=part["valid"][:-1],
                values=part["value"],
                log_probs=part["log_prob"][:-1],
                first=part["first"],
                steps=part["step"],
                episodes=part["episode"],
                versions=part["version"][:-1],
                policy_ids=part["policy_id"][:-1],
                infos={name.removeprefix(INFO): array for name, array in part.items() if name.startswith(INFO)},
            )
        )
    return found


# -- calling them ---------------------------------------------------------------------------------------------


def call_hook(observer: Observer, hook: str, *args: object) -> Any:
    """Call one hook; whatever it raises ends the run with an ObserverError that names it and holds the traceback."""
    function: Callable[..., Any] = getattr(observer, hook)
    try:
        return function(*args)
    except RollmillError:  # it has something to say to the user
        raise
    except Exception as error:
        if type(error).__name__ == "BdbQuit":  # leaving the debugger ends the run, it is no fault
            raise
        raise ObserverError(
            f"observer {type(observer).__name__} failed in {hook}: {type(error).__name__}: {error}\n"
            f"{''.join(traceback.format_exception(error)).rstrip()}"
        ) from error


def ask_summaries(observer: Observer, run: OnlineRun, taken: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics of one observer, refused if they are no numbers or have the name of another metric."""
    name = type(observer).__name__
    found = call_hook(observer, "extra_summaries", run)
    if not isinstance(found, Mapping):
        raise ObserverError(f"observer {name}: extra_summaries returned {type(found).__name__}, expected a dict")
    for key in found:
        if key in taken or key in ("frames", "step", "unit", "time"):
            raise ObserverError(f"observer {name}: extra_summaries: there is a metric called {key!r} already")
    try:
        return {str(key): float(value) for key, value in found.items()}
    except (TypeError, ValueError) as error:
        raise ObserverError(f"observer {name}: extra_summaries: every value must be a number ({error})") from error


# -- from the config ------------------------------------------------------------------------------------------


def build_observers(wanted: ObserverSettings) -> list[Observer]:
    """Build the observers a config names.

    Raises ConfigError if one does not exist or does not take its arguments.
    """
    targets = {target.rpartition(":")[2]: target for target in wanted.use}
    if len(targets) < len(wanted.use):
        raise ConfigError(f"observers.use={list(wanted.use)}: every class may stand there once")
    for name in wanted.args:
        if name not in targets:
            hint = nearest(name, targets)
            raise ConfigError(f"observers.args.{name}: no such observer in observers.use{f'; {hint}' if hint else ''}")
    return [_build(target, wanted.args.get(name)) for name, target in targets.items()]


def _build(target: str, args: Any) -> Observer:
    maker = import_object(target, "observers.use", lambda x: isinstance(x, type) and issubclass(x, Observer))
    name = target.rpartition(":")[2]
    args = {} if args is None else args
    if not isinstance(args, dict):
        raise ConfigError(f"observers.args.{name}: expected a mapping of arguments, got {args!r}")
    try:
        inspect.signature(maker).bind(**args)
    except TypeError as error:
        raise ConfigError(f"observers.args.{name}: {target}: {error}") from error
    try:
        made: Observer = maker(**args)
    except (TypeError, ValueError) as error:  # what a constructor says about its arguments
        raise ConfigError(f"observers.args.{name}: {error}") from error
    return made
