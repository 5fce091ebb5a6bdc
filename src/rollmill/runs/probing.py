"""What an environment is like, before anything is built for it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rollmill.core.errors import ConfigError
from rollmill.core.fields import EnvSpec
from rollmill.envs.info import LOOSE
from rollmill.envs.probe import Probe
from rollmill.envs.settings import EnvSettings

log = logging.getLogger("rollmill")

INFO_STEPS = 200
"""Steps at random in which is looked what ``info`` says."""


EPISODE_SECONDS = 20.0
"""How long an episode may take at random in which is looked what the environment tells of it."""


def episode_statistics(env: EnvSettings, environment: Mapping[str, str], timeout: float) -> Mapping[str, bool] | None:
    """Return the names of what an environment tells of an episode, and whether it does so of every agent.

    Returns None where no episode ends in ``EPISODE_SECONDS``.
    """
    probe = Probe(env, environment, episode_seconds=EPISODE_SECONDS)
    probe.result(timeout)
    return probe.statistics


def probe_in_child(env: EnvSettings, environment: Mapping[str, str], timeout: float) -> EnvSpec:
    """Return an env's spec, from a process of its own while this one imports torch."""
    probe = Probe(env, environment)
    try:
        import torch  # noqa: F401 - takes a second or two, in which the probe does its work
    except BaseException:
        probe.close()
        raise
    return probe.result(timeout)


def keeping_info(env: EnvSettings, names: Sequence[str], environment: Mapping[str, str], timeout: float) -> EnvSettings:
    """Return the environment with ``info`` settled: these names, or all that occur where there are none.

    A name alone stands for whatever kind it is found to be in some steps at random (``INFO_STEPS``); what later is of
    another costs no episode. Raises ConfigError if nothing can be kept.
    """
    probe = Probe(replace(env, info=()), environment, INFO_STEPS)
    probe.result(timeout)
    seen = ", ".join(probe.info) or "nothing"
    words = []
    for name in names or probe.info:
        word = name if ":" in name else probe.info.get(name, f"{name}{LOOSE}")
        if not word:
            if names:
                raise ConfigError(f"--save-info {name}: its values are of no kind that a row can hold")
            log.warning("--save-info: %s is left out: its values are of no kind that a row can hold", name)
            continue
        if name.partition(":")[0] not in probe.info:
            log.warning(
                "--save-info %s: did not occur in %d steps at random (seen: %s); rows without it hold NaN or no text",
                *(name, INFO_STEPS, seen),
            )
        words.append(word if ":" in name or word.endswith(LOOSE) else word + LOOSE)
    if not words:
        raise ConfigError(f"--save-info: info of {env.id} says nothing that can be kept ({INFO_STEPS} steps at random)")
    try:
        return replace(env, info=tuple(words) if names else (*words, LOOSE))
    except ValueError as error:
        raise ConfigError(f"--save-info: {error}") from error
