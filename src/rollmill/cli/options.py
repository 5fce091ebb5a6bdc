"""Flags that several verbs share."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from rollmill.cli.arguments import Spelling
from rollmill.core.errors import ConfigError

if TYPE_CHECKING:
    from rollmill.core.run_folder import Mode
    from rollmill.monitor.console import ConsoleMode
    from rollmill.runs.lifecycle import Request

Configs = Annotated[tuple[Path, ...], Spelling("-f", "FILE", one_each=True)]
"""YAML files, one per flag."""

Json = bool


@dataclass(frozen=True, kw_only=True)
class SettingsOptions:
    """The options of verbs that take settings and begin something long."""

    config: Configs = ()
    """A YAML file with settings; may be given several times, later files win."""
    print_config: bool = False
    """Print all settings as YAML, with the numbers that this machine gets, and start nothing."""
    json_: Json = False
    """Print the outcome as JSON on stdout, and nothing else there."""

    def request(self, **more: Any) -> Request:
        """Return what was asked for on this command line; unless told otherwise, to go on where it stopped."""
        from rollmill.runs.lifecycle import Request

        console: ConsoleMode = "plain" if self.json_ else "auto"
        return Request(**{"mode": "continue", "command": ("rollmill", *sys.argv[1:]), "console": console, **more})


@dataclass(frozen=True, kw_only=True)
class StartOptions(SettingsOptions):
    """The options of verbs whose folder must be new, unless they are told what to do with the run in it."""

    resume: bool = False
    """Continue the run in its folder from the newest checkpoint, with its saved settings below the given ones."""
    overwrite: bool = False
    """Delete the run in the folder and start anew."""

    def mode(self, otherwise: Mode | Literal["continue"] = "new") -> Mode | Literal["continue"]:
        """Decide what to do with the folder."""
        if self.resume and self.overwrite:
            raise ConfigError("--resume and --overwrite exclude each other: one keeps the run, the other deletes it")
        return "resume" if self.resume else "overwrite" if self.overwrite else otherwise


def keep_stdout(for_json: bool) -> contextlib.AbstractContextManager[object]:
    """Send what an env prints inside this process (serial mode) to stderr, with --json: stdout is for the JSON."""
    return contextlib.redirect_stdout(sys.stderr) if for_json else contextlib.nullcontext()


def shard_bytes(megabytes: int) -> int:
    """Return --shard-mb in bytes."""
    if megabytes < 1:
        raise ConfigError(f"--shard-mb {megabytes}: a positive number is expected")
    return megabytes * 1_000_000
