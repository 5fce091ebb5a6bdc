"""``rollmill watch`` shows a policy live."""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import replace

from rollmill.cli.options import Json, keep_stdout
from rollmill.core.errors import ConfigError
from rollmill.runs.watch.run import WatchOptions, Where
from rollmill.runs.watch.run import watch as run_watch


def watch(
    policy: str,
    /,
    options: WatchOptions,
    window: bool = False,
    terminal: bool = False,
    browser: bool = False,
    json_: Json = False,
) -> int:
    """Watch an agent play: ``rollmill watch runs/default/doom_basic-s0``.

    Without a flag it opens a window where there is a display, else a page for the browser, whose address it prints.
    A run that is still training is followed: newer checkpoints are taken over between episodes. Ctrl-C ends it.

    Args:
        policy: A run folder, a checkpoint or controller file, RUN@FRAMES, or your own as module:callable with env=...
        window: Open a window on this machine's display.
        terminal: Draw in the terminal, with coloured half blocks.
        browser: Serve a page for the browser on this machine (loopback only).
        json_: Print the address of the page as JSON on stdout, and nothing else there.
    """
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    places: tuple[tuple[Where, bool], ...] = (("window", window), ("terminal", terminal), ("browser", browser))
    chosen = [where for where, given in places if given]
    if len(chosen) > 1:
        raise ConfigError(f"--{' and --'.join(chosen)} exclude each other: choose where to show it")
    if json_ and terminal:
        raise ConfigError("--json and --terminal exclude each other: both want stdout for themselves")

    stdout = sys.stdout  # what an environment prints goes elsewhere

    def announce(url: str) -> None:
        text = json.dumps({"url": url}) if json_ else f"watch it at {url} (Ctrl-C ends it)"
        print(text, file=stdout, flush=True)

    options = replace(options, where=chosen[0] if chosen else "auto")
    with keep_stdout(json_):
        return run_watch(policy, options, announce)
