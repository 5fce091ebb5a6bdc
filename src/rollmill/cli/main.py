"""The ``rollmill`` command: finds the verb, runs it, and turns errors into a message and an exit code.

Exit codes: 0 done, 1 failed, 2 wrong configuration or command line, 128 + n ended by signal n.
Verbs are imported when they are used, so that ``rollmill --help`` and a typing error answer at once.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
import select
import sys
from collections.abc import Callable, Sequence

from rollmill import __version__
from rollmill.core.errors import RollmillError
from rollmill.core.text import nearest

VERBS: dict[str, tuple[str, str]] = {
    "train": ("rollmill.cli.train:train", "train an agent"),
    "eval": ("rollmill.cli.evaluate:evaluate", "evaluate runs or checkpoints, film them"),
    "watch": ("rollmill.cli.watch:watch", "watch an agent play, in a window, the browser or the terminal"),
    "collect": ("rollmill.cli.collect:collect", "write episodes of a policy into a store"),
    "data": ("rollmill.cli.data:data", "look at stores, check, repair, merge, split and convert them"),
    "offline": ("rollmill.cli.offline:offline", "learn a policy from a store"),
    "offline-eval": ("rollmill.cli.offline:offline_eval", "judge offline policies side by side"),
    "world": ("rollmill.cli.world:world", "world models: encoder, latents, dynamics, controller, dream"),
    "bench": ("rollmill.cli.bench:bench", "measure speed"),
    "launch": ("rollmill.cli.launch:launch", "plan, start, watch and cancel many runs"),
    "tb": ("rollmill.cli.tb:tb", "one TensorBoard over the runs that match"),
    "diary": ("rollmill.cli.diary:diary", "the history of an experiment's runs"),
    "report": ("rollmill.cli.report:report", "curves, best settings and importance of an experiment"),
    "envs": ("rollmill.cli.envs:envs", "list the environments, check one"),
    "config": ("rollmill.cli.info:config", "explain the keys of the configuration"),
    "doctor": ("rollmill.cli.doctor:doctor", "look whether this machine is fit for a run"),
}
CONFIGURED = ("train", "eval", "watch", "collect", "bench", "offline")
"""Verbs that take KEY=VALUE words; their function's first parameter is the list of them."""
NESTED = ("data", "envs", "launch", "world")
"""Verbs with verbs of their own; their function takes all words."""

_OVERRIDE = re.compile(r"[A-Za-z_][\w.]*=")
_TAKES_PATH = ("-f", "--config", "--restore", "--out", "--policy", "--record", "--csv", "--video")


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the console script; returns the exit code."""
    try:
        try:
            return _dispatch(list(sys.argv[1:] if arguments is None else arguments))
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        if not _reader_is_gone():
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the flush at exit fails once more
        return 141


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(usage())
        return 0 if words else 2
    if words[0] == "--version":
        print(f"rollmill {__version__}")
        return 0
    if words[0] not in VERBS:
        print(f"rollmill: no verb {words[0]!r}{_hint(words[0])}\n\n{usage()}", file=sys.stderr)
        return 2
    return _run(words[0], words[1:])


def usage() -> str:
    lines = ["usage: rollmill VERB ...", "", "verbs:"]
    lines += [f"  {name:10} {summary}" for name, (_, summary) in VERBS.items()]
    lines += ["", "`rollmill VERB --help` explains a verb."]
    return "\n".join(lines)


def _run(verb: str, words: list[str]) -> int:
    import tyro

    function = _load(verb)
    if verb in CONFIGURED:
        words, overrides = split_overrides(words)
        function = functools.partial(function, overrides)
    try:
        if verb in NESTED:
            return function(tuple(words))
        return tyro.cli(function, args=words, prog=f"rollmill {verb}", config=(tyro.conf.FlagCreatePairsOff,))
    except RollmillError as error:
        print(f"rollmill {verb}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(f"rollmill {verb}: interrupted", file=sys.stderr)
        return 130


def _reader_is_gone() -> bool:
    """Whether whoever read our output (head, less) has ended; any other broken pipe is a failure."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return bool(poll.poll(0))


def split_overrides(words: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """Take KEY=VALUE words out, wherever they stand between the flags."""
    flags: list[str] = []
    overrides: list[str] = []
    for word, before in zip(words, ("", *words)):
        is_override = _OVERRIDE.match(word) and before not in _TAKES_PATH
        (overrides if is_override else flags).append(word)
    return flags, tuple(overrides)


def _load(verb: str) -> Callable[..., int]:
    module, _, name = VERBS[verb][0].partition(":")
    found: Callable[..., int] = getattr(importlib.import_module(module), name)
    return found


def _hint(word: str) -> str:
    hint = nearest(word, VERBS)
    return f"; {hint}" if hint else ""


if __name__ == "__main__":
    sys.exit(main())
