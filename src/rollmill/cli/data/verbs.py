"""``rollmill data``: look at stores, check, repair, merge, split and convert them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence

from rollmill.cli.words import call
from rollmill.core.errors import Interrupted
from rollmill.core.text import nearest, usage_of

SUBVERBS: dict[str, tuple[str, str]] = {
    "info": ("rollmill.cli.data.check:info", "what a store holds"),
    "verify": ("rollmill.cli.data.check:verify", "find every bad place, on all cores"),
    "repair": ("rollmill.cli.data.check:repair", "a new store with everything that is still good"),
    "merge": ("rollmill.cli.data.make:merge", "many stores into one"),
    "split": ("rollmill.cli.data.make:split", "one store into several, or a selection of it"),
    "export": ("rollmill.cli.data.make:export", "to Minari, TFRecord, npz, Parquet or mp4"),
    "import": ("rollmill.cli.data.make:import_", "from Minari, npz or pickled episodes"),
    "report": ("rollmill.cli.data.report:report", "a page about a store, and its metrics as JSON"),
    "play": ("rollmill.cli.data.report:play", "videos of episodes, with action and reward drawn on"),
}


def data(words: tuple[str, ...], /) -> int:
    """Run ``rollmill data SUBVERB ...``; ``words`` is everything behind ``data``."""
    if not words or words[0] in ("-h", "--help"):
        print(usage())
        return 0 if words else 2
    if words[0] not in SUBVERBS:
        hint = nearest(words[0], SUBVERBS)
        print(f"rollmill data: no verb {words[0]!r}{f'; {hint}' if hint else ''}\n\n{usage()}", file=sys.stderr)
        return 2
    return _run(words[0], words[1:])


def usage() -> str:
    return usage_of("rollmill data", SUBVERBS)


def _run(name: str, words: Sequence[str]) -> int:
    try:
        return call(load(name), words, f"rollmill data {name}")
    except Interrupted as stop:
        print(f"rollmill data {name}: {stop}", file=sys.stderr)
        return stop.exit_code


def load(name: str) -> Callable[..., int]:
    """Return the function of a sub-verb."""
    module, _, attribute = SUBVERBS[name][0].partition(":")
    found: Callable[..., int] = getattr(importlib.import_module(module), attribute)
    return found
