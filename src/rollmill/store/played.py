"""What was played while a store was recorded: metrics of all episodes, also of those that were not kept.

A run is cut into parts by the frame at which an episode began. Of each part: how many episodes ended, mean and variance
of their returns and lengths, and a random sample of them. ``played.json`` in the store's folder holds it; it stays
small, because parts become twice as wide when there are too many.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rollmill.core import atomic
from rollmill.core.errors import StoreError
from rollmill.core.fields import Array
from rollmill.core.opening import read_json

NAME = "played.json"
PARTS = 64
SAMPLE = 24
"""Episodes of each part that are kept as (return, length)."""
FIRST_WIDTH = 256
FORMAT = 1
_OWN = 0x706C61796564
"""Before every seed here: an environment that is seeded alike must not draw the numbers that choose the sample."""


@dataclass
class Moments:
    """Count, mean and sum of squared deviations, of several quantities at once."""

    count: int = 0
    mean: Array = field(default_factory=lambda: np.zeros(2))
    squares: Array = field(default_factory=lambda: np.zeros(2))

    def add(self, count: int, mean: Array, squares: Array) -> None:
        """Join with others, by Chan's rule."""
        if not count:
            return
        total, delta = self.count + count, mean - self.mean
        self.mean = self.mean + delta * (count / total)
        self.squares = self.squares + squares + delta**2 * (self.count * count / total)
        self.count = total

    @property
    def variance(self) -> Array:
        return np.asarray(self.squares / max(1, self.count))

    @property
    def scale(self) -> Array:
        """How large values are, roughly."""
        return np.asarray(np.maximum(np.abs(self.mean), np.sqrt(self.variance)))


@dataclass
class Part:
    """Episodes that began in one part of the run; quantities are (return, length)."""

    moments: Moments = field(default_factory=Moments)
    sample: Array = field(default_factory=lambda: np.zeros((0, 3)))
    """``[n, 3]``: random number, return, length; those with the smallest numbers."""

    def join(self, other: Part) -> None:
        self.moments.add(other.moments.count, other.moments.mean, other.moments.squares)
        both = np.concatenate([self.sample, other.sample])
        self.sample = both[np.argsort(both[:, 0], kind="stable")[:SAMPLE]]


class PlayedEpisodes:
    """All episodes of a run, part by part. ``width``: frames of a part."""

    def __init__(self, seed: int = 0) -> None:
        self.width = FIRST_WIDTH
        self.parts: dict[int, Part] = {}
        self._rng = np.random.default_rng((_OWN, seed))

    @property
    def count(self) -> int:
        return sum(part.moments.count for part in self.parts.values())

    def add(self, first_frames: Array, returns: Array, lengths: Array) -> None:
        """Take in episodes that have ended: the frame at which each began, its return, its length."""
        rows = np.stack([self._rng.random(len(returns)), returns, lengths], axis=1).astype(np.float64)
        while len(rows) and first_frames.max() // self.width >= PARTS:
            self._widen()
        places = first_frames // self.width
        for place in np.unique(places).tolist():
            mine = rows[places == place]
            values = mine[:, 1:]
            mean = values.mean(axis=0)
            moments = Moments(len(mine), mean, ((values - mean) ** 2).sum(axis=0))
            self.parts.setdefault(place, Part()).join(Part(moments, mine))

    def _widen(self) -> None:
        self.width *= 2
        before, self.parts = self.parts, {}
        for place, part in sorted(before.items()):
            self.parts.setdefault(place // 2, Part()).join(part)

    # -- on disk -------------------------------------------------------------------------------

    def save(self, store: Path) -> None:
        """Write ``played.json``; raises OSError."""
        parts = [
            {
                "part": place,
                "episodes": part.moments.count,
                "mean": part.moments.mean.tolist(),
                "squares": part.moments.squares.tolist(),
                "sample": [[round(number, 9), value, int(length)] for number, value, length in part.sample.tolist()],
            }
            for place, part in sorted(self.parts.items())
        ]
        text = json.dumps({"format": FORMAT, "width": self.width, "parts": parts}, separators=(",", ":"))
        atomic.write_text(store / NAME, text + "\n")

    @staticmethod
    def load(store: Path, seed: int = 0) -> PlayedEpisodes | None:
        """Read what ``save`` wrote; returns None where nothing was written."""
        path = store / NAME
        played = PlayedEpisodes(seed)
        try:
            found = read_json(path)
            if found["format"] != FORMAT:
                raise ValueError(f"format {found['format']}")
            played.width = int(found["width"])
            played.parts = {int(entry["part"]): _part(entry) for entry in found["parts"]}
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise StoreError(f"{path} makes no sense: {error}") from error
        return played


def _part(entry: dict[str, Any]) -> Part:
    mean, squares = (np.array(entry[name], np.float64) for name in ("mean", "squares"))
    sample = np.array(entry["sample"], np.float64).reshape(-1, 3)
    if mean.shape != (2,) or squares.shape != (2,) or entry["episodes"] < len(sample):
        raise ValueError(f"part {entry['part']} does not add up")
    return Part(Moments(int(entry["episodes"]), mean, squares), sample)
