"""``rollmill config``: what there is to choose from."""

from __future__ import annotations

import json
import textwrap
from dataclasses import asdict

from rollmill.cli.options import Json
from rollmill.core.config.other_names import keys_called
from rollmill.core.config.schema import describe
from rollmill.core.config.shipped import FOLDER, shipped_names
from rollmill.core.errors import ConfigError
from rollmill.core.text import closest, did_you_mean


def config(prefix: str = "", /, files: bool = False, json_: Json = False) -> int:
    """Explain the keys of the training configuration, all of them or those that begin with a prefix.

    Args:
        prefix: For example ``learning`` or ``stop.frames``.
        files: List the settings files that come with rollmill instead; ``-f NAME`` takes them from anywhere.
        json_: Print JSON.
    """
    if files:
        return _list_files(json_)
    from rollmill.runs.settings import TrainConfig

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


def _list_files(json_: bool) -> int:
    """Print the name of every shipped file with the comment it begins with."""
    about = {name: _first_comment((FOLDER / f"{name}.yaml").read_text()) for name in shipped_names()}
    if json_:
        print(json.dumps(about))
        return 0
    width = max(map(len, about))
    for name, text in about.items():
        print(f"{name:{width}}  {text}".rstrip())
    return 0


def _first_comment(text: str) -> str:
    line = text.partition("\n")[0]
    return line.removeprefix("#").strip() if line.startswith("#") else ""
