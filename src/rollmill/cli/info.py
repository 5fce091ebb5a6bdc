"""``rollmill config``: what there is to choose from."""

from __future__ import annotations

import json
import textwrap
from dataclasses import asdict

import tyro

from rollmill.cli.options import Json
from rollmill.core.config.other_names import keys_called
from rollmill.core.config.schema import describe
from rollmill.core.errors import ConfigError
from rollmill.core.text import closest, did_you_mean


def config(prefix: tyro.conf.Positional[str] = "", /, json_: Json = False) -> int:
    """Explain the keys of the training configuration, all of them or those that begin with a prefix.

    Args:
        prefix: For example ``learning`` or ``stop.frames``.
        json_: Print JSON.
    """
    from rollmill.runs.train.settings import TrainConfig

    keys = describe(TrainConfig)
    found = [key for key in keys if key.key == prefix or key.key.startswith(f"{prefix}." if prefix else "")]
    if not found:
        names = [key.key for key in keys] + [key.key.partition(".")[0] for key in keys]
        last = prefix.rpartition(".")[2]
        same = [name for name in names if name.rpartition(".")[2] == last]
        hint = did_you_mean(same or keys_called(last, names) or closest(prefix, names))
        raise ConfigError(f"no key {prefix!r}; {hint or '`rollmill config` lists them all'}")
    if json_:
        print(json.dumps([asdict(key) for key in found], default=str))
        return 0
    for key in found:
        print(f"{key.key} = {key.default!r}   ({key.type})")
        print(textwrap.indent(textwrap.fill(key.doc, 100), "    "))
    return 0
