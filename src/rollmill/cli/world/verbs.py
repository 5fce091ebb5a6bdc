"""``rollmill world``: the stages of a world model, one by one or all in turn."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable

from rollmill.cli.words import call
from rollmill.core.text import moved, nearest, usage_of

SUBVERBS: dict[str, tuple[str, str]] = {
    "run": ("rollmill.cli.world.run:run", "all stages in turn; what is done is skipped"),
    "vae": ("rollmill.cli.world.encoder:vae", "learn an image encoder from a store"),
    "encode": ("rollmill.cli.world.encoder:encode", "a store of images into a store of latents"),
    "dynamics": ("rollmill.cli.world.control:dynamics", "learn what happens next from a store of latents"),
    "controller": ("rollmill.cli.world.control:controller", "search a controller by CMA-ES"),
    "dream": ("rollmill.cli.world.control:dream", "search a controller inside the model, test it outside"),
    "video": ("rollmill.cli.world.control:video", "a video of dreams beside what really happened"),
}


def world(words: tuple[str, ...], /) -> int:
    """Run ``rollmill world SUBVERB ...``; ``words`` is everything behind ``world``."""
    if not words or words[0] in ("-h", "--help"):
        print(usage())
        return 0 if words else 2
    if words[0] == "eval":
        print(f"rollmill world eval is part of rollmill eval: {moved('rollmill eval', words[1:])}", file=sys.stderr)
        return 2
    if words[0] not in SUBVERBS:
        hint = nearest(words[0], SUBVERBS)
        print(f"rollmill world: no verb {words[0]!r}{f'; {hint}' if hint else ''}\n\n{usage()}", file=sys.stderr)
        return 2
    return call(load(words[0]), words[1:], f"rollmill world {words[0]}")


def usage() -> str:
    return usage_of("rollmill world", SUBVERBS)


def load(name: str) -> Callable[..., int]:
    """Return the function of a sub-verb."""
    module, _, attribute = SUBVERBS[name][0].partition(":")
    found: Callable[..., int] = getattr(importlib.import_module(module), attribute)
    return found
