"""What matches have shown: who has beaten whom, and how strong that makes everybody."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rollmill.core import atomic
from rollmill.core.errors import RunFolderError
from rollmill.core.fields import Array
from rollmill.core.text import columns
from rollmill.pbt.ratings import CONFIDENCE, Ratings, rate, wilson
from rollmill.reports.run.match import MatchPage, write_match

SURPRISE = 0.1
"""A pair whose share of points is so far from what ratings say, and outside its interval, is pointed out."""


@dataclass(frozen=True)
class Player:
    name: str
    source: str
    """Its file, or the word for it."""
    frames: int = 0
    unit: str = ""


class Table:
    """Results of all pairs of ``n`` players; the row's player against the column's."""

    def __init__(self, n: int) -> None:
        self.wins: Array = np.zeros((n, n), np.int64)
        self.draws: Array = np.zeros((n, n), np.int64)
        self.margin: Array = np.zeros((n, n))
        """Sum of the differences of returns."""
        self.first: Array = np.zeros(2)
        """Points of the player in the first seat, and games."""
        self.steps = 0
        self.lost = 0
        """Games that an environment's fault has ended; they count nowhere."""

    def add(
        self,
        pair: tuple[int, int],
        returns: tuple[float, float],
        steps: int,
        scores: tuple[float, float] | None = None,
    ) -> None:
        """Add a game of ``pair``: whoever has the higher score has won it, equal ones are a draw.

        ``scores``: None takes the returns.
        """
        (one, other), (mine, yours), (own, theirs) = pair, returns, scores or returns
        points = 0.5 if own == theirs else float(own > theirs)
        if own == theirs:
            self.draws[one, other] += 1
            self.draws[other, one] += 1
        else:
            self.wins[(one, other) if own > theirs else (other, one)] += 1
        self.margin[one, other] += mine - yours
        self.margin[other, one] += yours - mine
        self.first += points, 1
        self.steps += steps

    @property
    def games(self) -> Array:
        """``[n, n]``: how many games each pair has played."""
        found: Array = self.wins + self.wins.T + self.draws
        return found

    @property
    def points(self) -> Array:
        """[n, n]: wins and half of the draws."""
        found: Array = self.wins + self.draws / 2
        return found

    def share(self, one: int, other: int) -> float:
        """Return the share of the points of this pair that ``one`` has won."""
        return float(self.points[one, other] / max(1, self.games[one, other]))


@dataclass(frozen=True)
class MatchResult:
    """Everything that a match has found."""

    env: str
    players: Sequence[Player]
    table: Table
    seed: int
    result: str = ""
    """The statistic that decided games; empty: the return."""

    @functools.cached_property
    def ratings(self) -> Ratings:
        return rate(self.table.wins, self.table.draws)

    @property
    def games(self) -> int:
        return int(self.table.games.sum()) // 2

    @property
    def names(self) -> list[str]:
        return [player.name for player in self.players]

    @property
    def order(self) -> list[int]:
        """Players, the best one first."""
        return [int(k) for k in np.argsort(-self.ratings.elo, kind="stable")]

    @property
    def best(self) -> str:
        """The name of the player with the highest rating."""
        return self.names[self.order[0]]

    def __repr__(self) -> str:
        return f"<match of {len(self.players)} in {self.env}: {self.games:,} games, best is {self.best}>"

    @property
    def decided_by(self) -> str:
        """The statistic in words; empty: the return."""
        lower = self.result.startswith("-")
        return f"the lower {self.result[1:]}" if lower else f"the higher {self.result}" if self.result else ""

    def mean_margin(self, player: int) -> float:
        """Return by how much a player's return is higher than that of its opponents, in the mean over all games."""
        return float(self.table.margin[player].sum() / max(1, self.table.games[player].sum()))

    def surprises(self) -> list[tuple[int, int, float, float]]:
        """Return (one, other, share of points, share that ratings expect) of pairs that ratings do not describe.

        One number for each player cannot say that A beats B, B beats C, and C beats A.
        """
        expected, found = self.ratings.expected(), []
        for one, other in zip(*np.nonzero(self.table.games), strict=True):
            low, high = wilson(float(self.table.points[one, other]), int(self.table.games[one, other]))
            share, due = self.table.share(one, other), float(expected[one, other])
            if share > due + SURPRISE and not low <= due <= high:
                found.append((int(one), int(other), share, due))
        return sorted(found, key=lambda pair: pair[3] - pair[2])

    def sentences(self) -> list[str]:
        """Return what a reader of the table should know, as sentences."""
        points, games = self.table.first
        low, high = wilson(float(points), int(games))
        said = [
            f"The first seat has won {points / max(1, games):.0%} of the points ({low:.0%} to {high:.0%}); both of a "
            "pair have it equally often"
        ]
        said += [
            f"{self.names[one]} wins {share:.0%} against {self.names[other]} where ratings say {due:.0%}: who is "
            "better depends on the opponent"
            for one, other, share, due in self.surprises()[:3]
        ]
        if self.result:
            said.append(f"Games are decided by {self.decided_by}, the margin is that of returns")
        by_margin = sorted(range(len(self.players)), key=lambda k: -self.mean_margin(k))
        if by_margin != self.order:
            names = ", ".join(self.names[k] for k in by_margin)
            said.append(f"By how much is won, the order is {names}: ratings count won games, the margin counts returns")
        if not self.table.wins.any():
            what = self.result.removeprefix("-") or "returns"
            said.append(f"Nobody has won a game: {what} of the two sides never differ, so they may not be opponents")
        if self.table.lost:
            said.append(f"{self.table.lost} games were ended by faults of the environment and do not count")
        return said

    def text(self) -> str:
        """Return ratings and win matrix for a terminal."""
        shares = [["", *(str(k + 1) for k in range(len(self.order)))]]
        for place, k in enumerate(self.order):
            cells = ["-" if k == j else f"{self.table.share(k, j):.2f}" for j in self.order]
            shares.append([f"{place + 1} {self.names[k]}", *cells])
        total = int(self.table.games.sum()) // 2
        top = (
            f"{self.env}: {total:,} games, {total // max(1, len(self.order) * (len(self.order) - 1) // 2)} of each pair"
        )
        blocks = [
            [top],
            columns([RATING_HEAD, *self.rating_rows()], right=True),
            ["Share of points, row against column", *columns(shares, right=True)],
            [f"{said}." for said in self.sentences()],
        ]
        return "\n\n".join("\n".join(block) for block in blocks)

    def rating_rows(self) -> list[list[str]]:
        """Return rows for ``RATING_HEAD``, the best player first."""
        ratings, order = self.ratings, self.order
        rows = []
        for place, k in enumerate(order):
            elo, margin = ratings.elo[k], ratings.margin[k]
            games = int(self.table.games[k].sum())
            points = self.table.points[k].sum() / max(1, games)
            sure = f"{ratings.better(k, order[place + 1]):.1%}" if place + 1 < len(order) else ""
            rows.append(
                [
                    f"{place + 1} {self.names[k]}",
                    f"{elo:+.0f}",
                    f"{elo - margin:+.0f} to {elo + margin:+.0f}",
                    sure,
                    f"{points:.3f}",
                    f"{games:,}",
                    f"{self.mean_margin(k):+.3g}",
                ]
            )
        return rows

    def to_dict(self) -> dict[str, Any]:
        """Return the result for JSON; ``pairs`` has every pair once."""
        ratings, table = self.ratings, self.table
        pairs = []
        for one in range(len(self.players)):
            for other in range(one + 1, len(self.players)):
                games = int(table.games[one, other])
                low, high = wilson(float(table.points[one, other]), games)
                pairs.append(
                    {
                        "players": [self.names[one], self.names[other]],
                        "games": games,
                        "wins": int(table.wins[one, other]),
                        "draws": int(table.draws[one, other]),
                        "losses": int(table.wins[other, one]),
                        "share": table.share(one, other),
                        "interval": [low, high],
                        "expected": float(ratings.expected()[one, other]),
                        "mean_margin": float(table.margin[one, other] / max(1, games)),
                    }
                )
        players = [
            {
                "name": player.name,
                "source": player.source,
                "frames": player.frames,
                "elo": float(ratings.elo[k]),
                "interval": [float(ratings.elo[k] - ratings.margin[k]), float(ratings.elo[k] + ratings.margin[k])],
                "strength": float(ratings.strength[k]),
                "games": int(table.games[k].sum()),
                "points": float(table.points[k].sum()),
                "mean_margin": self.mean_margin(k),
            }
            for k, player in enumerate(self.players)
        ]
        return {
            "env": self.env,
            "seed": self.seed,
            "result": self.result or "return",
            "confidence": CONFIDENCE,
            "games": self.games,
            "lost": table.lost,
            "steps": table.steps,
            "first_seat": float(table.first[0] / max(1, table.first[1])),
            "order": [self.names[k] for k in self.order],
            "players": players,
            "pairs": pairs,
        }

    def write(self, path: Path) -> None:
        try:
            atomic.write_text(path, json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n")
        except OSError as error:
            raise RunFolderError(f"{path}: the result cannot be written: {error.strerror or error}") from error

    def write_page(self, path: Path) -> Path:
        """Write it as a page and return where that is. Raises RunFolderError if that is impossible."""
        order, table = self.order, self.table
        page = MatchPage(
            title=f"Match of {len(order)} players in {self.env}",
            about=f"{self.games:,} games of {table.steps:,} steps in all, seed {self.seed}; every pair has played both "
            "seatings of the same games.",
            names=[self.names[k] for k in order],
            elo=[float(self.ratings.elo[k]) for k in order],
            margin=[float(self.ratings.margin[k]) for k in order],
            head=RATING_HEAD,
            rows=self.rating_rows(),
            shares=[[None if k == j else table.share(k, j) for j in order] for k in order],
            sentences=[f"{said}." for said in self.sentences()],
        )
        return write_match(path, page)


RATING_HEAD = ("player", "Elo", f"{CONFIDENCE:.0%} interval", "better than the next", "points", "games", "margin")
