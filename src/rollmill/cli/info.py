"""``rollmill config``: what there is to choose from."""

from __future__ import annotations

import json
import sys
import textwrap
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from rollmill.cli.options import Json
from rollmill.cli.tree import find
from rollmill.core import atomic
from rollmill.core.config.json_schema import json_schema
from rollmill.core.config.other_names import keys_called
from rollmill.core.config.schema import describe
from rollmill.core.config.shipped import FOLDER, shipped_names
from rollmill.core.errors import ConfigError
from rollmill.core.imports import import_object
from rollmill.core.text import closest, did_you_mean
from rollmill.runs.settings.from_rllib import problem_of, translate

Of = Literal["train", "offline", "world", "launch"]
_VERB_OF: dict[Of, tuple[str, ...]] = {
    "train": ("train",),
    "offline": ("offline",),
    "world": ("world", "run"),
    "launch": ("launch", "run"),
}
_DESCRIPTION = "launch.experiment:Description"
"""What a file of ``rollmill launch run`` holds; its words set what stands below ``launch`` there."""


def config(
    prefix: str = "",
    /,
    of: Of = "train",
    files: bool = False,
    schema: bool = False,
    json_: Json = False,
) -> int:
    """Explain the keys of a configuration, all of them or those that begin with a prefix.

    Args:
        prefix: For example ``learning`` or ``stop.frames``.
        of: Whose configuration it is: of ``rollmill train``, ``offline``, ``world run``, or a description for
            ``rollmill launch run``.
        files: List the settings files that come with rollmill instead; ``-f NAME`` takes them from anywhere.
        schema: Print the JSON Schema of such files, for editors that complete and check YAML.
        json_: Print JSON.
    """
    if files:
        return _list_files(json_)
    place = _DESCRIPTION if of == "launch" else find(_VERB_OF[of])[1].settings
    cls = import_object(f"rollmill.{place}", "config")
    if schema:
        print(json.dumps(json_schema(cls, f"Settings of rollmill {' '.join(_VERB_OF[of])}"), indent=1))
        return 0
    keys = describe(cls)
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


def from_rllib(file: Path, /, out: Path | None = None, name: str = "", json_: Json = False) -> int:
    """Translate a YAML file of RLlib: ``rollmill config from-rllib cartpole.yaml --out cartpole_ours.yaml``.

    What has no equivalent is listed with the reason, and what `rollmill train` would refuse of the rest is said.

    Args:
        file: The file, as `rllib train file` takes it.
        out: Write the settings here instead of printing them.
        name: Which experiment, where the file has several.
        json_: Print JSON: settings, left_out, problem.
    """
    found = translate(file)
    chosen = [made for made in found if not name or made.name == name]
    if len(chosen) != 1:
        raise ConfigError(
            f"{file}: has the experiments {', '.join(made.name for made in found)}; choose one with --name"
        )
    (made,) = chosen
    problem = problem_of(made)
    if json_:
        facts = {"name": made.name, "settings": made.settings, "left_out": made.left_out, "problem": problem}
        print(json.dumps(facts))
        return 0
    text = f"# {made.name} of {file.name}, translated by rollmill\n{made.yaml}"
    if out is None:
        print(text, end="")
    else:
        if out.exists():
            raise ConfigError(f"--out {out}: exists already; give another name")
        try:
            atomic.write_text(out, text)
        except OSError as error:
            raise ConfigError(f"--out {out}: cannot be written: {error.strerror or error}") from error
    for key, reason in made.left_out.items():
        print(f"left out: {key}: {reason}", file=sys.stderr)
    if problem:
        print(f"to be settled before it trains: {problem}", file=sys.stderr)
    return 0
