"""``rollmill envs play``: an environment under one's own fingers."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from rollmill.cli.envs import named_env
from rollmill.cli.options import Json, keep_stdout
from rollmill.core.errors import ConfigError
from rollmill.runs.watch.play import PlayOptions
from rollmill.runs.watch.play import play as run_play


def play(
    overrides: tuple[str, ...],
    env: str,
    /,
    options: PlayOptions,
    window: bool = False,
    browser: bool = False,
    json_: Json = False,
) -> int:
    """Play an environment yourself: ``rollmill envs play treasure_hunt env.args.treasure_num=5``.

    For one agent with a choice of actions. Which keys do what is printed. Without a flag it opens a window where there
    is a display, else a page for the browser, whose address it prints. Ctrl-C ends it.

    Args:
        overrides: Settings of the environment.
        env: A name from ``rollmill envs``, a Gymnasium id, or module:callable. KEY=VALUE words set env.* keys.
        window: Open a window on this machine's display.
        browser: Serve a page for the browser on this machine (loopback only).
        json_: Print JSON, a line each: the keys, the address of the page, and how each episode went.
    """
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    if window and browser:
        raise ConfigError("--window and --browser exclude each other: choose where to play")
    where: Literal["auto", "window", "browser"] = "window" if window else "browser" if browser else "auto"
    stdout = sys.stdout  # what an environment prints goes elsewhere

    def announce(line: str, values: Mapping[str, Any]) -> None:
        print(json.dumps(values) if json_ else line, file=stdout, flush=True)

    with keep_stdout(json_):
        return run_play(named_env(env, overrides), replace(options, where=where), announce)
