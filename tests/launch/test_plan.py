from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmill.core.config.load import load_config
from rollmill.core.config.yaml import parse_value
from rollmill.core.errors import ConfigError
from rollmill.launch.experiment import Expect, Experiment
from rollmill.launch.params import ParamGrid, ParamList, RandomSearch, Uniform
from rollmill.launch.plan import Measured, PlannedRun, RunFacts, make_plan, override, total_of
from rollmill.runs.settings.train import TrainConfig

ROOT = Path("runs")


def facts(_run: PlannedRun) -> RunFacts:
    return RunFacts(1000, 0.5)


def names(params: Any, seeds: int = 1) -> list[str]:
    return [run.name for run in make_plan(Experiment("e", params, seeds), ROOT, facts).runs]


def test_names_are_what_runs_differ_in() -> None:
    grid = ParamGrid(
        {"env": ["toy_target", "CartPole-v1"], "learning.gamma": [0.9], "learning.learning_rate": [1e-4, 0.01]}
    )
    assert names(grid, 2) == [
        "toy_target_learning_rate-0.0001_s0",
        "toy_target_learning_rate-0.0001_s1",
        "toy_target_learning_rate-0.01_s0",
        "toy_target_learning_rate-0.01_s1",
        "CartPole-v1_learning_rate-0.0001_s0",
        "CartPole-v1_learning_rate-0.0001_s1",
        "CartPole-v1_learning_rate-0.01_s0",
        "CartPole-v1_learning_rate-0.01_s1",
    ]


def test_names_of_files_lists_and_keys_that_end_alike() -> None:
    assert names(ParamGrid({"config": ["a/doom.yaml", "b/pong.yaml"]})) == ["doom_s0", "pong_s0"]
    assert names(ParamGrid({"model.mlp": [[64, 64], []]})) == ["mlp-64-64_s0", "mlp-_s0"]
    assert names(ParamGrid({"a.size": [1, 2], "b.size": [-3]}))[0] == "size-1_s0"
    assert names(ParamGrid({"a.size": [1, 2], "b.size": [-3, 4]}))[0] == "a.size-1_b.size--3_s0"
    assert names(ParamGrid({"learning.gamma": [0.9]})) == ["e_s0"], "nothing differs"
    long = names(ParamGrid({"env": ["x" * 300, "x" * 299 + "y"]}))
    assert len(set(long)) == 2
    assert max(map(len, long)) < 130


def test_a_run_is_a_command_with_its_place() -> None:
    what = Experiment(
        "e",
        ParamGrid({"config": ["c.yaml"], "learning.gamma": [0.9, 0.99]}),
        config=["base.yaml"],
        settings={"stop.frames": 100, "model.mlp": (8, 8)},
    )
    run = make_plan(what, ROOT, facts).runs[1]
    assert run.command == (
        *("rollmill", "train", "--config", "base.yaml", "--config", "c.yaml", "stop.frames=100", "model.mlp=[8, 8]"),
        *("learning.gamma=0.99", "run.seed=0", "run.dir=runs", "run.experiment=e", "run.name=gamma-0.99_s0"),
    )
    assert run.folder == ROOT / "e" / "gamma-0.99_s0"
    assert run.group == "gamma-0.99"
    assert run.params == {"learning.gamma": 0.99, "run.seed": 0}


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner, max_size=3),
        max_leaves=5,
    )
)
def test_values_come_back_from_the_command_line(value: Any) -> None:
    key, _, text = override("key", value).partition("=")
    assert key == "key"
    assert parse_value(text, "test") == value


def test_values_that_cannot_be_written_are_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        override("key", object())
    with pytest.raises(ConfigError, match="cannot be written"):
        override("key", float("nan"))


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        (Experiment("e", ParamList([{"a": 1}, {"a": 1}])), "2 runs would be called e_s0"),
        (Experiment("e", ParamGrid({"env": ["a/b", "a-b"]})), "2 runs would be called a-b_s0"),
        (Experiment("e", ParamGrid({"env": ["a", "A"]})), "2 runs would be called"),
        (Experiment("e", ParamGrid({"env": ["launch", "b"]}), seeds=0), "cannot be called 'launch'"),
        (Experiment("e", ParamGrid({"a": [1]}), settings={"a": 2}), "a: stands under settings and among"),
        (Experiment("e", seeds=10**9), "more than 10,000 runs"),
        (Experiment("e", RandomSearch({"a": Uniform(0, 1)}, 10**9)), "more than 10,000 runs"),
        (Experiment("e", ParamList([{}]) * RandomSearch({"a": Uniform(0, 1)}, 10**9), seeds=0), "more than 10,000"),
        (Experiment("e", ParamGrid({"a": range(10**6), "b": range(10**6)})), "more than 10,000 runs"),
        (Experiment("e", settings={"run.dir": "x"}), "run.dir cannot be set"),
    ],
)
def test_bad_plans_are_refused(what: Experiment, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        make_plan(what, ROOT, facts)


def test_problems_of_all_runs_are_told_once_each() -> None:
    def check(run: PlannedRun) -> RunFacts:
        load_config(TrainConfig, [], run.words)
        return RunFacts()

    what = Experiment("e", ParamGrid({"env": ["toy_target", "toy_memory"], "learning.gama": [0.9, 0.99]}), seeds=3)
    with pytest.raises(ConfigError) as error:
        make_plan(what, ROOT, check)
    lines = str(error.value).splitlines()
    assert lines[0].startswith("nothing was started")
    assert len(lines) == 3, "one for each wrong word, not one for each of twelve runs"
    assert "and 5 more" in lines[1]
    assert "did you mean 'learning.gamma'?" in lines[1]


def test_totals() -> None:
    plan = make_plan(Experiment("e", ParamGrid({"env": ["a", "b"]}), seeds=3), ROOT, facts)
    unknown = total_of(plan, 2, Measured())
    assert (unknown.runs, unknown.groups, unknown.frames, unknown.hours, unknown.gb) == (6, 2, 6000, None, None)
    assert unknown.recording_gb == 3.0
    known = total_of(plan, 2, Measured(10.0, 5e6, "measured"))
    assert known.hours == pytest.approx(6000 / 10 / 2 / 3600)
    assert known.gb == pytest.approx(0.03)
    expecting = dataclasses.replace(plan, expect=Expect(frames_per_s=1.0, run_mb=1000))
    assert total_of(expecting, 0, Measured(10.0, 5e6)).hours == pytest.approx(1000 / 3600), "all at the same time"
    assert total_of(expecting, 0, Measured()).gb == pytest.approx(6.0)
    endless = dataclasses.replace(plan, runs=tuple(dataclasses.replace(r, facts=RunFacts(0)) for r in plan.runs))
    assert total_of(endless, 2, Measured(10.0)).hours is None


def test_paths_are_text_in_a_plan(tmp_path: Path) -> None:
    files = [tmp_path / "a.yaml", tmp_path / "b.yaml"]
    what = Experiment("e", params=ParamGrid({"config": files}))
    made = make_plan(what, tmp_path, lambda run: RunFacts())
    assert [run.params["config"] for run in made.runs] == [str(file) for file in files]


# -- other verbs, several commands, other orders ---------------------------------------------------------------


def commands(what: Experiment) -> dict[str, tuple[str, ...]]:
    return {run.name: run.command for run in make_plan(what, ROOT, facts).runs}


def test_every_verb_is_told_its_place_and_its_seed_in_its_own_way() -> None:
    seeds = [3]
    offline = Experiment("e", program=("rollmill", "offline"), settings={"store": "s"}, seeds=seeds)
    place = ("run.dir=runs", "run.experiment=e", "run.name=e_s3")
    assert commands(offline)["e_s3"] == ("rollmill", "offline", "store=s", "run.seed=3", *place)
    collect = Experiment("e", program=("rollmill", "collect", "--episodes", "5"), settings={"env": "a"}, seeds=seeds)
    assert commands(collect)["e_s3"] == (
        *("rollmill", "collect", "--episodes", "5", "env=a", "--out", "runs/e/e_s3/data", "--seed", "3"),
    )
    world = Experiment("e", program=("rollmill", "world", "run"), config=["w.yaml"], seeds=seeds)
    assert commands(world)["e_s3"] == (
        *("rollmill", "world", "run", "--config", "w.yaml", "seed=3", "--out", "runs/e/e_s3"),
    )
    for words, told in {
        ("world", "vae", "raw"): ("seed=3", "--out", "runs/e/e_s3"),
        ("world", "dynamics", "lat"): ("seed=3", "--out", "runs/e/e_s3"),
        ("world", "controller", "vae"): ("controller.seed=3", "--out", "runs/e/e_s3"),
        ("world", "dream", "vae", "dyn"): ("controller.seed=3", "--out", "runs/e/e_s3"),
        ("world", "encode", "raw", "vae"): ("--out", "runs/e/e_s3/data"),
        ("match", "a", "b"): ("--out", "runs/e/e_s3/match.json", "--seed", "3"),
    }.items():
        made = commands(Experiment("e", program=("rollmill", *words), seeds=seeds))["e_s3"]
        assert made == ("rollmill", *words, *told)
    own = Experiment("e", program=("./mine.py",), seeds=seeds)
    assert commands(own)["e_s3"] == ("./mine.py", "run.seed=3", *place)


def test_words_of_a_program_take_parameters() -> None:
    grid = ParamGrid({"policy": ["a", "b"], "env": ["x", "y"]})
    words = ("rollmill", "eval", "runs/g/{policy}", "--out", "{folder}/{policy}.json", "{nothing}")
    found = commands(Experiment("e", grid, program=words, seeds=0))
    assert found["policy-b_y"] == (
        *("rollmill", "eval", "runs/g/b", "--out", "runs/e/policy-b_y/b.json", "{nothing}", "env=y"),
    )


def test_several_commands_are_one_plan() -> None:
    dt = Experiment("dt", ParamGrid({"fit.steps": [1, 2]}), program=("rollmill", "offline"), settings={"store": "s"})
    train = Experiment("agent", seeds=2)
    plan = make_plan(Experiment("both", commands=[train, dt]), ROOT, facts)
    assert [run.name for run in plan.runs] == ["agent_s0", "agent_s1", "dt_steps-1_s0", "dt_steps-2_s0"]
    assert [run.group for run in plan.runs] == ["agent", "agent", "dt_steps-1", "dt_steps-2"]
    assert plan.runs[2].folder == ROOT / "both" / "dt_steps-1_s0"
    assert plan.runs[0].program == ("rollmill", "train")


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ({"commands": [Experiment("a"), Experiment("a")]}, "two commands have one name"),
        ({"commands": [Experiment("a")], "seeds": 2}, "with commands, each of them has params, seeds"),
        ({"commands": [Experiment("a", shuffle=1)]}, "a command has no commands, launch or shuffle"),
        ({"program": ("rollmill", "report")}, "`rollmill report` cannot be launched; train, offline, collect"),
        ({"program": ("rollmill", "world", "video", "x")}, "`rollmill world video x` cannot be launched"),
        ({"program": ("rollmill", "world", "encode", "a", "b"), "seeds": 2}, "has no seed; leave out seeds"),
    ],
)
def test_commands_that_cannot_be(what: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        Experiment("e", **what)


def test_a_shuffled_plan_has_the_same_runs_in_another_order_and_always_that_one() -> None:
    grid = ParamGrid({"learning.gamma": [0.1 * k for k in range(9)]})
    plain, one, two, other = (
        [run.name for run in make_plan(Experiment("e", grid, 2, shuffle=seed), ROOT, facts).runs]
        for seed in (None, 1, 1, 2)
    )
    assert one == two != plain
    assert sorted(one) == sorted(other) == sorted(plain)
    assert one != other
