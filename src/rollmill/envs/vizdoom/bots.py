"""The engine's own players (bots), as good as they are asked to be.

A bot has four numbers from 0 to 100 in the engine's file of bots. Its *skill* is two of them: how well it aims with
weapons that hit at once, and how soon it reacts. Its instinct of self-preservation (isp) stays in the middle, because
more of it makes a bot hide instead of fight, and perfection is read by nothing in the engine. The file names bots of
every fifth skill, enough of each for a match.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from rollmill.core.errors import ConfigError

LEVELS = tuple(range(0, 101, 5))
PER_LEVEL = 12
"""The engine tells bots apart by their number in the file, which is one byte: 21 levels of 12 are 252."""
ISP = 50
SPREAD = 10.0
"""Bots of a match differ by so much around their skill, as people do."""


def write_bots(path: Path) -> None:
    """Write the file of bots."""
    path.write_text("".join(_entry(name_of(level, k), level) for level in LEVELS for k in range(PER_LEVEL)))


def _entry(name: str, level: int) -> str:
    return f"{{\n name {name}\n aiming {level}\n perfection {level}\n reaction {level}\n isp {ISP}\n}}\n"


def name_of(level: int, number: int) -> str:
    return f"Bot{level:03d}{chr(ord('a') + number)}"


def check_skill(skill: float) -> None:
    if not 0 <= skill <= 100:
        raise ConfigError(f"bot_skill must be between 0 and 100, got {skill:g}")


def choose_bots(count: int, skill: float, rng: np.random.Generator) -> list[str]:
    """Return the names of ``count`` bots whose skills are around ``skill``, within 0 to 100."""
    levels = np.clip(rng.normal(skill, SPREAD, count), 0, 100) / 5
    return list(_names(np.round(levels).astype(int) * 5))


def _names(levels: np.ndarray) -> Iterator[str]:
    taken = dict.fromkeys(LEVELS, 0)
    for level in levels.tolist():
        # More than a dozen of one level in a match of 16 is rare; the next level with a free one will do.
        near = min((x for x in LEVELS if taken[x] < PER_LEVEL), key=lambda x: abs(x - level))
        yield name_of(near, taken[near])
        taken[near] += 1
