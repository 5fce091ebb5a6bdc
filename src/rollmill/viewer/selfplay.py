"""Self-play as the viewer shows it: who won against whom, model by model, and how strong everybody is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rollmill.core.errors import RunFolderError
from rollmill.core.opening import check_within
from rollmill.pbt.ledger import Entry, read_ledger
from rollmill.pbt.payoff import PAYOFF_FILE
from rollmill.pbt.ratings import CONFIDENCE, rate

MOST_MODELS = 60
"""Models whose games are shown, the newest ones: ratings of more take long, and nobody can read the matrix."""

PairScore = tuple[float, int]
"""Points (a draw is half of one) and games."""


def selfplay(run: Path, root: Path) -> dict[str, Any]:
    """Return everybody's shares of points against all others; raises RunFolderError if the file is damaged."""
    file = run / PAYOFF_FILE
    check_within(file, root)
    entries = read_ledger(file)
    try:
        return _selfplay(entries)
    except (LookupError, TypeError, ValueError) as error:
        raise RunFolderError(f"{PAYOFF_FILE} is damaged: {error!r}") from error


def _selfplay(entries: Sequence[Entry]) -> dict[str, Any]:
    first, models = entries[0], entries[1:]
    policies = int(first["policies"])
    shown = models[-MOST_MODELS:]
    found = {
        (_name(f"model {int(entry['model'])}", int(row["policy"]), policies), str(row["opponent"])): _score(row)
        for entry in shown
        for row in entry["results"]
    }
    rows = list(dict.fromkeys(one for one, _ in found))
    published = [f"model {int(entry['model'])}" for entry in models]
    met = {name: None for pair in found for name in pair}
    names = sorted(met, key=lambda name: _place(name, published))
    return {
        "rule": str(first["rule"]),
        "models": len(models),
        "shown": len(shown),
        "frames": {f"model {int(entry['model'])}": int(entry["frames"]) for entry in shown},
        "names": names,
        "rows": rows,
        "cells": [[names.index(one), names.index(other), *score] for (one, other), score in found.items()],
        "confidence": CONFIDENCE,
        "ratings": _ratings(names, found),
    }


def _place(name: str, published: Sequence[str]) -> int:
    """Return a place: models in the order in which they came, everybody else behind them."""
    model = name.partition(",")[0]
    return published.index(model) if model in published else len(published)


def _name(model: str, policy: int, policies: int) -> str:
    return model if policies == 1 else f"{model}, policy {policy}"


def _score(row: Entry) -> PairScore:
    return float(row["wins"]) + float(row["draws"]) / 2, int(row["games"])


def _ratings(names: Sequence[str], found: dict[tuple[str, str], PairScore]) -> list[list[float]]:
    """Return [Elo, half of its interval] for each name. Points count as wins: draws widen the intervals a little."""
    wins = np.zeros((len(names), len(names)))
    for (one, other), (points, games) in found.items():
        wins[names.index(one), names.index(other)] += points
        wins[names.index(other), names.index(one)] += games - points
    if not names:
        return []
    ratings = rate(wins)
    return [[float(elo), float(margin)] for elo, margin in zip(ratings.elo, ratings.margin, strict=True)]
