"""A search: what is chosen, what is written down, and that it goes on after a kill."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from launching import PROGRAM, facts

from rollmill.core.config.load import load_config
from rollmill.core.errors import ConfigError
from rollmill.launch.experiment import Experiment, describe_search, described_search, read_experiment
from rollmill.launch.launcher import record_plan
from rollmill.launch.params import Choice, LogUniform, Uniform
from rollmill.launch.plan import Plan
from rollmill.launch.records import LaunchRecords, Trial
from rollmill.launch.search import PARTS, Search, best, hopeless, part_means, suggest
from rollmill.launch.searching import SearchLauncher, told
from rollmill.launch.settings import LaunchSettings

pytest.importorskip("optuna")

DRAWS: Mapping[str, Any] = {"x": Uniform(-10, 10), "y": LogUniform(1e-4, 1e-1), "z": Choice(("a", "b"))}


def objective(params: Mapping[str, Any]) -> float:
    return -((params["x"] - 3) ** 2) - (0 if params["z"] == "b" else 20)


def searched(search: Search) -> list[Trial]:
    trials: list[Trial] = []
    for number in range(search.trials):
        params = suggest(search, trials)
        trials.append(Trial(number, params, "finished", objective(params)))
    return trials


def test_a_search_finds_what_random_draws_do_not() -> None:
    search = Search(DRAWS, trials=60, startup=10)
    found, random = searched(search), searched(replace(search, sampler="random"))
    top = best(search, found)
    assert top is not None
    assert abs(top.params["x"] - 3) < 0.5
    assert top.params["z"] == "b"
    late = lambda trials: sum(objective(t.params) for t in trials[30:])  # noqa: E731
    assert late(found) > late(random)
    assert found == searched(search), "the same seed and the same trials choose the same"
    assert all(1e-4 <= trial.params["y"] <= 1e-1 for trial in found)


def test_the_pruner_ends_what_is_below_the_others() -> None:
    search = Search(DRAWS, pruner="median", startup=3)
    params = {"x": 1.0, "y": 1e-3, "z": "a"}
    others = [Trial(k, params, "finished", 5.0 + k, tuple(float(5 + k) for _ in range(PARTS))) for k in range(4)]
    poor, good = Trial(4, params, parts=(1.0, 1.0)), Trial(4, params, parts=(9.0, 9.0))
    assert hopeless(search, [*others, poor], poor)
    assert not hopeless(search, [*others, good], good)
    assert not hopeless(search, [others[0], replace(poor, number=1)], replace(poor, number=1)), "too few to compare"
    assert not hopeless(replace(search, pruner="none"), [*others, poor], poor)
    silent = replace(poor, parts=(None, None))
    assert not hopeless(search, [*others, silent], silent), "nothing is known of it yet"


def test_parts_of_a_curve() -> None:
    assert part_means([5, 10, 15, 30], [1, 3, 5, 7], 100) == [2.0, 5.0, 7.0]
    assert part_means([25, 40], [3, 5], 100) == [None, None, 3.0, 5.0]
    assert part_means([], [], 100) == []


def tuned(**options: Any) -> Experiment:
    search = Search({"learning.gamma": Uniform(0.1, 1.0)}, **{"trials": 5, "startup": 2, **options})
    return Experiment("tuned", search=search, settings={"stop.frames": 100}, program=PROGRAM)


def launcher(folder: Path, experiment: Experiment, *words: str) -> SearchLauncher:
    settings = load_config(LaunchSettings, [], ["poll_seconds=0.05", *words])
    records = LaunchRecords(folder / experiment.name)
    made = Plan(experiment.name, records.experiment, (), search=describe_search(experiment))
    return SearchLauncher(records, record_plan(records, made, settings, os.getcwd()), settings, experiment, facts)


def test_a_search_of_runs(tmp_path: Path) -> None:
    """The trainer's return grows with gamma: the best trial is the one with the highest."""
    made = launcher(tmp_path, tuned())
    statuses = made.run()
    assert [status.run.name for status in statuses] == [f"trial-{k:03d}_s0" for k in range(5)]
    assert {status.state for status in statuses} == {"finished"}
    trials = made.records.trials()
    assert [trial.state for trial in trials] == ["finished"] * 5
    top = max(trials, key=lambda trial: trial.params["learning.gamma"])
    file = yaml.safe_load(made.records.best_settings.read_text())
    assert file == {"learning": {"gamma": top.params["learning.gamma"]}}
    lines = told(made.search, trials, made.records.best_settings)
    assert lines[0] == "5 of 5 trials: 5 finished"
    assert f"best: trial-{top.number:03d}" in lines[1]


def test_a_killed_search_goes_on(tmp_path: Path) -> None:
    first = launcher(tmp_path, tuned())
    while sum(trial.state == "finished" for trial in first.trials) < 2:
        first.tick()
    before = {trial.number: trial for trial in first.records.trials() if trial.state == "finished"}
    # The next launcher finds a trial that was written down, and whose runs were not planned any more.
    lost = Trial(len(first.trials), {"learning.gamma": 0.5})
    first.records.write_trial(lost)
    again = launcher(tmp_path, tuned())
    again.run()
    trials = again.records.trials()
    assert len(trials) == 5
    assert {number: trials[number] for number in before} == before
    assert dict(trials[lost.number].params) == dict(lost.params)
    assert [trial.state for trial in trials] == ["finished"] * 5
    more = launcher(tmp_path, tuned(trials=6))
    more.run()
    assert len(more.records.trials()) == 6


def test_poor_trials_are_ended_and_failed_ones_do_not_count(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    experiment = tuned(pruner="median", startup=1, trials=3)
    experiment = replace(experiment, settings={**experiment.settings, "env.args.gate": str(gate)})
    made = launcher(tmp_path, experiment)
    for number, value in enumerate((0.9, 0.95)):
        parts = tuple(100.0 for _ in range(PARTS))
        made.records.write_trial(Trial(number, {"learning.gamma": value}, "finished", 100.0, parts))
    made = launcher(tmp_path, experiment)
    made.plan = replace(made.plan, runs=())  # the runs of those two are long gone
    statuses = made.run()  # the third waits at its gate for ever, half way and far below the others
    assert [(s.run.name, s.state) for s in statuses] == [("trial-002_s0", "cancelled")]
    assert made.records.trials()[2].state == "pruned"
    assert best(made.search, made.records.trials()) == made.records.trials()[0]
    assert made.reset_failures() == []
    assert made.records.submission("trial-002_s0").cancelled


def test_a_description(tmp_path: Path) -> None:
    text = {
        "experiment": "tuned",
        "config": ["cartpole"],
        "search": {
            "trials": 7,
            "pruner": "halving",
            "params": {
                "learning.gamma": {"choice": [0.98, 0.99]},
                "learning.learning_rate": {"log_uniform": [1e-4, 1e-2]},
            },
        },
        "seeds": 2,
    }
    file = tmp_path / "tuned.yaml"
    file.write_text(json.dumps(text))
    experiment = read_experiment(file)
    assert experiment.search is not None
    assert (experiment.search.trials, experiment.search.pruner) == (7, "halving")
    again = described_search(json.loads(json.dumps(describe_search(experiment))))
    assert describe_search(again) == describe_search(experiment)


@pytest.mark.parametrize(
    ("search", "reason"),
    [
        ({"params": {}}, "at least one key"),
        ({"params": {"a": {"uniform": [0, 1]}}, "trails": 3}, "no such key: trails"),
        ({"params": {"a": {"uniform": [0, 1]}}, "pruner": "hyperband"}, "expected one of none, median, halving"),
        ({"params": {"a": {"unifrm": [0, 1]}}}, "a: expected one of"),
        ({"params": {"run.name": {"choice": [1]}}}, "run.name cannot be a parameter"),
    ],
)
def test_wrong_descriptions(tmp_path: Path, search: dict[str, Any], reason: str) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(json.dumps({"experiment": "x", "search": search}))
    with pytest.raises(ConfigError, match=reason):
        read_experiment(file)


def test_a_search_chooses_the_runs(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(json.dumps({"experiment": "x", "search": {"params": {"a": {"choice": [1]}}}, "shuffle": 1}))
    with pytest.raises(ConfigError, match="no params"):
        read_experiment(file)
