"""``rollmill models``: what has been trained."""

from __future__ import annotations

import json
from pathlib import Path

from rollmill.cli.data.check import MADE_BY
from rollmill.cli.options import Json
from rollmill.core.text import columns, cut, show
from rollmill.monitor.console import number_text
from rollmill.runs.catalogue import list_models


def list_all(words: tuple[str, ...] = (), /, root: Path = Path("runs"), json_: Json = False) -> int:
    """List trained models, those that come with rollmill first: ``rollmill models``, ``rollmill models CartPole``.

    The first column is what eval, watch, collect and export take. The score is the mean return of a model's card, of
    its last evaluation or of its last training episodes. A word fits a model if it is a part of its name, kind or
    environment; a pattern is compared with names.

    Args:
        words: What to look for; none: all models.
        root: Folder of all experiments.
        json_: Print JSON.
    """
    found = list_models(root, words)
    if json_:
        print(json.dumps([model.to_dict() for model in found], allow_nan=False))
        return 0
    if not found:
        print(f"no model fits {show(list(words))}")
        return 0
    cells = [("model", "kind", "env", "trained", "score", "made by")]
    for model in found:
        trained = "-" if model.trained is None else f"{model.trained:,} {model.unit}"
        score = "-" if model.score is None else number_text(model.score)
        cells.append((model.name, model.kind, model.env or "-", trained, score, cut(model.made_by, MADE_BY)))
    print("\n".join(columns(cells)))
    return 0
