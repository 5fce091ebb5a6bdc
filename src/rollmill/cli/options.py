"""Flags that several verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

Configs = Annotated[
    tuple[Path, ...], tyro.conf.UseAppendAction, tyro.conf.arg(aliases=["-f"], metavar="FILE", help_behavior_hint="")
]
"""YAML files, one per flag."""

Json = Annotated[bool, tyro.conf.arg(name="json")]
