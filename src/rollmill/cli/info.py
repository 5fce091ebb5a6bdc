"""``rollmill envs`` and ``rollmill config``: what there is to choose from."""

from __future__ import annotations

import importlib.util
import json
import textwrap
from dataclasses import asdict

import tyro

from rollmill.cli.options import Json
from rollmill.core.config import describe
from rollmill.core.errors import ConfigError
from rollmill.core.text import nearest
from rollmill.envs.make import NAMED, Entry


def envs(json_: Json = False) -> int:
    """List the built-in environments. Any Gymnasium id and ``module:callable`` work as well.

    Args:
        json_: Print JSON.
    """
    rows = [{"name": name, "state": _state(entry), "summary": entry.summary} for name, entry in NAMED.items()]
    if json_:
        print(json.dumps(rows))
        return 0
    for row in rows:
        print(f"{row['name']:30} {row['state']:34} {row['summary']}")
    print("\nany Gymnasium id (env=CartPole-v1) or your own code (env=module:callable) works as well")
    return 0


def _state(entry: Entry) -> str:
    if entry.package and importlib.util.find_spec(entry.package) is None:
        return f'pip install "rollmill[{entry.extra}]"'
    return "ready"


def config(prefix: tyro.conf.Positional[str] = "", /, json_: Json = False) -> int:
    """Explain the keys of the training configuration, all of them or those that begin with a prefix.

    Args:
        prefix: For example ``learning`` or ``stop.frames``.
        json_: Print JSON.
    """
    from rollmill.runs.settings import TrainConfig

    keys = describe(TrainConfig)
    found = [key for key in keys if key.key == prefix or key.key.startswith(f"{prefix}." if prefix else "")]
    if not found:
        names = [key.key for key in keys] + [key.key.partition(".")[0] for key in keys]
        raise ConfigError(f"no key {prefix!r}; {nearest(prefix, names) or '`rollmill config` lists them all'}")
    if json_:
        print(json.dumps([asdict(key) for key in found], default=str))
        return 0
    for key in found:
        print(f"{key.key} = {key.default!r}   ({key.type})")
        print(textwrap.indent(textwrap.fill(key.doc, 100), "    "))
    return 0
