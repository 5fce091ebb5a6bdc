"""Flags that several verbs share."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Annotated

from rollmill.cli.arguments import Spelling
from rollmill.core.errors import ConfigError

Configs = Annotated[tuple[Path, ...], Spelling("-f", "FILE", one_each=True)]
"""YAML files, one per flag."""

PrintConfig = bool
Json = bool


def keep_stdout(for_json: bool) -> contextlib.AbstractContextManager[object]:
    """With --json, what an env prints inside this process (serial mode) goes to stderr: stdout is for the JSON."""
    return contextlib.redirect_stdout(sys.stderr) if for_json else contextlib.nullcontext()


def shard_bytes(megabytes: int) -> int:
    """--shard-mb in bytes."""
    if megabytes < 1:
        raise ConfigError(f"--shard-mb {megabytes}: a positive number is expected")
    return megabytes * 1_000_000
