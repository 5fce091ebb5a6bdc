"""What policies that learn against themselves are worth, in games of two players.

    python benchmarks/games.py matrix          biased rock, paper, scissors and a 2 x 2 game: circles, and their mean
    python benchmarks/games.py kuhn            exploitability of Kuhn poker after -f kuhn_poker
    python benchmarks/games.py leduc           the same of Leduc poker
    python benchmarks/games.py connect_four    against random play, a player who wins or blocks, and all past selves

Results are kept in ``runs/benchmarks``; ``--seeds`` says how often.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import record, train_run

from rollmill.core.checkpoints import Checkpoints
from rollmill.monitor.jsonl import read_jsonl
from rollmill.runs.match.options import MatchOptions
from rollmill.runs.match.run import match

RUNS = Path("runs") / "games"
PLAYERS = Path(__file__).resolve().with_name("game_players.py")
WIN_OR_BLOCK = f"{PLAYERS}:win_or_block"
QUIET = ("report.tensorboard=false",)


def learnt(name: str, *words: str) -> tuple[list[dict[str, Any]], float]:
    """Rows of metrics of a training, and its seconds."""
    begun = time.monotonic()
    folder = train_run(RUNS / name, *QUIET, *words)
    return list(read_jsonl(folder / "metrics.jsonl")), time.monotonic() - begun


# -- games that can be solved ------------------------------------------------------------------------------------


def matrix(seeds: int) -> dict[str, Any]:
    """Without an entropy bonus the newest policy goes round in circles; with one, and slowly, the mean settles."""
    words = ("env=matrix_game", "sampling.mode=serial", "sampling.workers=1", "sampling.envs_per_worker=512")
    words += ("sampling.rollout=4", "learning.batch_size=2048", "learning.minibatches=1", "learning.gamma=1")
    words += ("model.mlp=[32]", f"observers.use=['{PLAYERS}:Choices']", "report.every_frames=2000")
    circling = (
        "learning.learning_rate=3e-3",
        "learning.entropy_coefficient=0",
        "learning.epochs=2",
        "stop.batches=300",
    )
    settling = (*("learning.learning_rate=5e-4", "learning.entropy_coefficient=0.1"), "learning.epochs=1")
    rows = []
    for game in ("biased_rps", "two_by_two"):
        for seed in range(seeds):
            own = (*words, f"env.args.game={game}", f"run.seed={seed}")
            found, _ = learnt(f"{game}-circling-{seed}", *own, *circling)
            late = [row["game/first_choice"] for row in found[2 * len(found) // 3 :]]
            settled, seconds = learnt(f"{game}-settling-{seed}", *own, *settling, "stop.batches=1500")
            rows.append(
                {
                    "game": game,
                    "seed": seed,
                    "swing": max(late) - min(late),
                    "average": settled[-1]["game/average_exploitability"],
                    "latest": statistics.median(row["game/exploitability"] for row in settled[-50:]),
                    "seconds": round(seconds),
                }
            )
            print(rows[-1], flush=True)
    passed = all(row["average"] <= 0.03 and row["swing"] >= 0.5 for row in rows)
    return {"rows": rows, "mark": "average <= 0.03, first choice swings by >= 0.5", "passed": passed}


def solved(game: str, seeds: int, mark: float, *words: str) -> dict[str, Any]:
    """Exploitability at the end of the shipped settings, of the newest policy and of the mean of all."""
    rows = []
    for seed in range(seeds):
        found, seconds = learnt(f"{game}-{seed}", "-f", game, f"run.seed={seed}", *words)
        last = found[-1]
        names = ("exploitability", "average_exploitability", "value")
        own = {name: last[f"game/{name}"] for name in names}
        rows.append({"seed": seed, "begun": found[0]["game/exploitability"], **own, "seconds": round(seconds)})
        print(rows[-1], flush=True)
    passed = all(row["average_exploitability"] <= mark for row in rows)
    return {"rows": rows, "mark": f"average <= {mark}", "passed": passed}


def kuhn(seeds: int) -> dict[str, Any]:
    return solved("kuhn_poker", seeds, 0.05)


def leduc(seeds: int) -> dict[str, Any]:
    return solved("leduc_poker", seeds, 0.6, "stop.seconds=600")


# -- connect four -------------------------------------------------------------------------------------------------


def connect_four(seeds: int) -> dict[str, Any]:
    """Shares of points of the last policy; every checkpoint on the way is a past self."""
    rows = []
    for seed in range(seeds):
        name = f"connect_four-{seed}"
        words = ("checkpoints.keep_last=0", "checkpoints.every_seconds=60", "stop.seconds=720", f"run.seed={seed}")
        found, seconds = learnt(name, "-f", "connect_four", *words)
        folder = RUNS / name
        past = [checkpoint.path for checkpoint in Checkpoints(folder / "checkpoints").list()]
        newest = str(past.pop())
        scripted = match([newest, "random", WIN_OR_BLOCK], MatchOptions(games=400, envs=64))
        selves = {}
        for path in past:
            table = match([newest, str(path)], MatchOptions(games=200, envs=64)).table
            selves[path.name] = table.share(0, 1)
        share = scripted.table.share
        rows.append(
            {
                "seed": seed,
                "frames": found[-1]["frames"],
                "random": share(0, 1),
                "win_or_block": share(0, 2),
                "win_or_block_against_random": share(2, 1),
                "past_selves": selves,
                "seconds": round(seconds),
            }
        )
        print(rows[-1], flush=True)
    slack = 2 * 0.5 / 200**0.5
    passed = all(
        row["random"] >= 0.97 and row["win_or_block"] >= 0.7 and min(row["past_selves"].values()) >= 0.5 - slack
        for row in rows
    )
    return {"rows": rows, "mark": "random >= 0.97, win or block >= 0.7, no past self ahead", "passed": passed}


PARTS: dict[str, Callable[[int], dict[str, Any]]] = {
    "matrix": matrix,
    "kuhn": kuhn,
    "leduc": leduc,
    "connect_four": connect_four,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    result = PARTS[options.part](options.seeds)
    path = record(f"games_{options.part}", result)
    print(f"{'PASSED' if result['passed'] else 'MISSED'}: {result['mark']}; written to {path}")
    return 0 if result["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
