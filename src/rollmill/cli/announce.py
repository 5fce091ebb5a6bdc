"""What a run is about to do, in a few lines: settings that differ from the defaults, and what was decided for it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rollmill.core.config.plain import differences
from rollmill.reports.html.document import Kind, place_for

WIDTH = 110
MOST_LINES = 4
"""Of one kind; the rest is in ``config.yaml``."""
VALUE = 90
"""Characters of one value."""
_LABEL = 10


def announcement(asked: object, final: object, folder: Path) -> str:
    """Return what a run says at its start; ``asked``: settings as given, ``final``: all automatic numbers decided."""
    given = _words({key: new for key, (_, new) in differences(_defaults(asked), asked).items()})
    decided = _words({key: new for key, (_, new) in differences(asked, final).items()})
    lines = [*_block("settings", given or ["all at their defaults"]), *_block("decided", decided)]
    return "\n".join([*lines, f"{'in full':{_LABEL}}{folder / 'config.yaml'}"])


def _defaults(settings: Any) -> Any:
    """Return the defaults of all settings, those of blocks included that are off by default and were switched on."""
    defaults = type(settings)()
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value) and getattr(defaults, field.name) is None:
            of_block: Any = type(value)
            defaults = dataclasses.replace(defaults, **{field.name: of_block()})
    return defaults


def announcer(settings: object, folder: Path, quiet: bool) -> Callable[[], None]:
    """Return what runs that decide nothing by themselves call when nothing can be refused any more."""
    return lambda: None if quiet else print(announcement(settings, settings, folder), flush=True)


def page_of(folder: Path, kind: Kind) -> Path | None:
    """Return the page about a run that has ended, if one was written."""
    page = place_for(folder / "report.html", kind)
    return page if page.is_file() else None


def _words(values: dict[str, Any]) -> list[str]:
    """Return settings as they are written on a command line."""
    return [f"{key}={_value(value)}" for key, value in values.items()]


def _value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    return text if len(text) <= VALUE else f"{text[: VALUE - 3]}..."


def _block(label: str, words: list[str]) -> list[str]:
    """Return a label with its words, in lines; nothing for no words."""
    if not words:
        return []
    lines = [f"{label:{_LABEL}}{words[0]}"]
    for number, word in enumerate(words[1:], 1):
        if len(lines[-1]) + 1 + len(word) <= WIDTH:
            lines[-1] += f" {word}"
        elif len(lines) < MOST_LINES:
            lines.append(" " * _LABEL + word)
        else:
            return [*lines[:-1], f"{lines[-1]} ... and {len(words) - number} more"]
    return lines
