"""What policies that learn against themselves are worth, in games of two players.

    python benchmarks/games.py matrix          biased rock, paper, scissors and a 2 x 2 game: circles, and their mean
    python benchmarks/games.py pool            the same games against a pool: the mean of all models, and latest-only
    python benchmarks/games.py kuhn            exploitability of Kuhn poker after -f kuhn_poker
    python benchmarks/games.py leduc           the same of Leduc poker
    python benchmarks/games.py connect_four    against random play, a player who wins or blocks, and all past selves
    python benchmarks/games.py four_pool       the same against a pool, beside play against the latest model
    python benchmarks/games.py tag             hunters and hunted (MPE), each against the other's past

Results are kept in ``runs/benchmarks``; ``--seeds`` says how often.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common import Marks, record, train_run

from rollmill.core.checkpoints import Checkpoints, load_checkpoint
from rollmill.core.config.load import load_config
from rollmill.core.fields import MASK_FIELD
from rollmill.core.model_pool import ModelPool
from rollmill.core.run_folder import RunFolder
from rollmill.envs.games.env import TreeEnv
from rollmill.envs.games.exploit import AveragePolicy, exploitability
from rollmill.envs.make import make_env
from rollmill.envs.settings import EnvSettings
from rollmill.envs.turns import TURN_FIELD
from rollmill.models.actor_critic import build_model
from rollmill.models.saving import load_weights
from rollmill.monitor.jsonl import read_jsonl
from rollmill.runs.match.options import MatchOptions
from rollmill.runs.match.run import match
from rollmill.runs.settings.train import TrainConfig
from rollmill.runs.train.games import policy_table

RUNS = Path("runs") / "games"
PLAYERS = Path(__file__).resolve().with_name("game_players.py")
WIN_OR_BLOCK, TWO_PLIES = f"{PLAYERS}:win_or_block", f"{PLAYERS}:two_plies"
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


MATRIX_POOL = (
    *("env=matrix_game", "sampling.mode=serial", "sampling.workers=1", "sampling.envs_per_worker=512"),
    *("sampling.rollout=4", "learning.batch_size=2048", "learning.minibatches=1", "learning.gamma=1"),
    *("model.mlp=[32]", "learning.epochs=2", "learning.exploration=symmetric_kl", "learning.entropy_coefficient=0.2"),
    *("learning.learning_rate=2e-2",),
    *(f"observers.use=['{PLAYERS}:Choices']", "report.every_frames=2000", "pool.every_updates=4", "pool.keep=1000"),
)
"""Large steps towards a best response, as fictitious play asks for; by an entropy bonus alone, a choice that is hardly
ever made is not found again for hundreds of batches."""


def pool(seeds: int) -> dict[str, Any]:
    """Fictitious play: a best response to the mean of all past models, which becomes one of them. Against the latest
    alone the same settings go round in circles."""
    rows = []
    for game in ("biased_rps", "two_by_two"):
        for seed in range(seeds):
            own = (*MATRIX_POOL, f"env.args.game={game}", f"run.seed={seed}", "stop.batches=600")
            _, seconds = learnt(f"{game}-pool-{seed}", *own, "selfplay.rule=uniform")
            found, _ = learnt(f"{game}-latest-{seed}", *own, "selfplay.rule=latest")
            late = [row["game/first_choice"] for row in found[2 * len(found) // 3 :]]
            average, latest = (pool_exploitability(RUNS / f"{game}-{rule}-{seed}") for rule in ("pool", "latest"))
            row = {"game": game, "seed": seed, "average": average, "swing": max(late) - min(late)}
            rows.append({**row, "average_of_latest": latest, "seconds": round(seconds)})
            print(rows[-1], flush=True)
    passed = all(row["average"] <= 0.03 and row["swing"] >= 0.5 for row in rows)
    mark = "mean of the pool <= 0.03, first choice swings by >= 0.5 against the latest"
    return {"rows": rows, "mark": mark, "passed": passed}


def pool_exploitability(folder: Path) -> float:
    """How far the mean of all models of a run's pool is from unbeatable; every model counts the same."""
    models = ModelPool(RunFolder(folder).pool)
    config = load_config(TrainConfig, [folder / "config.yaml"], [])
    env = make_env(config.env)
    assert isinstance(env, TreeEnv)
    network, average = build_model(env.spec, config.model), AveragePolicy(env.tree)
    for entry in models.entries():
        load_weights(network, load_checkpoint(models.path_of(entry)).state["learners"][0]["model"])
        average.add(policy_table(network, env.tree), 1.0)
    return exploitability(env.tree, average.policy)


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


MINUTES = 12
PAST_GAMES = 400
RANDOM, SCRIPTED, SEARCH = 0.97, 0.7, 0.8
"""Shares of points: against random play, against who wins where it can and else blocks, against a search of depth 2.
The last one is a wish, and not a mark."""
BARE = 50_000
POOL = ("pool.every_seconds=0", "pool.every_updates=100", "selfplay.live_share=0.5")


def connect_four(seeds: int) -> dict[str, Any]:
    """The shipped settings for so many minutes; every model of the run's pool is a past self."""
    rows, marks = [], Marks()
    marks.at_least("bare steps/s, with observations", bare_speed(), BARE)
    for seed in range(seeds):
        rows.append({"seed": seed, **four_in_line(f"connect_four-{seed}", marks, f"run.seed={seed}")})
        print(rows[-1], flush=True)
    return told(rows, marks)


def four_pool(seeds: int) -> dict[str, Any]:
    """Half of the games against the pool, beside half of them against the latest model alone, which has no marks."""
    rows, marks = [], Marks()
    for seed in range(seeds):
        row: dict[str, Any] = {"seed": seed}
        for rule, own in (("mix", marks), ("latest", Marks())):
            row[rule] = four_in_line(f"four-{rule}-{seed}", own, *POOL, f"selfplay.rule={rule}", f"run.seed={seed}")
        rows.append(row)
        print(rows[-1], flush=True)
    return told(rows, marks)


def told(rows: Sequence[Mapping[str, Any]], marks: Marks) -> dict[str, Any]:
    """The result of a part that is judged by several marks."""
    print(marks.table())
    missed = [row["what"] for row in marks.rows if not row["met"]]
    return {"rows": rows, "marks": marks.rows, "mark": ", ".join(missed) or "all marks", "passed": marks.all_met}


def four_in_line(name: str, marks: Marks, *words: str) -> dict[str, Any]:
    """Train for so many minutes, and judge what came of it."""
    found, seconds = learnt(name, "-f", "connect_four", f"stop.seconds={60 * MINUTES}", *words)
    cores = statistics.median(row["usage/cores"] for row in found if "usage/cores" in row)
    row = {"frames": found[-1]["frames"], "seconds": round(seconds), "cores": cores}
    return row | judged(name, *against_all(RunFolder(RUNS / name)), marks)


def against_all(folder: RunFolder) -> tuple[dict[str, float], dict[str, float]]:
    """Shares of points of a run's last policy: against scripted players, and against each model of its pool."""
    last = Checkpoints(folder.checkpoints).newest()
    assert last is not None, "a training that has ended has a checkpoint"
    newest, models = str(last.path), ModelPool(folder.pool)
    share = match([newest, "random", WIN_OR_BLOCK, TWO_PLIES], MatchOptions(games=1000, envs=64)).table.share
    past = {}
    for entry in models.entries():
        table = match([newest, str(models.path_of(entry))], MatchOptions(games=PAST_GAMES, envs=64)).table
        past[f"after {entry.frames} frames"] = table.share(0, 1)
    return {"random": share(0, 1), "win_or_block": share(0, 2), "two_plies": share(0, 3)}, past


def judged(name: str, scripted: Mapping[str, float], past: Mapping[str, float], marks: Marks) -> dict[str, Any]:
    """Hold shares of points to the marks; returns them all."""
    marks.at_least(f"{name}: points against random play", scripted["random"], RANDOM)
    marks.at_least(f"{name}: points against who wins or blocks", scripted["win_or_block"], SCRIPTED)
    slack = 2 * 0.5 / PAST_GAMES**0.5
    worst = min(past.values(), default=None)
    marks.at_least(f"{name}: points against the hardest of {len(past)} past selves", worst, 0.5 - slack)
    print(f"{name}: points against a search of depth 2: {scripted['two_plies']:.3f} ({SEARCH} are wished for)")
    return {**scripted, "past_selves": past}


def bare_speed(seconds: float = 3.0) -> float:
    """Steps per second of one core in games of random moves, with all that both players see."""
    env, rng = make_env(EnvSettings(id="connect_four")), np.random.default_rng(0)
    obs = {f.name: np.zeros((2, *f.shape), f.dtype) for f in env.spec.observation}
    luck, steps, over = rng.random(10_000).tolist(), 0, True
    begun = time.process_time()
    while (used := time.process_time() - begun) < seconds:
        for chance in luck:
            if over:
                env.reset(0, obs)
            free = obs[MASK_FIELD][int(obs[TURN_FIELD][1, 0])].nonzero()[0]
            column = free[int(chance * len(free))]
            _, over, _, _ = env.step(np.array([column, column]), obs)
        steps += len(luck)
    return steps / used


# -- roles ---------------------------------------------------------------------------------------------------------

TAG = (
    *("env=pettingzoo", "env.args.env=mpe2.simple_tag_v3", "env.args.pad=true", "env.policies=[0,0,0,1]"),
    *("selfplay.rule=mix", "pool.every_updates=20", "pool.keep=1000", "stop.frames=400000"),
)


def tag(seeds: int) -> dict[str, Any]:
    """Games of the last hunters against the hunted of a quarter of the training, who are beaten where they are caught:
    every touch is a reward for one side and a punishment for the other."""
    rows = []
    for seed in range(seeds):
        name = f"tag-{seed}"
        _, seconds = learnt(name, *TAG, f"run.seed={seed}")
        models = ModelPool(RunFolder(RUNS / name).pool)
        entries = models.entries()
        then = min(entries, key=lambda entry: abs(entry.frames - entries[-1].frames / 4))
        players = [str(models.path_of(entry)) for entry in (entries[-1], then)]
        table = match(players, MatchOptions(games=400, envs=64, sides=(0, 0, 0, 1))).table
        # Each has hunted the other in half of the games; ``first`` counts what whoever hunted has won.
        half, hunters, last = table.games[0, 1] / 2, table.first[0], table.points[0, 1]
        rows.append(
            {
                "seed": seed,
                "models": len(entries),
                "last_hunters_beat_early_hunted": float((hunters + last - half) / 2 / half),
                "early_hunters_beat_last_hunted": float((hunters - last + half) / 2 / half),
                "seconds": round(seconds),
            }
        )
        print(rows[-1], flush=True)
    passed = all(row["last_hunters_beat_early_hunted"] >= 0.75 for row in rows)
    return {"rows": rows, "mark": "the last hunters beat the hunted of a quarter in >= 0.75", "passed": passed}


PARTS: dict[str, Callable[[int], dict[str, Any]]] = {
    "matrix": matrix,
    "pool": pool,
    "kuhn": kuhn,
    "leduc": leduc,
    "connect_four": connect_four,
    "four_pool": four_pool,
    "tag": tag,
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
