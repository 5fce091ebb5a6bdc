"""What sequence models learn from an agent's recorded training: Decision Transformer, ConvFormer, BC and 10%BC.

One chain on one machine, made for a GPU and 16 cores inside 25 minutes:

1. ``rollmill train`` with recording spread over the run (``recording.at_budget=thin`` keeps the spread even) and a
   learning rate that falls to zero, so that the last rows come from nearly one policy
2. two sets of rows of one store: *expert* (the last quarter of the frames, ``--expert-share``) and *mixed* (all)
3. on each set, two fits at a time: dt, conv (dt with convolutional mixing), bc; on mixed also bc10 (the best tenth)
4. every policy, the trained agent and random play on the same number of episodes: a table per set, as JSON and markdown

Each of ``--seeds`` is a chain of its own, from the agent on: agents are trained one after the other, fits and tables of
all seeds are made ``--parallel`` at a time. A last table has the means of all seeds.

    python benchmarks/health_gathering_study.py                                        all of it
    python benchmarks/health_gathering_study.py --seeds 0 1 2 --sets mixed              three agents, one table of all
    python benchmarks/health_gathering_study.py --stages train                         one stage; what is done is kept
    python benchmarks/health_gathering_study.py --env doom_basic --train-frames 200_000 --offline-seconds 30 --small

A stage whose result is there is not done again; ``--fresh`` begins anew. Exit code 1 when a mark is missed: on expert
rows dt reaches 90 % of the behaviour (random..behaviour), on mixed rows the best target is 20 % above bc.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from common import ROOT, machine

TARGETS = {"doom_health_gathering_supreme": "10,20,30,40", "doom_basic": "0,40,70,90"}
"""Returns to ask for, by environment; the shipped settings of that name train the agent."""
STAGES = ("train", "fit", "table")
SETS = ("expert", "mixed")


@dataclass(frozen=True)
class Method:
    """One way to learn from rows."""

    name: str
    words: tuple[str, ...]
    sets: tuple[str, ...] = SETS


METHODS = (
    Method("dt", ("algorithm=dt",)),
    Method("conv", ("algorithm=dt", "model.mixer=convolution"), ("mixed",)),
    Method("bc", ("algorithm=bc",)),
    Method("bc10", ("algorithm=bc",), ("mixed",)),
)
LARGE = (
    *("model.context=20", "data.window=40", "model.size=256", "model.layers=4", "model.heads=4", "model.fc=[512]"),
    *("fit.batch_size=96", "fit.learning_rate=6e-4", "fit.warmup_steps=200", "fit.steps=1000000"),
)
SMALL = (
    *("model.context=8", "data.window=16", "model.size=64", "model.layers=2", "model.fc=[128]"),
    *("fit.batch_size=32", "fit.learning_rate=1e-3", "fit.warmup_steps=20", "fit.steps=1000000"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="doom_health_gathering_supreme", choices=list(TARGETS))
    parser.add_argument("--train-frames", type=int, default=13_000_000, help="of the online training")
    parser.add_argument("--offline-seconds", type=float, default=70.0, help="of fitting each offline policy")
    parser.add_argument("--parallel", type=int, default=2, help="fits and tables that are made at once")
    parser.add_argument("--targets", default="", help="returns to ask for, with commas; none: as usual")
    parser.add_argument("--episodes", type=int, default=100, help="per policy and target in the tables")
    parser.add_argument("--envs", type=int, default=64, help="environments that play at once")
    parser.add_argument("--budget-gb", type=float, default=12.0, help="disk for the recorded rows")
    parser.add_argument("--every", type=int, default=10, help="record every k-th episode of each lane")
    parser.add_argument("--expert-share", type=float, default=0.25, help="the last part of the frames: expert rows")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="each trains an agent of its own")
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=SETS, help="rows to learn from")
    parser.add_argument("--methods", nargs="+", default=[m.name for m in METHODS], choices=[m.name for m in METHODS])
    parser.add_argument("--dir", type=Path, default=ROOT / "runs" / "study")
    parser.add_argument("--stages", default=",".join(STAGES), help=f"which of {', '.join(STAGES)}")
    parser.add_argument("--small", action="store_true", help="a small network, for trying it out on CPUs")
    parser.add_argument("--fresh", action="store_true", help="begin anew")
    parser.add_argument("--train", action="append", default=[], help="KEY=VALUE for the online training")
    parser.add_argument("words", nargs="*", help="KEY=VALUE for every offline training")
    options = parser.parse_args()
    options.targets = options.targets or TARGETS[options.env]
    unknown = set(options.stages.split(",")) - set(STAGES)
    if unknown:
        parser.error(f"--stages: no stage {', '.join(sorted(unknown))}; there are {', '.join(STAGES)}")
    begun = time.monotonic()
    studies = [Study(options, seed) for seed in options.seeds]
    asked = options.stages.split(",")
    if "train" in asked:
        for study in studies:
            study.train()
    for stage in ("fit", "table"):
        if stage in asked:
            with ThreadPoolExecutor(options.parallel) as pool:
                jobs = [pool.submit(job) for study in studies for job in getattr(study, stage)()]
            for job in jobs:
                job.result()
        say(f"{stage}: {time.monotonic() - begun:.0f} s since the beginning")
    if "table" in asked:
        for study in studies:
            study.write()
        text = over_seeds([study.results() for study in studies])
        (options.dir / f"{options.env}.md").write_text(text)
        print(text)
    say(f"{time.monotonic() - begun:.0f} s in all")
    return 0 if "table" not in asked or all(study.passed() for study in studies) else 1


class Study:
    """The chain of one seed; every method is a stage that finds out by itself what is done already."""

    def __init__(self, options: argparse.Namespace, seed: int) -> None:
        self.options, self.seed = options, seed
        self.folder: Path = options.dir / f"{options.env}-s{seed}"
        self.agent = self.folder / "agent"
        self.file = self.folder / "results.json"
        self._rows: dict[str, Any] = {}

    def train(self) -> None:
        """The agent and the store of its training."""
        o = self.options
        if self._is_done(self.agent):
            return
        rollmill(
            *("train", "-f", o.env, *self._place("agent"), "--overwrite"),
            *(f"stop.frames={o.train_frames}", "learning.lr_schedule=linear", f"run.seed={self.seed}", *o.train),
            *("recording.keep=episodes", f"recording.every={o.every}", f"recording.budget_gb={o.budget_gb}"),
            *("recording.at_budget=thin", "report.tensorboard=false"),
        )

    def fit(self) -> list[Callable[[], None]]:
        """Every method on its sets of rows."""
        return [partial(self._fit, rows, method) for rows in self.options.sets for method in self._methods(rows)]

    def _methods(self, rows: str) -> list[Method]:
        return [m for m in METHODS if m.name in self.options.methods and rows in m.sets]

    def _fit(self, rows: str, method: Method) -> None:
        name = f"{rows}-{method.name}"
        if self._is_done(self.folder / name):
            return
        o = self.options
        rollmill(
            *("offline", str(self.agent / "data"), *self._place(name), "--overwrite"),
            *(SMALL if o.small else LARGE),
            *(f"fit.seconds={o.offline_seconds}", f"run.seed={self.seed}", "evaluation.episodes=0"),
            *("report.tensorboard=false", "fit.every_steps=100", *method.words, *o.words),
            f"data.filter={json.dumps(self._filter(rows, method))}",
        )

    def _filter(self, rows: str, method: Method) -> list[str]:
        words = ["partial=no"]  # dt does without unknown ends; all methods shall see the same rows
        if rows == "expert":
            words.append(f"global_step_min={int((1 - self.options.expert_share) * self._frames())}")
        if method.name == "bc10":
            words.append("top=10%")
        return words

    def _frames(self) -> int:
        state: dict[str, Any] = json.loads((self.agent / "state.json").read_text())
        return int(state["frames"])

    def table(self) -> list[Callable[[], None]]:
        """All policies of a set beside each other."""
        return [partial(self._compare, rows) for rows in self.options.sets]

    def write(self) -> None:
        """The tables and the marks, as files."""
        o = self.options
        found: dict[str, Any] = {"machine": machine(), "gpu": gpu(), "options": vars(o), "frames": self._frames()}
        for rows in o.sets:
            found[rows] = self._rows[rows]
            found[f"{rows}_data"] = {run.name: data_of(run) for run in self._runs(rows)}
        found["marks"] = marks(found)
        self.file.write_text(json.dumps(found, indent=1, default=str))
        (self.folder / "results.md").write_text(markdown(found))
        say(markdown(found))
        say(f"kept in {self.file}")

    def results(self) -> dict[str, Any]:
        """What ``write`` has written."""
        found: dict[str, Any] = json.loads(self.file.read_text())
        return found

    def _compare(self, rows: str) -> None:
        o = self.options
        self._rows[rows] = rollmill(
            *("eval", *map(str, self._runs(rows)), "--behaviour", str(self.agent), "--random", "--json"),
            *("--episodes", str(o.episodes), "--envs", str(o.envs), "--report", str(self.folder / f"{rows}.html")),
            *("--targets", *o.targets.split(",")),
        )

    def _runs(self, rows: str) -> list[Path]:
        return [self.folder / f"{rows}-{m.name}" for m in self._methods(rows)]

    def passed(self) -> bool:
        return all(mark["passed"] for mark in self.results()["marks"])

    def _place(self, name: str) -> tuple[str, ...]:
        return (f"run.dir={self.folder.parent}", f"run.experiment={self.folder.name}", f"run.name={name}")

    def _is_done(self, folder: Path) -> bool:
        state = folder / "state.json"
        done = not self.options.fresh and state.is_file() and json.loads(state.read_text())["state"] == "finished"
        if done:
            say(f"{folder.name}: done already")
        return done


def marks(found: dict[str, Any]) -> list[dict[str, Any]]:
    """What the study must show. The best target is chosen on the episodes that judge it, which flatters it."""
    best = {rows: best_rows(found[rows]["rows"]) for rows in SETS if rows in found}
    shown = []
    if "expert-dt" in best.get("expert", {}):
        share = best["expert"]["expert-dt"]["share"]  # None: the agent is not clearly better than random play
        shown.append(_mark("expert rows: dt of behaviour (share)", share, 0.9))
    mixed = {name.removeprefix("mixed-"): row for name, row in best.get("mixed", {}).items()}
    if {"dt", "bc"} <= mixed.keys():
        dt, bc = mixed["dt"], mixed["bc"]
        error = math.hypot(dt["standard_error"] or 0.0, bc["standard_error"] or 0.0)
        wanted = max(0.2 * abs(bc["mean"]), 2 * error)  # and not by chance
        shown.append(_mark("mixed rows: dt over bc, and by 2 standard errors", dt["mean"] - bc["mean"], wanted))
    if {"dt", "conv"} <= mixed.keys():
        shown.append(_mark("mixed rows: conv over dt (no mark)", mixed["conv"]["mean"] - mixed["dt"]["mean"], None))
    return shown


def _mark(what: str, found: float | None, wanted: float | None) -> dict[str, Any]:
    passed = wanted is None or (found is not None and found >= wanted)
    return {"what": what, "found": found, "wanted": wanted, "passed": passed}


def best_rows(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The row with the highest return of each policy."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row["policy"] not in found or row["mean"] > found[row["policy"]]["mean"]:
            found[row["policy"]] = row
    return found


def data_of(run: Path) -> dict[str, Any]:
    """How long a policy was fitted, from its last row of metrics."""
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    names = ("time/seconds", "time/samples_per_s", "data/wait_share", "validation/loss", "validation/accuracy")
    return {"steps": last["step"], **{name: last.get(name) for name in names}}


def markdown(found: dict[str, Any]) -> str:
    lines = [f"{found['frames']:,} frames of training; {found['gpu'] or 'no GPU'}, {found['machine']['cores']} cores"]
    for rows in (rows for rows in SETS if rows in found):
        lines += ["", f"**{rows} rows**", "", "| policy | asked for | return | of behaviour | episodes |"]
        lines.append("|---|---|---|---|---|")
        for row in found[rows]["rows"]:
            target = "-" if row["target"] is None else f"{row['target']:g}"
            share = "-" if row["share"] is None else f"{100 * row['share']:.0f} %"
            error = row["standard_error"] or 0.0
            mean = f"{row['mean']:.2f} ± {error:.2f}"
            lines.append(f"| {row['policy']} | {target} | {mean} | {share} | {row['episodes']} |")
    lines += ["", "| mark | found | wanted | passed |", "|---|---|---|---|"]
    for mark in found["marks"]:
        wanted = "-" if mark["wanted"] is None else f"{mark['wanted']:.2f}"
        value = "-" if mark["found"] is None else f"{mark['found']:.2f}"
        lines.append(f"| {mark['what']} | {value} | {wanted} | {'yes' if mark['passed'] else 'NO'} |")
    return "\n".join(lines) + "\n"


def over_seeds(all_found: list[dict[str, Any]]) -> str:
    """A table per set of rows: a line for each policy and target, its return with each seed, and the mean of all."""
    frames = ", ".join(f"{found['frames']:,}" for found in all_found)
    lines = [f"{frames} frames of training"]
    for rows in (rows for rows in SETS if rows in all_found[0]):
        seeds = [f"seed {seed}" for seed in all_found[0]["options"]["seeds"]]
        lines += ["", f"**{rows} rows**", "", f"| policy | asked for | {' | '.join(seeds)} | mean | of behaviour |"]
        lines.append("|---" * (len(seeds) + 4) + "|")
        tables = [{(r["policy"], r["target"]): r for r in found[rows]["rows"]} for found in all_found]
        for policy, target in tables[0]:
            row = [table[policy, target] for table in tables]
            cells = [f"{r['mean']:.1f} ± {r['standard_error'] or 0:.1f}" for r in row]
            shares = [r["share"] for r in row]
            share = "-" if None in shares else f"{100 * sum(shares) / len(shares):.0f} %"
            mean = sum(r["mean"] for r in row) / len(row)
            asked = "-" if target is None else f"{target:g}"
            lines.append(f"| {policy} | {asked} | {' | '.join(cells)} | {mean:.1f} | {share} |")
    return "\n".join(lines) + "\n"


def gpu() -> str | None:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def rollmill(*words: str) -> dict[str, Any]:
    """Run the command as a user would; with --json its answer comes back."""
    say("rollmill " + " ".join(words))
    begun = time.monotonic()
    command = [sys.executable, "-m", "rollmill.cli.main", *words, *(() if "--json" in words else ("--json",))]
    path = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stderr[-4000:]}")
    say(f"  {time.monotonic() - begun:.0f} s")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
