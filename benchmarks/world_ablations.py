"""What are the parts of a world model worth? An environment with and without them, and beside PPO on as many frames.

    python benchmarks/world_ablations.py                                     everything, two seeds (hours on 2 cores)
    python benchmarks/world_ablations.py --variants full latents --seeds 1 --generations 50
    python benchmarks/world_ablations.py --world vae.fit.steps=500 --appo learning.epochs=2
    python benchmarks/world_ablations.py --task health_gathering --variants full infilling adversarial recall
    python benchmarks/world_ablations.py --variants full infilling adversarial recall --generations 0    models alone

- **full**: ``rollmill world run -f carracing_world``; with ``--task health_gathering`` of ``health_gathering_world``.
- **latents**: its pictures and encoder; the controller reads the latents alone.
- **untrained**: its pictures and encoder; the controller also reads a memory whose weights nobody has fitted.
- **infilling**, **adversarial**, **recall**: as *full*, with a dynamics model that has this objective, or stored steps
  inside, and was fitted for as many steps.
- **appo**: ``car_racing`` (``doom_health_gathering``) for as many simulator frames as *full* took, those of pictures
  included.
- **random**: random actions.

All searches have the same population, trials and number of generations; how long they take does not matter. Every stage
of a seed is seeded with it. Controllers and APPO (its most likely actions) are judged on the same final episodes, which
nothing was chosen by. ``held_out.py`` measures what the dynamics models know of held-out episodes, the same way for all
of them; with ``--generations 0`` that is all.

The same command again skips what is finished and continues what was interrupted. Prints a table, writes
``runs/benchmarks/world_ablations-*.json`` and the curves beside it as SVG.
"""

from __future__ import annotations

import argparse
import csv
import functools
import hashlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import held_out
from common import BUSY, ROOT, end_on_sigterm, ours, record, save_plot, with_load

from rollmill.core import atomic
from rollmill.core.checkpoints import load_checkpoint
from rollmill.core.config.load import load_config
from rollmill.core.config.plain import completed, dump_yaml, to_dict
from rollmill.core.fields import EnvSpec
from rollmill.core.run_kind import FOLDERS, RECORDS
from rollmill.models.actor_critic import build_model
from rollmill.reports.html.plots import Plot
from rollmill.reports.run.world import TABLE
from rollmill.runs.settings.train import TrainConfig
from rollmill.runs.settings.world import ControllerConfig, WorldConfig
from rollmill.runs.world.controller import FINAL
from rollmill.store.reader import Store
from rollmill.worldmodel.controller.model import load_controller
from rollmill.worldmodel.dynamics.model import load_dynamics

TASKS = {
    "car_racing": ("carracing_world", "car_racing"),
    "health_gathering": ("health_gathering_world", "doom_health_gathering"),
}
"""The shipped configurations of world model and APPO."""
MODELS: dict[str, dict[str, Any]] = {
    "untrained": {"steps": 0},
    "infilling": {"objective": "infilling"},
    "adversarial": {"objective": "adversarial", "objective_weight": 0.1},
    "recall": {"recall": 8},
}
"""Variants that differ from *full* by their dynamics model, and how."""
SEARCHES = ("full", "latents", *MODELS)
VARIANTS = {
    "full": "full",
    "latents": "latents only",
    "untrained": "untrained memory",
    "infilling": "infilling objective",
    "adversarial": "adversarial objective",
    "recall": "recall inside the model",
    "appo": "APPO",
    "random": "random",
}
"""What they are called in the table."""
SHARED = ("collect", "vae", "encode")
"""Stages that the variants of a seed have in common."""

Row = dict[str, Any]
NOTHING: Row = {
    "weights": 0,
    "generations": None,
    "env_steps": 0,
    "frames": 0,
    "seconds": 0.0,
    "search_seconds": None,
    "choosing_episodes": 0,
    "mean": None,
    "std": None,
    "episodes": 0,
    "curve": [],
}
"""The row of what neither learns nor plays."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=list(TASKS), default="car_racing")
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--generations", type=int, default=100, help="of every search; 0: no search")
    parser.add_argument("--episodes", type=int, default=20, help="final ones, of every variant")
    parser.add_argument("--dir", type=Path, default=ROOT / "runs" / "ablations", help="folder of everything")
    parser.add_argument("--device", default="auto", help="of fits and searches: cpu, cuda, auto")
    parser.add_argument("--world", nargs="+", default=[], metavar="KEY=VALUE", help="for the world models")
    parser.add_argument("--appo", nargs="+", default=[], metavar="KEY=VALUE", help="for APPO")
    options = parser.parse_args()
    options.dir = options.dir.resolve()
    end_on_sigterm()
    if not options.generations:
        options.variants = [name for name in options.variants if name in ("full", *MODELS)]
    rows: list[Row] = []
    for seed in options.seeds:
        ablation = Ablation(options, seed)
        for name in options.variants:
            rows.append(ablation.row(name))
            print(table(rows[-1:]), file=sys.stderr, flush=True)
    print("\n" + table(rows) + "\n" + notes(rows), flush=True)
    path = record("world_ablations", {"command": sys.argv[1:], "task": options.task, "rows": rows})
    if not options.generations:
        print(f"recorded in {path.relative_to(ROOT)}")
        return 0
    image = path.with_suffix(".svg")
    save_plot(image, plot(rows), [VARIANTS[name] for name in names_of(rows)])
    print(f"recorded in {path.relative_to(ROOT)}; curves in {image.relative_to(ROOT)}")
    return 0


class Ablation:
    """The variants of one seed, in one folder. ``<variant>.json`` is a finished row and what it was asked for."""

    def __init__(self, options: argparse.Namespace, seed: int) -> None:
        self.options, self.seed = options, seed
        self.configs = TASKS[options.task]
        self.folder: Path = options.dir / (f"s{seed}" if options.task == "car_racing" else f"{options.task}-s{seed}")
        self.world = self.folder / "world"
        self.words = (
            *options.world,
            *(f"{key}={seed}" for key in ("seed", "vae.seed", "dynamics.seed", "controller.seed")),
            *(f"{key}.device={options.device}" for key in ("vae.fit", "dynamics", "controller")),
            *(f"controller.generations={options.generations or 1}", "controller.seconds=0"),
            f"controller.final_episodes={options.episodes}",
        )
        self.config = load_config(WorldConfig, [Path(self.configs[0])], self.words)
        if self.config.search_in != "env":
            raise SystemExit("--world search_in=dream: only searches in the environment are compared here")
        self.env = f"env={json.dumps(to_dict(self.config.env))}"

    def row(self, name: str) -> Row:
        """The row of a variant; it is made unless it is there."""
        if name == "appo":
            return self._appo()
        makers = {
            "full": self._run_full,
            "latents": self._run_latents,
            **{variant: functools.partial(self._run_model, variant) for variant in MODELS},
            "random": self._run_random,
        }
        return self._settle(name, to_dict(self.config), makers[name])

    # -- world models --------------------------------------------------------------------------

    def _run_full(self) -> Row:
        results = self._run_world("report" if self.options.generations else "dynamics")["results"]
        folder, seconds = self._place("controller"), self._stage("dynamics")["seconds"]
        return {**self._searched(folder, results.get("controller"), seconds), **self._held_out(self._place("dynamics"))}

    def _run_latents(self) -> Row:
        self._run_world("encode")
        settings = replace(self.config.controller, inputs="z", components=0)
        return self._search("latents", ControllerConfig(env=self.config.env, controller=settings), (), 0.0)

    def _run_model(self, variant: str) -> Row:
        """With a dynamics model of its own."""
        self._run_world("encode")
        model = self.folder / variant / "dynamics"
        settings = self._write_settings(variant, "dynamics", replace(self.config.dynamics, **MODELS[variant]))
        begun = time.monotonic()
        ours("world", "dynamics", str(self._place("encode")), "--out", str(model), "-f", str(settings))
        seconds = time.monotonic() - begun
        asked = ControllerConfig(env=self.config.env, controller=self.config.controller)
        return {**self._search(variant, asked, ("--dynamics", str(model)), seconds), **self._held_out(model)}

    def _held_out(self, model: Path) -> Row:
        with Store(self._place("encode")) as store:
            return {"held_out": held_out.known(load_dynamics(model), store)}

    def _run_world(self, until: str) -> dict[str, Any]:
        return ours("world", "run", "-f", self.configs[0], "--out", str(self.world), "--until", until, *self.words)

    def _search(self, name: str, asked: ControllerConfig, words: tuple[str, ...], seconds: float) -> Row:
        """Search beside the full one; ``seconds`` is what its dynamics model took."""
        out = self.folder / name / "controller"
        if not self.options.generations:
            return self._searched(out, None, seconds)
        settings = self._write_settings(name, "controller", asked)
        place = (str(self._place("vae")), "--out", str(out), "-f", str(settings))
        return self._searched(out, ours("world", "controller", *place, *words), seconds)

    def _searched(self, folder: Path, outcome: Mapping[str, Any] | None, seconds: float) -> Row:
        """The row of a finished search, or of none; ``seconds`` is what its dynamics model took."""
        seconds += sum(self._stage(name)["seconds"] for name in SHARED)
        if outcome is None:
            return {**NOTHING, "frames": self._collected[1], "seconds": seconds}
        asked, found = self.options.generations, outcome["generations"]
        if found != asked:
            raise SystemExit(f"{folder} has {found} generations, not {asked}: budgets differ, choose another --dir")
        with (folder / TABLE).open() as file:
            generations = list(csv.DictReader(file))
        collected_steps, collected_frames = self._collected
        search_seconds = float(generations[-1]["seconds"])
        judged = sum(bool(row["evaluated_best"]) for row in generations)
        return {
            "weights": len(load_controller(folder).weights),
            "generations": found,
            "env_steps": outcome["env_steps"],
            "frames": collected_frames + int(generations[-1]["frames"]),
            "seconds": seconds + search_seconds,
            "search_seconds": search_seconds,
            "choosing_episodes": (2 * judged or 1) * self.config.controller.evaluate_episodes,
            "mean": outcome["final_return"],
            "std": outcome["final_std"],
            "episodes": outcome["final_episodes"],
            "curve": [(collected_steps + int(row["env_steps"]), float(row["mean"])) for row in generations],
        }

    @functools.cached_property
    def _collected(self) -> tuple[int, int]:
        """Steps and frames of the pictures."""
        with Store(self._place("collect")) as store:
            return store.table.steps, store.table.steps * store.schema.env.frames_per_step

    def _place(self, stage: str) -> Path:
        return self.world / FOLDERS[stage]

    def _stage(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.world / RECORDS / f"{name}.json").read_text())
        return found

    def _write_settings(self, variant: str, name: str, settings: object) -> Path:
        path = self.folder / variant / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic.write_text(path, dump_yaml(settings))
        return path

    # -- comparators ---------------------------------------------------------------------------

    def _appo(self) -> Row:
        frames = self.row("full")["frames"]
        words = (*self.options.appo, self.env, f"stop.frames={frames}", f"run.seed={self.seed}")
        asked = to_dict(load_config(TrainConfig, [Path(self.configs[1])], words))
        return self._settle("appo", asked, lambda: self._run_appo(words, asked))

    def _run_appo(self, words: tuple[str, ...], asked: dict[str, Any]) -> Row:
        # A resume would take a finished run with other settings for this one: each has a folder of its own.
        name = "appo-" + hashlib.sha256(json.dumps(asked, default=str).encode()).hexdigest()[:8]
        folder = self.folder / name
        place = (f"run.dir={self.folder.parent}", f"run.experiment={self.folder.name}", f"run.name={name}")
        how = "--resume" if any((folder / "checkpoints").glob("*.ckpt")) else "--overwrite"
        trained = ours("train", "-f", self.configs[1], *words, *place, f"learning.device={self.options.device}", how)
        if trained["state"] != "finished":
            raise SystemExit(f"{folder}: {trained['state']}, {trained['reason']}")
        often = ("--episodes", str(self.options.episodes), "--seed", str(self.seed + FINAL))
        score = ours("eval", str(folder), *often, "--deterministic")
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        checkpoint = load_checkpoint(Path(score["checkpoint"]))
        spec = EnvSpec.from_dict(checkpoint.state["spec"])
        model = build_model(spec, load_config(TrainConfig, [], (), base=checkpoint.state["config"]).model)
        skip = spec.frames_per_step
        return {
            "weights": sum(parameter.numel() for parameter in model.parameters()),
            "generations": None,
            "env_steps": trained["frames"] // skip,
            "frames": trained["frames"],
            "seconds": rows[-1]["time/seconds"],
            "search_seconds": None,
            "choosing_episodes": 0,
            **metrics(score["returns"]),
            "curve": [(row["frames"] // skip, row["episode/return"]) for row in rows if "episode/return" in row],
        }

    def _run_random(self) -> Row:
        store_folder = self.folder / f"random-{self.options.episodes}"
        often = ("--until", str(self.options.episodes), "--seed", str(self.seed))
        ours("collect", self.env, "--out", str(store_folder), "--policy", "random", *often)
        with Store(store_folder) as store:
            steps, skip = store.table.steps, store.schema.env.frames_per_step
            returns = [float(value) for value in store.table.return_]
        return {**NOTHING, **metrics(returns), "played_frames": steps * skip}

    # -- rows ----------------------------------------------------------------------------------

    def _settle(self, name: str, asked: Mapping[str, Any], make: Callable[[], Row]) -> Row:
        """The row on disk, if it is of the same settings; else it is made, and kept."""
        path = self.folder / f"{name}.json"
        extra = {} if self.options.generations else {"searched": False}
        plain = json.loads(json.dumps({"settings": asked, "episodes": self.options.episodes, **extra}, default=str))
        if path.is_file():
            known = json.loads(path.read_text())
            if name in SEARCHES:  # a setting that was not known then had its default
                known["asked"]["settings"] = completed(known["asked"]["settings"], WorldConfig())
            if known["asked"] == plain:
                row: Row = known["row"]
                return row
        print(f"{name}, seed {self.seed}: {self.folder} ...", file=sys.stderr, flush=True)
        row = {"variant": name, "seed": self.seed, **with_load(make)}
        atomic.write_json(path, {"asked": plain, "row": row})
        return row


def metrics(returns: list[float]) -> Row:
    return {"mean": statistics.fmean(returns), "std": statistics.pstdev(returns), "episodes": len(returns)}


def names_of(rows: list[Row]) -> list[str]:
    return list(dict.fromkeys(row["variant"] for row in rows))


def table(rows: list[Row]) -> str:
    """All rows, the seeds of a variant together."""
    heads = [
        "variant",
        "seed",
        "weights",
        "generations",
        "env steps",
        "frames in all",
        "minutes",
        "of search",
        "return",
    ]
    heads += [f"held-out {name}" for name in held_out.FIGURES]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for row in (row for name in names_of(rows) for row in rows if row["variant"] == name):
        counts = [f"{row[key]:,}" if row[key] else "" for key in ("weights", "generations", "env_steps", "frames")]
        minutes = [f"{row[key] / 60:.1f}" if row[key] else "" for key in ("seconds", "search_seconds")]
        name, score = VARIANTS[row["variant"]], "" if row["mean"] is None else f"{row['mean']:.1f} ± {row['std']:.1f}"
        model = row.get("held_out", {})
        figures = [f"{model[figure]:.3f}" if figure in model else "" for figure in held_out.FIGURES]
        lines.append(f"| {' | '.join([name, str(row['seed']), *counts, *minutes, score, *figures])} |")
    return "\n".join(lines)


def notes(rows: list[Row]) -> str:
    """What the figures of the table mean, and what they leave out."""
    episodes = " or ".join(str(count) for count in sorted({row["episodes"] for row in rows}))
    lines = [
        f"Return: mean and standard deviation over {episodes} final episodes, which nothing was chosen by.",
        "Env steps are those of search or training; frames and minutes have those of collecting, too, and minutes also "
        "those of encoder and dynamics model.",
    ]
    choosing = max(row["choosing_episodes"] for row in rows)
    if choosing:
        lines.append(f"Not counted in steps and frames: up to {choosing:,} episodes that a search chose its result by.")
    busy = max(row["busy_cores_before"] for row in rows)
    if busy >= BUSY:
        lines.append(f"NOT QUIET: others kept up to {busy:.1f} cores busy before the runs; minutes are upper bounds.")
    return "\n".join(lines)


def plot(rows: list[Row]) -> Plot:
    """Curves of all runs, one colour per variant; random play is a level."""
    points = [point for row in rows for point in row["curve"]]
    most = max((steps for steps, _ in points), default=1)
    heights = [height for _, height in points] + [row["mean"] for row in rows]
    title = "mean return of a generation; of APPO: of the last 100 training episodes"
    words = {"x_title": "environment steps, those of collecting included", "y_title": title}
    drawn = Plot((0, most), (min(heights), max(heights)), size=(640, 320), **words).axes()
    names = names_of(rows)
    for row in rows:
        level = [(0, row["mean"]), (most, row["mean"])]
        drawn.line(level if row["variant"] == "random" else row["curve"], kind=f"line c{names.index(row['variant'])}")
    return drawn


if __name__ == "__main__":
    sys.exit(main())
