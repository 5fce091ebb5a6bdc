"""``rollmill match`` says which of several policies plays better."""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import replace

from rollmill.cli.options import Json, keep_stdout
from rollmill.cli.progress import EvaluationLine
from rollmill.reports.html.document import place_for
from rollmill.runs.match.options import MatchOptions
from rollmill.runs.match.run import match as play_match


def match(players: tuple[str, ...], /, options: MatchOptions, json_: Json = False) -> int:
    """Let policies play against each other, all pairs with seats swapped: `rollmill match runs/default/a random`.

    Prints ratings with their intervals and who wins against whom. A player is a run folder, a checkpoint file (also of
    a pool), RUN@FRAMES (a past version of a run), random, or your own as module:callable. They play in the environment
    of the first of them that has one, or in env=...

    Args:
        players: Run folders, files, RUN@FRAMES, patterns ("runs/default/x*"), random, module:callable.
        json_: Print the result as JSON on stdout, and nothing else there.
    """
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    asked = options.report
    page = None if asked is None else place_for(asked, "match")
    with keep_stdout(json_), EvaluationLine() as line:
        found = play_match(players, replace(options, report=page), line.show)
    if options.out is not None:
        found.write(options.out)
    if page is not None:
        found.write_page(page)
    if json_:
        print(json.dumps({**found.to_dict(), **({"page": str(page)} if page is not None else {})}, allow_nan=False))
    else:
        print(found.text())
        if page is not None:
            print(f"\n{page}")
    if page != asked:
        print(f"{asked} is another page and stays as it is; this one is {page}", file=sys.stderr)
    return 0
