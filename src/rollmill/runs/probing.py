"""What an environment is like, before anything is built for it."""

from __future__ import annotations

from collections.abc import Mapping

from rollmill.core.fields import EnvSpec
from rollmill.envs.probe import Probe
from rollmill.envs.settings import EnvSettings


def probe_in_child(env: EnvSettings, environment: Mapping[str, str], timeout: float) -> EnvSpec:
    """Return an env's spec, from a process of its own while this one imports torch."""
    probe = Probe(env, environment)
    try:
        import torch  # noqa: F401 - takes a second or two, in which the probe does its work
    except BaseException:
        probe.close()
        raise
    return probe.result(timeout)
