"""Writes ``docs/config_keys.md``: every key of trainings, offline learning, world models and launching.

    python tools/config_keys.py

A test compares the page with what this would write.
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from rollmill.core.config.schema import KeyInfo, describe
from rollmill.core.text import show
from rollmill.launch.settings import LaunchSettings
from rollmill.runs.settings.offline import OfflineConfig
from rollmill.runs.settings.train import TrainConfig
from rollmill.runs.settings.world import WorldConfig

PAGE = Path(__file__).resolve().parent.parent / "docs" / "config_keys.md"

CONFIGS = ((TrainConfig, ""), (OfflineConfig, "offline: "), (WorldConfig, "world: "), (LaunchSettings, "launch: "))
"""The settings, and what stands before the names of their blocks."""

HEAD = """\
# All configuration keys

Generated from the settings classes by `python tools/config_keys.py`; do not edit by hand.
`rollmill config` prints those of `rollmill train`, and `rollmill config learning` a part of them.
[Configuration](config.md) explains how the values come together.
"""


def page() -> str:
    """The whole page: one table per block."""
    parts = [HEAD]
    for config, verb in CONFIGS:
        for block, keys in groupby(describe(config), key=lambda info: info.key.partition(".")[0]):
            parts.append(f"## {verb}{block}\n\n| key | default | type | meaning |\n|---|---|---|---|")
            parts[-1] += "".join(f"\n{_row(info)}" for info in keys) + "\n"
    return "\n".join(parts)


def _row(info: KeyInfo) -> str:
    default = "required" if info.required else f"`{_value(info.default)}`"
    cells = (f"`{info.key}`", default, _cell(info.type), _cell(info.doc))
    return f"| {' | '.join(cells)} |"


def _value(value: object) -> str:
    """A default as it would be written in YAML."""
    return show(value) if not isinstance(value, str) else value


def _cell(text: str) -> str:
    """Text for a table cell: the settings' double backticks become Markdown's single ones."""
    return text.replace("``", "`").replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
