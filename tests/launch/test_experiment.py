from __future__ import annotations

from pathlib import Path

import pytest

from rollmill.core.errors import ConfigError
from rollmill.launch.experiment import Experiment, load_experiment
from rollmill.launch.params import ParamGrid

YAML = """\
experiment: gammas
config: [base.yaml]
settings: {stop: {frames: 1e5}, env: toy_target}
params:
  - grid: {learning: {gamma: [0.98, 0.99]}}
  - sum:
      - list: [{model.memory: gru}]
      - - random: {samples: 2, seed: 7, learning.learning_rate: {log_uniform: [1e-4, 1e-2]}}
        - grid: {model.memory: [none]}
seeds: 3
launch: {local: {parallel: 2}}
expect: {frames_per_s: 100}
"""


def test_yaml_and_python_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "grid.yaml").write_text(YAML)
    found = load_experiment(str(tmp_path / "grid.yaml"))
    assert found.name == "gammas"
    assert found.settings == {"stop.frames": 1e5, "env": "toy_target"}
    assert list(found.seed_list()) == [0, 1, 2]
    assert found.launch == {"local": {"parallel": 2}}
    assert found.expect.frames_per_s == 100
    assert len(list(found.all_params())) == 2 * (1 + 2) * 3
    python = tmp_path / "grid.py"
    python.write_text(
        "from rollmill.launch.experiment import Experiment, Expect\n"
        "from rollmill.launch.params import LogUniform, ParamGrid, ParamList, RandomSearch\n"
        "search = RandomSearch({'learning.learning_rate': LogUniform(1e-4, 1e-2)}, 2, seed=7)\n"
        "right = ParamList([{'model.memory': 'gru'}]) + search * ParamGrid({'model.memory': ['none']})\n"
        "GRID = Experiment('gammas', ParamGrid({'learning.gamma': [0.98, 0.99]}) * right, 3)\n"
    )
    same = load_experiment(str(python))
    assert list(same.all_params()) == list(found.all_params())
    assert load_experiment(f"{python}:GRID").name == "gammas"


def test_a_description_may_have_data_classes_of_its_own(tmp_path: Path) -> None:
    python = tmp_path / "grid.py"
    python.write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "from rollmill.launch.experiment import Experiment\n"
        "@dataclass\nclass Size:\n    width: int\n"
        "GRID = Experiment('sizes', settings={'model.mlp': [Size(64).width]})\n"
    )
    assert load_experiment(str(python)).settings == {"model.mlp": [64]}


def test_a_module_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_launch_description.py").write_text(
        "from rollmill.launch.experiment import Experiment\nA = B = Experiment('one')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert load_experiment("my_launch_description").name == "one", "two names of one experiment are one"


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("a.yaml", None, "there is no such description"),
        ("a.py", None, "there is no such description"),
        ("no.such.module", None, "no module named 'no.such.module'"),
        ("a.yaml", "experiment: x\nparam: []\n", "line 2: unknown key 'param'"),
        ("a.yaml", "params: []\n", "experiment: required"),
        ("a.yaml", "experiment: x\nparams: [{grid: {a: []}}]\n", "the list of values is empty"),
        ("a.yaml", "experiment: x\nparams: [{grids: {a: [1]}}]\n", "expected one of grid, list, random, sum"),
        ("a.yaml", "experiment: x\nparams: [{grid: 3}]\n", "grid: expected keys"),
        ("a.yaml", "experiment: x\nparams: [{list: 3}]\n", "list: expected a list"),
        ("a.yaml", "experiment: x\nparams: [{list: [3]}]\n", "list: expected a mapping"),
        ("a.yaml", "experiment: x\nparams: [{sum: []}]\n", "sum: expected a list"),
        ("a.yaml", "experiment: x\nparams: [{random: {a: {uniform: [0, 1]}}}]\n", "expected samples"),
        ("a.yaml", "experiment: x\nparams: [{random: {samples: 1, seed: x}}]\n", "seed: expected an integer"),
        ("a.yaml", "experiment: x\nparams: [{random: {samples: 1, a: 3}}]\n", "a: expected one of uniform"),
        (
            "a.yaml",
            "experiment: x\nparams: [{random: {samples: 1, a: {uniform: [0]}}}]\n",
            "a: expected one of uniform",
        ),
        ("a.yaml", "experiment: x\nparams: [{random: {samples: 1, a: {integers: [0, 1.5]}}}]\n", "integers are needed"),
        ("a.yaml", "experiment: a/b\n", "cannot be the name of a folder"),
        ("a.yaml", "experiment: x\nseeds: [1, 1]\n", "stands there twice"),
        ("a.yaml", "experiment: x\nprogram: []\n", "program is empty"),
        ("a.py", "x = 1\n", "defines no Experiment"),
        ("a.py", "x = 1 +\n", "SyntaxError.*line 1"),
        ("a.py", "x = 1\ny = z\n", "NameError.*line 2"),
        ("a.py", "import nothing_like_that\n", "ModuleNotFoundError.*line 1"),
        ("a.py", "from rollmill.launch.params import ParamGrid\nParamGrid({'a': []})\n", "list of values is empty"),
        (
            "a.py",
            "from rollmill.launch.experiment import Experiment\nA, B = Experiment('a'), Experiment('b')\n",
            r"defines several.*a.py:A",
        ),
    ],
)
def test_bad_descriptions_are_refused_with_a_reason(tmp_path: Path, name: str, text: str | None, reason: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=reason):
        load_experiment(str(tmp_path / name) if name.startswith("a.") else name)


def test_a_wrong_name_in_a_module_has_a_hint(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("from rollmill.launch.experiment import Experiment\nGRID = Experiment('a')\n")
    with pytest.raises(ConfigError, match=r"no Experiment called 'GRIT'; did you mean 'GRID'"):
        load_experiment(f"{tmp_path / 'a.py'}:GRIT")


def test_config_must_be_a_list() -> None:
    with pytest.raises(ConfigError, match="expected a list of files"):
        Experiment("a", config="base.yaml")


def test_seeds_may_be_left_to_the_parameters() -> None:
    made = Experiment("a", ParamGrid({"run.seed": [5, 6]}), seeds=0)
    assert list(made.all_params()) == [{"run.seed": 5}, {"run.seed": 6}]


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"seeds": -3}, "cannot be negative"),
        ({"params": 5}, "expected a ParamGrid"),
        ({"name": "two\nlines"}, "cannot be the name of a folder"),
    ],
)
def test_experiments_that_cannot_be_are_refused(wrong: dict[str, object], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        Experiment(**{"name": "e", **wrong})  # type: ignore[arg-type]


@pytest.mark.parametrize("source", ["", ".grid", "a b", "-x"])
def test_what_is_no_name_of_a_module_is_refused(source: str) -> None:
    with pytest.raises(ConfigError, match="a description is a YAML file"):
        load_experiment(source)


def test_a_description_that_exits_is_refused(tmp_path: Path) -> None:
    (tmp_path / "exits.py").write_text("import sys\nsys.exit(0)\n")
    with pytest.raises(ConfigError, match=r"SystemExit: 0 .*exits.py, line 2"):
        load_experiment(str(tmp_path / "exits.py"))
