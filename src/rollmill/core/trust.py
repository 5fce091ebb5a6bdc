"""The refusal to run code that a file names and the user does not: one message, wherever the file is read."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollmill.core.config.schema import KeyPath
from rollmill.core.errors import UntrustedCodeError
from rollmill.core.text import cut

_SIMPLE = re.compile(r"[\w./:+@%,-]+", re.ASCII)
_WORD_CHARACTERS = 500


def refuse_code(words: Mapping[KeyPath, Any], source: Path) -> None:
    """Raise UntrustedCodeError unless there are no ``words``: keys whose values, out of ``source``, name code."""
    if not words:
        return
    named = [_word(".".join(key), value) for key, value in words.items()]
    typed = [shlex.quote(word.replace("env.id=", "env=", 1)) for word in named]
    raise UntrustedCodeError(
        f"{source} names code that would be run with your rights: {', '.join(named)}. Whoever made the file may have "
        f"chosen it. If you want to run it, name it yourself: {' '.join(typed)}; or trust all that the file names: "
        "--trust-code (in Python trust_code=True)"
    )


def _word(key: str, value: Any) -> str:
    """Return ``key=value``, readable where it is simple, else with every odd character escaped."""
    shown = [part if isinstance(part, str) and _SIMPLE.fullmatch(part) else json.dumps(part) for part in (key, value)]
    return cut("=".join(shown), _WORD_CHARACTERS)
