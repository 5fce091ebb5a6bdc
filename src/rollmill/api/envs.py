"""Makes one environment."""

from __future__ import annotations

from typing import Any

from rollmill.api.words import Env, env_words, said_in_python, setting_words
from rollmill.core import protocols
from rollmill.core.config.load import load_config
from rollmill.envs import make
from rollmill.runs.trust import SavedEnv


def make_env(env: Env, **args: Any) -> protocols.Env:
    """Make one environment as trainings see it, with ``spec``, ``reset(seed, obs)``, ``step(action, obs)``.

    ``env``: a name from ``rollmill envs``, any Gymnasium id, ``module:callable``, or a callable that makes one.
    ``args``: arguments of its constructor.
    """
    with said_in_python():
        settings = load_config(SavedEnv, (), setting_words(env_words(env), {"env.args": args} if args else {})).env
        make.check_env_settings(settings)
    return make.make_env(settings)
